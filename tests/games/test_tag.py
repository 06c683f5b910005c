"""The rules of `examples/tag.py`, on hand-made boards."""

import numpy as np
import pytest

from parallel_agents.errors import ConfigError
from parallel_agents.games import play, random_player


@pytest.fixture(scope="module")
def module(boards):
    return boards.load("tag")


@pytest.fixture(scope="module")
def stage(boards, module):
    def staged(text, it, **world):
        game = boards.staged(module.Tag, text, **world)
        game.it[:] = it
        game._show()
        return game

    return staged


def test_it_tags_whom_it_stands_beside(boards, stage):
    game = stage("####### #0.1..# #######", it=0)
    assert boards.act(game, "right", "stay") == [0.9, -1.0]
    assert game.it.tolist() == [1]
    assert game.grid.text().split()[1] == "#.ri..#"


def test_being_it_costs(boards, stage):
    game = stage("####### #0...1# #######", it=1)
    assert boards.act(game, "stay", "stay") == [0.0, -0.1]


def test_the_first_in_the_list_is_tagged(boards, stage):
    game = stage("####### #210..# #######", it=1)
    assert boards.act(game, "stay", "stay", "stay") == [-1.0, 0.9, 0.0]


def test_who_was_tagged_waits_and_does_not_tag_back_at_once(boards, stage):
    game = stage("####### #01...# #######", it=0, frozen_turns=2)
    assert boards.act(game, "stay", "stay") == [0.9, -1.0]
    for game.turn in (2, 3):
        game.begin_turn()
        assert game.can_act()[:, 0].tolist() == [True, False]
        assert boards.act(game, "stay", "stay") == [0.0, -0.1]
    game.turn = 4
    game.begin_turn()
    assert game.can_act().all()
    assert boards.act(game, "stay", "stay") == [-1.0, 0.9]


def test_exactly_one_is_it_and_is_seen_as_such(boards, module):
    game = boards.game(module.Tag, worlds=40, turns=30)
    assert len(set(game.it.tolist())) == 5
    play(game, random_player)
    code = game.grid.field.code("it")
    assert ((game.grid.looks == code).sum(axis=0) == 1).all()
    assert (game.grid.looks[game.it, np.arange(40)] == code).all()
    assert ((game.grid.cells == code).sum(axis=(1, 2, 3)) == 1).all()


def test_a_sensible_player_does_better_than_the_random_ones_it_plays_with(boards, module):
    def mixed(game):
        return np.where((np.arange(5) == 0)[:, None], module.sensible(game), random_player(game))

    returns = play(boards.game(module.Tag, worlds=32), mixed).returns.mean(axis=1)
    assert returns[0] > returns[1:].max() + 1.0


def test_tag_needs_two(boards, module):
    with pytest.raises(ConfigError, match=r"world\.agents is 1: tag needs at least 2"):
        boards.game(module.Tag, agents=1)
