"""Large buffers as segments: only what is new is written, and all of it comes back."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_agents.errors import CorruptCheckpoint
from parallel_agents.memory import Ring, RingShape
from parallel_agents.runtime.checkpoints.memory import Segments, read_ring
from parallel_agents.types import Array, Transitions

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
    for number in range(12):
        play(ring, int(draws.integers(0, 9)), draws)
        kept[str(number)] = segments.next(ring)
        segments.taken(str(number), ring)
        names, _ = segments.names(ring)
        copy = Ring(shape(), AGENTS)
        read_ring(copy, [kept[name] for name in names])
        assert equal(ring, copy)
        after_one, after_other = (np.random.Generator(np.random.Philox(99)) for _ in range(2))
        fork = Ring(shape(), AGENTS)
        read_ring(fork, [kept[name] for name in names])
        play(fork, 7, after_one)
        play(copy, 7, after_other)
        assert equal(fork, copy)


def test_only_what_is_new_is_written() -> None:
    draws = np.random.Generator(np.random.Philox(0))
    ring = Ring(shape(capacity=40_000), AGENTS)
    segments = Segments(ring)
    play(ring, 3000, draws)
    whole = sum(column.nbytes for column in segments.next(ring).values())
    segments.taken("0", ring)
    play(ring, 10, draws)
    part = sum(column.nbytes for column in segments.next(ring).values())
    assert part < whole / 50


def test_segments_that_nothing_needs_are_dropped() -> None:
    draws = np.random.Generator(np.random.Philox(1))
    ring = Ring(shape(capacity=8), AGENTS)
    segments = Segments(ring)
    for number in range(30):
        play(ring, 3, draws)
        segments.taken(str(number), ring)
        names, ends = segments.names(ring)
    assert len(names) == len(ends) <= 4
    assert names[-1] == "29"


def test_a_segment_that_does_not_fit_is_refused() -> None:
    ring = Ring(shape(), AGENTS)
    segment = Segments(ring).next(ring)
    del segment["counter.pos"]
    with pytest.raises(CorruptCheckpoint, match="does not fit this run's buffers"):
        read_ring(Ring(shape(), AGENTS), [segment])
