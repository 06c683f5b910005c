"""Hand-made boards: a text in which 0, 1, 2, … are agents and all else are the glyphs of `KINDS`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from parallel_agents.games.field import Field, Kind, walled
from parallel_agents.games.grid import Grid
from parallel_agents.games.kernels import Moment
from parallel_agents.seeding import Purpose, key

KINDS = (
    Kind("wall", "#", (100, 100, 100), passable=False),
    Kind("gem", "g", (0, 0, 255), value=10.0),
    Kind("bone", "b", (255, 0, 0), value=-10.0),
    Kind("sand", "s", (200, 200, 0)),
    Kind("water", "w", (0, 100, 200), passable=False),
    Kind("agent", "a", (255, 255, 255), passable=False),
    Kind("rival", "r", (50, 60, 70), passable=False),
)
ACTIONS = ("up", "down", "left", "right", "stay")


def moment(turn: int = 0, epoch: int = 1, seed: int = 0) -> Moment:
    """Where the draws of a turn are."""
    return (*key(seed, Purpose.WORLD), epoch, turn)


def board(
    text: str,
    floor: str | None = None,
    worlds: int = 1,
    radius: int = 1,
    looks: str | Sequence[str] = "agent",
) -> Grid:
    """A grid that stands as the text says, in every world; `floor` is a layer below."""
    rows = text.split()
    agents = {
        int(glyph): (y, x) for y, row in enumerate(rows) for x, glyph in enumerate(row) if glyph.isdigit()
    }
    bare = "\n".join("".join("." if glyph.isdigit() else glyph for glyph in row) for row in rows)
    field = Field(KINDS, *([floor, bare] if floor else [bare]))
    grid = Grid(field, agents=len(agents), worlds=worlds, radius=radius, looks=looks, actions=ACTIONS)
    grid.cells[:] = field.cells
    for n, (y, x) in agents.items():
        grid.positions[n] = y, x
        grid.cells[:, field.layer, y, x] = grid.looks[n]
    return grid


def shown(grid: Grid, world: int = 0) -> str:
    """The board as `board` reads it."""
    rows = [list(row) for row in grid.text(world).split("\n")]
    for n, (y, x) in enumerate(grid.positions[:, world]):
        rows[y][x] = str(n)
    return "\n".join("".join(row) for row in rows)


def open_field(agents: int = 3, worlds: int = 1, height: int = 9, width: int = 8, radius: int = 1) -> Grid:
    """An empty walled field on which the agents have been placed."""
    grid = Grid(
        Field(KINDS, walled(height, width)), agents=agents, worlds=worlds, radius=radius, actions=ACTIONS
    )
    grid.fresh(moment())
    return grid


def play(grid: Grid, *actions: str, first: int = 0) -> list[float]:
    """One action for each agent from `first` on, in the only world; what they earned."""
    codes = np.array([[ACTIONS.index(action)] for action in actions])
    return grid.field.values[grid.move(codes, first)][:, 0].tolist()


def rows(text: str) -> str:
    """A text without its indentation."""
    return "\n".join(text.split())


@pytest.fixture(scope="session")
def boards() -> SimpleNamespace:
    """The helpers above."""
    helpers: list[Callable[..., object]] = [moment, board, shown, open_field, play, rows]
    return SimpleNamespace(KINDS=KINDS, ACTIONS=ACTIONS, **{helper.__name__: helper for helper in helpers})
