"""How many workers the rounds should have: more while the collector waits for them, fewer while they idle.

The number never changes a result, so it may follow the machine: it is judged at round boundaries, from medians over
a few rounds, and only where the configuration has not fixed it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

__all__ = ["Staffing", "available_bytes", "free_memory"]

WINDOW = 8
"""Rounds that a judgement looks back on."""
WAITS = 0.2
"""Share of an interval spent waiting from which on another worker is wanted."""
IDLES = 0.5
"""Share of an interval that the workers, were they one fewer, would still not be busy."""
START_COST = 4.0
"""Seconds that a change must promise to save."""
SHORT = 0.05
"""Share of free memory below which no worker is spared."""


def _memory() -> dict[str, float]:
    """What the system says about its memory, in KiB; nothing where it does not."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    return {name: float(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}


def free_memory() -> float:
    """Share of the machine's memory that is free; 1 where the system does not say."""
    sizes = _memory()
    return sizes.get("MemAvailable", 1.0) / sizes.get("MemTotal", 1.0)


def available_bytes() -> float:
    """Bytes of memory that can still be taken; infinite where the system does not say."""
    return _memory().get("MemAvailable", float("inf")) * 1024.0


class Staffing:
    """The wanted number of workers, from what the rounds took.

    >>> staff = Staffing(1, most=2, memory=lambda: 0.5)
    >>> for _ in range(WINDOW):
    ...     staff.note(interval=1.0, waited=0.6, busy=1.0)
    >>> staff.wanted(rounds_left=100)
    2
    """

    def __init__(self, workers: int, most: int, *, memory: Callable[[], float] = free_memory) -> None:
        self.workers, self.most = workers, most
        self._memory = memory
        self._seen: list[tuple[float, float, float]] = []

    def note(self, *, interval: float, waited: float, busy: float) -> None:
        """One round: seconds between boundaries, of them waited for a result, and what its workers computed."""
        self._seen.append((interval, waited, busy))

    def wanted(self, rounds_left: int) -> int:
        """How many workers there should be from now on; asked at every boundary, changed rarely."""
        if len(self._seen) < WINDOW:
            return self.workers
        interval, waited, busy = (statistics.median(column) for column in zip(*self._seen, strict=True))
        self._seen.clear()
        idle_if_fewer = 1.0 - busy / max(interval, 1e-9) * self.workers / max(1, self.workers - 1)
        short = self._memory() < SHORT
        if self.workers > 1 and (short or idle_if_fewer > IDLES):
            self.workers -= 1
        elif not short and waited > WAITS * interval and waited * rounds_left > 2 * START_COST:
            self.workers = min(self.workers + 1, self.most)
        return self.workers
