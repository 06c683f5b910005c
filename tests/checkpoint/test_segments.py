"""Segments of large buffers: only new rows are written, in as few bytes as hold them, and all of them come back."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from parallel_agents.checkpoint.segments import FAN, Segments, narrowed, read_ring
from parallel_agents.core.errors import CorruptCheckpoint
from parallel_agents.core.types import Array, Transitions
from parallel_agents.replay import Ring, RingShape

AGENTS, WORLDS = 3, 2


def shape(capacity: int = 24, frames: int = 2) -> RingShape:
    return RingShape(capacity, (2,), WORLDS, frames, extras={"hint": ()})


def play(ring: Ring, turns: int, draws: np.random.Generator) -> None:
    """Random turns: some cannot act, some episodes end, epochs are closed now and then."""
    block = (AGENTS, WORLDS)
    for _ in range(turns):
        ring.add(
            Transitions(
                observations=draws.random((*block, 2), np.float32),
                actions=draws.integers(0, 5, block),
                rewards=draws.random(block, np.float32),
                terminated=draws.random(block) < 0.1,
                truncated=np.zeros(block, np.bool_),
                valid=draws.random(block) < 0.7,
                first=np.broadcast_to(draws.random(WORLDS) < 0.1, block),
                present=np.ones(AGENTS, np.bool_),
                version=int(draws.integers(9)),
                extras={"hint": draws.random(block, np.float32)},
            )
        )
        if draws.random() < 0.15:
            ring.close(draws.random((*block, 2), np.float32), ended=bool(draws.random() < 0.5))


def equal(one: Ring, other: Ring) -> bool:
    for agent in range(AGENTS):
        mine, theirs = one.live(agent), other.live(agent)
        if any(not np.array_equal(mine[name], theirs[name]) for name in mine):
            return False
        serials = np.arange(one.tail[agent], one.head[agent]) % one.starts.shape[1]
        if not np.array_equal(one.starts[agent][serials], other.starts[agent][serials]):
            return False
    return True


@pytest.mark.parametrize("seed", range(12))
def test_a_ring_comes_back_from_its_segments(seed: int) -> None:
    draws = np.random.Generator(np.random.Philox(seed))
    ring, kept = Ring(shape(), AGENTS), dict[str, dict[str, Array]]()
    segments = Segments(ring)
    for number in range(40):
        play(ring, int(draws.integers(0, 9)), draws)
        kept[str(number)] = segments.take(str(number), ring)
        names = segments.values()["names"]
        copy = Ring(shape(), AGENTS)
        read_ring(copy, [kept[name] for name in names])
        assert equal(ring, copy)
        after_one, after_other = (np.random.Generator(np.random.Philox(99)) for _ in range(2))
        fork = Ring(shape(), AGENTS)
        read_ring(fork, [kept[name] for name in names])
        play(fork, 7, after_one)
        play(copy, 7, after_other)
        assert equal(fork, copy)


def test_only_new_rows_are_written() -> None:
    draws = np.random.Generator(np.random.Philox(0))
    ring = Ring(shape(capacity=40_000), AGENTS)
    segments = Segments(ring)
    play(ring, 3000, draws)
    whole = sum(column.nbytes for column in segments.take("0", ring).values())
    play(ring, 10, draws)
    part = sum(column.nbytes for column in segments.take("1", ring).values())
    assert part < whole / 50


def test_segments_that_nothing_needs_are_dropped() -> None:
    draws = np.random.Generator(np.random.Philox(1))
    ring = Ring(shape(capacity=8), AGENTS)
    segments = Segments(ring)
    for number in range(30):
        play(ring, 3, draws)
        segments.take(str(number), ring)
        values = segments.values()
    assert {len(column) for column in values.values()} == {len(values["names"])}
    assert len(values["names"]) <= 4
    assert values["names"][-1] == "29"


def test_thousands_of_checkpoints_need_few_segments_and_rewrite_little() -> None:
    """A ring that 2,501 checkpoints fill: at most 7 segments of each of 4 levels, a row written at most 6 times.

    What three kept checkpoints need holds at most three times the rows of the ring.
    """
    ring = Ring(RingShape(2_501, (1,), 1), 1)
    segments, most, most_rows = Segments(ring), 0, 0
    rows: dict[str, int] = {}
    needed: deque[list[str]] = deque(maxlen=3)
    block = (1, 1)
    nobody = np.zeros(block, np.bool_)
    for number in range(6_000):
        ring.add(
            Transitions(
                observations=np.zeros((*block, 1), np.float32), actions=np.zeros(block, np.int64),
                rewards=np.zeros(block, np.float32), terminated=~nobody, truncated=nobody, valid=~nobody,
                first=~nobody, present=np.ones(1, np.bool_), version=number, extras={},
            )
        )  # fmt: skip
        rows[str(number)] = len(segments.take(str(number), ring)["row.version"])
        needed.append(segments.values()["names"])
        most = max(most, len(needed[-1]))
        most_rows = max(most_rows, sum(rows[name] for name in set().union(*needed)))
    assert most <= 4 * (FAN - 1) + 1
    assert sum(rows.values()) <= 6 * 6_000
    assert most_rows <= 3 * 2_501


def test_large_segments_are_never_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of more than LARGEST bytes would stop the run for too long."""
    draws = np.random.Generator(np.random.Philox(4))
    ring, kept = Ring(shape(capacity=4_000), AGENTS), dict[str, dict[str, Array]]()
    segments = Segments(ring)
    monkeypatch.setattr("parallel_agents.checkpoint.segments.LARGEST", 40_000)
    for number in range(60):
        play(ring, 20, draws)
        kept[str(number)] = segments.take(str(number), ring)
    sizes = [sum(column.nbytes for column in own.values()) for own in kept.values()]
    assert max(sizes) <= 41_000
    copy = Ring(shape(capacity=4_000), AGENTS)
    read_ring(copy, [kept[name] for name in segments.values()["names"]])
    assert equal(ring, copy)


def test_a_segment_that_does_not_fit_is_refused() -> None:
    ring = Ring(shape(), AGENTS)
    segment = Segments(ring).take("0", ring)
    del segment["counter.pos"]
    with pytest.raises(CorruptCheckpoint, match="does not fit this run's buffers"):
        read_ring(Ring(shape(), AGENTS), [segment])


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.int32])
def test_whole_numbers_up_to_255_take_a_byte_each(dtype: type) -> None:
    column = np.arange(256, dtype=dtype).reshape(2, 128)
    assert narrowed(column).dtype == np.uint8
    assert narrowed(column).astype(dtype).tobytes() == column.tobytes()


@pytest.mark.parametrize("odd", [0.5, -1.0, 256.0, np.nan, np.inf, -0.0, 1e9])
def test_numbers_that_do_not_fit_a_byte_keep_their_type(odd: float) -> None:
    column = np.array([1.0, odd, 3.0], np.float32)
    assert narrowed(column) is column


def test_booleans_and_empty_columns_keep_their_type() -> None:
    for column in (np.array([True, False]), np.zeros((0, 3), np.float32)):
        assert narrowed(column) is column
