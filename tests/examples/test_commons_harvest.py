"""The rules of `examples/commons_harvest.py`."""

import numpy as np

from examples.commons_harvest import CommonsHarvest, patches, sensible
from parallel_agents.games import play
from parallel_agents.games.social_metrics import sustainability
from tests.games.boards import RIGHT, act, make_game, make_staged, next_turn


def stage(row, **world):
    """Return a game on a field of the least height, with one row to play in; agents face right."""
    wall = "#" * len(row)
    return make_staged(CommonsHarvest, " ".join([wall] * 3 + [row] + [wall] * 4), facing=RIGHT, **world)


def test_the_field_has_patches():
    wall, bare, edge, middle = "##############", "#............#", "#..oo....oo..#", "#.oooo..oooo.#"
    assert patches(8, 14).split() == [wall, bare, edge, middle, middle, edge, bare, wall]


def test_an_apple_is_worth_one_and_disappears():
    game = stage("#0oo....#")
    assert act(game, "forward") == [1.0]
    assert game.grid.text().split()[3] == "#.ao....#"


def test_apples_grow_again_only_with_apples_near():
    game = make_game(CommonsHarvest, agents=1, height=8, width=14, regrowth=(0.0, 1.0))
    apple = game.grid.field.code("apple")
    cells = game.grid.cells[0, 0]
    cells[:, 1:7][cells[:, 1:7] == apple] = 0  # the left patch is bare
    cells[3, 9] = 0  # one is missing in the right one
    for _ in range(3):
        next_turn(game)
    assert cells[3, 9] == apple
    assert not (cells[:, 1:7] == apple).any()


def test_an_episode_ends_when_no_apple_is_left():
    game = stage("#0o.1...#")
    assert not game.dones()[0].any()
    act(game, "forward", "stay")
    terminated, truncated = game.dones()
    assert terminated.all()
    assert not truncated.any()


def test_zapping_freezes():
    game = stage("#0...1.o#", frozen_turns=1)
    assert act(game, "zap", "stay") == [0.0, 0.0]
    assert game.grid.text().split()[3] == "#azzzz.o#"
    assert [next_turn(game), next_turn(game)] == [[True, False], [True, True]]


def test_a_new_episode_frees_everyone():
    game = stage("#0...1.o#", frozen_turns=9)
    act(game, "zap", "stay")
    game.reset_worlds(np.array([True]))
    assert next_turn(game) == [True, True]


def test_greedy_players_end_the_commons_and_restrained_players_live_on():
    def played(spare):
        game = make_game(CommonsHarvest, worlds=3, turns=150)
        return play(game, lambda game: sensible(game, spare)), game.apples.remaining()

    greedy, none_left = played(0)
    restrained, left = played(2)
    assert not none_left.any()
    assert left.all()
    assert sustainability(restrained.rewards).min() > 3 * sustainability(greedy.rewards).max()
    assert restrained.returns.mean() > 1.5 * greedy.returns.mean()


def test_a_world_that_has_ended_pays_nothing():
    episode = play(make_game(CommonsHarvest, worlds=2, turns=60), lambda game: sensible(game, 0))
    last = np.flatnonzero(episode.rewards.any(axis=(1, 2))).max()
    assert not episode.free[last + 1 :].any()
