"""The rows of a stack's rings as segments: each checkpoint writes only what is new since the last one.

A row is never changed once every transition in it is closed. So a segment holds, for each agent, the rows from the
oldest one that was still open at the last checkpoint up to the newest; read in order, later segments over earlier
ones, they give back the rings.

So that segments do not pile up, the next one takes the rows of the last `FAN - 1` in as well wherever those have the
same level, and is one level higher: a checkpoint then needs at most `FAN - 1` segments of each level, and a row is
written once per level. Only segments of more than `LARGEST` bytes stay apart, for a copy of so much stops the run for
too long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from parallel_agents.errors import CorruptCheckpoint
from parallel_agents.memory import PRIORITY, Ring
from parallel_agents.types import Array

__all__ = ["FAN", "Segments", "columns", "compact", "narrowed", "read_ring"]

FAN = 8
"""Segments of one level that become one of the next."""
LARGEST = 256 * 2**20
"""Bytes above which segments are not put together."""
_ROW = "row."


class _Segment(NamedTuple):
    """One file: for each agent the rows from `first` up to, and without, `end`."""

    name: str
    level: int
    first: Array
    end: Array


class Segments:
    """What has been written of one ring so far."""

    def __init__(self, ring: Ring) -> None:
        self._saved = np.zeros(ring.agents, np.int64)
        self._kept: tuple[_Segment, ...] = ()
        self._renewed = ring.renewed

    def resume(self, values: Mapping[str, Any], ring: Ring) -> None:
        """Go on after the segments of a checkpoint, as `values` gave them."""
        parts = zip(values["names"], values["levels"], values["firsts"], values["ends"], strict=True)
        self._kept = tuple(
            _Segment(str(name), int(level), np.asarray(first, np.int64), np.asarray(end, np.int64))
            for name, level, first, end in parts
        )
        self._saved, self._renewed = _settled(ring), ring.renewed

    def take(self, name: str, ring: Ring) -> dict[str, Array]:
        """Return copies of the rows that the next segment holds; it will stand under this name."""
        if ring.renewed != self._renewed:
            self._saved, self._kept, self._renewed = np.zeros_like(self._saved), (), ring.renewed
        oldest = (ring.oldest - ring.shape.frames + 1).clip(min=0)
        kept = tuple(own for own in self._kept if (own.end > oldest).any())
        first, level = np.minimum(self._saved, ring.pos), 0
        while len(last := kept[-(FAN - 1) :]) == FAN - 1 and all(own.level == level for own in last):
            earlier = np.maximum(np.minimum(first, last[0].first), oldest)
            if (ring.pos - earlier).sum() * _bytes_of_row(ring) > LARGEST:
                break
            kept, first, level = kept[: -(FAN - 1)], earlier, level + 1
        first = np.maximum(first, oldest)
        self._kept = (*kept, _Segment(name, level, first, ring.pos.copy()))
        self._saved = _settled(ring)
        arrays: dict[str, Array] = {"first": first, "end": ring.pos.copy()}
        places = [np.arange(a, b) % ring.valid.shape[1] for a, b in zip(first, ring.pos, strict=True)]
        for column_name, column in columns(ring).items():
            arrays[f"{_ROW}{column_name}"] = _picked(column, places)
        return arrays | {f"counter.{counter}": getattr(ring, counter).copy() for counter in Ring.COUNTERS}

    def values(self) -> dict[str, Any]:
        """Return the segments that a checkpoint needs, as plain values, in the order in which they are read."""
        return {
            "names": [own.name for own in self._kept],
            "levels": [own.level for own in self._kept],
            "firsts": [own.first.tolist() for own in self._kept],
            "ends": [own.end.tolist() for own in self._kept],
        }


def _bytes_of_row(ring: Ring) -> int:
    """Bytes of one row of one agent."""
    return sum(column.nbytes for column in columns(ring).values()) // ring.version.size


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
