"""An agent's optimizer as rows, and what depends on its own count of updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parallel_agents.learning.schedules import scheduled
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
    """From `lr` to `lr_final` over `lr_updates` updates, for each agent by itself; constant where that is 0."""

    def __init__(self, state: State) -> None:
        names = ("lr_shape", "lr", "lr_final", "lr_updates")
        shapes, *ends = (state[f"hyper.{name}"].tolist() for name in names)
        self._rows = list(zip([int(shape) for shape in shapes], *ends, strict=True))
        self._constant = None if any(ends[-1]) else ends[0]

    def at(self, updates: NDArray[np.int64]) -> list[float]:
        """(N,) counts of updates -> each agent's rate."""
        if self._constant is not None:
            return self._constant
        return [
            scheduled(shape, start, final, count, span)
            for (shape, start, final, span), count in zip(self._rows, updates.tolist(), strict=True)
        ]
