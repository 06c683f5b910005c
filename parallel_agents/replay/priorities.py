"""Prioritised drawing: rows with larger errors are drawn more often (Schaul et al. 2016).

- For the rings of a run: a transition's priority is an extra column of the ring. Priorities stand still within a round
  and are written when the round is published, by the serial of their row: overwritten rows are left alone. A row that
  was never learned from has priority 0 in the column and is drawn with the largest priority, so that it is drawn soon.
- For buffers with event classes: `SumTree` draws positions in proportion to priorities that change at any time.

A node of a sum tree holds the sum of its FAN children and the smallest positive priority below it. A million positions
need five levels instead of the twenty of a binary tree: fewer cache misses, half the memory. Every update adds up the
children again, in one fixed order. So a tree depends on its leaves alone, without drift, and a tree rebuilt from stored
leaves is equal to the old one in every bit. Several trees over the same positions are rows of the same arrays.

>>> tree = SumTree(capacity=100)
>>> tree.update([3, 50], [1.0, 3.0])
>>> positions, priorities = tree.draw(np.array([0.1, 0.24, 0.26, 0.99]))
>>> positions.tolist(), priorities.tolist()
([3, 3, 50, 50], [1.0, 1.0, 3.0, 3.0])
>>> float(tree.total()[0]), float(tree.least()[0])
(4.0, 1.0)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallel_agents.core.compiled import njit
from parallel_agents.core.errors import ConfigError, ContractError, NonFiniteError, ShapeError
from parallel_agents.core.types import Floats, Ints
from parallel_agents.kernels.functions import powers
from parallel_agents.replay.ring import PRIORITY, Ring

PRIORITY_COLUMNS: dict[str, tuple[int, ...]] = {PRIORITY: ()}
SMALLEST = 1e-6
"""Added to every error, so that each row can still be drawn."""
FAN = 16
_FAR = 2  # levels, from the leaves, that no cache holds

_FINE, _UNKNOWN_TREE, _BAD_PRIORITY, _BAD_UNIFORM, _EMPTY_TREE = range(5)


def priorities_of(errors: Floats, alpha: float) -> Floats:
    """Return the priorities (|error| + SMALLEST) ** alpha of TD errors (n,)."""
    if not np.isfinite(errors).all():
        raise NonFiniteError("TD errors hold NaN or infinity: no priority follows from them")
    priorities: Floats = powers(np.abs(errors) + SMALLEST, alpha)
    return priorities


# -- rings of a run -------------------------------------------------------------------------------------------


class PriorityDraw(NamedTuple):
    """Drawn rows (S,): serials, importance weights, and the places that their new priorities will be written to."""

    serials: Ints
    weights: NDArray[np.float32]
    places: Floats


def draw_by_priority(ring: Ring, agent: int, uniforms: Floats, *, alpha: float, beta: float) -> PriorityDraw:
    """Draw a row for each of uniforms (S,) with P(i) proportional to priority ** alpha; weights (n P(i)) ** -beta.

    Weights are divided by the largest one that any stored row could have, so that they only scale updates down.
    """
    size, tail = int(ring.sizes()[agent]), int(ring.tail[agent])
    if not size:
        zeros = np.zeros(len(uniforms), np.int64)
        return PriorityDraw(zeros, np.ones(len(uniforms), np.float32), np.full(len(uniforms), np.nan))
    starts = ring.starts[agent][np.arange(tail, tail + size) % ring.starts.shape[1]]
    stored = ring.extras[PRIORITY][agent].reshape(-1)[starts].astype(np.float64)
    priorities = powers(np.where(stored > 0, stored, stored.max() or 1.0), alpha)
    bounds = np.cumsum(priorities)
    drawn = np.minimum(np.searchsorted(bounds, uniforms * bounds[-1], side="right"), size - 1)
    density = priorities * (size / bounds[-1])
    weights = powers(density[drawn] / density.min(), -beta)
    return PriorityDraw(tail + drawn, weights.astype(np.float32), _places(ring, agent, starts[drawn]))


def _places(ring: Ring, agent: int, starts: Ints) -> Floats:
    """Return row serial * W + world, which identifies a transition for as long as it is stored."""
    rows, worlds = ring.valid.shape[1:]
    newest = int(ring.pos[agent]) - 1
    serials = newest - (newest - starts // worlds) % rows
    return np.asarray(serials * worlds + starts % worlds, np.float64)


def write_priorities(ring: Ring, places: Floats, errors: Floats) -> None:
    """Write the errors (N, S) found at places (N, S); overwritten rows and rows not learned from (NaN) are left."""
    rows, worlds = ring.valid.shape[1:]
    for agent in range(ring.agents):
        known = np.isfinite(errors[agent]) & np.isfinite(places[agent])
        serials, world = np.divmod(places[agent][known].astype(np.int64), worlds)
        live = serials >= ring.oldest[agent]
        ring.extras[PRIORITY][agent][serials[live] % rows, world[live]] = np.abs(errors[agent][known][live]) + SMALLEST


# -- sum tree -------------------------------------------------------------------------------------------------


def whole_numbers(name: str, values: ArrayLike) -> Ints:
    """Return whole numbers (n,), or a single one, as a contiguous array."""
    array = np.atleast_1d(np.asarray(values))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ShapeError(f"{name} of shape {array.shape} and type {array.dtype}: give whole numbers, shape (n,)")
    return np.ascontiguousarray(array, np.int64)


def positions_below(capacity: int, positions: ArrayLike) -> Ints:
    """Return buffer positions (n,), or a single one; raise unless they lie in 0 .. capacity - 1."""
    whole = whole_numbers("positions", positions)
    if not within(whole, 0, capacity):
        raise ContractError(f"a position is outside 0 .. {capacity - 1}: found {whole.min()} .. {whole.max()}")
    return whole


def repeated(values: ArrayLike, count: int, kind: type[np.generic]) -> NDArray[Any]:
    """Return values (count,), or a single one repeated, as a contiguous array."""
    array = np.asarray(values, kind)
    if array.shape == (count,):
        return np.ascontiguousarray(array)
    if array.shape not in ((), (1,)):
        raise ShapeError(f"values of shape {array.shape} for {count} positions: give one for each, or one for all")
    return np.full(count, array)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def within(numbers: Ints, low: int, end: int) -> bool:
    """Return whether every number (n,) lies in low .. end - 1; numpy would need several passes."""
    for number in numbers:  # noqa: SIM110 - compiled
        if not low <= number < end:
            return False
    return True


def _levels(capacity: int) -> Ints:
    """Return where each level starts in a row: leaves first, levels padded to whole families, the root last."""
    starts, size = [0], capacity
    while size > 1:
        families = -(-size // FAN)
        starts.append(starts[-1] + families * FAN)
        size = families
    return np.array(starts, np.int64)


def _in_whole_lines(rows: int, width: int) -> Floats:
    """Return zeros (rows, width) that start at a cache line, so that a family of 16 takes two lines and not three."""
    block = np.zeros(rows * width + 8)
    first = -(block.ctypes.data // 8) % 8
    return block[first : first + rows * width].reshape(rows, width)


class TreeArrays(NamedTuple):
    """The arrays of some sum trees, one row each."""

    sums: Floats
    least: Floats
    """Least values of inner nodes only: the least value of a leaf is its priority."""
    levels: Ints
    """Where each level starts in a row of `sums`."""


class SumTree:
    """Priorities of `capacity` positions in `trees` independent trees. A priority of 0 is never drawn."""

    def __init__(self, capacity: int, trees: int = 1) -> None:
        if capacity < 1 or trees < 1:
            raise ConfigError(f"capacity {capacity} and {trees} trees: give at least 1 of each")
        self.capacity = capacity
        # A tree of one position gets a parent too, so that the root is never a leaf.
        levels = _levels(max(capacity, 2))
        width = int(levels[-1]) + FAN  # a row of whole families, the last of which holds the root alone
        self._arrays = TreeArrays(_in_whole_lines(trees, width), _in_whole_lines(trees, width - int(levels[1])), levels)
        self._arrays.least[:] = np.inf

    def total(self) -> Floats:
        """Return the sum of priorities of each tree (trees,)."""
        return self._arrays.sums[:, self._arrays.levels[-1]].copy()

    def least(self) -> Floats:
        """Return the smallest positive priority of each tree (trees,); infinity if there is none."""
        return self._arrays.least[:, self._arrays.levels[-1] - self._arrays.levels[1]].copy()

    def priorities(self, positions: ArrayLike, trees: ArrayLike = 0) -> Floats:
        """Return the priorities (n,) at positions (n,) of trees (n,), or of one tree."""
        where = positions_below(self.capacity, positions)
        which = repeated(trees, len(where), np.int64)
        if len(which) and not (which.min() >= 0 and which.max() < len(self._arrays.sums)):
            self._raise_for(_UNKNOWN_TREE)
        priorities: Floats = self._arrays.sums[which, where]
        return priorities

    def update(self, positions: ArrayLike, priorities: ArrayLike, trees: ArrayLike = 0) -> None:
        """Set priorities (n,) at positions (n,) of trees (n,), or of one tree; of repeats the last counts."""
        where = positions_below(self.capacity, positions)
        which, values = repeated(trees, len(where), np.int64), repeated(priorities, len(where), np.float64)
        self._raise_for(_update(self._arrays, which, where, values))

    def draw(self, uniforms: Floats, trees: ArrayLike = 0) -> tuple[Ints, Floats]:
        """Return positions (n,) for uniforms (n,) in [0, 1), from trees (n,) or one tree, and their priorities (n,)."""
        which = repeated(trees, len(uniforms), np.int64)
        positions, priorities = np.empty(len(uniforms), np.int64), np.empty(len(uniforms))
        self._raise_for(_draw(self._arrays, which, uniforms, positions, priorities))
        return positions, priorities

    def _raise_for(self, fault: int) -> None:
        """Raise the error that a kernel returned as a number."""
        if fault == _UNKNOWN_TREE:
            raise ContractError(f"a tree is outside 0 .. {len(self._arrays.sums) - 1}: check the ids of the trees")
        if fault == _BAD_PRIORITY:
            raise NonFiniteError("priorities must be finite and not negative: check the errors they come from")
        if fault == _BAD_UNIFORM:
            raise ContractError("uniforms lie outside [0, 1): draw them with parallel_agents.core.seeding")
        if fault == _EMPTY_TREE:
            raise ContractError("a tree without any positive priority cannot be drawn from: update it first")


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _update(arrays: TreeArrays, trees: Ints, positions: Ints, values: Floats) -> int:
    """Write leaves and add up their families level by level; return a fault, before anything is written."""
    sums, levels = arrays.sums, arrays.levels
    for i in range(len(positions)):
        if not 0 <= trees[i] < len(sums):
            return _UNKNOWN_TREE
        if not 0.0 <= values[i] < np.inf:
            return _BAD_PRIORITY
    for i in range(len(positions)):
        sums[trees[i], positions[i]] = values[i]
    for level in range(1, len(levels)):
        span = FAN**level
        nodes = -(-(levels[1]) // span)
        if len(sums) * nodes <= len(positions):  # near the root it is cheaper to add up every family once
            for tree in range(len(sums)):
                for node in range(nodes):
                    _add_up(arrays, level, tree, node)
            continue
        for i in range(len(positions)):
            tree, node = trees[i], positions[i] // span
            if i > 0 and tree == trees[i - 1] and node == positions[i - 1] // span:
                continue  # a neighbour has just added this family up
            _add_up(arrays, level, tree, node)
    return _FINE


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _add_up(arrays: TreeArrays, level: int, tree: int, node: int) -> None:
    """Recompute the sum and the least value of one node from its children."""
    sums, least, levels = arrays.sums, arrays.least, arrays.levels
    inner = levels[1]
    first, parent = levels[level - 1] + node * FAN, levels[level] + node
    sums[tree, parent] = _total(sums[tree, first : first + FAN])
    if level == 1:  # the least value of a leaf is the leaf itself
        least[tree, parent - inner] = _least_positive(sums[tree, first : first + FAN])
    else:
        least[tree, parent - inner] = _least_positive(least[tree, first - inner : first - inner + FAN])


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _total(family: Floats) -> float:
    """Return the sum of a family: four running sums in a fixed order are faster than one, and as repeatable."""
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    for child in range(0, FAN, 4):
        a += family[child]
        b += family[child + 1]
        c += family[child + 2]
        d += family[child + 3]
    return (a + b) + (c + d)


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _least_positive(family: Floats) -> float:
    """Return the smallest positive number of a family; infinity if there is none."""
    smallest = np.inf
    for child in range(FAN):
        smallest = min(smallest, family[child] if family[child] > 0.0 else np.inf)
    return smallest


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _draw(arrays: TreeArrays, trees: Ints, uniforms: Floats, positions: Ints, priorities: Floats) -> int:
    """Fill in positions (n,) and priorities (n,); return a fault."""
    sums, levels = arrays.sums, arrays.levels
    for i in range(len(uniforms)):
        if not 0 <= trees[i] < len(sums):
            return _UNKNOWN_TREE
        if not 0.0 <= uniforms[i] < 1.0:
            return _BAD_UNIFORM
        if sums[trees[i], levels[-1]] <= 0.0:
            return _EMPTY_TREE
        priorities[i] = uniforms[i] * sums[trees[i], levels[-1]]  # the sum that is still to be passed on the way down
        positions[i] = 0
    # All draws go down one level together, so that memory loads overlap and few branches depend on the numbers.
    flat, width = sums.reshape(-1), sums.shape[1]
    touched = 0.0
    for level in range(len(levels) - 2, -1, -1):
        if level < _FAR:  # load the families of all draws at once
            for i in range(len(uniforms)):
                first = np.uint64(trees[i] * width + levels[level] + positions[i] * FAN)
                touched += flat[first] + flat[first + np.uint64(8)]
        for i in range(len(uniforms)):
            first = np.uint64(trees[i] * width + levels[level] + positions[i] * FAN)
            chosen, passed = _passed(flat, first, priorities[i])
            positions[i] = positions[i] * FAN + chosen
            priorities[i] -= passed
    for i in range(len(uniforms)):
        priorities[i] = sums[trees[i], positions[i]]
    # always fine: using the sum keeps the compiler from leaving the reads out
    return _FINE if touched >= 0.0 else _BAD_PRIORITY


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _passed(flat: Floats, first: np.uint64, target: float) -> tuple[int, float]:
    """Return the child at which the running sum of a family passes the target, and the sum before that child.

    Groups of four are tried first, then single children. Indices are unsigned, which saves a test for negative ones.
    """
    running, passed, group = 0.0, 0.0, 0
    for part in range(4):
        at = first + np.uint64(4 * part)
        running += (flat[at] + flat[at + np.uint64(1)]) + (flat[at + np.uint64(2)] + flat[at + np.uint64(3)])
        if running <= target:
            passed, group = running, part + 1
    if group == 4:  # rounding left a rest beyond the family: take its last drawable child
        return _last_drawable(flat, first, FAN - 1), passed
    running, chosen = passed, 4 * group
    for part in range(4):
        running += flat[first + np.uint64(4 * group + part)]
        if running <= target:
            passed, chosen = running, 4 * group + part + 1
    if chosen == 4 * group + 4:
        chosen = _last_drawable(flat, first, chosen - 1)
    return chosen, passed


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _last_drawable(flat: Floats, first: np.uint64, child: int) -> int:
    """Return the last child up to `child` whose sum is above 0."""
    while flat[first + np.uint64(child)] <= 0.0:
        child -= 1
    return child
