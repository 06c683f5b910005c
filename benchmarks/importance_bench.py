"""A buffer of a million rows with event types: batches of 256, gathered, beside cpprb's prioritised buffer.

cpprb is no dependency: install it, without its own dependencies, where Python finds it, and the rows that need it
appear. All rates are samples per second of processor time, which others at work on the machine disturb least.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.measure import Row, row
from parallel_agents import seeding
from parallel_agents.memory import ImportanceSamplingReplayBuffer
from parallel_agents.sampling import ImportanceSampler

ROWS, FEATURES, BATCH, EPISODE = 1_000_000, 32, 256, 100
REPEATS, CALLS = 7, 300

Call = Callable[[], object]


def rows() -> list[Row]:
    """The rows of this part."""
    memory, priorities = _buffer(priorities=False), _buffer(priorities=True)
    found = [
        row(
            "importance: memory of 1M rows of 32 features",
            memory.nbytes / 1e6,
            150.0,
            "MB (at most)",
            1,
            rows=len(memory),
            episode=EPISODE,
        )
    ]
    try:
        import cpprb
    except ImportError:
        sys.stderr.write("cpprb is not installed: the rows beside it are left out (pip install --no-deps cpprb)\n")
        return found
    theirs = _cpprb(cpprb)
    errors = _errors()
    for name, goal, call in (
        ("importance: class draws with gather", 5.0, lambda: memory.sample_importance_weighted(BATCH)),
        ("importance: class and priority draws with gather and update", 1.5, lambda: _update(priorities, errors)),
    ):
        found.append(_beside(name, goal, call, theirs))
    return found


def _beside(name: str, goal: float, ours: Call, theirs: Call) -> Row:
    """The median ratio over interleaved repeats."""
    _rate(ours), _rate(theirs)  # compiles, and warms the caches
    pairs = [(_rate(ours), _rate(theirs)) for _ in range(REPEATS)]
    rate, baseline = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(mine / other for mine, other in pairs)
    detail: dict[str, Any] = {"rows": ROWS, "batch": BATCH, "samples_per_cpu_second": round(rate)}
    return row(name, ratio, goal, "times cpprb", REPEATS, **detail, cpprb_samples_per_cpu_second=round(baseline))


def _rate(call: Call) -> float:
    began = time.process_time()
    for _ in range(CALLS):
        call()
    return CALLS * BATCH / (time.process_time() - began)


def _data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    states = seeding.generator(0, seeding.Purpose.NOISE).standard_normal((ROWS, FEATURES), np.float32)
    after = np.roll(states, -1, 0)
    dones = np.arange(ROWS) % EPISODE == EPISODE - 1
    after[dones] += 1.0
    return states, after, dones


def _errors() -> np.ndarray:
    return seeding.generator(1, seeding.Purpose.NOISE).random(BATCH)


def _buffer(*, priorities: bool) -> ImportanceSamplingReplayBuffer:
    states, after, dones = _data()
    memory = ImportanceSamplingReplayBuffer(ROWS, (FEATURES,), ImportanceSampler(priorities=priorities))
    rare = seeding.generator(0, seeding.Purpose.INIT).random(ROWS) < 0.1
    kinds = np.where(rare, "crisis_parent", "regular_parent").tolist()
    memory.add_many(states, np.zeros(ROWS, int), np.ones(ROWS), after, dones, kinds, np.ones(ROWS))
    if priorities:
        errors = seeding.generator(2, seeding.Purpose.NOISE).random(ROWS)
        memory.update_priorities(np.arange(ROWS), errors)
    return memory


def _update(memory: ImportanceSamplingReplayBuffer, errors: np.ndarray) -> object:
    batch, weights, indices = memory.sample_importance_weighted(BATCH)
    memory.update_priorities(indices, errors)
    return batch, weights


def _cpprb(cpprb: Any) -> Call:
    """A batch by priority, with weights and gather, and new priorities for it: what a learner does there."""
    states, after, dones = _data()
    shape = {
        "obs": {"shape": FEATURES},
        "act": {"dtype": np.int16},
        "rew": {},
        "next_obs": {"shape": FEATURES},
        "done": {},
    }
    buffer = cpprb.PrioritizedReplayBuffer(ROWS, shape, alpha=0.6)
    for first in range(0, ROWS, 50_000):
        part = slice(first, first + 50_000)
        zeros = np.zeros(50_000)
        buffer.add(obs=states[part], act=zeros.astype(np.int16), rew=zeros, next_obs=after[part], done=dones[part])
    errors = _errors()

    def call() -> object:
        batch = buffer.sample(BATCH, beta=0.4)
        buffer.update_priorities(batch["indexes"], errors)
        return batch

    return call
