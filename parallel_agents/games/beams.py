"""Beams: what an agent fires ahead, and whom or what it hits.

A beam covers `width` columns side by side, up to `length` cells ahead of the agent. A column ends at a wall, at the
edge of the field, and at the first thing that it hits. It is seen, on its own layer, until it is cleared.

>>> from parallel_agents.games.field import Field, Kind
>>> from parallel_agents.games.grid import Grid
>>> kinds = [Kind("wall", "#", (90, 90, 90), passable=False), Kind("agent", "a", (250, 250, 250), passable=False),
...          Kind("ray", "*", (250, 250, 90))]
>>> grid = Grid(Field(kinds, "....#..", ".......", layer=0), agents=2)
>>> grid.put(1, 0, (0, 3))
>>> grid.headings[:] = 1  # they face right
>>> hits = Beam(grid, "ray", length=5, agents=True).fire(np.array([[True], [False]]))
>>> print(grid.text(), hits.suffered[:, 0])
a***#.. [0 1]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from parallel_agents.compiled import njit
from parallel_agents.errors import ConfigError
from parallel_agents.games.grid import Grid
from parallel_agents.games.kernels import Bytes, Flags, Ints

__all__ = ["Beam", "Hits"]


class Hits(NamedTuple):
    """What came of firing; all (N, W)."""

    suffered: Ints
    """How many beams hit each agent."""
    dealt: Ints
    """How many agents each agent hit."""
    changed: Ints
    """How many things each agent changed."""


class Beam:
    """A beam of the agents of a grid, seen as the kind `name` on the uppermost layer.

    agents: whether it hits agents. changes: which kinds it turns into which others, on the layer `changes_on`.
    """

    def __init__(
        self,
        grid: Grid,
        name: str,
        *,
        length: int,
        width: int = 1,
        agents: bool = False,
        changes: Mapping[str, str] | None = None,
        changes_on: int = 0,
    ) -> None:
        field = grid.field
        if length < 1 or width < 1 or width % 2 == 0:
            raise ConfigError(f"a beam of length {length} and width {width}: give at least 1, and an odd width")
        if field.layer == len(field.cells) - 1:
            raise ConfigError("a beam needs a layer above the agents: give the field one more map, and Field(layer=…)")
        if not 0 <= changes_on < len(field.cells):
            raise ConfigError(f"a beam changes things on layer {changes_on}: give 0 to {len(field.cells) - 1}")
        self._grid, self._code, self._agents = grid, field.code(name), agents
        self._length, self._half, self._on = length, width // 2, changes_on
        self._table = np.arange(len(field.kinds) + 1, dtype=np.uint8)
        for before, after in (changes or {}).items():
            self._table[field.code(before)] = field.code(after)
        shape = grid.headings.shape
        self._hits = Hits(*(np.zeros(shape, np.int32) for _ in Hits._fields))

    def clear(self) -> None:
        """Let every beam of the last turn fade."""
        self._grid.padded[:, -1] = 0

    def fire(self, firing: Flags) -> Hits:
        """Fire the beams of those in the (N, W) mask, all at once in list order.

        The counts are written anew at every call: copy what you keep.
        """
        grid = self._grid
        for counts in self._hits:
            counts[:] = 0
        _fire(
            grid.padded, grid.margin, grid.field.layer, grid.positions, grid.headings, grid.field.passable,
            grid.agents_of(firing), self._code, self._length, self._half, self._agents, self._table, self._on,
            *self._hits,
        )  # fmt: skip
        return self._hits


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _fire(
    cells: Bytes,
    margin: int,
    layer: int,
    positions: Ints,
    headings: Bytes,
    passable: Flags,
    firing: Flags,
    shown: int,
    length: int,
    half: int,
    hits_agents: bool,
    table: Bytes,
    changes_on: int,
    suffered: Ints,
    dealt: Ints,
    changed: Ints,
) -> None:
    """Columns -half … half of each beam, cell by cell until something ends them; see `Beam`."""
    agents, worlds = firing.shape
    _, layers, height, width = cells.shape
    plane = np.uint64(height * width)
    flat = cells.reshape(-1)
    for w in range(worlds):
        bottom = np.uint64(w * layers) * plane
        stood, lain = bottom + np.uint64(layer) * plane, bottom + np.uint64(changes_on) * plane
        top = bottom + np.uint64(layers - 1) * plane
        for n in range(agents):
            if not firing[n, w]:
                continue
            ahead_y, ahead_x = _ahead(headings[n, w])
            for column in range(-half, half + 1):
                y = positions[n, w, 0] + margin + column * ahead_x  # a column to the right, seen by the agent
                x = positions[n, w, 1] + margin - column * ahead_y
                for step in range(length + 1):
                    # The outer columns start beside the agent, so that none comes round a corner.
                    if step > 0:
                        y += ahead_y
                        x += ahead_x
                    elif column == 0:
                        continue
                    if not (0 <= y < height and 0 <= x < width):
                        break
                    at = np.uint64(y * width + x)
                    who = -1
                    if not passable[flat[stood + at]]:
                        who = _agent_at(positions, y - margin, x - margin, w)
                        if who < 0:
                            break
                    if step == 0:
                        continue
                    flat[top + at] = shown
                    if hits_agents and who >= 0:
                        suffered[who, w] += 1
                        dealt[n, w] += 1
                        break
                    code = flat[lain + at]
                    if table[code] != code:
                        flat[lain + at] = table[code]
                        changed[n, w] += 1
                        break


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _ahead(heading: int) -> tuple[int, int]:
    """Rows and columns of a step forward."""
    return (heading == 2) * 1 - (heading == 0) * 1, (heading == 1) * 1 - (heading == 3) * 1


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _agent_at(positions: Ints, y: int, x: int, world: int) -> int:
    """Who stands there; -1: nobody."""
    for n in range(positions.shape[0]):
        if positions[n, world, 0] == y and positions[n, world, 1] == x:
            return n
    return -1
