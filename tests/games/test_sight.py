"""Windows, against a slow and plain reference."""

import numpy as np
import pytest

from parallel_agents.errors import ConfigError
from parallel_agents.games import windows
from parallel_agents.games.field import Field
from parallel_agents.games.grid import Grid
from parallel_agents.games.sight import Sight


def reference(grid, radius, observation):
    """(N, W, size) cell by cell."""
    field = grid.field
    agents, worlds = grid.headings.shape
    side = 2 * radius + 1
    out = np.zeros((agents, worlds, len(field.kinds) if observation == "onehot" else 3, side, side), np.float32)
    for n, w, dy, dx in np.ndindex(agents, worlds, side, side):
        y, x = grid.positions[n, w] + (dy - radius, dx - radius)
        inside = 0 <= y < field.height and 0 <= x < field.width
        codes = [int(code) for code in grid.cells[w, :, y, x]] if inside else [field.code("wall")]
        lying = [code for code in codes if code]
        if observation == "onehot":
            for code in lying:
                out[n, w, code - 1, dy, dx] = 1.0
        elif lying:
            out[n, w, :, dy, dx] = np.array(field.kinds[lying[-1] - 1].colour, np.float32) / np.float32(255)
    return out.reshape(agents, worlds, -1)


def busy_grid(boards, layers, radius, agents=5, worlds=3):
    maps = ["s.w...s\n.g..s..\n.......\ns......"] * (layers - 1) + ["......#\n.......\n...#...\n......."]
    looks = ["agent", "rival"] * agents
    grid = Grid(Field(boards.KINDS, *maps), agents=agents, worlds=worlds, radius=radius, looks=looks[:agents])
    grid.fresh(boards.moment())
    grid.spawn(grid.spawning("gem", "bone", probability=0.3), boards.moment(1))
    return grid


@pytest.mark.parametrize("observation", ["onehot", "rgb"])
@pytest.mark.parametrize("radius", [0, 1, 2, 4])
@pytest.mark.parametrize("layers", [1, 2])
def test_windows_are_those_of_the_reference(boards, observation, radius, layers):
    grid = busy_grid(boards, layers, radius)
    sight = Sight(grid, radius=radius, observation=observation)
    for turn in range(3):
        wanted = reference(grid, radius, observation)
        assert sight.all().dtype == np.float32
        assert sight.size == np.prod(sight.shape) == wanted.shape[-1]
        assert np.array_equal(sight.all(), wanted)
        grid.move(np.random.default_rng(turn).integers(0, 4, (5, 3)))


@pytest.mark.parametrize("observation", ["onehot", "rgb"])
def test_one_agent_sees_what_it_sees_among_all(boards, observation):
    grid = busy_grid(boards, 1, 2)
    sight = Sight(grid, radius=2, observation=observation)
    for agent in (3, 0, 4, 1, 2):
        assert np.array_equal(sight.one(agent), reference(grid, 2, observation)[agent])


def test_one_agent_s_window_overwrites_neither_all_windows_nor_another_s(boards):
    grid = busy_grid(boards, 1, 2)
    sight = Sight(grid, radius=2)
    everyone, second = sight.all(), sight.one(1)
    before = everyone.copy(), second.copy()
    grid.move(np.ones((5, 3), np.int64))
    sight.one(0)
    sight.one(2)
    assert np.array_equal(everyone, before[0])
    assert np.array_equal(second, before[1])
    assert not np.array_equal(sight.one(1), before[1])


def test_a_single_kind_in_a_single_world(boards):
    field = Field([kind for kind in boards.KINDS if kind.name == "agent"], "..", outside="agent")
    sight = Sight(Grid(field, agents=2), radius=1)
    assert sight.all().reshape(2, 9).tolist() == [[1.0] * 9, [1.0] * 9]


@pytest.mark.parametrize("observation", ["onehot", "rgb"])
def test_nothing_is_written_beyond_the_spare_numbers(boards, observation):
    field = Field([kind for kind in boards.KINDS if kind.name == "agent"], "......", outside="agent")
    grid, area, views = Grid(field, agents=3), 9, 2
    size = area * (1 if observation == "onehot" else 3)
    out = np.full(5 * size, -1.0, np.float32)
    used = views * size + area
    if observation == "onehot":
        windows.onehot(3)(out[:used], grid.padded, 1, grid.positions, grid.headings, 0, np.array([area, 0], np.uint64))
    else:
        windows.colours(3)(out[:used], grid.padded, 1, grid.positions, grid.headings, 0, np.ones((2, 3), np.float32))
    assert (out[: views * size] >= 0).all()
    assert (out[used:] == -1.0).all()


def test_a_window_may_be_smaller_than_the_margin_but_not_larger(boards):
    grid = boards.open_field(radius=2)
    assert np.array_equal(Sight(grid, radius=1).all(), reference(grid, 1, "onehot"))
    with pytest.raises(ConfigError, match=r"window of radius 3 on a grid made for 0 to 2: make the grid with"):
        Sight(grid, radius=3)


def test_an_unknown_observation_is_refused(boards):
    with pytest.raises(ConfigError, match=r"observation is 'sonar': give 'onehot' or 'rgb'"):
        Sight(boards.open_field(), radius=1, observation="sonar")
