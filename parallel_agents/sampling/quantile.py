"""A percentile of the latest values of a stream: exact, bounded in memory, and the same on every run.

>>> running = RunningPercentile(50.0)
>>> for value in (3.0, 1.0, 2.0, 10.0):
...     running.add(value)
>>> running.value()
2.5
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_agents.errors import CheckpointError, ConfigError, NonFiniteError

__all__ = ["RunningPercentile"]


class RunningPercentile:
    """The percentile of the last `window` values, kept in order of arrival and in order of size."""

    def __init__(self, percentile: float, window: int = 10_000) -> None:
        if not 0.0 < percentile < 100.0:
            raise ConfigError(f"percentile is {percentile}: give a number between 0 and 100")
        if window < 2:
            raise ConfigError(f"a window of {window} values has no percentile: give at least 2")
        self.percentile = percentile
        self._window = window
        self._arrived: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._arrived)

    @property
    def enough(self) -> int:
        """How many values it takes until one of them is expected to lie beyond the percentile."""
        tail = min(self.percentile, 100.0 - self.percentile)
        return min(self._window, math.ceil(round(100.0 / tail, 9)))

    def add(self, value: float) -> None:
        """Take in one value; the oldest beyond the window is forgotten."""
        if not math.isfinite(value):
            raise NonFiniteError(f"value {value} has no place in a percentile: give a finite number")
        if len(self._arrived) == self._window:
            del self._sorted[bisect_left(self._sorted, self._arrived.popleft())]
        self._arrived.append(value)
        insort(self._sorted, value)

    def value(self) -> float | None:
        """The percentile, interpolated between the two values around it; None until there are enough."""
        if len(self) < self.enough:
            return None
        place = self.percentile / 100.0 * (len(self) - 1)
        below = math.floor(place)
        above = min(below + 1, len(self) - 1)
        low, high = self._sorted[below], self._sorted[above]
        return low if low == high else low + (high - low) * (place - below)

    def state(self) -> dict[str, NDArray[Any]]:
        """The values in order of arrival."""
        return {"values": np.array(self._arrived, np.float64)}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over stored values, checked first."""
        values = np.asarray(state.get("values", np.nan), np.float64)
        if values.ndim != 1 or len(values) > self._window or not np.isfinite(values).all():
            raise CheckpointError(
                f"stored values of shape {values.shape} are not at most {self._window} finite numbers"
            )
        self._arrived = deque(values.tolist())
        self._sorted = sorted(self._arrived)
