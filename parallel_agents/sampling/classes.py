"""Which buffer positions belong to which class, with O(1) add, evict and draw.

One array holds every live position, class by class:

    order   [ class 0 ............ | class 1 ... | class 2 ...... | free ... ]
             bounds[0]              bounds[1]     bounds[2]        bounds[3]

To add to a class, each later class hands its first entry to its end, which opens one place; to evict, the
last entry of the class fills the gap and the later classes close up: at most one move per class, whatever
the number of rows. A draw is a class, then a uniform place within its segment. A million take 9 MB.

A position that is written again with the same class stays where it is. A buffer with a single class therefore
keeps `order` equal to 0, 1, 2, ..., and drawing from it is uniform sampling byte for byte.

>>> index = ClassIndex(capacity=8, classes=2)
>>> index.assign([0, 1, 2, 3], [1, 0, 1, 1])
>>> index.counts.tolist(), index.members(1).tolist()
([1, 3], [0, 2, 3])
>>> index.evict([0])
>>> index.draw(np.array([[0.1, 0.0], [0.9, 0.99]]), np.array([0.5, 0.5])).positions.tolist()
[1, 2]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallel_agents.compiled import njit
from parallel_agents.errors import CheckpointError, ConfigError, ContractError, ShapeError
from parallel_agents.sampling.arrays import filled, positions_below

__all__ = ["ClassIndex", "Draw", "choose_classes", "draw_by_class", "uniform_positions"]

_ABSENT = -1
_FINE, _OUTSIDE, _EMPTY = 0, 1, 2
_UNIFORM = np.empty(0)
_MAX_CLASSES = 127
_MAX_CAPACITY = 2**31 - 1


class Draw(NamedTuple):
    """Drawn rows (B,): positions, class ids, and n_k P(i | k), empty where a class is drawn uniformly: it is 1 then."""

    positions: NDArray[np.int64]
    classes: NDArray[np.int64]
    density: NDArray[np.float64]


def uniform_positions(uniforms: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Uniform places (B,) in 0 .. count - 1 from uniforms (B, 2): the second number, as within a class."""
    return (uniforms[:, 1] * count).astype(np.int64)


class ClassIndex:
    """The live positions of a buffer, by class id. It holds no rows."""

    def __init__(self, capacity: int, classes: int) -> None:
        if not 1 <= capacity <= _MAX_CAPACITY:
            raise ConfigError(f"capacity {capacity} is out of range: give a number from 1 to {_MAX_CAPACITY}")
        if not 1 <= classes <= _MAX_CLASSES:
            raise ConfigError(f"{classes} classes are out of range: give a number from 1 to {_MAX_CLASSES}")
        self.capacity = capacity
        self._order = np.zeros(capacity, np.int32)
        self._place = np.zeros(capacity, np.int32)
        self._class = np.full(capacity, _ABSENT, np.int8)
        self._bounds = np.zeros(classes + 1, np.int64)

    def __len__(self) -> int:
        return int(self._bounds[-1])

    @property
    def counts(self) -> NDArray[np.int64]:
        """Live rows of each class (K,)."""
        return np.asarray(self._bounds[1:] - self._bounds[:-1])

    def members(self, which: int) -> NDArray[np.int64]:
        """The positions of one class, in list order."""
        return self._order[self._bounds[which] : self._bounds[which + 1]].astype(np.int64)

    def classes_at(self, positions: ArrayLike) -> NDArray[np.int64]:
        """Class ids of live positions (n,)."""
        where = positions_below(self.capacity, positions)
        found = self._class[where].astype(np.int64)
        if (found == _ABSENT).any():
            raise ContractError(f"position {where[found == _ABSENT][0]} holds no row: it was never added, or evicted")
        return found

    def assign(self, positions: ArrayLike, classes: ArrayLike) -> None:
        """Put positions (n,) into classes (n,), or one class: new rows, or rows written over."""
        where = positions_below(self.capacity, positions)
        which = filled(classes, len(where), np.int64)
        if where.size and not (which.min() >= 0 and which.max() < len(self._bounds) - 1):
            raise ContractError(
                f"a class id is outside 0 .. {len(self._bounds) - 2}: found {np.unique(which).tolist()}"
            )
        _assign(self._order, self._place, self._class, self._bounds, where, which)

    def put(self, position: int, which: int) -> None:
        """As `assign`, for one position and one class id that are known to be right."""
        _assign_one(self._order, self._place, self._class, self._bounds, position, which)

    def evict(self, positions: ArrayLike) -> None:
        """Forget positions (n,); those that hold no row are left alone."""
        _evict(self._order, self._place, self._class, self._bounds, positions_below(self.capacity, positions))

    def draw(self, uniforms: NDArray[np.float64], shares: NDArray[np.float64]) -> Draw:
        """Rows for uniforms (B, 2) in [0, 1): a class by `shares` (K,), then a place within it."""
        positions, classes = draw_by_class(self._order, self._bounds, uniforms, shares)
        return Draw(positions, classes, _UNIFORM)

    def least_density(self) -> NDArray[np.float64]:
        """The smallest n_k P(i | k) of each class (K,); empty where a class is drawn uniformly: it is 1 then."""
        return _UNIFORM

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything there is to store: the live positions, class by class, and the class counts."""
        return {"order": self._order[: len(self)].copy(), "counts": self.counts}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over a stored state, checked first: draws go on exactly as they would have."""
        if not {"order", "counts"} <= set(state):
            raise CheckpointError(f"a stored class index needs order and counts: found {sorted(state)}")
        order, counts = np.asarray(state["order"], np.int64), np.asarray(state["counts"], np.int64)
        if counts.shape != (len(self._bounds) - 1,) or counts.min() < 0 or counts.sum() != order.size:
            raise CheckpointError(
                f"stored counts {counts.tolist()} do not fit {len(self._bounds) - 1} classes and {order.size} positions"
            )
        if order.size and (order.min() < 0 or order.max() >= self.capacity or np.unique(order).size != order.size):
            raise CheckpointError(f"stored positions repeat or lie outside 0 .. {self.capacity - 1}")
        self._bounds[:] = np.concatenate([[0], np.cumsum(counts)])
        self._order[: order.size] = order
        self._place[order] = np.arange(order.size)
        self._class[:] = _ABSENT
        self._class[order] = np.repeat(np.arange(counts.size), counts)


def draw_by_class(
    order: NDArray[np.int32], bounds: NDArray[np.int64], uniforms: NDArray[np.float64], shares: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Entries of `order`, sorted by class with class k at bounds[k] : bounds[k + 1], and their class ids (B,).

    uniforms (B, 2) in [0, 1) say which class, by `shares` (K,), and which place within it.
    """
    _check(bounds, uniforms, shares)
    entries, classes = np.empty((2, len(uniforms)), np.int64)
    _refuse(_draw(order, bounds, uniforms, shares, entries, classes), bounds, shares)
    return entries, classes


def choose_classes(
    bounds: NDArray[np.int64], uniforms: NDArray[np.float64], shares: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Class ids (B,) with the given shares (K,), by the first number of uniforms (B, 2)."""
    _check(bounds, uniforms, shares)
    classes = np.empty(len(uniforms), np.int64)
    _refuse(_choose(bounds, uniforms, shares, classes), bounds, shares)
    return classes


def _check(bounds: NDArray[np.int64], uniforms: NDArray[np.float64], shares: NDArray[np.float64]) -> None:
    if uniforms.ndim != 2 or uniforms.shape[1] != 2:
        raise ShapeError(f"uniforms have shape {uniforms.shape}: give (batch, 2), for a class and a place")
    if shares.shape != (len(bounds) - 1,):
        raise ShapeError(f"shares have shape {shares.shape}: give one for each of {len(bounds) - 1} classes")


def _refuse(fault: int, bounds: NDArray[np.int64], shares: NDArray[np.float64]) -> None:
    if fault == _OUTSIDE:
        raise ContractError("uniforms lie outside [0, 1): draw them with parallel_agents.seeding")
    if fault == _EMPTY:
        raise ContractError(
            f"a class without rows came up: shares {shares.tolist()}, rows {np.diff(bounds).tolist()}; "
            "give an empty class no share"
        )


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _insert(
    order: NDArray[np.int32],
    place: NDArray[np.int32],
    owner: NDArray[np.int8],
    bounds: NDArray[np.int64],
    position: int,
    which: int,
) -> None:
    for later in range(len(bounds) - 2, which, -1):
        first, end = bounds[later], bounds[later + 1]
        if first < end:
            order[end] = order[first]
            place[order[end]] = end
        bounds[later + 1] = end + 1
    end = bounds[which + 1]
    order[end] = position
    place[position] = end
    owner[position] = which
    bounds[which + 1] = end + 1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _remove(
    order: NDArray[np.int32],
    place: NDArray[np.int32],
    owner: NDArray[np.int8],
    bounds: NDArray[np.int64],
    position: int,
) -> None:
    gap = place[position]
    for segment in range(owner[position], len(bounds) - 1):
        last = bounds[segment + 1] - 1
        if last != gap:
            order[gap] = order[last]
            place[order[gap]] = gap
        gap = last
        bounds[segment + 1] = last
    owner[position] = _ABSENT


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _assign_one(
    order: NDArray[np.int32],
    place: NDArray[np.int32],
    owner: NDArray[np.int8],
    bounds: NDArray[np.int64],
    position: int,
    which: int,
) -> None:
    if owner[position] == which:
        return
    if owner[position] != _ABSENT:
        _remove(order, place, owner, bounds, position)
    _insert(order, place, owner, bounds, position, which)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _assign(
    order: NDArray[np.int32],
    place: NDArray[np.int32],
    owner: NDArray[np.int8],
    bounds: NDArray[np.int64],
    positions: NDArray[np.int64],
    classes: NDArray[np.int64],
) -> None:
    for i in range(len(positions)):
        _assign_one(order, place, owner, bounds, positions[i], classes[i])


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _evict(
    order: NDArray[np.int32],
    place: NDArray[np.int32],
    owner: NDArray[np.int8],
    bounds: NDArray[np.int64],
    positions: NDArray[np.int64],
) -> None:
    for position in positions:
        if owner[position] != _ABSENT:
            _remove(order, place, owner, bounds, position)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _choose(
    bounds: NDArray[np.int64],
    uniforms: NDArray[np.float64],
    shares: NDArray[np.float64],
    classes: NDArray[np.int64],
) -> int:
    sums = np.cumsum(shares)
    for i in range(len(uniforms)):
        if not (0.0 <= uniforms[i, 0] < 1.0 and 0.0 <= uniforms[i, 1] < 1.0):
            return _OUTSIDE
        which = 0
        # Rounding may leave the last sum below 1: what lies beyond falls to the last class with a share.
        while uniforms[i, 0] >= sums[which] and sums[which] < sums[-1]:
            which += 1
        if bounds[which] == bounds[which + 1]:
            return _EMPTY
        classes[i] = which
    return _FINE


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _draw(
    order: NDArray[np.int32],
    bounds: NDArray[np.int64],
    uniforms: NDArray[np.float64],
    shares: NDArray[np.float64],
    entries: NDArray[np.int64],
    classes: NDArray[np.int64],
) -> int:
    fault = _choose(bounds, uniforms, shares, classes)
    if fault == _FINE:
        for i in range(len(uniforms)):
            first, end = bounds[classes[i]], bounds[classes[i] + 1]
            entries[i] = order[first + int(uniforms[i, 1] * (end - first))]
    return int(fault)
