"""Batches that grow and shrink with the noise of an agent's own gradient, never with the clock.

Each update of a round reads a batch of fixed size; an agent whose gradient is noisy joins several of them into one
larger step. How many follows from the gradient noise scale, tr(covariance) / |gradient|² (McCandlish et al. 2018,
appendix A), estimated from the squared norms before and after joining. It is decided between rounds, so that stacks
keep their shapes, and it is part of the agent's state.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parallel_agents.types import Array, State

__all__ = ["Joining", "joining_state", "noise_scale"]

MEMORY = 0.9
"""Weight of what was estimated before, against one new estimate."""


def joining_state(growth: list[float]) -> dict[str, Tensor]:
    """What an agent keeps of it: how many batches it joins, and its estimates of noise and signal."""
    return {
        "batch.joined": torch.tensor([2 if most > 1 else 1 for most in growth], dtype=torch.int64),
        "batch.noise": torch.zeros(len(growth), dtype=torch.float64),
        "batch.signal": torch.zeros(len(growth), dtype=torch.float64),
    }


def noise_scale(
    small: NDArray[np.float64], large: NDArray[np.float64], batch: int, joined: Array
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(N,) mean squared norms at `batch` and at `joined` times as many samples -> (N,) noise and signal, unbiased."""
    ones = np.maximum(joined, 2)
    noise = (small - large) / (1.0 / batch - 1.0 / (batch * ones))
    signal = (ones * large - small) / (ones - 1.0)
    return np.asarray(noise), np.asarray(signal)


class Joining:
    """The joined batches of one round: `take` each gradient, step where it says so, `settle` at the end."""

    def __init__(self, state: State, batch: int, updates: int) -> None:
        self.active = bool((state["hyper.batch_growth"] > 1).any())
        self._batch, self._left = batch, updates
        self._growth = state["hyper.batch_growth"].cpu().numpy()
        self.joined = state["batch.joined"].cpu().numpy().copy()
        self._noise = state["batch.noise"].cpu().numpy().copy()
        self._signal = state["batch.signal"].cpu().numpy().copy()
        agents = len(self.joined)
        self.count = np.zeros(agents, np.int64)
        """Batches joined so far to the step that each agent takes next."""
        self._small = np.zeros(agents)
        self._sums = torch.zeros_like(state["online"]) if self.active else None
        self.attempts = np.zeros(agents, np.int64)

    def take(self, gradients: Tensor) -> list[bool]:
        """(N, P) gradients of one batch, replaced by the means of those joined so far; who is due to step."""
        self._left -= 1
        if self._sums is None:
            self.attempts += 1
            return [True] * len(self.attempts)
        self._sums += gradients
        self._small += _squared(gradients)
        self.count += 1
        count = torch.from_numpy(self.count.astype(np.float32)).to(gradients.device)
        torch.div(self._sums, count[:, None], out=gradients)
        due = (self.count >= self.joined) | (self._left == 0)
        self._estimate(due & (self.count == self.joined) & (self.joined > 1), _squared(gradients))
        self._sums[torch.from_numpy(due).to(gradients.device)] = 0.0
        self._small[due] = 0.0
        self.count[due] = 0
        self.attempts += due
        return [bool(own) for own in due]

    def _estimate(self, whose: NDArray[np.bool_], large: NDArray[np.float64]) -> None:
        noise, signal = noise_scale(self._small / np.maximum(self.count, 1), large, self._batch, self.joined)
        whose = whose & np.isfinite(noise) & np.isfinite(signal)
        self._noise = np.where(whose, MEMORY * self._noise + (1.0 - MEMORY) * noise, self._noise)
        self._signal = np.where(whose, MEMORY * self._signal + (1.0 - MEMORY) * signal, self._signal)

    def settle(self, state: State, ready: NDArray[np.bool_]) -> None:
        """Write what the next round of those who have learnt will go by."""
        if not self.active:
            return
        samples = np.where(self._signal > 0, self._noise / np.where(self._signal > 0, self._signal, 1.0), np.inf)
        wanted = 2.0 ** np.round(np.log2(np.clip(samples / self._batch, 1.0, 1e9)))
        joined = np.where(self._growth > 1, np.clip(wanted, 2, np.maximum(self._growth, 2)), 1)
        for name, values in (("joined", joined.astype(np.int64)), ("noise", self._noise), ("signal", self._signal)):
            own = state[f"batch.{name}"]
            own.copy_(torch.from_numpy(np.where(ready, values, own.cpu().numpy())))


def _squared(gradients: Tensor) -> NDArray[np.float64]:
    """(N, P) -> (N,) squared norms."""
    return np.asarray(torch.linalg.vector_norm(gradients, dim=1).double().square().cpu().numpy())
