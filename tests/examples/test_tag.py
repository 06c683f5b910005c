"""The rules of `examples/tag.py`."""

import numpy as np

from examples.tag import Tag, sensible
from parallel_agents.games import play, random_policy
from tests.games.boards import act, make_game, make_staged, next_turn


def stage(text, it, **world):
    game = make_staged(Tag, text, **world)
    game.worlds.roles[:, 0] = np.arange(len(game.agents)) == it
    game.grid.set_agent_kinds(
        np.where(game.worlds.roles > 0, game.grid.field.code("it"), game.grid.field.code("runner"))
    )
    return game


def test_it_tags_the_runner_beside_it():
    game = stage("####### #0.1..# #######", it=0)
    assert act(game, "right", "stay") == [0.9, -1.0]
    assert game.it.tolist() == [1]
    assert game.grid.text().split()[1] == "#.ri..#"


def test_being_it_costs():
    assert act(stage("####### #0...1# #######", it=1), "stay", "stay") == [0.0, -0.1]


def test_the_first_runner_in_the_list_is_tagged():
    assert act(stage("####### #210..# #######", it=1), "stay", "stay", "stay") == [-1.0, 0.9, 0.0]


def test_a_tagged_agent_waits_and_does_not_tag_back_at_once():
    game = stage("####### #01...# #######", it=0, frozen_turns=2)
    assert act(game, "stay", "stay") == [0.9, -1.0]
    for _ in range(2):
        assert next_turn(game) == [True, False]
        assert act(game, "stay", "stay") == [0.0, -0.1]
    assert next_turn(game) == [True, True]
    assert act(game, "stay", "stay") == [-1.0, 0.9]


def test_exactly_one_agent_is_it_and_appears_so():
    game = make_game(Tag, worlds=40, turns=30)
    assert len(set(game.it.tolist())) == 5
    play(game, random_policy)
    code = game.grid.field.code("it")
    assert ((game.grid.agent_kinds == code).sum(axis=0) == 1).all()
    assert (game.grid.agent_kinds[game.it, np.arange(40)] == code).all()
    assert ((game.grid.cells == code).sum(axis=(1, 2, 3)) == 1).all()


def test_a_sensible_player_does_better_than_the_random_ones_it_plays_with():
    def mixed(game):
        return np.where((np.arange(5) == 0)[:, None], sensible(game), random_policy(game))

    returns = play(make_game(Tag, worlds=32), mixed).returns.mean(axis=1)
    assert returns[0] > returns[1:].max() + 1.0
