"""The speed of sampling: by class, and by class and priority, batches of 256 out of a million positions.

The baseline is the simplest way in numpy to draw by weight: cumulative sums of all weights, then a search for each
number. Seconds are processor time, which depends least on the load of the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.measure import Done, Effort, Row, Side, compare
from benchmarks.run import Bench
from parallel_agents.core import seeding
from parallel_agents.replay import ImportanceSampler

POSITIONS, BATCH, RARE_SHARE = 1_000_000, 256, 0.1

Draw = Callable[[], Done]


class Positions:
    """A source whose rows are their positions, so that only the draw itself is timed."""

    def __init__(self, sampler: ImportanceSampler, positions: int) -> None:
        numbers = seeding.generator(0, seeding.Purpose.INIT).random(positions)
        names = np.where(numbers < RARE_SHARE, *sampler.class_ids(["crisis_parent", "regular_parent"]))
        self.index = sampler.make_index(positions)
        self.index.assign(np.arange(positions), names)

    def rows(self, positions: Any) -> Any:
        return positions


def benches(effort: Effort) -> Iterator[tuple[str, Bench]]:
    for name, goal, update in (
        ("sampling: class draws, beside numpy", 20.0, False),
        ("sampling: class and priority draws with priority update, beside numpy", 5.0, True),
    ):
        yield name, partial(_beside, name, goal, update, effort)


def _beside(name: str, goal: float, update: bool, effort: Effort) -> Iterator[Row]:
    """Compare our sampler with numpy, with or without an update of priorities."""
    positions = effort.of(POSITIONS, 100_000)
    also = "; then a new priority for each of them" if update else ""
    ours = f"{BATCH} positions drawn by class{' and priority' if update else ''}, with corrections"
    yield compare(
        name,
        Side("numpy", f"{BATCH} positions drawn by weight, with corrections{also}", plain_draw(positions, update)),
        Side("ours", ours + also, our_draw(positions, update)),
        goal=goal,
        unit="times numpy's speed",
        repeats=effort.repeats(7),
        calls=effort.of(50, 10),
        clock=time.process_time,
        positions=positions,
    )


def our_draw(positions: int, update: bool) -> Draw:
    """Return a function that draws a batch with our sampler."""
    sampler = ImportanceSampler(priorities=update)
    sampler.attach(Positions(sampler, positions))
    errors = seeding.generator(0, seeding.Purpose.NOISE).random((2, positions))
    if update:
        sampler.update_priorities(np.arange(positions), errors[0])

    def draw() -> Done:
        _, weights, indices = sampler.weighted_sampling(BATCH)
        if update:
            sampler.update_priorities(indices, errors[1][indices])
        return Done({"draws": len(indices), "corrections": len(weights), "priority_updates": update * len(indices)})

    return draw


def plain_draw(positions: int, update: bool) -> Draw:
    """Return a function that draws a batch by cumulative sums."""
    random = seeding.generator(0, seeding.Purpose.SAMPLE)
    weights, errors = random.random((2, positions))

    def draw() -> Done:
        sums = np.cumsum(weights)
        drawn = np.searchsorted(sums, random.random(BATCH) * sums[-1], side="right")
        corrections = (positions * weights[drawn] / sums[-1]) ** -0.4
        if update:
            weights[drawn] = errors[drawn]
        return Done({"draws": len(drawn), "corrections": len(corrections), "priority_updates": update * len(drawn)})

    return draw
