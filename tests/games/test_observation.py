"""Observation windows, compared with a slow and plain reference."""

import numpy as np
import pytest

from parallel_agents.core.errors import ConfigError
from parallel_agents.games import Field, Grid, RandomSpawn, WindowObserver
from parallel_agents.games.observation import observe_windows
from tests.games.boards import KINDS, board, open_field, turn_key


def reference(grid, radius, observation):
    """Return (N, W, size) the windows, computed cell by cell."""
    field = grid.field
    agents, worlds = grid.headings.shape
    side = 2 * radius + 1
    out = np.zeros((agents, worlds, len(field.kinds) if observation == "onehot" else 3, side, side), np.float32)
    for n, w, dy, dx in np.ndindex(agents, worlds, side, side):
        y, x = grid.positions[n, w] + (dy - radius, dx - radius)
        inside = 0 <= y < field.height and 0 <= x < field.width
        codes = [int(code) for code in grid.cells[w, :, y, x]] if inside else [field.code("wall")]
        things = [code for code in codes if code]
        if observation == "onehot":
            for code in things:
                out[n, w, code - 1, dy, dx] = 1.0
        elif things:
            out[n, w, :, dy, dx] = np.array(field.kinds[things[-1] - 1].colour, np.float32) / np.float32(255)
    return out.reshape(agents, worlds, -1)


def busy_grid(layers, radius, agents=5, worlds=3):
    """Return a grid with agents of two kinds, things and floors."""
    maps = ["s.w...s\n.g..s..\n.......\ns......"] * (layers - 1) + ["......#\n.......\n...#...\n......."]
    kinds = ["agent", "rival"] * agents
    grid = Grid(Field(KINDS, *maps), agents=agents, worlds=worlds, radius=radius, agent_kinds=kinds[:agents])
    grid.reset(turn_key())
    RandomSpawn(grid, "gem", "bone", probability=0.3).spawn(turn_key(1))
    return grid


@pytest.mark.parametrize("observation", ["onehot", "rgb"])
@pytest.mark.parametrize("radius", [0, 1, 2, 4])
@pytest.mark.parametrize("layers", [1, 2])
def test_windows_of_all_and_of_single_agents_equal_those_of_the_reference(observation, radius, layers):
    grid = busy_grid(layers, radius)
    observer = WindowObserver(grid, radius=radius, observation=observation)
    for turn in range(3):
        expected = reference(grid, radius, observation)
        assert observer.observe_all().dtype == np.float32
        assert observer.size == np.prod(observer.shape) == expected.shape[-1]
        assert np.array_equal(observer.observe_all(), expected)
        for agent in (3, 0, 4, 1, 2):
            assert np.array_equal(observer.observe_agent(agent), expected[agent])
        grid.move(np.random.default_rng(turn).integers(0, 4, (5, 3)))


def test_observing_one_agent_overwrites_no_other_window():
    grid = busy_grid(1, 2)
    observer = WindowObserver(grid, radius=2)
    everyone, second = observer.observe_all(), observer.observe_agent(1)
    before = everyone.copy(), second.copy()
    grid.move(np.ones((5, 3), np.int64))
    observer.observe_agent(0)
    observer.observe_agent(2)
    assert np.array_equal(everyone, before[0])
    assert np.array_equal(second, before[1])
    assert not np.array_equal(observer.observe_agent(1), before[1])


def test_a_single_kind_in_a_single_world():
    field = Field([kind for kind in KINDS if kind.name == "agent"], "..", outside="agent")
    observer = WindowObserver(Grid(field, agents=2), radius=1)
    assert observer.observe_all().reshape(2, 9).tolist() == [[1.0] * 9, [1.0] * 9]


@pytest.mark.parametrize("observation", ["onehot", "rgb"])
def test_nothing_is_written_beyond_the_spare_numbers(observation):
    field = Field([kind for kind in KINDS if kind.name == "agent"], "......", outside="agent")
    grid, area, views = Grid(field, agents=3), 9, 2
    size = area * (1 if observation == "onehot" else 3)
    out = np.full(5 * size, -1.0, np.float32)
    used = views * size + area
    tables = np.array([area, 0], np.uint64), np.ones((2, 3), np.float32)
    observe_windows(out[:used], grid.arrays, grid.headings, 0, *tables, 3, observation == "onehot")
    assert (out[: views * size] >= 0).all()
    assert (out[used:] == -1.0).all()


def test_a_window_larger_than_the_margin_and_an_unknown_encoding_are_refused():
    grid = open_field(radius=2)
    assert np.array_equal(WindowObserver(grid, radius=1).observe_all(), reference(grid, 1, "onehot"))
    with pytest.raises(ConfigError, match=r"window of radius 3 on a grid made for 0 to 2: make the grid with"):
        WindowObserver(grid, radius=3)
    with pytest.raises(ConfigError, match=r"observation is 'sonar': give 'onehot' or 'rgb'"):
        WindowObserver(grid, radius=1, observation="sonar")


@pytest.mark.parametrize("observation", ["onehot", "rgb"])
@pytest.mark.parametrize("facing", range(4))
def test_an_egocentric_window_is_the_plain_one_turned(observation, facing):
    grid = board(".g... ..b.# .s0.. #...g ..w..", floor="s...s ..... ..... ..... ....s", radius=2)
    plain = WindowObserver(grid, radius=2, observation=observation)
    turned = WindowObserver(grid, radius=2, observation=observation, egocentric=True)
    grid.headings[:] = facing
    expected = np.rot90(plain.observe_all().reshape(plain.shape), facing, axes=(1, 2))
    assert np.array_equal(turned.observe_all().reshape(plain.shape), expected)
    assert np.array_equal(turned.observe_agent(0).reshape(plain.shape), expected)
