"""A heart: what a worker is doing and since when. The worker alone writes it; anybody may read it.

>>> heart = Heart()
>>> heart.busy() is None
True
>>> heart.beat(3, part=1)
>>> heart.busy().job, heart.busy().part
(3, 1)
"""

from __future__ import annotations

import time
from collections.abc import MutableSequence
from typing import NamedTuple

__all__ = ["Beat", "Heart"]

CELLS = 3
"""Whole numbers of a heart: job, part of the job, and when that began on the monotonic clock in ns (0: at rest)."""


class Beat(NamedTuple):
    """What a worker is at."""

    job: int
    part: int
    since: int
    """Nanoseconds of the monotonic clock, which all processes of a machine share."""

    @property
    def seconds(self) -> float:
        """How long it has been at it."""
        return (time.monotonic_ns() - self.since) / 1e9


class Heart:
    """Three numbers, in this process or in memory shared with another."""

    __slots__ = ("cells",)

    def __init__(self, cells: MutableSequence[int] | None = None) -> None:
        self.cells = [0] * CELLS if cells is None else cells

    def beat(self, job: int, part: int = 0) -> None:
        """Begin a part of a job."""
        cells = self.cells
        cells[0], cells[1], cells[2] = job, part, time.monotonic_ns()

    def rest(self) -> None:
        """Wait for work."""
        self.cells[2] = 0

    def busy(self) -> Beat | None:
        """What the worker is at; None while it waits for work."""
        job, part, since = self.cells
        return Beat(job, part, since) if since else None
