"""States and next states in a ring, no state kept twice: a next state that is the next row's state is only a link.

    states     row 0 | row 1 | row 2 | ...      the next state of a row is the state of the row after it,
    apart      (serial, next state), ...        or stands apart, where a new episode began there,
    pending    next state                       or is still pending, for the newest row.

A row's name is its serial, the count of rows added before it; it stands at serial % capacity. Rows leave in the order
in which they came, and so do the states kept apart: these are a queue, found by their serials, which only ever rise.

>>> chain = Chain(capacity=4, size=1)
>>> chain.add(np.float32([[1], [2], [7]]), np.float32([[2], [3], [8]]))
>>> chain.pairs(np.array([0, 1, 2]))[1].ravel().tolist(), chain.apart
([2.0, 3.0, 8.0], 1)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_agents.compiled import njit
from parallel_agents.errors import CheckpointError
from parallel_agents.types import Array

__all__ = ["Chain"]

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

_ROOM = 64  # places for states kept apart, at first
_GROWTH = 1.25
_LINE = 16  # numbers of a cache line


class Chain:
    """Rows of float32 states (capacity, size), each with its next state; the oldest give way to the newest."""

    STORED = ("added", "states", "linked", "pending", "apart.serials", "apart.states")

    def __init__(self, capacity: int, size: int) -> None:
        self.capacity = capacity
        self.added = 0
        """rows ever added: the serial of the next one"""
        self._states = np.zeros((capacity, size), np.float32)
        self._linked = np.full(-(-capacity // 8), 255, np.uint8)  # one bit a row: its next state is the next row's
        self._pending = np.zeros(size, np.float32)
        self._serials = np.zeros(_ROOM, np.int64)
        self._kept = np.zeros((_ROOM, size), np.float32)
        self._queue = np.zeros(2, np.int64)  # states kept apart: how many ever came, how many have left

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    @property
    def oldest(self) -> int:
        """Serial of the oldest row."""
        return self.added - len(self)

    @property
    def apart(self) -> int:
        """How many next states are kept apart."""
        return int(self._queue[0] - self._queue[1])

    @property
    def nbytes(self) -> int:
        """Memory of all arrays."""
        arrays = (self._states, self._linked, self._pending, self._serials, self._kept)
        return sum(array.nbytes for array in arrays)

    def add(self, states: Floats, next_states: Floats) -> None:
        """Keep rows (n, size) and what they led to (n, size), in this order."""
        breaks = np.empty(len(states), np.bool_)
        _compare(self._pending, states, next_states, breaks)
        breaks[:1] &= self.added > 0
        self._make_room(int(breaks.sum()))
        _write(
            self._states, self._linked, self._pending, self._serials, self._kept, self._queue, self.added,
            states, next_states, breaks,
        )  # fmt: skip
        self.added += len(states)

    def pairs(self, positions: Ints) -> tuple[Floats, Floats]:
        """States and next states, (n, size) each, of the rows at live positions (n,)."""
        states, next_states = np.empty((2, len(positions), self._states.shape[1]), np.float32)
        _gather(
            self._states, self._linked, self._pending, self._serials, self._kept, self._queue, self.added,
            positions, states, next_states,
        )  # fmt: skip
        return states, next_states

    def _make_room(self, more: int) -> None:
        """Let `more` states come to the queue; it never holds more than one for each row and one on its way out."""
        most = min(self.apart + more, self.capacity + 1)
        if most <= len(self._serials):
            return
        room = min(max(most, int(_GROWTH * len(self._serials))), self.capacity + 1)
        order = np.arange(self._queue[1], self._queue[0]) % len(self._serials)
        serials, kept = np.zeros(room, np.int64), np.zeros((room, self._kept.shape[1]), np.float32)
        serials[: len(order)], kept[: len(order)] = self._serials[order], self._kept[order]
        self._serials, self._kept = serials, kept
        self._queue[:] = len(order), 0

    def state(self) -> dict[str, Array]:
        """What is kept, row by position, as arrays."""
        order = np.arange(self._queue[1], self._queue[0]) % len(self._serials)
        return {
            "added": np.array(self.added, np.int64),
            "states": self._states[: len(self)].copy(),
            "linked": np.unpackbits(self._linked, count=len(self), bitorder="little").astype(np.bool_),
            "pending": self._pending.copy(),
            "apart.serials": self._serials[order],
            "apart.states": self._kept[order],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over a stored state, checked first."""
        added, serials = int(state["added"]), np.asarray(state["apart.serials"], np.int64)
        rows, size = min(max(added, 0), self.capacity), self._states.shape[1]
        expected = {"states": (rows, size), "linked": (rows,), "pending": (size,), "apart.states": (len(serials), size)}
        for name, shape in expected.items():
            if np.shape(state[name]) != shape:
                raise CheckpointError(f"stored {name} have shape {np.shape(state[name])}: this buffer needs {shape}")
        alone = np.arange(added - rows, added)
        alone = alone[~np.asarray(state["linked"], np.bool_)[alone % self.capacity]]
        if added < 0 or not np.array_equal(serials, alone):
            raise CheckpointError("stored next states do not fit the rows they belong to: the state is not whole")
        self.__init__(self.capacity, size)  # type: ignore[misc]
        self._make_room(len(serials))
        bits = np.packbits(np.asarray(state["linked"], np.bool_), bitorder="little")
        self._states[:rows], self._linked[: len(bits)], self._pending[:] = state["states"], bits, state["pending"]
        self._serials[: len(serials)], self._kept[: len(serials)] = serials, state["apart.states"]
        self._queue[0], self.added = len(serials), added


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _compare(pending: Floats, states: Floats, next_states: Floats, breaks: NDArray[np.bool_]) -> None:
    """Does a row begin elsewhere than where the row before it led? Bit for bit, so that -0.0 is not 0.0."""
    for i in range(len(states)):
        before = pending if i == 0 else next_states[i - 1]
        breaks[i] = False
        for d in range(states.shape[1]):
            # Equal numbers with unequal signs are the only equal ones that differ in their bits.
            if before[d] != states[i, d] or np.signbit(before[d]) != np.signbit(states[i, d]):
                breaks[i] = True
                break


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _write(
    states: Floats,
    linked: NDArray[np.uint8],
    pending: Floats,
    serials: Ints,
    kept: Floats,
    queue: Ints,
    added: int,
    new_states: Floats,
    new_next: Floats,
    breaks: NDArray[np.bool_],
) -> None:
    rows, room = len(states), len(serials)
    for i in range(len(new_states)):
        serial = added + i
        if breaks[i]:
            place = queue[0] % room
            serials[place] = serial - 1
            before = (serial - 1) % rows
            linked[before >> 3] &= np.uint8(255 - (1 << (before & 7)))
            for d in range(states.shape[1]):
                kept[place, d] = pending[d]
            queue[0] += 1
        if queue[1] < queue[0] and serials[queue[1] % room] <= serial - rows:
            queue[1] += 1
        row = serial % rows
        linked[row >> 3] |= np.uint8(1 << (row & 7))
        for d in range(states.shape[1]):
            states[row, d] = new_states[i, d]
            pending[d] = new_next[i, d]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _gather(
    states: Floats,
    linked: NDArray[np.uint8],
    pending: Floats,
    serials: Ints,
    kept: Floats,
    queue: Ints,
    added: int,
    positions: Ints,
    out: Floats,
    out_next: Floats,
) -> float:
    """Copy states and next states; the next state is the next row's, but for the newest row and those kept apart."""
    rows, size = states.shape
    newest = (added - 1) % rows
    # Reading a little of every row first lets the misses of the cache overlap; the sum keeps the compiler from
    # leaving it out.
    touched = np.float32(0.0)
    for i in range(len(positions)):
        for d in range(0, size, _LINE):
            touched += states[positions[i], d]
    for i in range(len(positions)):
        row = positions[i]
        source, place = states, row + 1 if row + 1 < rows else 0
        if row == newest:
            source, place = pending.reshape(1, size), 0
        elif not linked[row >> 3] >> (row & 7) & 1:
            serial = added - 1 - newest + row - (rows if row > newest else 0)
            source, place = kept, _find(serials, queue, serial)
        for d in range(size):  # loops, since numba copies short slices slowly
            out[i, d] = states[row, d]
        for d in range(size):
            out_next[i, d] = source[place, d]
    return float(touched)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _find(serials: Ints, queue: Ints, wanted: int) -> int:
    """The place of a serial in the queue: a guess by proportion, then a half, in turn; the serials rise."""
    room = len(serials)
    low, high = queue[1], queue[0] - 1
    guess = True
    while low < high:
        first, last = serials[low % room], serials[high % room]
        middle = (low + high) // 2
        if guess and first < last:
            middle = low + int((wanted - first) * ((high - low) / (last - first)))
        guess = not guess
        found = serials[middle % room]
        if found == wanted:
            return int(middle % room)
        if found < wanted:
            low = middle + 1
        else:
            high = middle - 1
    return int(low % room)
