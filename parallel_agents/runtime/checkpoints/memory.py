"""The rows of a stack's rings as segments: each checkpoint writes only what is new since the last one.

A row is never changed once every transition in it is closed. So a segment holds, for each agent, the rows from the
oldest one that was still open at the last checkpoint up to the newest; read in order, later segments over earlier
ones, they give back the rings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from parallel_agents.errors import CorruptCheckpoint
from parallel_agents.memory import PRIORITY, Ring
from parallel_agents.types import Array

__all__ = ["Segments", "columns", "compact", "narrowed", "read_ring"]

_ROW = "row."


class Segments:
    """What has been written of one ring so far."""

    def __init__(self, ring: Ring) -> None:
        self._saved = np.zeros(ring.agents, np.int64)
        self._ends: list[tuple[str, Array]] = []
        self._renewed = ring.renewed

    def resume(self, names: Sequence[str], ends: Sequence[Sequence[int]], ring: Ring) -> None:
        """Go on after the segments of a checkpoint."""
        self._ends = [(name, np.asarray(end, np.int64)) for name, end in zip(names, ends, strict=True)]
        self._saved, self._renewed = _settled(ring), ring.renewed

    def next(self, ring: Ring) -> dict[str, Array]:
        """Copies of the rows that are not settled in earlier segments: the arrays of the next one."""
        if ring.renewed != self._renewed:
            self._saved, self._ends, self._renewed = np.zeros_like(self._saved), [], ring.renewed
        first = np.maximum(np.minimum(self._saved, ring.pos), ring.oldest - ring.shape.frames + 1).clip(min=0)
        arrays: dict[str, Array] = {"first": first, "end": ring.pos.copy()}
        places = [np.arange(a, b) % ring.valid.shape[1] for a, b in zip(first, ring.pos, strict=True)]
        for name, column in columns(ring).items():
            arrays[f"{_ROW}{name}"] = _picked(column, places)
        return arrays | {f"counter.{name}": getattr(ring, name).copy() for name in Ring.COUNTERS}

    def taken(self, name: str, ring: Ring) -> None:
        """The next segment will stand under this name."""
        self._ends = [*self._ends, (name, ring.pos.copy())]
        self._saved = _settled(ring)

    def names(self, ring: Ring) -> tuple[list[str], list[list[int]]]:
        """The segments that are still needed, and where each of them ends."""
        self._ends = [
            (name, end)
            for place, (name, end) in enumerate(self._ends)
            if place == len(self._ends) - 1 or (end > ring.oldest - ring.shape.frames + 1).any()
        ]
        return [name for name, _ in self._ends], [end.tolist() for _, end in self._ends]


def read_ring(ring: Ring, segments: Sequence[Mapping[str, Array]]) -> None:
    """Fill a fresh ring from the segments of a checkpoint."""
    try:
        for segment in segments:
            at = 0
            for n, (first, end) in enumerate(zip(segment["first"], segment["end"], strict=True)):
                count = int(end - first)
                rows = np.arange(first, end) % ring.valid.shape[1]
                for name, column in columns(ring).items():
                    column[n][rows] = segment[f"{_ROW}{name}"][at : at + count]
                at += count
        last = segments[-1]
        for name in Ring.COUNTERS:
            getattr(ring, name)[...] = last[f"counter.{name}"]
        for n in range(ring.agents):
            ring.list_starts(n)
    except (KeyError, ValueError, IndexError, TypeError) as error:
        raise CorruptCheckpoint(f"a memory segment does not fit this run's buffers: {error}") from error


def columns(ring: Ring) -> dict[str, Array]:
    """What a ring keeps row by row and never changes once it is settled; priorities are kept apart, for they do."""
    lasting = {f"extra.{name}": column for name, column in ring.extras.items() if name != PRIORITY}
    return {name: getattr(ring, name) for name in Ring.ROWS} | lasting


def _picked(column: Array, places: Sequence[Array]) -> Array:
    """Some rows of each agent's part of a column, one after the other; large, hence copied only once."""
    picked = np.empty((sum(map(len, places)), *column.shape[2:]), column.dtype)
    at = 0
    for n, own in enumerate(places):
        np.take(column[n], own, axis=0, out=picked[at : at + len(own)], mode="clip")
        at += len(own)
    return picked


def compact(segment: Mapping[str, Array]) -> dict[str, Array]:
    """A segment with its rows in as few bytes as hold them."""
    return {name: narrowed(column) if name.startswith(_ROW) else column for name, column in segment.items()}


def narrowed(column: Array) -> Array:
    """The same numbers in one byte each, where every one of them is a whole number up to 255 and nothing is lost.

    One-hot observations, actions and ages usually are; a checkpoint then writes and hashes a quarter or less.
    """
    if column.dtype == np.bool_ or not column.size:
        return column
    with np.errstate(invalid="ignore"):  # what does not fit is found by looking back
        small = column.astype(np.uint8)
    bits = f"i{column.dtype.itemsize}"  # as bits, so that -0.0 is not 0.0
    return small if np.array_equal(small.astype(column.dtype).view(bits), column.view(bits)) else column


def _settled(ring: Ring) -> Array:
    """(N,) rows before this serial will never change again."""
    held = np.where(ring.opened >= 0, ring.opened, ring.pos[:, None])
    return np.asarray(np.minimum(held.min(axis=1), ring.pos))
