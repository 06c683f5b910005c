"""Moves relative to where an agent faces, turning, and actions that are a game's own."""

import numpy as np
import pytest

from parallel_agents.errors import ConfigError
from parallel_agents.games import MOVES, TURNING_MOVES, WAYS, Field, Grid, Sight, walled


@pytest.fixture
def turning(boards):
    field = Field(boards.KINDS, walled(5, 5))
    grid = Grid(field, agents=1, radius=2, actions=TURNING_MOVES, deeds=("wave",))
    grid.put(0, 0, (2, 2))
    return grid


def do(grid, action, facing):
    grid.headings[:] = facing
    grid.move(np.array([[grid.actions.index(action)]]))
    return tuple(grid.positions[0, 0] - (2, 2)), int(grid.headings[0, 0])


@pytest.mark.parametrize("facing", range(4))
@pytest.mark.parametrize(("action", "turned"), [("forward", 0), ("step_right", 1), ("backward", 2), ("step_left", 3)])
def test_relative_moves_go_where_the_agent_faces_and_do_not_turn_it(turning, action, turned, facing):
    assert do(turning, action, facing) == (tuple(WAYS[(facing + turned) % 4]), facing)


@pytest.mark.parametrize("facing", range(4))
@pytest.mark.parametrize(("action", "turned"), [("turn_right", 1), ("turn_left", 3), ("stay", 0), ("wave", 0)])
def test_turns_and_deeds_stay_in_place(turning, action, turned, facing):
    assert do(turning, action, facing) == ((0, 0), (facing + turned) % 4)


def test_the_usual_moves_are_known(boards):
    assert Grid(Field(boards.KINDS, walled(4, 4)), agents=1, actions=MOVES).actions == MOVES


def test_an_unknown_action_names_the_games_own(boards):
    with pytest.raises(ConfigError, match=r"out of stay, .*step_left, or the game's own zap"):
        Grid(Field(boards.KINDS, walled(4, 4)), agents=1, actions=("fly",), deeds=("zap",))


@pytest.mark.parametrize("observation", ["onehot", "rgb"])
@pytest.mark.parametrize("facing", range(4))
def test_an_egocentric_window_is_the_plain_one_turned(boards, observation, facing):
    grid = boards.board(".g... ..b.# .s0.. #...g ..w..", floor="s...s\n.....\n.....\n.....\n....s", radius=2)
    plain = Sight(grid, radius=2, observation=observation)
    turned = Sight(grid, radius=2, observation=observation, egocentric=True)
    grid.headings[:] = facing
    wanted = np.rot90(plain.all().reshape(plain.shape), facing, axes=(1, 2))
    assert np.array_equal(turned.all().reshape(plain.shape), wanted)
    assert np.array_equal(turned.one(0).reshape(plain.shape), wanted)
