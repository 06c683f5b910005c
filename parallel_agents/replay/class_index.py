"""Which positions of a buffer belong to which class, with writing and drawing in constant time.

One array holds every live position, class by class:

    order   [ class 0 ............ | class 1 ... | class 2 ...... | free ... ]
             bounds[0]              bounds[1]     bounds[2]        bounds[3]

To add to a class, each later class moves its first entry to its end, which opens one place. When a position gets
another class, the last entry of the old one fills the gap and the later classes close up. Either way there is at most
one move per class, whatever the number of rows. A draw is a class, then a uniform place within its part. A million
positions take 9 MB.

A position that is written again with the same class stays where it is. A buffer with a single class therefore has an
`order` of 0, 1, 2, …, and drawing from it is uniform sampling, byte for byte.

>>> index = ClassIndex(capacity=8, classes=2)
>>> index.assign([0, 1, 2, 3], [1, 0, 1, 1])
>>> index.counts.tolist(), index.members(1).tolist()
([1, 3], [0, 2, 3])
>>> index.draw(np.array([[0.1, 0.0], [0.9, 0.99]]), np.array([0.5, 0.5])).positions.tolist()
[1, 3]
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallel_agents.core import seeding
from parallel_agents.core.compiled import njit
from parallel_agents.core.errors import (
    ConfigError,
    ContractError,
    CorruptCheckpoint,
    NonFiniteError,
    ShapeError,
)
from parallel_agents.core.types import Floats, Ints
from parallel_agents.replay.priorities import SumTree, positions_below, repeated

_ABSENT = -1
_FINE, _OUTSIDE, _EMPTY = 0, 1, 2
_UNIFORM = np.empty(0)
_MAX_CLASSES = 127
_MAX_CAPACITY = 2**31 - 1


class Draw(NamedTuple):
    """Drawn rows (B,): positions, class ids, and densities n_k P(i | k); none (0,) if classes are drawn uniformly."""

    positions: Ints
    classes: Ints
    density: Floats


class IndexArrays(NamedTuple):
    """The arrays of a class index."""

    order: NDArray[np.int32]
    place: NDArray[np.int32]
    """Where each position stands in `order`."""
    owner: NDArray[np.int8]
    """The class of each position."""
    bounds: Ints


class ClassIndex:
    """The live positions of a buffer, by class id. It stores no rows.

    priorities: draw the rows of a class by priority, P(i) = q_k p_i / sum of p over class k. That does not change the
    share of a class, only which of its rows are drawn more often. A row without a priority of its own gets the largest
    one so far, so that it is drawn soon (Schaul et al. 2016).

    >>> index = ClassIndex(capacity=8, classes=2, priorities=True)
    >>> index.assign([0, 1, 2], [0, 1, 1])
    >>> index.update_priorities([1], [3.0])
    >>> index.draw(np.array([[0.9, 0.7], [0.9, 0.8]]), np.array([0.5, 0.5])).positions.tolist()
    [1, 2]
    """

    def __init__(self, capacity: int, classes: int, *, priorities: bool = False) -> None:
        if not 1 <= capacity <= _MAX_CAPACITY:
            raise ConfigError(f"capacity {capacity} is out of range: give a number from 1 to {_MAX_CAPACITY}")
        if not 1 <= classes <= _MAX_CLASSES:
            raise ConfigError(f"{classes} classes are out of range: give a number from 1 to {_MAX_CLASSES}")
        self.capacity = capacity
        self._arrays = IndexArrays(
            order=np.zeros(capacity, np.int32),
            place=np.zeros(capacity, np.int32),
            owner=np.full(capacity, _ABSENT, np.int8),
            bounds=np.zeros(classes + 1, np.int64),
        )
        self._tree = SumTree(capacity, trees=classes) if priorities else None
        self._largest = 1.0

    def __len__(self) -> int:
        return int(self._arrays.bounds[-1])

    @property
    def prioritised(self) -> bool:
        """True if the rows of a class are drawn by priority."""
        return self._tree is not None

    @property
    def nbytes(self) -> int:
        """Bytes of the index, without priorities."""
        return sum(array.nbytes for array in self._arrays[:-1])

    @property
    def bounds(self) -> Ints:
        """How many live rows the classes before each have (K + 1,); the last is all."""
        return self._arrays.bounds

    @property
    def counts(self) -> Ints:
        """Live rows of each class (K,)."""
        return np.diff(self._arrays.bounds)

    def members(self, which: int) -> Ints:
        """Return the positions of one class, in the order of the index."""
        bounds = self._arrays.bounds
        return self._arrays.order[bounds[which] : bounds[which + 1]].astype(np.int64)

    def classes_at(self, positions: ArrayLike) -> Ints:
        """Return the class ids of live positions (n,)."""
        where = positions_below(self.capacity, positions)
        classes = self._arrays.owner[where].astype(np.int64)
        if (classes == _ABSENT).any():
            raise ContractError(f"position {where[classes == _ABSENT][0]} holds no row: it was never added")
        return classes

    def assign(self, positions: ArrayLike, classes: ArrayLike, priorities: ArrayLike | None = None) -> None:
        """Put positions (n,) into classes (n,), or into one class: new rows, or rows that are overwritten.

        priorities: above 0, one per position; None: the largest one so far.
        """
        where = positions_below(self.capacity, positions)
        which = repeated(classes, len(where), np.int64)
        known = len(self._arrays.bounds) - 1
        if where.size and not (which.min() >= 0 and which.max() < known):
            raise ContractError(f"a class id is outside 0 .. {known - 1}: found {np.unique(which).tolist()}")
        if self._tree is not None:
            values = _positive(self._largest if priorities is None else priorities, where)
            live = where[self._arrays.owner[where] >= 0]
            self._tree.update(live, 0.0, self.classes_at(live))
        _assign(self._arrays, where, which)
        if self._tree is not None:
            self._set_priorities(where, values)

    def put(self, position: int, which: int) -> None:
        """Put one position into one class, without any check."""
        if self._tree is None:
            _assign_one(self._arrays, position, which)
        else:
            self.assign([position], [which])

    def update_priorities(self, positions: ArrayLike, priorities: ArrayLike) -> None:
        """Give live positions (n,) new priorities (n,) above 0."""
        where = positions_below(self.capacity, positions)
        self._set_priorities(where, _positive(priorities, where))

    def draw(self, uniforms: Floats, shares: Floats) -> Draw:
        """Draw rows for uniforms (B, 2) in [0, 1): a class by `shares` (K,), then a row within it."""
        if self._tree is None:
            positions, classes = draw_by_class(self._arrays.order, self._arrays.bounds, uniforms, shares)
            return Draw(positions, classes, _UNIFORM)
        bounds = self._arrays.bounds
        _check_draw(bounds, uniforms, shares)
        classes = np.empty(len(uniforms), np.int64)
        _raise_for(_choose_classes(bounds, uniforms, shares, classes), bounds, shares)
        positions, priorities = self._tree.draw(uniforms[:, 1], classes)
        return Draw(positions, classes, priorities * self._density_of_one(self._tree)[classes])

    def least_density(self) -> Floats:
        """Return the smallest n_k P(i | k) of each class (K,); none (0,) if rows are drawn uniformly within a class.

        It is the least priority over the mean one; infinity for an empty class.
        """
        return _UNIFORM if self._tree is None else self._tree.least() * self._density_of_one(self._tree)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the live positions, class by class, the class counts, and priorities: all there is to store."""
        order = self._arrays.order[: len(self)].copy()
        state: dict[str, NDArray[Any]] = {"order": order, "counts": self.counts}
        if self._tree is not None:
            values = self._tree.priorities(order, self.classes_at(order))
            state |= {"priorities": values, "largest": np.array(self._largest)}
        return state

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Replace the contents by what `state` returned; raise if it does not fit. Draws then go on unchanged."""
        if not {"order", "counts"} <= set(state):
            raise CorruptCheckpoint(f"a stored class index needs order and counts: found {sorted(state)}")
        if self._tree is not None and not {"priorities", "largest"} <= set(state):
            raise CorruptCheckpoint(f"a stored priority index needs priorities and largest: found {sorted(state)}")
        order, counts = np.asarray(state["order"]), np.asarray(state["counts"])
        arrays, classes = self._arrays, len(self._arrays.bounds) - 1
        whole = order.ndim == 1 and order.dtype.kind in "iu" and counts.dtype.kind in "iu"
        fitting = whole and counts.shape == (classes,) and counts.min() >= 0 and counts.max() <= order.size
        if not fitting or counts.sum() != order.size:  # the sum of larger ones could overflow
            raise CorruptCheckpoint(
                f"stored counts {counts.tolist()} do not fit {classes} classes and {order.size} positions"
            )
        if order.size and (order.min() < 0 or order.max() >= self.capacity or np.unique(order).size != order.size):
            raise CorruptCheckpoint(f"stored positions repeat or lie outside 0 .. {self.capacity - 1}")
        if self._tree is not None:
            values, largest = np.asarray(state["priorities"], np.float64), float(state["largest"])
            if values.shape != order.shape or not ((values > 0) & (values <= largest)).all() or largest == np.inf:
                raise CorruptCheckpoint("stored priorities do not fit the stored positions or the stored largest")
            self._tree, self._largest = SumTree(self.capacity, trees=classes), largest
        arrays.bounds[:] = np.concatenate([[0], np.cumsum(counts)])
        arrays.order[: order.size] = order
        arrays.place[order] = np.arange(order.size)
        arrays.owner[:] = _ABSENT
        arrays.owner[order] = np.repeat(np.arange(counts.size), counts)
        if self._tree is not None:
            self._set_priorities(order, values)

    def _set_priorities(self, where: Ints, values: Floats) -> None:
        """Give live positions priorities, where there are any."""
        if self._tree is not None:
            self._tree.update(where, values, self.classes_at(where))
            self._largest = max(self._largest, float(values.max(initial=0.0)))

    def _density_of_one(self, tree: SumTree) -> Floats:
        """Return n_k P(i | k) of a priority of 1, per class (K,): rows over the sum of their priorities."""
        totals = tree.total()
        return np.divide(self.counts, totals, out=np.ones_like(totals), where=totals > 0)


def _positive(priorities: ArrayLike, where: Ints) -> Floats:
    """Return a priority for each position (n,); raise unless all are finite and above 0."""
    values = repeated(priorities, len(where), np.float64)
    if values.size and not (values.min() > 0.0 and values.max() < np.inf):
        raise NonFiniteError("priorities must be finite and above 0, or their rows could never be drawn")
    return values


def uniform_positions(uniforms: Floats, count: int) -> Ints:
    """Return uniform positions (B,) in 0 .. count - 1 from uniforms (B, 2): by the second number, as within a class."""
    return (uniforms[:, 1] * count).astype(np.int64)


def sample_uniforms(seed: int, agent: int, update: int, batch_size: int) -> Floats:
    """Return the random numbers (B, 2) of an agent's update; a smaller batch sees the first of a larger one's."""
    pairs = np.empty((batch_size, 2))
    _fill(*_key(seed, agent), np.uint64(update), pairs)
    return pairs


@lru_cache(maxsize=1024)
def _key(seed: int, agent: int) -> tuple[np.uint64, np.uint64]:
    first, second = seeding.key(seed, seeding.Purpose.SAMPLE, agent)
    return np.uint64(first), np.uint64(second)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _fill(k0: np.uint64, k1: np.uint64, update: np.uint64, pairs: Floats) -> None:
    """Draw the same numbers as `seeding.uniforms`, for a single address."""
    zero = np.uint64(0)
    for block in range((len(pairs) + 1) // 2):
        a, b, c, d = seeding.draw(k0, k1, np.uint64(block), zero, update, zero)
        pairs[2 * block, 0], pairs[2 * block, 1] = seeding.uniform(a), seeding.uniform(b)
        if 2 * block + 1 < len(pairs):
            pairs[2 * block + 1, 0], pairs[2 * block + 1, 1] = seeding.uniform(c), seeding.uniform(d)


def draw_by_class(order: NDArray[np.int32], bounds: Ints, uniforms: Floats, shares: Floats) -> tuple[Ints, Ints]:
    """Return drawn entries (B,) of `order` and their class ids (B,).

    `order` is sorted by class, class k at bounds[k] : bounds[k + 1].
    uniforms (B, 2) in [0, 1) decide the class, by `shares` (K,), and the place within it.
    """
    _check_draw(bounds, uniforms, shares)
    entries, classes = np.empty(len(uniforms), np.int64), np.empty(len(uniforms), np.int64)
    _raise_for(_draw_entries(order, bounds, uniforms, shares, entries, classes), bounds, shares)
    return entries, classes


def _check_draw(bounds: Ints, uniforms: Floats, shares: Floats) -> None:
    """Raise unless uniforms and shares have the shapes of a draw."""
    if uniforms.ndim != 2 or uniforms.shape[1] != 2:
        raise ShapeError(f"uniforms have shape {uniforms.shape}: give (batch, 2), for a class and a place")
    if shares.shape != (len(bounds) - 1,):
        raise ShapeError(f"shares have shape {shares.shape}: give one for each of {len(bounds) - 1} classes")


def _raise_for(fault: int, bounds: Ints, shares: Floats) -> None:
    """Raise the error that a kernel returned as a number."""
    if fault == _OUTSIDE:
        raise ContractError("uniforms lie outside [0, 1): draw them with parallel_agents.core.seeding")
    if fault == _EMPTY:
        raise ContractError(
            f"a class without rows came up: shares {shares.tolist()}, rows {np.diff(bounds).tolist()}; "
            "give an empty class no share"
        )


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _insert(index: IndexArrays, position: int, which: int) -> None:
    """Add a position to the end of a class."""
    order, place, bounds = index.order, index.place, index.bounds
    for later in range(len(bounds) - 2, which, -1):
        first, end = bounds[later], bounds[later + 1]
        if first < end:
            order[end] = order[first]
            place[order[end]] = end
        bounds[later + 1] = end + 1
    end = bounds[which + 1]
    order[end] = position
    place[position] = end
    index.owner[position] = which
    bounds[which + 1] = end + 1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _remove(index: IndexArrays, position: int) -> None:
    """Take a position out of its class."""
    order, place, bounds = index.order, index.place, index.bounds
    gap = place[position]
    for segment in range(index.owner[position], len(bounds) - 1):
        last = bounds[segment + 1] - 1
        if last != gap:
            order[gap] = order[last]
            place[order[gap]] = gap
        gap = last
        bounds[segment + 1] = last
    index.owner[position] = _ABSENT


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _assign_one(index: IndexArrays, position: int, which: int) -> None:
    """Put a position into a class; it stays where it is if it is in that class already."""
    if index.owner[position] == which:
        return
    if index.owner[position] != _ABSENT:
        _remove(index, position)
    _insert(index, position, which)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _assign(index: IndexArrays, positions: Ints, classes: Ints) -> None:
    for i in range(len(positions)):
        _assign_one(index, positions[i], classes[i])


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _choose_classes(bounds: Ints, uniforms: Floats, shares: Floats, classes: Ints) -> int:
    """Fill in class ids (B,) by the first number of uniforms (B, 2); return a fault."""
    sums = np.cumsum(shares)
    for i in range(len(uniforms)):
        if not (0.0 <= uniforms[i, 0] < 1.0 and 0.0 <= uniforms[i, 1] < 1.0):
            return _OUTSIDE
        which = 0
        # Rounding may leave the last sum below 1: numbers beyond it go to the last class with a share.
        while uniforms[i, 0] >= sums[which] and sums[which] < sums[-1]:
            which += 1
        if bounds[which] == bounds[which + 1]:
            return _EMPTY
        classes[i] = which
    return _FINE


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _draw_entries(
    order: NDArray[np.int32], bounds: Ints, uniforms: Floats, shares: Floats, entries: Ints, classes: Ints
) -> int:
    """Fill in class ids (B,) and, by the second number of uniforms (B, 2), entries (B,); return a fault."""
    fault = _choose_classes(bounds, uniforms, shares, classes)
    if fault == _FINE:
        for i in range(len(uniforms)):
            first, end = bounds[classes[i]], bounds[classes[i] + 1]
            entries[i] = order[first + int(uniforms[i, 1] * (end - first))]
    return int(fault)
