"""Grids and games on boards written as text: the digits are agents, the other characters glyphs of kinds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from parallel_agents.core.seeding import Purpose, key
from parallel_agents.games import MOVES, Field, Grid, GridEnvironment, Kind, TurnKey, blank_map, play, walled_map

KINDS = (
    Kind("wall", "#", (100, 100, 100), passable=False),
    Kind("gem", "g", (0, 0, 255), value=10.0),
    Kind("bone", "b", (255, 0, 0), value=-10.0),
    Kind("sand", "s", (200, 200, 0)),
    Kind("water", "w", (0, 100, 200), passable=False),
    Kind("agent", "a", (255, 255, 255), passable=False),
    Kind("rival", "r", (50, 60, 70), passable=False),
    Kind("ray", "*", (255, 210, 90)),
)
UP, RIGHT, DOWN, LEFT = range(4)
"""Headings and directions."""


def turn_key(turn: int = 0, epoch: int = 1, seed: int = 0) -> TurnKey:
    """Return the address of a turn's draws."""
    return (*key(seed, Purpose.WORLD), epoch, turn, 0)


def board(
    text: str,
    floor: str | None = None,
    worlds: int = 1,
    radius: int = 1,
    agent_kinds: str | Sequence[str] = "agent",
    facing: int = UP,
    beams: bool = False,
) -> Grid:
    """Return a grid that looks like the text in every world; `floor` is a layer below, `beams` adds one above."""
    rows, agents = _parse(text)
    above = [blank_map(len(rows), len(rows[0]))] if beams else []
    maps = [*(["\n".join(floor.split())] if floor else []), "\n".join(rows)]
    field = Field(KINDS, *maps, *above, layer=len(maps) - 1)
    grid = Grid(field, agents=len(agents), worlds=worlds, radius=radius, agent_kinds=agent_kinds, actions=MOVES)
    grid.cells[:] = field.cells
    _stand(grid, agents, facing)
    return grid


def shown(grid: Grid, world: int = 0) -> str:
    """Return the board as `board` reads it, its rows separated by blanks."""
    rows = [list(row) for row in grid.text(world).split("\n")]
    for n, (y, x) in enumerate(grid.positions[:, world]):
        rows[y][x] = str(n)
    return " ".join("".join(row) for row in rows)


def open_field(agents: int = 3, worlds: int = 1, height: int = 9, width: int = 8, radius: int = 1) -> Grid:
    """Return an empty walled field on which the agents have been placed at random."""
    grid = Grid(Field(KINDS, walled_map(height, width)), agents=agents, worlds=worlds, radius=radius, actions=MOVES)
    grid.reset(turn_key())
    return grid


def step(grid: Grid, *actions: str, first: int = 0) -> list[float]:
    """Let each agent from `first` on take one action in the only world; return the values of what they entered."""
    entered = grid.move(np.array([[grid.actions.index(action)] for action in actions]), first)
    return [float(value) for value in grid.field.values[entered][:, 0]]


def make_game(cls: type[GridEnvironment], worlds: int = 1, turns: int = 100, seed: int = 0, **world: Any) -> Any:
    """Return a game whose agents act at random, before its first turn."""
    experiment = {"worlds": worlds, "max_turns": turns, "seed": seed}
    game = cls(config={"experiment": experiment, "world": world, "model": {"algorithm": "random"}})
    game.begin_epoch(1)
    return game


def make_staged(cls: type[GridEnvironment], text: str, ground: str = "", facing: int = UP, **world: Any) -> Any:
    """Return a game in its first turn whose only world looks like the text; `ground` is the lowest layer."""
    rows, agents = _parse(text)
    sizes = {"agents": len(agents), "height": len(rows), "width": len(rows[0])}
    game = make_game(cls, **sizes | world)
    grid = game.grid
    codes = {".": 0, **{kind.glyph: grid.field.code(kind.name) for kind in grid.field.kinds}}
    for layer, lines in ((grid.field.layer, rows), (0, ground.split())):
        for y, row in enumerate(lines):
            grid.cells[0, layer, y] = [codes[glyph] for glyph in row]
    _stand(grid, agents, facing)
    game.turn = 1
    return game


def act(game: Any, *names: str) -> list[float]:
    """Let each agent take one action in the only world; return their rewards, to four digits."""
    rewards = game.apply_actions(np.array([[game.grid.actions.index(name)] for name in names]))
    return [round(float(reward), 4) for reward in rewards[:, 0]]


def next_turn(game: Any) -> list[bool]:
    """Begin the next turn; return which agents of the first world can act in it."""
    game.turn += 1
    game.begin_turn()
    able = game.can_act()
    return [True] * len(game.agents) if able is None else [bool(flag) for flag in able[:, 0]]


def mean_return(cls: type[GridEnvironment], policy: Any, worlds: int = 8) -> float:
    """Return the mean return of the players of one episode."""
    return float(play(make_game(cls, worlds=worlds), policy).returns.mean())


def _parse(text: str) -> tuple[list[str], list[tuple[int, int]]]:
    """Return the rows without agents, and the cells of agents 0, 1, …"""
    rows = text.split()
    agents = {int(glyph): (y, x) for y, row in enumerate(rows) for x, glyph in enumerate(row) if glyph.isdigit()}
    bare = ["".join("." if glyph.isdigit() else glyph for glyph in row) for row in rows]
    return bare, [agents[n] for n in range(len(agents))]


def _stand(grid: Grid, cells: Sequence[tuple[int, int]], facing: int) -> None:
    """Let the agents stand in these cells of every world."""
    for n, (y, x) in enumerate(cells):
        grid.positions[n] = y, x
        grid.cells[:, grid.field.layer, y, x] = grid.agent_kinds[n]
    grid.headings[:] = facing
