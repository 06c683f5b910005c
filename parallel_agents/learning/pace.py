"""What depends on an agent's own count of updates, and on nothing else."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parallel_agents.types import State

__all__ = ["LearningRates"]


class LearningRates:
    """Linear from `lr` to `lr_final` over `lr_updates` updates, for each agent by itself; constant where that is 0."""

    def __init__(self, state: State) -> None:
        self._start, self._final, self._span = (
            state[f"hyper.{name}"].cpu().numpy() for name in ("lr", "lr_final", "lr_updates")
        )

    def at(self, updates: NDArray[np.int64]) -> list[float]:
        """(N,) counts of updates -> each agent's rate."""
        share = np.where(self._span > 0, np.minimum(updates / np.maximum(self._span, 1), 1), 0)
        return [float(rate) for rate in self._start + (self._final - self._start) * share]
