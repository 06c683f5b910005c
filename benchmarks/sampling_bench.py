"""How fast rows are chosen: class draws and class-and-priority draws at a million positions, batches of 256.

`rows()` gives the benchmark rows of this part, each ratio against numpy's plainest way to draw by weight in
the same run. `class_draw` and `priority_draw` give one call to time, for a benchmark that sets one beside
another library.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from parallel_agents import seeding
from parallel_agents.sampling import ImportanceSampler

POSITIONS, BATCH, RARE_SHARE = 1_000_000, 256, 0.1
REPEATS, CALLS, BASELINE_CALLS = 7, 400, 20

Call = Callable[[], object]


class Positions:
    """A source whose rows are their positions: what is timed is the choice alone."""

    def __init__(self, sampler: ImportanceSampler, positions: int) -> None:
        numbers = seeding.generator(0, seeding.Purpose.INIT).random(positions)
        names = np.where(numbers < RARE_SHARE, *sampler.class_ids(["crisis_parent", "regular_parent"]))
        self.index = sampler.make_index(positions)
        self.index.assign(np.arange(positions), names)

    def rows(self, positions: Any) -> Any:
        return positions


def class_draw(positions: int = POSITIONS, batch: int = BATCH) -> Call:
    """One batch by class: positions and corrections."""
    sampler = ImportanceSampler()
    sampler.attach(Positions(sampler, positions))
    return lambda: sampler.weighted_sampling(batch)


def priority_draw(positions: int = POSITIONS, batch: int = BATCH) -> Call:
    """One batch by class and priority, and new priorities for it: positions, corrections, update."""
    sampler = ImportanceSampler(priorities=True)
    sampler.attach(Positions(sampler, positions))
    errors = seeding.generator(0, seeding.Purpose.NOISE).random((2, positions))
    sampler.update_priorities(np.arange(positions), errors[0])

    def call() -> object:
        _, weights, indices = sampler.weighted_sampling(batch)
        sampler.update_priorities(indices, errors[1][indices])
        return weights

    return call


def plain_draw(positions: int = POSITIONS, batch: int = BATCH) -> Call:
    """One batch by weight as numpy does it: running sums of all weights, then a search for each number."""
    random = seeding.generator(0, seeding.Purpose.SAMPLE)
    weights = random.random(positions)

    def call() -> object:
        sums = np.cumsum(weights)
        drawn = np.searchsorted(sums, random.random(batch) * sums[-1], side="right")
        return (positions * weights[drawn] / sums[-1]) ** -0.4

    return call


def samples_per_second(call: Call, calls: int, batch: int = BATCH) -> float:
    """Samples per second of processor time, which others at work on the machine disturb least."""
    start = time.process_time()
    for _ in range(calls):
        call()
    return calls * batch / (time.process_time() - start)


def rows() -> list[dict[str, Any]]:
    """The benchmark rows of this part: each ratio is the median over interleaved repeats."""
    plain = plain_draw()
    found = []
    for name, goal, call in (
        ("sampling: class draws", 20.0, class_draw()),
        ("sampling: class and priority draws with update", 5.0, priority_draw()),
    ):
        samples_per_second(call, CALLS)  # compiles, and warms the caches
        pairs = [(samples_per_second(call, CALLS), samples_per_second(plain, BASELINE_CALLS)) for _ in range(REPEATS)]
        rate, baseline = (statistics.median(column) for column in zip(*pairs, strict=True))
        found.append(
            {
                "name": name,
                "ratio": statistics.median(ours / theirs for ours, theirs in pairs),
                "goal": goal,
                "unit": "times numpy cumsum and searchsorted, samples per CPU second",
                "repeats": REPEATS,
                "detail": {
                    "positions": POSITIONS,
                    "batch": BATCH,
                    "samples_per_cpu_second": rate,
                    "numpy_samples_per_cpu_second": baseline,
                },
            }
        )
    return found


if __name__ == "__main__":
    json.dump(rows(), sys.stdout, indent=2)
