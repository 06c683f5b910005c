"""Measure the rows of a benchmark.

A row compares two sides that do the same work, alternately, in one process. Each side describes its work in words, and
each call returns counts of what it did. If the counts of the two sides differ, the row has failed, whatever its ratio
is. A row with one side measures a rate and compares it with a number.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Counts = Mapping[str, int]


@dataclass(frozen=True)
class Done:
    """The work that one call of a side did."""

    counts: Counts
    """For example `{"turns": 100, "updates": 32}`, counted by the code that did the work."""
    backend: str | None = None
    """The backend that was really used for learning, for sides that run the engine."""
    seconds: float | None = None
    """The duration, if the call measures it itself because preparation is not part of the work."""
    processor_time: bool = False
    """Whether the duration that the call measured is that of the processor."""


@dataclass(frozen=True)
class Side:
    """One way of doing the work of a row."""

    name: str
    work: str
    """What a call does, in words."""
    do: Callable[[], Done]


@dataclass(frozen=True)
class Measured:
    """A measured side: the work of each call, and the median, lowest and highest seconds of a call."""

    name: str
    work: str
    counts: Counts
    seconds: float
    lowest: float
    highest: float
    backend: str | None = None
    processor_time: bool = False
    """Whether the seconds are those of the processor, which do not grow with the load of the machine."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the results. `failed` and `skipped` say why there is no ratio."""

    name: str
    ratio: float | None
    goal: float | None
    unit: str
    repeats: int
    sides: Sequence[Measured] = ()
    at_most: bool = False
    """Whether the goal is the highest allowed ratio, not the lowest."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    skipped: str | None = None
    failed: str | None = None

    def __post_init__(self) -> None:
        if (self.ratio is None) == (self.skipped is None and self.failed is None):
            raise ValueError(f"{self.name}: a row has a ratio, or says why it was skipped or has failed")
        if self.ratio is not None and self.unit.startswith("share") and not 0.0 <= self.ratio <= 1.0:
            raise ValueError(
                f"{self.name}: a share of {self.ratio:.3f} was measured; a part is never more than the whole"
            )

    @property
    def good(self) -> bool:
        """Whether the row was measured and reached its goal, or was skipped."""
        if self.skipped is not None:
            return True
        if self.ratio is None:
            return False
        return self.goal is None or (self.ratio <= self.goal if self.at_most else self.ratio >= self.goal)


@dataclass(frozen=True)
class Effort:
    """How much is measured. A quick run shows that every row works; its figures mean little."""

    quick: bool = False

    def of(self, full: int, quick: int = 2) -> int:
        """Return the number of epochs, sizes or calls: `full`, or at most `quick` in a quick run."""
        return min(full, quick) if self.quick else full

    def repeats(self, full: int) -> int:
        """Return the number of repeats: none in a quick run, which keeps the seconds of the first call."""
        return 0 if self.quick else full


def measure(
    sides: Sequence[Side], *, repeats: int, calls: int = 1, clock: Callable[[], float] = time.perf_counter
) -> list[Measured]:
    """Measure all sides alternately, in changing order, after a first call of each, which compiles and warms caches.

    The seconds of the first call count only if there are no repeats. Every call of a side must do the same work.
    """

    def timed(side: Side, times: int) -> tuple[list[Done], float]:
        start = clock()
        done = [side.do() for _ in range(times)]
        elapsed = (clock() - start) / times
        return done, elapsed if done[0].seconds is None else statistics.fmean(call.seconds or 0.0 for call in done)

    seconds: list[list[float]] = [[] for _ in sides]
    last: list[Done] = []
    for side, durations in zip(sides, seconds, strict=True):
        (done,), elapsed = timed(side, 1)
        last.append(done)
        if not repeats:
            durations.append(elapsed)
    for repeat in range(repeats):
        for k in range(len(sides)) if repeat % 2 == 0 else reversed(range(len(sides))):
            all_done, elapsed = timed(sides[k], calls)
            seconds[k].append(elapsed)
            for done in all_done:
                if done.counts != last[k].counts:
                    raise ValueError(f"{sides[k].name} did {dict(done.counts)}, but at first {dict(last[k].counts)}")
            last[k] = all_done[-1]
    return [
        Measured(
            side.name,
            side.work,
            dict(done.counts),
            statistics.median(durations),
            min(durations),
            max(durations),
            done.backend,
            processor_time=clock is not time.perf_counter if done.seconds is None else done.processor_time,
        )
        for side, durations, done in zip(sides, seconds, last, strict=True)
    ]


def compare(
    name: str,
    baseline: Side,
    ours: Side,
    *,
    goal: float | None,
    repeats: int,
    calls: int = 1,
    clock: Callable[[], float] = time.perf_counter,
    unit: str = "times as fast",
    at_most: bool = False,
    **detail: Any,
) -> Row:
    """Compare two sides: the ratio is the baseline's seconds divided by ours, for the same work."""
    sides = measure([baseline, ours], repeats=repeats, calls=calls, clock=clock)
    return ratio_of(name, *sides, goal=goal, unit=unit, repeats=repeats, at_most=at_most, **detail)


def ratio_of(
    name: str,
    baseline: Measured,
    ours: Measured,
    *,
    goal: float | None,
    repeats: int,
    unit: str = "times as fast",
    at_most: bool = False,
    **detail: Any,
) -> Row:
    """Return the row of two measured sides; it has failed if they did not do the same work."""
    unequal = None
    if baseline.counts != ours.counts:
        unequal = f"unequal work: {baseline.name} did {dict(baseline.counts)}, {ours.name} did {dict(ours.counts)}"
    return Row(
        name=name,
        ratio=None if unequal else baseline.seconds / ours.seconds,
        goal=goal,
        unit=unit,
        repeats=repeats,
        sides=(baseline, ours),
        at_most=at_most,
        detail=detail,
        failed=unequal,
    )


def rate(
    name: str,
    side: Side,
    counted: str,
    *,
    goal: float | None,
    unit: str,
    repeats: int,
    per: float = 1.0,
    clock: Callable[[], float] = time.perf_counter,
    **detail: Any,
) -> Row:
    """Measure how many of the counted units are done per second, in units of `per`."""
    (measured,) = measure([side], repeats=repeats, clock=clock)
    ratio = measured.counts[counted] / measured.seconds / per
    return Row(name=name, ratio=ratio, goal=goal, unit=unit, repeats=repeats, sides=(measured,), detail=detail)
