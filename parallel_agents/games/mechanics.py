"""Mechanics that games share: beams, things that appear or regrow, agents that respawn, and neighbours.

A mechanic is an object made once for a grid. Each one that draws has a number, so that no two share a draw.

>>> from parallel_agents.games.layout import AGENT, WALL, Field, Kind
>>> grid = Grid(Field([WALL, AGENT, Kind("ray", "*", (250, 250, 90))], "....#..", ".......", layer=0), agents=2)
>>> grid.place_agent(1, 0, (0, 3))
>>> grid.headings[:] = 1  # they face right
>>> hits = Beam(grid, "ray", length=5, hits_agents=True).fire(np.array([[True], [False]]))
>>> print(grid.text(), hits.received[:, 0])
a***#.. [0 1]
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from parallel_agents.core.compiled import njit
from parallel_agents.core.errors import ConfigError, ShapeError
from parallel_agents.core.seeding import uniform
from parallel_agents.core.types import Array
from parallel_agents.games import kernels
from parallel_agents.games.grid import DIRECTIONS, Grid
from parallel_agents.games.kernels import Bytes, Flags, GridArrays, Ints, Probabilities, Stream, TurnKey, block


class Hits(NamedTuple):
    """The result of firing; all (N, W)."""

    received: Ints
    """How many beams hit each agent."""
    dealt: Ints
    """How many agents each agent hit."""
    changed: Ints
    """How many things each agent changed."""


class Beam:
    """A beam that agents fire ahead of them, shown as the kind `name` on the topmost layer until it is cleared.

    It covers `width` columns side by side, up to `length` cells ahead of the agent. A column ends at a wall, at the
    edge of the field, and at the first thing that it hits. `hits_agents`: whether agents are hit. `changes`: which
    kinds it turns into which others, on the layer `changes_on`.
    """

    def __init__(
        self,
        grid: Grid,
        name: str,
        *,
        length: int,
        width: int = 1,
        hits_agents: bool = False,
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
        self._grid = grid
        self._shape = field.code(name), length, width // 2, hits_agents, changes_on
        self._changes = np.arange(len(field.kinds) + 1, dtype=np.uint8)
        for before, after in (changes or {}).items():
            self._changes[field.code(before)] = field.code(after)
        self._hits = Hits(*(np.zeros(grid.headings.shape, np.int32) for _ in Hits._fields))

    def clear(self) -> None:
        """Remove every beam from the topmost layer."""
        self._grid.padded[:, -1] = 0

    def fire(self, firing: Flags) -> Hits:
        """Fire the beams of the agents in the (N, W) mask, in list order.

        Every call overwrites the counts it returns: copy what you keep.
        """
        for counts in self._hits:
            counts[:] = 0
        _fire(self._grid.arrays, self._grid.agent_mask(firing), self._shape, self._changes, tuple(self._hits))
        return self._hits


class _Rule:
    """Kinds that appear on the sites of a layer, and the rule's number, which addresses its draws."""

    def __init__(self, grid: Grid, names: Sequence[str], sites: Array | None, layer: int | None) -> None:
        if not names:
            raise ConfigError("no kind is named that should appear: name at least one")
        self._grid = grid
        self._codes = np.array([grid.field.code(name) for name in names], np.uint8)
        self._layer = grid.field.layer if layer is None else layer
        if not 0 <= self._layer < len(grid.field.cells):
            raise ConfigError(f"things appear on layer {layer}: give 0 to {len(grid.field.cells) - 1}")
        self._sites = grid.check_sites(sites)
        self._number = grid.new_rule_number()


class RandomSpawn(_Rule):
    """Kinds that appear on each site with a probability, all kinds equally likely.

    They appear where nothing lies, or replace the kind `over`. `sites` is (S, 2); None: all cells in which agents may
    start.
    """

    def __init__(
        self,
        grid: Grid,
        *names: str,
        probability: float,
        sites: Array | None = None,
        layer: int | None = None,
        over: str | None = None,
    ) -> None:
        if not 0.0 <= probability <= 1.0:
            raise ConfigError(f"things appear with probability {probability}: give a number from 0 to 1")
        super().__init__(grid, names, sites, layer)
        self._target = self._layer, self._sites, self._codes, 0 if over is None else grid.field.code(over)
        self._probabilities = np.full(grid.headings.shape[1], float(probability))

    def spawn(
        self,
        turn_key: TurnKey,
        world_mask: Flags | None = None,
        stream: Stream = Stream.SPAWN,
        probabilities: Probabilities | None = None,
    ) -> None:
        """Spawn things in the worlds of the mask; `probabilities`, (W,), replaces the rule's own."""
        kernels.spawn(
            self._grid.padded, self._grid.margin, self._target,
            self._probabilities if probabilities is None else self._check(probabilities),
            turn_key, stream + self._number, self._grid.world_mask(world_mask),
        )  # fmt: skip

    def _check(self, probabilities: Probabilities) -> Probabilities:
        shape = self._probabilities.shape
        if probabilities.shape != shape or not ((probabilities >= 0.0) & (probabilities <= 1.0)).all():
            raise ShapeError(
                f"probabilities of shape {probabilities.shape}, {probabilities.min()} to {probabilities.max()}: "
                f"give one per world, {shape}, from 0 to 1"
            )
        return np.ascontiguousarray(probabilities, np.float64)


class Regrowth(_Rule):
    """A kind that grows again on its sites, depending on how much of it is near.

    `probabilities[k]` is the probability per turn for an empty site with k of the kind within `radius` (Euclidean); the
    last one holds for as many or more.
    """

    def __init__(
        self,
        grid: Grid,
        name: str,
        *,
        sites: Array,
        probabilities: Sequence[float],
        radius: float,
        layer: int | None = None,
    ) -> None:
        self._probabilities = np.array(probabilities, np.float64)
        if not len(probabilities) or not ((self._probabilities >= 0.0) & (self._probabilities <= 1.0)).all():
            raise ConfigError(
                f"{name} grows with probabilities {list(probabilities)}: give numbers from 0 to 1, at least one"
            )
        reach = range(-int(radius), int(radius) + 1)
        near = [(y, x) for y, x in itertools.product(reach, reach) if 0 < y * y + x * x <= radius**2]
        if not near or int(radius) > grid.margin:
            raise ConfigError(f"{name} grows within a radius of {radius}: give 1 to {grid.margin}, the grid's margin")
        super().__init__(grid, [name], sites, layer)
        self._name = name
        self._target = self._layer, self._sites, np.array(near, np.int32), int(self._codes[0])

    def grow(self, turn_key: TurnKey, world_mask: Flags | None = None) -> None:
        """Grow the kind for one turn in the worlds of the mask; what grows now counts as near from the next turn."""
        _regrow(
            self._grid.padded, self._grid.margin, self._target, self._probabilities, turn_key,
            Stream.SPAWN + self._number, self._grid.world_mask(world_mask),
        )  # fmt: skip

    def remaining(self) -> Ints:
        """Return (W,) how many of the kind there are."""
        return self._grid.count(self._name, self._sites, self._layer)


class FixedCount(_Rule):
    """Kinds of which every world holds `count` in total, on random free sites: kinds and sites equally likely."""

    def __init__(self, grid: Grid, *names: str, count: int, sites: Array | None = None) -> None:
        if count < 0:
            raise ConfigError(f"a world should hold {count} of {', '.join(names)}: give a whole number of at least 0")
        super().__init__(grid, names, sites, None)
        self._count = count

    def refill(self, turn_key: TurnKey, world_mask: Flags | None = None, stream: Stream = Stream.SPAWN) -> None:
        """Add what is missing to the worlds of the (W,) mask, or as much of it as there is room for."""
        _refill(
            self._grid.arrays, self._sites, self._codes, self._count, turn_key, stream + self._number,
            self._grid.world_mask(world_mask),
        )  # fmt: skip


class Respawn:
    """Agents that start again on a random free cell: one where agents may start and nothing lies."""

    def __init__(self, grid: Grid) -> None:
        self._grid, self._number = grid, grid.new_rule_number()

    def respawn(self, agent_mask: Flags, turn_key: TurnKey) -> None:
        """Move the agents of the (N, W) mask to free cells, in list order; where none is free, an agent stays."""
        grid = self._grid
        _respawn(grid.arrays, grid.starts, grid.agent_mask(agent_mask), turn_key, Stream.SPAWN + self._number)


def neighbour_cells(grid: Grid) -> Ints:
    """Return (N, W, 4, 2) rows and columns of the cells above, right of, below and left of each agent."""
    return np.asarray(grid.positions[:, :, None] + DIRECTIONS, np.int32)


def neighbour_counts(grid: Grid) -> Ints:
    """Return (W, H, C) how many agents stand next to each cell."""
    _, worlds = grid.headings.shape
    counts = np.zeros((worlds, grid.field.height + 2, grid.field.width + 2), np.int32)
    cells = neighbour_cells(grid) + 1
    np.add.at(counts, (np.arange(worlds)[:, None], cells[..., 0], cells[..., 1]), 1)
    return counts[:, 1:-1, 1:-1]


def pair_neighbours(grid: Grid, ready: Flags) -> Ints:
    """Return (N, W) the partner of each agent, or -1.

    Agents of the (N, W) mask that stand next to each other form pairs, in list order: each takes the first agent in
    the list that is still free.

    >>> from parallel_agents.games.layout import AGENT, Field
    >>> grid = Grid(Field([AGENT], "....", outside="agent"), agents=3)
    >>> pair_neighbours(grid, np.ones((3, 1), np.bool_))[:, 0].tolist()
    [1, 0, -1]
    """
    partners = np.full(ready.shape, -1, np.int32)
    _pair(grid.positions, grid.agent_mask(ready), partners)
    return partners


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _fire(
    grid: GridArrays,
    firing: Flags,
    shape: tuple[int, int, int, bool, int],
    changes: Bytes,
    hits: tuple[Ints, Ints, Ints],
) -> None:
    """Follow columns -half … half of each beam, cell by cell, until something ends them; see `Beam`."""
    cells, margin, layer = grid[:3]
    positions, headings, passable = grid[3], grid[4], grid[6]
    code, length, half, hits_agents, changes_on = shape
    received, dealt, changed = hits
    agents, worlds = firing.shape
    _, layers, height, width = cells.shape
    plane = np.uint64(height * width)
    flat = cells.reshape(-1)
    for w in range(worlds):
        world = np.uint64(w * layers) * plane
        agent_layer, changed_layer = world + np.uint64(layer) * plane, world + np.uint64(changes_on) * plane
        top_layer = world + np.uint64(layers - 1) * plane
        for n in range(agents):
            if not firing[n, w]:
                continue
            ahead_y, ahead_x = _ahead(headings[n, w])
            for column in range(-half, half + 1):
                y = positions[n, w, 0] + margin + column * ahead_x  # columns count to the right of the agent
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
                    cell = np.uint64(y * width + x)
                    agent = -1
                    if not passable[flat[agent_layer + cell]]:
                        agent = _agent_at(positions, y - margin, x - margin, w)
                        if agent < 0:
                            break
                    if step == 0:
                        continue
                    flat[top_layer + cell] = code
                    if hits_agents and agent >= 0:
                        received[agent, w] += 1
                        dealt[n, w] += 1
                        break
                    kind = flat[changed_layer + cell]
                    if changes[kind] != kind:
                        flat[changed_layer + cell] = changes[kind]
                        changed[n, w] += 1
                        break


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _ahead(heading: int) -> tuple[int, int]:
    """Return rows and columns of a step forward."""
    return (heading == 2) * 1 - (heading == 0) * 1, (heading == 1) * 1 - (heading == 3) * 1


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _agent_at(positions: Ints, y: int, x: int, world: int) -> int:
    """Return the agent in a cell, or -1."""
    for n in range(positions.shape[0]):
        if positions[n, world, 0] == y and positions[n, world, 1] == x:
            return n
    return -1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _regrow(
    cells: Bytes,
    margin: int,
    target: tuple[int, Ints, Ints, int],
    probabilities: Probabilities,
    turn_key: TurnKey,
    stream: int,
    world_mask: Flags,
) -> None:
    """Grow a kind on empty sites; slot s decides on site s, and is drawn only where the probability is not 0.

    `target` holds the layer, the (S, 2) sites, the offsets of the cells that are near, and the code of the kind.
    """
    layer, sites, near, code = target
    grown = np.empty(len(sites), np.int64)
    for w in range(cells.shape[0]):
        total = 0
        for s in range(len(sites) if world_mask[w] else 0):
            y, x = sites[s, 0] + margin, sites[s, 1] + margin
            if cells[w, layer, y, x] != 0:
                continue
            around = 0
            for k in range(len(near)):
                around += cells[w, layer, y + near[k, 0], x + near[k, 1]] == code
            probability = probabilities[min(around, len(probabilities) - 1)]
            if probability > 0.0 and uniform(block(turn_key, stream, s // 4, w)[s % 4]) < probability:
                grown[total] = s
                total += 1
        for j in range(total):
            cells[w, layer, sites[grown[j], 0] + margin, sites[grown[j], 1] + margin] = code


@njit(cache=True)  # type: ignore[untyped-decorator]
def _free_site(grid: GridArrays, sites: Ints, world: int, u: float) -> int:
    """Return an empty site of the agents' layer, chosen by u in [0, 1), or -1 if there is none."""
    cells, margin, layer = grid[:3]
    free = 0
    for s in range(len(sites)):
        free += cells[world, layer, sites[s, 0] + margin, sites[s, 1] + margin] == 0
    rank = int(u * free)
    for s in range(len(sites)):
        if cells[world, layer, sites[s, 0] + margin, sites[s, 1] + margin] == 0:
            if rank == 0:
                return s
            rank -= 1
    return -1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _refill(
    grid: GridArrays, sites: Ints, kinds: Bytes, wanted: int, turn_key: TurnKey, stream: int, world_mask: Flags
) -> None:
    """Add what is missing; block j is the j-th thing added to a world: slot 4j is its site, 4j + 1 its kind."""
    cells, margin, layer = grid[:3]
    for w in range(cells.shape[0]):
        missing = wanted if world_mask[w] else 0
        for s in range(len(sites) if missing > 0 else 0):
            for kind in kinds:
                missing -= cells[w, layer, sites[s, 0] + margin, sites[s, 1] + margin] == kind
        for j in range(missing):
            words = block(turn_key, stream, j, w)
            s = _free_site(grid, sites, w, uniform(words[0]))
            if s >= 0:
                kind = kinds[int(uniform(words[1]) * len(kinds))]
                cells[w, layer, sites[s, 0] + margin, sites[s, 1] + margin] = kind


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _respawn(grid: GridArrays, sites: Ints, agent_mask: Flags, turn_key: TurnKey, stream: int) -> None:
    """Move agents to free sites; block n is agent n: slot 4n is its site."""
    cells, margin, layer = grid[:3]
    positions, agent_kinds = grid[3], grid[5]
    agents, worlds = agent_mask.shape
    for w in range(worlds):
        for n in range(agents):
            if not agent_mask[n, w]:
                continue
            s = _free_site(grid, sites, w, uniform(block(turn_key, stream, n, w)[0]))
            if s >= 0:
                cells[w, layer, positions[n, w, 0] + margin, positions[n, w, 1] + margin] = 0
                positions[n, w, 0], positions[n, w, 1] = sites[s, 0], sites[s, 1]
                cells[w, layer, sites[s, 0] + margin, sites[s, 1] + margin] = agent_kinds[n, w]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _pair(positions: Ints, ready: Flags, partners: Ints) -> None:
    """Write the partners of `pair_neighbours`."""
    agents, worlds = ready.shape
    for w in range(worlds):
        for n in range(agents):
            for m in range(n + 1, agents):
                if not (ready[n, w] and ready[m, w]) or partners[n, w] >= 0 or partners[m, w] >= 0:
                    continue
                rows = abs(positions[n, w, 0] - positions[m, w, 0])
                if rows + abs(positions[n, w, 1] - positions[m, w, 1]) == 1:
                    partners[n, w], partners[m, w] = m, n
