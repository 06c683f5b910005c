"""Memory that grows where nothing should: noticed long before the system ends the run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["Growth", "resident"]

WARM_UP = 20
"""Epochs after which everything but the buffers has its size."""
EVERY = 10
"""Epochs between two looks."""
FACTOR, SPARE = 1.5, 256 * 2**20
"""What is not yet growth: half as much again, and a quarter of a GiB."""


def resident() -> int:
    """Bytes of this process in memory; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


class Growth:
    """Tells once, and again at each doubling, that a run needs much more memory than it did after its start.

    >>> growth = Growth(buffers=0, measure=iter([2**30, 2**30, 2**34]).__next__)
    >>> [growth.after(epoch) is not None for epoch in (WARM_UP, WARM_UP + EVERY, WARM_UP + 2 * EVERY)]
    [False, False, True]
    """

    def __init__(self, buffers: int, measure: Callable[[], int] = resident) -> None:
        """buffers: bytes that the buffers will fill by and by."""
        self._buffers, self._measure = buffers, measure
        self._bound = 0.0

    def after(self, epochs: int) -> dict[str, int] | None:
        """What to tell after so many epochs of this process; None where all is well."""
        if epochs < WARM_UP or epochs % EVERY:
            return None
        now = self._measure()
        if not self._bound:
            self._bound = FACTOR * now + self._buffers + SPARE
        if now <= self._bound:
            return None
        found = {"resident_bytes": now, "expected_at_most": int(self._bound)}
        self._bound = 2.0 * now
        return found
