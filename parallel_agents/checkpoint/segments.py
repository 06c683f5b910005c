"""The rows of replay buffers in append-only files, called segments: each checkpoint writes only new rows.

A row never changes once every transition in it is closed. So a segment holds, for each agent, the rows from the oldest
one that was still open at the last checkpoint up to the newest. Read in order, later segments over earlier ones, they
give back the buffers.

To keep segments few, the next one also takes in the rows of the last `FAN - 1` segments if those have the same level,
and is then one level higher. A checkpoint needs at most `FAN - 1` segments of each level, and a row is written once per
level. Segments are not merged above `LARGEST` bytes, since copying so much would stop the run for too long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from parallel_agents.core.errors import CorruptCheckpoint
from parallel_agents.core.serialization import restored
from parallel_agents.core.types import Array
from parallel_agents.replay import Ring

FAN = 8
"""Segments of one level that are merged into one of the next."""
LARGEST = 256 * 2**20
"""Bytes above which segments are not merged."""
_ROW = "row."


class _Segment(NamedTuple):
    """One file: for each agent the rows from `first` up to, but not including, `end`."""

    name: str
    level: int
    first: Array
    end: Array


class Segments:
    """What has been written of one stack's buffers so far."""

    def __init__(self, ring: Ring) -> None:
        self._saved = np.zeros(ring.agents, np.int64)
        self._kept: tuple[_Segment, ...] = ()
        self._renewed = ring.renewed

    def resume(self, values: Mapping[str, Any], ring: Ring) -> None:
        """Continue after the segments of a checkpoint. values: as the method `values` returned them."""
        parts = zip(values["names"], values["levels"], values["firsts"], values["ends"], strict=True)
        self._kept = tuple(
            _Segment(str(name), int(level), np.asarray(first, np.int64), np.asarray(end, np.int64))
            for name, level, first, end in parts
        )
        self._saved, self._renewed = _settled(ring), ring.renewed

    def take(self, name: str, ring: Ring) -> dict[str, Array]:
        """Return copies of the rows of the next segment. name: of the file that will hold them."""
        if ring.renewed != self._renewed:
            self._saved, self._kept, self._renewed = np.zeros_like(self._saved), (), ring.renewed
        oldest = (ring.oldest - ring.shape.frames + 1).clip(min=0)
        kept = tuple(segment for segment in self._kept if (segment.end > oldest).any())
        first, level = np.minimum(self._saved, ring.pos), 0
        while len(last := kept[-(FAN - 1) :]) == FAN - 1 and all(segment.level == level for segment in last):
            earlier = np.maximum(np.minimum(first, last[0].first), oldest)
            if (ring.pos - earlier).sum() * _bytes_of_row(ring) > LARGEST:
                break
            kept, first, level = kept[: -(FAN - 1)], earlier, level + 1
        first = np.maximum(first, oldest)
        self._kept = (*kept, _Segment(name, level, first, ring.pos.copy()))
        self._saved = _settled(ring)
        arrays: dict[str, Array] = {"first": first, "end": ring.pos.copy()}
        places = [np.arange(a, b) % ring.valid.shape[1] for a, b in zip(first, ring.pos, strict=True)]
        for column_name, column in ring.lasting_columns().items():
            arrays[f"{_ROW}{column_name}"] = _selected(column, places)
        return arrays | {f"counter.{counter}": getattr(ring, counter).copy() for counter in Ring.COUNTERS}

    def values(self) -> dict[str, Any]:
        """Return the segments that a checkpoint needs as plain values, in the order in which they are read."""
        return {
            "names": [segment.name for segment in self._kept],
            "levels": [segment.level for segment in self._kept],
            "firsts": [segment.first.tolist() for segment in self._kept],
            "ends": [segment.end.tolist() for segment in self._kept],
        }


def segment_number(name: str) -> int:
    """Return the number in the name of a segment's file.

    >>> segment_number("memory-0-000012.safetensors")
    12
    """
    return int(name.removesuffix(".safetensors").rpartition("-")[2])


def _bytes_of_row(ring: Ring) -> int:
    """Return the bytes of one row of one agent."""
    return sum(column.nbytes for column in ring.lasting_columns().values()) // ring.version.size


def read_ring(ring: Ring, segments: Sequence[Mapping[str, Array]]) -> None:
    """Fill the buffers of a fresh stack from the segments of a checkpoint."""
    try:
        for segment in segments:
            _check_sizes(ring, segment)
            at = 0
            for n, (first, end) in enumerate(zip(segment["first"], segment["end"], strict=True)):
                count = int(end - first)
                rows = np.arange(first, end) % ring.valid.shape[1]
                for name, column in ring.lasting_columns().items():
                    column[n][rows] = segment[f"{_ROW}{name}"][at : at + count]
                at += count
        last = segments[-1]
        for name in Ring.COUNTERS:
            own = getattr(ring, name)
            own[...] = restored(name, last[f"counter.{name}"], own)
        for n in range(ring.agents):
            ring.check(n)
            ring.list_starts(n)
    except (KeyError, ValueError, IndexError, TypeError) as error:
        raise CorruptCheckpoint(f"a memory segment does not fit this run's buffers: {error}") from error


def _check_sizes(ring: Ring, segment: Mapping[str, Array]) -> None:
    """Raise if a segment is not as long as it says, or longer than the buffers, before it is used."""
    first, end = (restored(name, segment[name], ring.pos) for name in ("first", "end"))
    counts = end - first
    if ((counts < 0) | (counts > ring.valid.shape[1])).any():
        raise ValueError(f"it has {counts.tolist()} rows, the buffers {ring.valid.shape[1]}")
    for name in ring.lasting_columns():
        ring.check_rows(name, segment[f"{_ROW}{name}"], int(counts.sum()))


def _selected(column: Array, places: Sequence[Array]) -> Array:
    """Return some rows of each agent's part of a column, one agent after the other, copied only once."""
    selected = np.empty((sum(map(len, places)), *column.shape[2:]), column.dtype)
    at = 0
    for n, rows in enumerate(places):
        np.take(column[n], rows, axis=0, out=selected[at : at + len(rows)], mode="clip")
        at += len(rows)
    return selected


def compact(segment: Mapping[str, Array]) -> dict[str, Array]:
    """Return a segment with its rows in as few bytes as hold them."""
    return {name: narrowed(column) if name.startswith(_ROW) else column for name, column in segment.items()}


def narrowed(column: Array) -> Array:
    """Return a column in one byte per number if all its numbers are whole ones up to 255; otherwise as it is.

    One-hot observations, actions and ages usually are, so that a checkpoint writes and hashes a quarter or less.
    """
    if column.dtype == np.bool_ or not column.size:
        return column
    with np.errstate(invalid="ignore"):  # what does not fit is found by comparing
        small = column.astype(np.uint8)
    bits = f"i{column.dtype.itemsize}"  # as bits, so that -0.0 is not 0.0
    return small if np.array_equal(small.astype(column.dtype).view(bits), column.view(bits)) else column


def _settled(ring: Ring) -> Array:
    """Return, for each agent, the serial before which rows never change again."""
    held = np.where(ring.opened >= 0, ring.opened, ring.pos[:, None])
    return np.asarray(np.minimum(held.min(axis=1), ring.pos))
