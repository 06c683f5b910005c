"""An agent's optimizer as rows, and what depends on its own count of updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parallel_agents.types import State

__all__ = ["LearningRates", "optimizer_state"]


def optimizer_state(rows: Tensor, hyper: Sequence[Mapping[str, float]], names: Sequence[str]) -> dict[str, Tensor]:
    """What every learner keeps of its agents: `online` weights, Adam's moments and steps, the count of accepted
    updates, and each agent's own hyper-parameters of these names."""
    own = {f"hyper.{name}": torch.tensor([mine[name] for mine in hyper], dtype=torch.float64) for name in names}
    return {
        "online": rows,
        "first": torch.zeros_like(rows),
        "second": torch.zeros_like(rows),
        "steps": torch.zeros(len(rows)),
        "updates": torch.zeros(len(rows), dtype=torch.int64),
        **own,
    }


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
