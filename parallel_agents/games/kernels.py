"""Compiled loops over worlds and agents: the rules of the grid.

Every kernel runs over all W worlds. Kernels that move agents run over the agents `first … first + n - 1` in list
order: all N agents are a simultaneous turn, one agent is its part of a sequential turn, so both turn orders share
one set of rules.

`cells` is (W, L, H + 2m, C + 2m) uint8: the code of the kind in every cell of every layer, 0 for none, surrounded by
a margin of m cells outside the field. Positions count from the field's corner, without the margin. Agents stand on
the layer `layer`. An agent that enters a cell removes what lies there on its own layer; other layers are unchanged.
Loops over cells use flat arrays and unsigned indices: an index that may be negative costs a test, and four such
tests cost more than the rules.

Random numbers: the address of a draw is (world, epoch, turn, slot). The slots of a turn are divided into streams of
2**34 slots each; block `(stream << 32) + j` holds the slots 4j … 4j + 3 of its stream. `Stream` names the streams, the
docstring of each kernel says what its slots decide, and no draw depends on W.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.compiled import compiled_once, njit
from parallel_agents.core.seeding import draw, uniform
from parallel_agents.kernels.functions import log, log1p

Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]
Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Probabilities = NDArray[np.float64]
TurnKey = tuple[int, int, int, int, int]
"""The address of a turn's draws: the two words of the random key, the epoch, the turn, the first world's number."""


class GridArrays(NamedTuple):
    """A grid, by reference, so that a call passes one address: see `core.by_reference`."""

    cells: Bytes
    """(W, L, H + 2m, C + 2m)"""
    margin: int
    layer: int
    """That of the agents."""
    positions: Ints
    """(N, W, 2)"""
    headings: Bytes
    """(N, W), like the next."""
    agent_kinds: Bytes
    passable: Flags
    """(K + 1,)"""


Words = tuple[np.uint64, np.uint64, np.uint64, np.uint64]
_ONE, _TWO = np.uint64(1), np.uint64(2)


class Stream(IntEnum):
    """The streams of a turn in one world: 256 for each purpose."""

    PLACE = 0x100
    """Where agents start. (Streams below this one are left to numpy generators that start at slot 0.)"""
    SPAWN = 0x200
    """+ i: rule i of the grid, each turn."""
    POPULATE = 0x300
    """+ i: rule i of the grid, when a world is reset."""


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def block(turn_key: TurnKey, stream: int, j: int, world: int) -> Words:
    """Return slots 4j … 4j + 3 of a stream."""
    words: Words = draw(
        np.uint64(turn_key[0]),
        np.uint64(turn_key[1]),
        (np.uint64(stream) << np.uint64(32)) + np.uint64(j),
        np.uint64(turn_key[3]),
        np.uint64(turn_key[2]),
        np.uint64(turn_key[4]) + np.uint64(world),
    )
    return words


@compiled_once
def reset(cells: Bytes, template: Bytes, world_mask: Flags) -> None:
    """Copy the initial field, (L, H + 2m, C + 2m), into the worlds of the mask."""
    layers, height, width = template.shape
    for w in range(cells.shape[0]):
        for layer in range(layers if world_mask[w] else 0):  # loops, since copying a slice takes long to compile
            for y in range(height):
                for x in range(width):
                    cells[w, layer, y, x] = template[layer, y, x]


@compiled_once(allocates=True)
def place(grid: GridArrays, sites: Ints, turn_key: TurnKey, world_mask: Flags) -> None:
    """Place the N agents on different sites out of (S, 2), S >= N; every arrangement is equally likely.

    These are the first N steps of a Fisher-Yates shuffle. Slots of agent n: 2n is its site, 2n + 1 its heading.
    """
    cells, margin, layer = grid.cells, grid.margin, grid.layer
    positions, headings, agent_kinds = grid.positions, grid.headings, grid.agent_kinds
    agents, worlds = agent_kinds.shape
    order = np.empty(len(sites), np.int64)
    for w in range(worlds):
        if not world_mask[w]:
            continue
        for s in range(len(sites)):
            order[s] = s
        for n in range(agents):
            a, b, c, d = block(turn_key, Stream.PLACE, n // 2, w)
            site_word, heading_word = (a, b) if n % 2 == 0 else (c, d)
            s = n + int(uniform(site_word) * (len(sites) - n))
            order[n], order[s] = order[s], order[n]
            y, x = sites[order[n], 0], sites[order[n], 1]
            positions[n, w, 0], positions[n, w, 1] = y, x
            headings[n, w] = np.uint8(uniform(heading_word) * 4.0)
            cells[w, layer, y + margin, x + margin] = agent_kinds[n, w]


@compiled_once
def spawn(
    cells: Bytes,
    margin: int,
    target: tuple[int, Ints, Bytes, int],
    probabilities: Probabilities,
    turn_key: TurnKey,
    stream: int,
    world_mask: Flags,
) -> None:
    """Spawn one of several kinds on each site with the probability of its world; all kinds are equally likely.

    `target` holds the layer, the (S, 2) sites, the codes of the kinds, and the code that they replace. The sites are S
    independent Bernoulli trials; a success has no effect where another code lies. Instead of a number per site, the
    kernel draws the gap to the next success, P(gap >= g) = (1 - p)^g. Slot j is success j of its world: the whole part
    of u * len(kinds) is the kind; its fraction, again uniform, gives the gap.
    """
    layer, sites, kinds, over = target
    worlds, layers, height, width = cells.shape
    flat = cells.reshape(-1)
    probability, scale = 0.0, 0.0
    for w in range(worlds):
        plane = np.uint64((w * layers + layer) * height * width)
        if probabilities[w] != probability:  # a logarithm per world would cost as much as the draws
            probability = probabilities[w]
            scale = 1.0 / log1p(-probability) if 0.0 < probability < 1.0 else -0.0
        site = -1 if world_mask[w] and probability > 0.0 else len(sites)
        j = 0
        while site < len(sites):
            for word in block(turn_key, stream, j, w):
                u = uniform(word) * len(kinds)
                kind = int(u)
                gap = log(1.0 + (kind - u)) * scale
                # Compared as a float: it may be too large for an integer, or infinity times zero.
                if not gap < len(sites) - 1 - site:
                    site = len(sites)
                    break
                site += 1 + int(gap)
                cell = plane + np.uint64((sites[site, 0] + margin) * width + sites[site, 1] + margin)
                if flat[cell] == over:
                    flat[cell] = kinds[kind]
            j += 1


@compiled_once(allocates=True)
def count(cells: Bytes, margin: int, layer: int, sites: Ints, code: int) -> Ints:
    """Return (W,) the number of sites on which a kind lies."""
    worlds, layers, height, width = cells.shape
    flat = cells.reshape(-1)
    offsets = np.empty(len(sites), np.uint64)
    for s in range(len(sites)):
        offsets[s] = ((layer * height) + sites[s, 0] + margin) * width + sites[s, 1] + margin
    counts = np.zeros(worlds, np.int32)
    for w in range(worlds):
        total, world = 0, np.uint64(w * layers * height * width)
        for offset in offsets:
            total += flat[world + offset] == code
        counts[w] = total
    return counts


@compiled_once
def move(
    grid: GridArrays, able: Flags, step_table: NDArray[np.int8], actions: NDArray[np.int64], first: int, entered: Bytes
) -> int:
    """Let n agents take their (n, W) actions in list order; write the codes they entered into (n, W) `entered`.

    `step_table`, (A, 4, 3), holds rows, columns and the new heading for each action and heading. An agent turns, and
    it moves if every layer of the next cell is passable. It enters 0 where it stays or is not `able`, (N, W). Returns
    -1, or, before any agent has moved, the index in `actions` of an action that does not exist.
    """
    cells, margin, layer, passable = grid.cells, grid.margin, grid.layer, grid.passable
    positions, headings, agent_kinds = grid.positions, grid.headings, grid.agent_kinds
    agents, worlds = actions.shape
    chosen, count = actions.reshape(-1), len(step_table)
    invalid = 0
    for action in chosen:  # without an early exit, so that it compiles to a few wide comparisons
        invalid += int((action < 0) | (action >= count))
    if invalid:
        for index in range(len(chosen)):
            if chosen[index] < 0 or chosen[index] >= count:
                return index
    _, layers, height, width = cells.shape
    plane = np.uint64(height * width)
    to_layer = plane * np.uint64(layer)
    flat, coordinates, facing, bodies = (
        cells.reshape(-1), positions.reshape(-1), headings.reshape(-1), agent_kinds.reshape(-1),
    )  # fmt: skip
    steps, may_act, codes = step_table.reshape(-1), able.reshape(-1), entered.reshape(-1)
    for w in range(worlds):
        world = np.uint64(w * layers * height * width)
        for i in range(agents):
            row, n = np.uint64(i * worlds + w), np.uint64((first + i) * worlds + w)
            if not may_act[n]:
                codes[row] = 0
                continue
            y_index, x_index = _TWO * n, _TWO * n + _ONE
            step = np.uint64(chosen[row] * 12 + facing[n] * 3)
            down, right = steps[step], steps[step + _ONE]
            facing[n] = steps[step + _TWO]
            here = world + np.uint64((coordinates[y_index] + margin) * width + coordinates[x_index] + margin)
            there = here + np.uint64(down * width + right)  # a negative step wraps round, with the same result
            free = True
            kind = np.uint8(0)
            cell = there
            for any_layer in range(layers):
                code = flat[cell]
                free &= passable[code]
                kind = code if code and any_layer <= layer else kind
                cell += plane
            # Selected without a branch: the processor cannot predict whether a step is free.
            codes[row] = kind if free else 0
            flat[here + to_layer] = 0
            flat[(there if free else here) + to_layer] = bodies[n]
            coordinates[y_index] += down if free else 0
            coordinates[x_index] += right if free else 0
    return -1


@compiled_once
def fire(
    grid: GridArrays,
    firing: Flags,
    shape: tuple[int, int, int, bool, int],
    changes: Bytes,
    hits: tuple[Ints, Ints, Ints],
) -> None:
    """Follow columns -half … half of each beam, cell by cell, until something ends them; see `Beam`."""
    cells, margin, layer = grid.cells, grid.margin, grid.layer
    positions, headings, passable = grid.positions, grid.headings, grid.passable
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
            ahead_y, ahead_x = ahead(headings[n, w])
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
def ahead(heading: int) -> tuple[int, int]:
    """Return rows and columns of a step forward."""
    return (heading == 2) * 1 - (heading == 0) * 1, (heading == 1) * 1 - (heading == 3) * 1


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _agent_at(positions: Ints, y: int, x: int, world: int) -> int:
    """Return the agent in a cell, or -1."""
    for n in range(positions.shape[0]):
        if positions[n, world, 0] == y and positions[n, world, 1] == x:
            return n
    return -1


@compiled_once(allocates=True)
def regrow(
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
    cells, margin, layer = grid.cells, grid.margin, grid.layer
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


@compiled_once
def refill(
    grid: GridArrays, sites: Ints, kinds: Bytes, wanted: int, turn_key: TurnKey, stream: int, world_mask: Flags
) -> None:
    """Add what is missing; block j is the j-th thing added to a world: slot 4j is its site, 4j + 1 its kind."""
    cells, margin, layer = grid.cells, grid.margin, grid.layer
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


@compiled_once
def respawn(grid: GridArrays, sites: Ints, agent_mask: Flags, turn_key: TurnKey, stream: int) -> None:
    """Move agents to free sites; block n is agent n: slot 4n is its site."""
    cells, margin, layer = grid.cells, grid.margin, grid.layer
    positions, agent_kinds = grid.positions, grid.agent_kinds
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


@compiled_once
def pair(positions: Ints, ready: Flags, partners: Ints) -> None:
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
