"""Scripted players: the way to what they want, and whole episodes."""

import numpy as np
import pytest
from scipy import stats

from parallel_agents.games import TURNING_MOVES, Field, Grid, go, play, random_player, walled, ways

UP, RIGHT, DOWN, LEFT = range(4)


def wanted(grid, name="gem"):
    return grid.cells[:, grid.field.layer] == grid.field.code(name)


@pytest.mark.parametrize(
    ("board", "way"),
    [
        ("##### #0.g# #####", RIGHT),
        ("##### #g.0# #####", LEFT),
        ("##### #.0.# #...# #.g.# #####", DOWN),
        ("###### #0#g.# #.#..# #....# ######", DOWN),  # round the wall
        ("###### #0..g# #g...# ######", DOWN),  # the nearest
        ("##### #0.b# #####", -1),
        ("##### #0#g# #####", -1),
    ],
)
def test_the_way_to_the_nearest_wanted_thing(boards, board, way):
    grid = boards.board(board)
    assert ways(grid, wanted(grid)).tolist() == [[way]]


def test_who_stands_in_the_way_is_gone_round(boards):
    grid = boards.board("##### #01g# #...# #####")
    assert ways(grid, wanted(grid))[0, 0] == DOWN
    narrow = boards.board("##### #01g# #####")
    assert ways(narrow, wanted(narrow))[0, 0] == -1


def test_agents_may_want_different_things(boards):
    grid = boards.board("###### #g0.b# #b1.g# ######")
    both = np.stack([wanted(grid, "gem"), wanted(grid, "bone")])
    assert ways(grid, both)[:, 0].tolist() == [LEFT, LEFT]


def test_ties_are_broken_as_asked(boards):
    grid = boards.board("##### #g0g# #####")
    tie = np.zeros((1, 1, 4))
    tie[..., RIGHT] = 1.0
    assert ways(grid, wanted(grid), tie=tie)[0, 0] == RIGHT
    assert ways(grid, wanted(grid), tie=1.0 - tie)[0, 0] == LEFT


@pytest.mark.parametrize("facing", range(4))
@pytest.mark.parametrize("way", range(4))
@pytest.mark.parametrize("actions", [("up", "down", "left", "right"), TURNING_MOVES])
def test_the_action_leads_that_way(boards, actions, way, facing):
    grid = Grid(Field(boards.KINDS, walled(5, 5)), agents=1, actions=actions)
    grid.put(0, 0, (2, 2))
    grid.headings[:] = facing
    grid.move(go(grid, np.array([[way]])))
    assert tuple(grid.positions[0, 0]) == {UP: (1, 2), RIGHT: (2, 3), DOWN: (3, 2), LEFT: (2, 1)}[way]


def test_otherwise_something_else(boards):
    assert go(boards.board("0."), np.array([[-1]]), otherwise=4).tolist() == [[4]]


def test_an_episode_can_be_repeated_and_random_players_are_random(boards):
    game = boards.game(boards.load("treasure_hunt").TreasureHunt, worlds=8)
    first, second, other = (play(game, random_player, epoch=epoch) for epoch in (1, 1, 2))
    assert first.rewards.shape == first.free.shape == (100, 8, 8)
    assert np.array_equal(first.rewards, second.rewards)
    assert not np.array_equal(first.rewards, other.rewards)
    assert np.array_equal(first.returns, first.rewards.sum(axis=0))
    assert first.free.all()
    chosen = []
    for game.turn in range(1, 30):
        chosen.append(random_player(game).ravel())
    assert stats.chisquare(np.bincount(np.concatenate(chosen), minlength=4)).pvalue > 1e-4
