"""The rules of the grid as compiled loops over worlds and agents.

Every kernel runs over all W worlds, and those that concern agents over the agents `first … first + n - 1` in
list order: with all N agents it is the simultaneous turn, with one it is that agent's part of a sequential
turn. So both orders share one set of rules.

`cells` is (W, L, H + 2m, C + 2m) uint8: the kind in every cell of every layer, 0 for none, within a margin of
m cells that lie outside the field. Positions are those of the field, without the margin. Agents stand on
the layer `layer`, and what else lies on that layer is gone once an agent enters its cell; what lies on other
layers stays. Where a loop goes over cells, it counts them through in one flat array by unsigned numbers: an index
that may be negative costs a test, and four of them cost more than the rules.

Random numbers. A draw's address is (world, epoch, turn, slot), and the slots of a turn are dealt to streams
of 2**34 slots each: block `(stream << 32) + j` holds the slots 4j … 4j + 3 of its stream. `Stream` names the
streams, every kernel's docstring says what its slots decide, and no draw depends on W.
"""

from __future__ import annotations

import math
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from parallel_agents.compiled import njit
from parallel_agents.seeding import draw, uniform

__all__ = ["Moment", "Stream", "block", "clear", "move", "place", "spawn"]

Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]
Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Chances = NDArray[np.float64]
Moment = tuple[int, int, int, int]
"""Where the draws of a turn are: the two words of their key, the epoch, the turn."""

Words = tuple[np.uint64, np.uint64, np.uint64, np.uint64]
_ONE, _TWO = np.uint64(1), np.uint64(2)


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
    worlds, layers, height, width = cells.shape
    flat = cells.reshape(-1)
    chance, miss = 0.0, 0.0
    for w in range(worlds):
        world = np.uint64((w * layers + layer) * height * width)
        if chances[w] != chance:  # a logarithm per world would cost as much as the draws
            chance = chances[w]
            miss = 1.0 / math.log1p(-chance) if 0.0 < chance < 1.0 else -0.0
        site = -1 if which[w] and chance > 0.0 else len(sites)
        j = 0
        while site < len(sites):
            for word in block(moment, stream, j, w):
                u = uniform(word) * len(kinds)
                choice = int(u)
                gap = math.log(1.0 + (choice - u)) * miss
                # compared as a float: it may be too large for an integer, or infinity times nothing
                if not gap < len(sites) - 1 - site:
                    site = len(sites)
                    break
                site += 1 + int(gap)
                at = world + np.uint64((sites[site, 0] + margin) * width + sites[site, 1] + margin)
                if flat[at] == over:
                    flat[at] = kinds[choice]
            j += 1


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
    wrong = 0
    for action in actions.flat:  # to the end: so it is compiled to a few wide comparisons
        wrong += int((action < 0) | (action >= len(steps)))
    if wrong:
        return int(np.argmax((actions < 0) | (actions >= len(steps))))
    _, layers, height, width = cells.shape
    plane = np.uint64(height * width)
    stood = plane * np.uint64(layer)
    flat, at, ways, shown = cells.reshape(-1), positions.reshape(-1), headings.reshape(-1), looks.reshape(-1)
    moves, step, free_to, taken = actions.reshape(-1), steps.reshape(-1), able.reshape(-1), entered.reshape(-1)
    for w in range(worlds):
        world = np.uint64(w * layers * height * width)
        for i in range(agents):
            asked, n = np.uint64(i * worlds + w), np.uint64((first + i) * worlds + w)
            if not free_to[n]:
                taken[asked] = 0
                continue
            y_at, x_at = _TWO * n, _TWO * n + _ONE
            way = np.uint64(moves[asked] * 12 + ways[n] * 3)
            down, right = step[way], step[way + _ONE]
            ways[n] = step[way + _TWO]
            here = world + np.uint64((at[y_at] + margin) * width + at[x_at] + margin)
            there = here + np.uint64(down * width + right)  # a step back is a large unsigned one: the same
            free = True
            kind = np.uint8(0)
            lying = there
            for any_layer in range(layers):
                code = flat[lying]
                free &= passable[code]
                kind = code if code and any_layer <= layer else kind
                lying += plane
            # Selected, not branched on: whether a step is free cannot be foretold.
            taken[asked] = kind if free else 0
            flat[here + stood] = 0
            flat[(there if free else here) + stood] = shown[n]
            at[y_at] += down if free else 0
            at[x_at] += right if free else 0
    return -1
