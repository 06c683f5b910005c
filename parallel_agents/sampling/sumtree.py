"""Drawing positions in proportion to their priorities: trees of sums with a wide fan.

A node holds the sum of its FAN children and the smallest positive priority below it. A million positions
need five levels instead of the twenty of a binary tree: fewer cache misses, half the memory. Sums are never
adjusted by differences: every update adds the children again, in one fixed order. So a tree is a function of
its leaves alone, without drift, and a tree rebuilt from stored leaves is equal to the old one in every bit.

Several trees over the same positions, one per class, are rows of the same arrays.

>>> tree = SumTree(capacity=100)
>>> tree.update([3, 50], [1.0, 3.0])
>>> positions, priorities = tree.draw(np.array([0.1, 0.24, 0.26, 0.99]))
>>> positions.tolist(), priorities.tolist()
([3, 3, 50, 50], [1.0, 1.0, 3.0, 3.0])
>>> float(tree.total()[0]), float(tree.least()[0])
(4.0, 1.0)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallel_agents.compiled import njit
from parallel_agents.errors import ConfigError, ContractError, NonFiniteError
from parallel_agents.sampling.arrays import filled, positions_below

__all__ = ["SumTree"]

FAN = 16
_FAR = 2  # levels, from the leaves, that no cache holds

_FINE, _UNKNOWN_TREE, _BAD_PRIORITY, _BAD_UNIFORM, _EMPTY_TREE = range(5)


def _levels(capacity: int) -> NDArray[np.int64]:
    """Where each level starts in a row, leaves first, each padded to whole families; the root comes last."""
    starts, size = [0], capacity
    while size > 1:
        families = -(-size // FAN)
        starts.append(starts[-1] + families * FAN)
        size = families
    return np.array(starts, np.int64)


def _in_whole_lines(rows: int, width: int) -> NDArray[np.float64]:
    """Zeros (rows, width) that start where a cache line does, so that a family of 16 is two lines and not three."""
    block = np.zeros(rows * width + 8)
    first = -(block.ctypes.data // 8) % 8
    return block[first : first + rows * width].reshape(rows, width)


class SumTree:
    """Priorities of `capacity` positions in `trees` independent trees; a priority of 0 is never drawn."""

    def __init__(self, capacity: int, trees: int = 1) -> None:
        if capacity < 1 or trees < 1:
            raise ConfigError(f"capacity {capacity} and {trees} trees: give at least 1 of each")
        self.capacity = capacity
        # A tree of one position gets a parent too, so that the root is never a leaf.
        self._levels = _levels(max(capacity, 2))
        width = int(self._levels[-1]) + FAN  # a row of whole families, the last of which holds the root alone
        self._sums = _in_whole_lines(trees, width)
        # Least values of inner nodes only: among leaves, the priority is its own least value.
        self._least = _in_whole_lines(trees, width - int(self._levels[1]))
        self._least[:] = np.inf

    def total(self) -> NDArray[np.float64]:
        """The sum of priorities of each tree (trees,)."""
        return self._sums[:, self._levels[-1]].copy()

    def least(self) -> NDArray[np.float64]:
        """The smallest positive priority of each tree (trees,); infinite if it has none."""
        return self._least[:, self._levels[-1] - self._levels[1]].copy()

    def priorities(self, positions: ArrayLike, trees: ArrayLike = 0) -> NDArray[np.float64]:
        """Priorities (n,) at positions (n,) of trees (n,), or of one."""
        where = positions_below(self.capacity, positions)
        which = filled(trees, len(where), np.int64)
        if len(which) and not (which.min() >= 0 and which.max() < len(self._sums)):
            self._refuse(_UNKNOWN_TREE)
        found: NDArray[np.float64] = self._sums[which, where]
        return found

    def update(self, positions: ArrayLike, priorities: ArrayLike, trees: ArrayLike = 0) -> None:
        """Set priorities (n,) at positions (n,) of trees (n,), or of one; the last of a repeat counts."""
        where = positions_below(self.capacity, positions)
        which, values = filled(trees, len(where), np.int64), filled(priorities, len(where), np.float64)
        self._refuse(_update(self._sums, self._least, self._levels, which, where, values))

    def draw(
        self, uniforms: NDArray[np.float64], trees: ArrayLike = 0
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Positions (n,) for uniforms (n,) in [0, 1), from trees (n,) or one, and their priorities (n,)."""
        which = filled(trees, len(uniforms), np.int64)
        positions, priorities = np.empty(len(uniforms), np.int64), np.empty(len(uniforms))
        self._refuse(_draw(self._sums, self._levels, which, uniforms, positions, priorities))
        return positions, priorities

    def _refuse(self, fault: int) -> None:
        if fault == _UNKNOWN_TREE:
            raise ContractError(f"a tree is outside 0 .. {len(self._sums) - 1}: check the ids of the trees")
        if fault == _BAD_PRIORITY:
            raise NonFiniteError("priorities must be finite and not negative: check the errors they come from")
        if fault == _BAD_UNIFORM:
            raise ContractError("uniforms lie outside [0, 1): draw them with parallel_agents.seeding")
        if fault == _EMPTY_TREE:
            raise ContractError("a tree without any positive priority cannot be drawn from: update it first")


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _update(
    sums: NDArray[np.float64],
    least: NDArray[np.float64],
    levels: NDArray[np.int64],
    trees: NDArray[np.int64],
    positions: NDArray[np.int64],
    values: NDArray[np.float64],
) -> int:
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
        if len(sums) * nodes <= len(positions):  # near the root it is less work to add up every family once
            for tree in range(len(sums)):
                for node in range(nodes):
                    _add_up(sums, least, levels, level, tree, node)
            continue
        for i in range(len(positions)):
            tree, node = trees[i], positions[i] // span
            if i > 0 and tree == trees[i - 1] and node == positions[i - 1] // span:
                continue  # a neighbour has just added this family up
            _add_up(sums, least, levels, level, tree, node)
    return _FINE


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _add_up(
    sums: NDArray[np.float64], least: NDArray[np.float64], levels: NDArray[np.int64], level: int, tree: int, node: int
) -> None:
    inner = levels[1]
    first, parent = levels[level - 1] + node * FAN, levels[level] + node
    sums[tree, parent] = _total(sums[tree, first : first + FAN])
    if level == 1:  # the least value of a leaf is the leaf itself
        least[tree, parent - inner] = _least_positive(sums[tree, first : first + FAN])
    else:
        least[tree, parent - inner] = _least_positive(least[tree, first - inner : first - inner + FAN])


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _total(family: NDArray[np.float64]) -> float:
    """Four running sums, joined in a fixed order: faster than one, and as repeatable."""
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    for child in range(0, FAN, 4):
        a += family[child]
        b += family[child + 1]
        c += family[child + 2]
        d += family[child + 3]
    return (a + b) + (c + d)


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _least_positive(family: NDArray[np.float64]) -> float:
    smallest = np.inf
    for child in range(FAN):
        smallest = min(smallest, family[child] if family[child] > 0.0 else np.inf)
    return smallest


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _draw(
    sums: NDArray[np.float64],
    levels: NDArray[np.int64],
    trees: NDArray[np.int64],
    uniforms: NDArray[np.float64],
    positions: NDArray[np.int64],
    priorities: NDArray[np.float64],
) -> int:
    for i in range(len(uniforms)):
        if not 0 <= trees[i] < len(sums):
            return _UNKNOWN_TREE
        if not 0.0 <= uniforms[i] < 1.0:
            return _BAD_UNIFORM
        if sums[trees[i], levels[-1]] <= 0.0:
            return _EMPTY_TREE
        priorities[i] = uniforms[i] * sums[trees[i], levels[-1]]  # what is left to pass, on the way down
        positions[i] = 0
    # All draws go down one level together: loads overlap, and hardly a branch depends on the numbers.
    flat, width = sums.reshape(-1), sums.shape[1]
    touched = 0.0
    for level in range(len(levels) - 2, -1, -1):
        if level < _FAR:  # fetch what will be needed, all at once
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
    return _FINE if touched >= 0.0 else _BAD_PRIORITY  # always fine; without a use the compiler leaves the reads out


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _passed(flat: NDArray[np.float64], first: np.uint64, target: float) -> tuple[int, float]:
    """The child at which the running sum of a family passes the target, and the sum before it: by fours, then by ones.

    Places are unsigned: an index that cannot be negative is not tested for it.
    """
    running, passed, group = 0.0, 0.0, 0
    for part in range(4):
        at = first + np.uint64(4 * part)
        running += (flat[at] + flat[at + np.uint64(1)]) + (flat[at + np.uint64(2)] + flat[at + np.uint64(3)])
        if running <= target:
            passed, group = running, part + 1
    if group == 4:  # rounding left a rest beyond the family: its last drawable child
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
def _last_drawable(flat: NDArray[np.float64], first: np.uint64, child: int) -> int:
    while flat[first + np.uint64(child)] <= 0.0:
        child -= 1
    return child
