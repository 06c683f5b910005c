"""Distributions of actions, with network outputs as parameters. Shapes: N agents, R samples, A numbers of an action.

Each distribution says how many outputs it needs and how an action is stored, and computes log-probability and entropy
for learning. `algorithms.acting` draws actions from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from parallel_agents.core.errors import ConfigError
from parallel_agents.nn.layers import softplus

MASKED = -1e9
"""Logit of a forbidden action: not -infinity, so that gradients stay finite."""


@dataclass(frozen=True)
class Discrete:
    """One of `n` actions."""

    dtype: ClassVar[str] = "int64"
    """Type of a stored action."""
    n: int

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ConfigError(f"{self.n} actions: an agent needs at least one")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the discrete choices; empty for continuous actions."""
        return (self.n,)

    @property
    def outputs(self) -> int:
        """Network outputs that it needs."""
        return self.n

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a stored action."""
        return ()

    def log_prob(self, outputs: Tensor, actions: Tensor, masks: Tensor | None = None) -> Tensor:
        """Return (N, R) from outputs (N, R, n) and actions (N, R)."""
        chosen = torch.log_softmax(_masked(outputs, masks), -1).gather(-1, actions[..., None])
        return chosen.squeeze(-1)

    def entropy(self, outputs: Tensor, masks: Tensor | None = None) -> Tensor:
        """Return (N, R) from outputs (N, R, n)."""
        logs = torch.log_softmax(_masked(outputs, masks), -1)
        return -(logs.exp() * logs).sum(-1)


@dataclass(frozen=True)
class MultiDiscrete:
    """Several choices at once, independent given the observation."""

    dtype: ClassVar[str] = "int64"
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise ConfigError(f"choices of sizes {self.sizes}: give at least one, each of at least one action")

    @property
    def outputs(self) -> int:
        return sum(self.sizes)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.sizes),)

    def log_prob(self, outputs: Tensor, actions: Tensor, masks: Tensor | None = None) -> Tensor:
        """Return (N, R) from outputs (N, R, sum of sizes) and actions (N, R, choices)."""
        parts = torch.split(_masked(outputs, masks), list(self.sizes), -1)
        logs = [torch.log_softmax(part, -1) for part in parts]
        chosen = [log.gather(-1, actions[..., index : index + 1]) for index, log in enumerate(logs)]
        return torch.cat(chosen, -1).sum(-1)

    def entropy(self, outputs: Tensor, masks: Tensor | None = None) -> Tensor:
        """Return (N, R) from outputs (N, R, sum of sizes)."""
        parts = torch.split(_masked(outputs, masks), list(self.sizes), -1)
        logs = [torch.log_softmax(part, -1) for part in parts]
        return torch.stack([-(log.exp() * log).sum(-1) for log in logs], -1).sum(-1)


@dataclass(frozen=True)
class SquashedGaussian:
    """A Gaussian squashed into bounds by tanh (Haarnoja et al. 2018); actions are stored before squashing."""

    dtype: ClassVar[str] = "float32"
    sizes: ClassVar[tuple[int, ...]] = ()
    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.low or len(self.low) != len(self.high):
            raise ConfigError(f"bounds {self.low} and {self.high}: give one lower and one upper for each action")
        if not all(math.isfinite(a) and math.isfinite(b) and a < b for a, b in zip(self.low, self.high, strict=True)):
            raise ConfigError(f"bounds {self.low} and {self.high}: each lower must be below its upper, both finite")

    @property
    def outputs(self) -> int:
        return 2 * len(self.low)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.low),)

    def log_prob(self, outputs: Tensor, actions: Tensor, masks: Tensor | None = None) -> Tensor:
        """Return (N, R) from outputs (N, R, 2·A), means and log deviations, and unsquashed actions (N, R, A)."""
        mean, log_std = outputs.chunk(2, -1)
        score = (actions - mean) * torch.exp(-log_std)
        gaussian = -0.5 * score * score - log_std - 0.5 * math.log(2 * math.pi)
        squash_term = 2.0 * (math.log(2.0) - actions - softplus(-2.0 * actions))  # log(1 - tanh²), without overflow
        return (gaussian - squash_term).sum(-1)

    def entropy(self, outputs: Tensor, masks: Tensor | None = None) -> Tensor:
        """Return the entropy (N, R) of the Gaussian before squashing, from outputs (N, R, 2·A)."""
        log_std = outputs.chunk(2, -1)[1]
        return (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)


Distribution = Discrete | MultiDiscrete | SquashedGaussian


def _masked(outputs: Tensor, masks: Tensor | None) -> Tensor:
    """Return logits (…, K) with `MASKED` where a mask (…, K) forbids the action."""
    return outputs if masks is None else outputs.masked_fill(~masks, MASKED)
