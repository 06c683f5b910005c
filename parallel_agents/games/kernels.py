"""The rules of the grid as compiled loops over worlds and agents.

Every kernel runs over all W worlds, and those that concern agents over the agents `first … first + n - 1` in
list order: with all N agents it is the simultaneous turn, with one it is that agent's part of a sequential
turn. So both orders share one set of rules.

`cells` is (W, L, H + 2m, C + 2m) uint8: the kind in every cell of every layer, 0 for none, within a margin of
m cells that lie outside the field. Positions are those of the field, without the margin. Agents stand on
the layer `layer`, and what else lies on that layer is gone once an agent enters its cell; what lies on other
layers stays.

Random numbers. A draw's address is (world, epoch, turn, slot), and the slots of a turn are dealt to streams
of 2**34 slots each: block `(stream << 32) + j` holds the slots 4j … 4j + 3 of its stream. `Stream` names the
streams, every kernel's docstring says what its slots decide, and no draw depends on W.
"""

from __future__ import annotations

import math
from enum import IntEnum

import numpy as np
from numba import njit
from numpy.typing import NDArray

from parallel_agents.seeding import draw, uniform

__all__ = ["Moment", "Stream", "block", "clear", "colours", "move", "onehot", "place", "spawn"]

Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]
Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Chances = NDArray[np.float64]
Moment = tuple[int, int, int, int]
"""Where the draws of a turn are: the two words of their key, the epoch, the turn."""

Words = tuple[np.uint64, np.uint64, np.uint64, np.uint64]
_ONE = np.uint64(1)


class Stream(IntEnum):
    """To what the slots of one turn in one world are dealt: 256 streams for each purpose."""

    PLACE = 0x100
    """Where agents start. (The streams below are left to `numpy` generators that stand at slot 0.)"""
    SPAWN = 0x200
    """+ i: the i-th rule of the grid that draws, each turn."""
    POPULATE = 0x300
    """+ i: the i-th rule of the grid that draws, on a fresh field."""


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def block(moment: Moment, stream: int, j: int, world: int) -> Words:
    """Slots 4j … 4j + 3 of a stream, for kernels."""
    words: Words = draw(
        np.uint64(moment[0]),
        np.uint64(moment[1]),
        (np.uint64(stream) << np.uint64(32)) + np.uint64(j),
        np.uint64(moment[3]),
        np.uint64(moment[2]),
        np.uint64(world),
    )
    return words


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def clear(cells: Bytes, template: Bytes, which: Flags) -> None:
    """Put the bare field, (L, H + 2m, C + 2m), into the worlds of the mask."""
    for w in range(cells.shape[0]):
        if which[w]:
            cells[w] = template


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def place(
    cells: Bytes,
    margin: int,
    layer: int,
    positions: Ints,
    headings: Bytes,
    looks: Bytes,
    sites: Ints,
    moment: Moment,
    which: Flags,
) -> None:
    """Stand the N agents on different sites out of (S, 2), S >= N, every way to do so being equally likely.

    These are the first N steps of a Fisher-Yates shuffle. Slots of agent n: 2n, where it stands; 2n + 1,
    which of the four ways it faces.
    """
    agents, worlds = looks.shape
    order = np.empty(len(sites), np.int64)
    for w in range(worlds):
        if not which[w]:
            continue
        for s in range(len(sites)):
            order[s] = s
        for n in range(agents):
            a, b, c, d = block(moment, Stream.PLACE, n // 2, w)
            where, facing = (a, b) if n % 2 == 0 else (c, d)
            s = n + int(uniform(where) * (len(sites) - n))
            order[n], order[s] = order[s], order[n]
            y, x = sites[order[n], 0], sites[order[n], 1]
            positions[n, w, 0], positions[n, w, 1] = y, x
            headings[n, w] = np.uint8(uniform(facing) * 4.0)
            cells[w, layer, y + margin, x + margin] = looks[n, w]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def spawn(
    cells: Bytes,
    margin: int,
    layer: int,
    sites: Ints,
    kinds: Bytes,
    over: int,
    chances: Chances,
    moment: Moment,
    stream: int,
    which: Flags,
) -> None:
    """Let something appear on each of (S, 2) sites with its world's chance, each of `kinds` equally likely.

    The sites are S independent Bernoulli trials; a success where the layer holds not `over` has no effect.
    Rather than a number per site, the kernel draws the gap to the next success, P(gap >= g) = (1 - p)^g. Slot
    j is the j-th success of its world: u * len(kinds) has the kind as its whole part, and its fraction,
    uniform again, gives the gap before it.
    """
    chance, miss = 0.0, 0.0
    for w in range(cells.shape[0]):
        if chances[w] != chance:  # a logarithm per world would cost as much as the draws
            chance = chances[w]
            miss = math.log1p(-chance) if chance < 1.0 else -math.inf
        site = -1 if which[w] and chance > 0.0 else len(sites)
        j = 0
        while site < len(sites):
            for word in block(moment, stream, j, w):
                u = uniform(word) * len(kinds)
                choice = int(u)
                gap = math.log1p(choice - u) / miss
                if gap >= len(sites) - 1 - site:  # compared as a float: it may be too large for an integer
                    site = len(sites)
                    break
                site += 1 + int(gap)
                y, x = sites[site, 0] + margin, sites[site, 1] + margin
                if cells[w, layer, y, x] == over:
                    cells[w, layer, y, x] = kinds[choice]
            j += 1


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _window(y: int, x: int, radius: int, width: int, way: int) -> tuple[np.uint64, np.uint64, np.uint64]:
    """The upper left cell of a window seen with `way` pointing up, and the steps to the cells below and right.

    Cells are counted by rows of `width`; a negative step is a large unsigned one, which comes to the same.
    """
    if way == 0:
        first, down, right = (y - radius) * width + x - radius, width, 1
    elif way == 1:
        first, down, right = (y - radius) * width + x + radius, -1, width
    elif way == 2:
        first, down, right = (y + radius) * width + x + radius, -width, -1
    else:
        first, down, right = (y + radius) * width + x - radius, 1, -width
    return np.uint64(first), np.uint64(down), np.uint64(right)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def onehot(
    out: Floats,
    cells: Bytes,
    margin: int,
    positions: Ints,
    ways: Bytes,
    first: int,
    radius: int,
    starts: NDArray[np.uint64],
) -> None:
    """What n agents see: 1 where kind k = 1 … K lies in their windows of side d = 2 * radius + 1, else 0.

    `out` holds n * W views of (K, d, d), and d * d spare numbers at its end; `starts[k]` is where kind k
    starts in a view. So that no cell needs a branch, empty ones are written too, but into the view after
    their own (`starts[0]` = K * d * d), which is cleared when its turn comes. Unsigned indices spare the test
    for negative ones. Windows are turned so that the way (N, W) points up.
    """
    worlds, layers, height, width = cells.shape
    side = 2 * radius + 1
    size = (len(starts) - 1) * side * side
    flat = cells.reshape(-1)
    view = 0
    for i in range((len(out) - side * side) // (worlds * size)):
        for w in range(worlds):
            out[view : view + size] = 0.0
            y, x = positions[first + i, w, 0] + margin, positions[first + i, w, 1] + margin
            corner, down, right = _window(y, x, radius, width, ways[first + i, w])
            for plane in range(w * layers, (w + 1) * layers):
                to = np.uint64(view)
                begin = np.uint64(plane * height * width) + corner
                for _ in range(side):
                    cell = begin
                    for _ in range(side):
                        out[to + starts[flat[cell]]] = np.float32(1.0)
                        to += _ONE
                        cell += right
                    begin += down
            view += size


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def colours(
    out: Floats, cells: Bytes, margin: int, positions: Ints, ways: Bytes, first: int, radius: int, palette: Floats
) -> None:
    """What n agents see: the colours, out of (K + 1, 3), of the uppermost kinds in their windows.

    `out` holds n * W views of (3, d, d), and the same spare numbers as for `onehot`.
    """
    worlds, layers, height, width = cells.shape
    side = 2 * radius + 1
    area = np.uint64(side * side)
    plane = np.uint64(height * width)
    flat = cells.reshape(-1)
    to = np.uint64(0)
    for i in range((len(out) - side * side) // (worlds * 3 * side * side)):
        for w in range(worlds):
            y, x = positions[first + i, w, 0] + margin, positions[first + i, w, 1] + margin
            corner, down, right = _window(y, x, radius, width, ways[first + i, w])
            begin = np.uint64(w * layers * height * width) + corner
            for _ in range(side):
                cell = begin
                for _ in range(side):
                    kind, above = flat[cell], cell
                    for _ in range(1, layers):
                        above += plane
                        kind = flat[above] if flat[above] else kind
                    out[to] = palette[kind, 0]
                    out[to + area] = palette[kind, 1]
                    out[to + area + area] = palette[kind, 2]
                    to += _ONE
                    cell += right
                begin += down
            to += area + area


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def move(
    cells: Bytes,
    margin: int,
    layer: int,
    positions: Ints,
    headings: Bytes,
    looks: Bytes,
    passable: Flags,
    steps: NDArray[np.int8],
    actions: NDArray[np.int64],
    first: int,
    able: Flags,
    entered: Bytes,
) -> int:
    """Let n agents do their (n, W) actions in list order; (n, W) `entered` gets the kinds they walked onto.

    `steps`, (A, 4, 3), says for each action and heading: rows, columns, and the heading after it. An agent
    turns, and moves if every layer of the cell it steps to is passable. Where it stays, or is not `able`, (N, W), it
    enters 0. Gives -1, or, before anything has moved, the place in `actions` of one that does not exist.
    """
    agents, worlds = actions.shape
    for i in range(agents):
        for w in range(worlds):
            if not 0 <= actions[i, w] < len(steps):
                return int(i * worlds + w)
    for w in range(worlds):
        for i in range(agents):
            n = first + i
            entered[i, w] = 0
            if not able[n, w]:
                continue
            step = steps[actions[i, w], headings[n, w]]
            headings[n, w] = step[2]
            y, x = positions[n, w, 0] + margin, positions[n, w, 1] + margin
            to_y, to_x = y + step[0], x + step[1]
            free = True
            kind = np.uint8(0)
            for any_layer in range(cells.shape[1]):
                code = cells[w, any_layer, to_y, to_x]
                free &= passable[code]
                kind = code if code and any_layer <= layer else kind
            # Selected, not branched on: whether a step is free cannot be foretold.
            entered[i, w] = kind if free else 0
            to_y, to_x = (to_y, to_x) if free else (y, x)
            cells[w, layer, y, x] = 0
            cells[w, layer, to_y, to_x] = looks[n, w]
            positions[n, w, 0], positions[n, w, 1] = to_y - margin, to_x - margin
    return -1
