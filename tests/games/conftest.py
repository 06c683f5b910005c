"""Hand-made boards: a text in which 0, 1, 2, … are agents and all else are the glyphs of `KINDS`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from parallel_agents.games import GridEnvironment
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
    agents = {int(glyph): (y, x) for y, row in enumerate(rows) for x, glyph in enumerate(row) if glyph.isdigit()}
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
    grid = Grid(Field(KINDS, walled(height, width)), agents=agents, worlds=worlds, radius=radius, actions=ACTIONS)
    grid.fresh(moment())
    return grid


def play(grid: Grid, *actions: str, first: int = 0) -> list[float]:
    """One action for each agent from `first` on, in the only world; what they earned."""
    codes = np.array([[ACTIONS.index(action)] for action in actions])
    return grid.field.values[grid.move(codes, first)][:, 0].tolist()


def rows(text: str) -> str:
    """A text without its indentation."""
    return "\n".join(text.split())


def load(name: str) -> ModuleType:
    """A game of `examples/`, from its file."""
    path = Path(__file__).parents[2] / "examples" / f"{name}.py"
    key_ = f"{name}_under_test"
    if key_ not in sys.modules:
        spec = importlib.util.spec_from_file_location(key_, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[key_] = importlib.util.module_from_spec(spec)  # dataclasses look their module up there
        spec.loader.exec_module(sys.modules[key_])
    return sys.modules[key_]


def game(cls: type[GridEnvironment], worlds: int = 1, turns: int = 100, seed: int = 0, **world: Any) -> Any:
    """A game whose agents act at random, before its first turn."""
    experiment = {"worlds": worlds, "max_turns": turns, "seed": seed}
    made = cls(config={"experiment": experiment, "world": world, "model": {"algorithm": "random"}})
    made.begin_epoch(1)
    return made


def staged(cls: type[GridEnvironment], text: str, ground: str = "", facing: int = 0, **world: Any) -> Any:
    """A game that stands as the text says: digits are agents, all else are glyphs of its kinds; nothing grows."""
    rows = text.split()
    agents = sorted((glyph, y, x) for y, row in enumerate(rows) for x, glyph in enumerate(row) if glyph.isdigit())
    sizes = {"agents": len(agents), "height": len(rows), "width": len(rows[0])}
    made = game(cls, **sizes | world)
    grid = made.grid
    codes = {".": 0, **{kind.glyph: grid.field.code(kind.name) for kind in grid.field.kinds}}
    for number, layer in ((grid.field.layer, text), *([(0, ground)] if ground else [])):
        for y, row in enumerate(layer.split()):
            grid.cells[0, number, y] = [0 if glyph.isdigit() else codes[glyph] for glyph in row]
    for n, (_, y, x) in enumerate(agents):
        grid.positions[n, 0] = y, x
        grid.cells[0, grid.field.layer, y, x] = grid.looks[n, 0]
    grid.headings[:] = facing
    made.turn = 1
    return made


def act(made: Any, *names: str) -> list[float]:
    """One action for each agent in the only world; what they earned, to four digits."""
    earned = made.apply_actions(np.array([[made.grid.actions.index(name)] for name in names]))
    return [round(float(own), 4) for own in earned[:, 0]]


@pytest.fixture(scope="session")
def boards() -> SimpleNamespace:
    """The helpers above."""
    helpers: list[Callable[..., object]] = [moment, board, shown, open_field, play, rows, load, game, staged, act]
    return SimpleNamespace(KINDS=KINDS, ACTIONS=ACTIONS, **{helper.__name__: helper for helper in helpers})
