"""What comes back: things that regrow among their like, things put anew, and agents that start anew.

Each is a rule made once for a grid; it draws at `stream` plus its number, so that no two rules share a draw.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from parallel_agents.compiled import njit
from parallel_agents.errors import ConfigError
from parallel_agents.games.grid import Grid
from parallel_agents.games.kernels import Bytes, Chances, Flags, Ints, Moment, Stream, block
from parallel_agents.seeding import uniform
from parallel_agents.types import Array

__all__ = ["Regrowth", "Scattering", "count", "respawn"]


class Regrowth:
    """A kind that grows again on its sites, the likelier the more of it is near.

    chances[k] is the probability, each turn, of an empty site with k of the kind within `radius` (Euclidean), the last
    one for as many or more.
    """

    def __init__(
        self, grid: Grid, name: str, *, sites: Array, chances: Sequence[float], radius: float, layer: int | None = None
    ) -> None:
        self._chances = np.array(chances, np.float64)
        if not len(chances) or not ((self._chances >= 0.0) & (self._chances <= 1.0)).all():
            raise ConfigError(f"{name} grows with chances {list(chances)}: give numbers from 0 to 1, at least one")
        reach = range(-int(radius), int(radius) + 1)
        near = [(y, x) for y, x in itertools.product(reach, reach) if 0 < y * y + x * x <= radius**2]
        if not near or int(radius) > grid.margin:
            raise ConfigError(f"{name} grows within a radius of {radius}: give 1 to {grid.margin}, the grid's margin")
        self._grid, self._code, self._number = grid, grid.field.code(name), grid.number()
        self._near = np.array(near, np.int32)
        self._sites = grid.checked_sites(sites)
        self._layer = grid.field.layer if layer is None else layer

    def grow(self, moment: Moment, which: Flags | None = None) -> None:
        """One turn of growth in the worlds of the mask; what grows now does not count as near before the next turn."""
        grid = self._grid
        _regrow(
            grid.padded, grid.margin, self._layer, self._sites, self._near, self._code, self._chances, moment,
            Stream.SPAWN + self._number, grid.worlds_of(which),
        )  # fmt: skip

    def left(self) -> Ints:
        """(W,) how many there are."""
        return _count(self._grid.padded, self._grid.margin, self._layer, self._sites, self._code)  # type: ignore[no-any-return]


class Scattering:
    """Kinds of which a world always holds `count` together, on random free sites: kinds and sites equally likely."""

    def __init__(self, grid: Grid, *names: str, count: int, sites: Array | None = None) -> None:
        if not names or count < 0:
            raise ConfigError(f"{count} of the kinds {names}: name at least one kind, and give a number from 0")
        self._grid, self._count, self._number = grid, count, grid.number()
        self._codes = np.array([grid.field.code(name) for name in names], np.uint8)
        self._sites = grid.checked_sites(sites)

    def refill(self, moment: Moment, which: Flags | None = None, stream: Stream = Stream.SPAWN) -> None:
        """Put what is missing into the worlds of the (W,) mask, or as much of it as has room."""
        grid = self._grid
        _scatter(
            grid.padded, grid.margin, grid.field.layer, self._sites, self._codes, self._count, moment,
            stream + self._number, grid.worlds_of(which),
        )  # fmt: skip


def count(grid: Grid, name: str, sites: Ints, layer: int) -> Ints:
    """(W,) on how many of the sites, as `Grid.checked_sites` gives them, the kind lies."""
    return _count(grid.padded, grid.margin, layer, sites, grid.field.code(name))  # type: ignore[no-any-return]


def respawn(grid: Grid, which: Flags, moment: Moment, number: int) -> None:
    """Stand the agents of the (N, W) mask on other free cells, drawn in list order; `number` is from `grid.number()`.

    A free cell is one where agents may start and nothing lies; where there is none, the agent stays.
    """
    _respawn(
        grid.padded, grid.margin, grid.field.layer, grid.starts, grid.positions, grid.looks, grid.agents_of(which),
        moment, Stream.SPAWN + number,
    )  # fmt: skip


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _regrow(
    cells: Bytes,
    margin: int,
    layer: int,
    sites: Ints,
    near: Ints,
    code: int,
    chances: Chances,
    moment: Moment,
    stream: int,
    which: Flags,
) -> None:
    """Slot s decides on site s. Drawn only where something can grow: draws are addressed, so none shifts another."""
    grown = np.empty(len(sites), np.int64)
    for w in range(cells.shape[0]):
        count = 0
        for s in range(len(sites) if which[w] else 0):
            y, x = sites[s, 0] + margin, sites[s, 1] + margin
            if cells[w, layer, y, x] != 0:
                continue
            around = 0
            for k in range(len(near)):
                around += cells[w, layer, y + near[k, 0], x + near[k, 1]] == code
            chance = chances[min(around, len(chances) - 1)]
            if chance > 0.0 and uniform(block(moment, stream, s // 4, w)[s % 4]) < chance:
                grown[count] = s
                count += 1
        for j in range(count):
            cells[w, layer, sites[grown[j], 0] + margin, sites[grown[j], 1] + margin] = code


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _count(cells: Bytes, margin: int, layer: int, sites: Ints, code: int) -> Ints:
    worlds, layers, height, width = cells.shape
    flat = cells.reshape(-1)
    places = np.empty(len(sites), np.uint64)
    for s in range(len(sites)):
        places[s] = ((layer * height) + sites[s, 0] + margin) * width + sites[s, 1] + margin
    counts = np.zeros(worlds, np.int32)
    for w in range(worlds):
        found, world = 0, np.uint64(w * layers * height * width)
        for place in places:
            found += flat[world + place] == code
        counts[w] = found
    return counts


@njit(cache=True)  # type: ignore[untyped-decorator]
def _free_site(cells: Bytes, margin: int, layer: int, sites: Ints, world: int, u: float) -> int:
    """A site where nothing lies, u in [0, 1) saying which; -1: there is none."""
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
def _scatter(
    cells: Bytes,
    margin: int,
    layer: int,
    sites: Ints,
    kinds: Bytes,
    wanted: int,
    moment: Moment,
    stream: int,
    which: Flags,
) -> None:
    """Block j is the j-th thing put into a world: slot 4j, where it lies; 4j + 1, which kind it is."""
    for w in range(cells.shape[0]):
        missing = wanted if which[w] else 0
        for s in range(len(sites) if missing > 0 else 0):
            for kind in kinds:
                missing -= cells[w, layer, sites[s, 0] + margin, sites[s, 1] + margin] == kind
        for j in range(missing):
            words = block(moment, stream, j, w)
            s = _free_site(cells, margin, layer, sites, w, uniform(words[0]))
            if s >= 0:
                kind = kinds[int(uniform(words[1]) * len(kinds))]
                cells[w, layer, sites[s, 0] + margin, sites[s, 1] + margin] = kind


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _respawn(
    cells: Bytes,
    margin: int,
    layer: int,
    sites: Ints,
    positions: Ints,
    looks: Bytes,
    which: Flags,
    moment: Moment,
    stream: int,
) -> None:
    """Block n is agent n: slot 4n, where it stands."""
    agents, worlds = which.shape
    for w in range(worlds):
        for n in range(agents):
            if not which[n, w]:
                continue
            s = _free_site(cells, margin, layer, sites, w, uniform(block(moment, stream, n, w)[0]))
            if s >= 0:
                cells[w, layer, positions[n, w, 0] + margin, positions[n, w, 1] + margin] = 0
                positions[n, w, 0], positions[n, w, 1] = sites[s, 0], sites[s, 1]
                cells[w, layer, sites[s, 0] + margin, sites[s, 1] + margin] = looks[n, w]
