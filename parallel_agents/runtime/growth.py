"""Memory that grows where nothing should: noticed within 20 epochs, long before the system ends the run."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any

__all__ = ["Growth", "resident"]

WARM_UP = 4
"""Epochs after which everything has been imported and compiled."""
PART, PARTS = 4, 3
"""Epochs of one part, and how many parts in a row must have grown."""
LEAST = 4 * 2**20
"""Bytes by which each part must have grown."""
FACTOR, SPARE = 1.5, 256 * 2**20
"""What is never growth by its size alone: half as much again, and a quarter of a GiB."""


def resident(pids: Iterable[int | str] = ("self",)) -> int:
    """Bytes of some processes in memory; 0 where the system does not say."""
    return sum(map(_resident, pids))


def _resident(pid: int | str) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError):  # there is no such file, or the process has just ended
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


class Growth:
    """Tells once, and again at each doubling, that a run needs more and more memory.

    It does where memory beside the buffers, which fill up by and by, has grown in each of the last parts: whoever
    allocates something once, or gives it back, does not. And it does where there is far more than after the start.

    >>> sizes = iter(range(2**30, 2**31, 5 * 2**20))
    >>> growth = Growth(buffers=0, measure=sizes.__next__)
    >>> [epoch for epoch in range(1, 30) if growth.after(epoch) is not None]
    [16]
    """

    def __init__(self, buffers: int, measure: Callable[[], int] = resident) -> None:
        """buffers: bytes that the buffers will have in the end."""
        self._buffers, self._measure = buffers, measure
        self._bound = 0.0
        self._beside: list[int] = []
        self._phase: Hashable = None
        self._told = False

    def after(self, epochs: int, *, written: int = 0, phase: Hashable = None) -> dict[str, Any] | None:
        """What to tell after so many epochs of this process; None where all is well.

        written: bytes of the buffers that have been written so far. phase: changes where the engine itself starts
        something new, such as the first updates or another backend.
        """
        if epochs < WARM_UP:
            return None
        now = self._measure()
        self._bound = self._bound or FACTOR * now + self._buffers + SPARE
        if phase != self._phase:
            self._phase, self._beside = phase, []
        self._beside = [*self._beside, now - written][-PART * PARTS - 1 :]
        steady = not self._told and self._steadily()
        if not steady and now <= self._bound:
            return None
        self._told, self._bound = True, 2.0 * now
        gained = self._beside[-1] - self._beside[0]
        return {
            "resident_bytes": now,
            "bytes_per_epoch": gained // max(1, len(self._beside) - 1),
            "advice": "look for what keeps growing in the environment or in models of its own; buffers of their own "
            "that are still filling up look the same",
        }

    def _steadily(self) -> bool:
        ends = self._beside[::PART]
        return len(self._beside) > PART * PARTS and all(b - a >= LEAST for a, b in itertools.pairwise(ends))
