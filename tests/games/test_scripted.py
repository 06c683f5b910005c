"""Scripted players: the directions in which they walk, and whole episodes."""

import numpy as np
import pytest
from scipy import stats

from examples.treasure_hunt import TreasureHunt
from parallel_agents.games import (
    TURNING_MOVES,
    Field,
    Grid,
    best_directions,
    direction_actions,
    play,
    random_policy,
    walk_towards,
    walled_map,
)
from tests.games.boards import DOWN, KINDS, LEFT, RIGHT, UP, board, make_game, make_staged


def where(grid, name="gem"):
    """Return (W, H, C) where a kind lies."""
    return grid.cells[:, grid.field.layer] == grid.field.code(name)


@pytest.mark.parametrize(
    ("text", "direction"),
    [
        ("##### #0.g# #####", RIGHT),
        ("##### #g.0# #####", LEFT),
        ("##### #.0.# #...# #.g.# #####", DOWN),
        ("###### #0#g.# #.#..# #....# ######", DOWN),  # round the wall
        ("###### #0..g# #g...# ######", DOWN),  # the nearest
        ("##### #0.b# #####", -1),
        ("##### #0#g# #####", -1),
        ("##### #01g# #...# #####", DOWN),  # around another agent
        ("##### #01g# #####", -1),
    ],
)
def test_the_best_direction_leads_to_the_nearest_wanted_thing(text, direction):
    grid = board(text)
    assert best_directions(grid, where(grid))[0, 0] == direction


def test_agents_may_want_different_things():
    grid = board("###### #g0.b# #b1.g# ######")
    both = np.stack([where(grid, "gem"), where(grid, "bone")])
    assert best_directions(grid, both)[:, 0].tolist() == [LEFT, LEFT]


def test_tie_decides_between_equal_directions():
    grid = board("##### #g0g# #####")
    tie = np.zeros((1, 1, 4))
    tie[..., RIGHT] = 1.0
    assert best_directions(grid, where(grid), tie=tie)[0, 0] == RIGHT
    assert best_directions(grid, where(grid), tie=1.0 - tie)[0, 0] == LEFT


@pytest.mark.parametrize("facing", range(4))
@pytest.mark.parametrize("direction", range(4))
@pytest.mark.parametrize("actions", [("up", "down", "left", "right"), TURNING_MOVES])
def test_the_action_moves_in_its_direction(actions, direction, facing):
    grid = Grid(Field(KINDS, walled_map(5, 5)), agents=1, actions=actions)
    grid.place_agent(0, 0, (2, 2))
    grid.headings[:] = facing
    grid.move(direction_actions(grid, np.array([[direction]])))
    assert tuple(grid.positions[0, 0]) == {UP: (1, 2), RIGHT: (2, 3), DOWN: (3, 2), LEFT: (2, 1)}[direction]


@pytest.mark.parametrize(("thing", "action"), [("g", "right"), ("f", "down")])
def test_players_walk_towards_what_they_want_or_take_the_other_action(thing, action):
    game = make_staged(TreasureHunt, f"##### #0.{thing}# #####", spawn_probability=0.0)
    assert walk_towards(game, where(game.grid), otherwise="down")[0, 0] == game.grid.actions.index(action)


def test_players_with_nothing_to_walk_to_move_at_random():
    game = make_game(TreasureHunt, worlds=64)
    moves = walk_towards(game, np.zeros_like(where(game.grid)))
    assert stats.chisquare(np.bincount(moves.ravel(), minlength=4)).pvalue > 1e-4


def test_an_episode_can_be_repeated_and_random_policys_are_random():
    game = make_game(TreasureHunt, worlds=8)
    first, second, other = (play(game, random_policy, epoch=epoch) for epoch in (1, 1, 2))
    assert first.rewards.shape == first.free.shape == (100, 8, 8)
    assert np.array_equal(first.rewards, second.rewards)
    assert not np.array_equal(first.rewards, other.rewards)
    assert np.array_equal(first.returns, first.rewards.sum(axis=0))
    assert first.free.all()
    actions = []
    for game.turn in range(1, 30):
        actions.append(random_policy(game).ravel())
    assert stats.chisquare(np.bincount(np.concatenate(actions), minlength=4)).pvalue > 1e-4
