"""Implicit quantile learning of N independent agents in one stacked update (Dabney et al. 2018)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from parallel_agents.learning.dqn import DQNLearner
from parallel_agents.learning.losses import allowed, quantile_huber, weighted_mean
from parallel_agents.seeding import Purpose, generator
from parallel_agents.types import Array, Identity, Snapshot

__all__ = ["IQNLearner"]


@dataclass(frozen=True)
class IQNLearner(DQNLearner):
    """As `DQNLearner`, with values at quantiles and noisy layers; `network` is a `QuantileNetwork`."""

    quantiles: int = 12

    def _samples(self, snapshot: Snapshot) -> int:
        return super()._samples(snapshot) * self.quantiles

    def _draws(self, identity: Identity, updates: Array, joined: Array) -> dict[str, Tensor]:
        """Return quantiles and noise of one batch, from each agent's own addresses.

        An address holds the agent's count of updates and how many batches it has joined to the next one. A rejected
        update leaves nothing behind, so the one after it may have the same numbers.
        """
        agents = len(identity)
        quantiles = np.empty((agents, 2, self.batch, self.quantiles), np.float32)
        noise = np.empty((agents, 2, self.network.noise_size), np.float32)
        for row, (seed, agent) in enumerate(zip(identity.seeds, identity.agents, strict=True)):
            at = {"agent": agent, "epoch": int(updates[row]), "turn": int(joined[row])}
            generator(seed, Purpose.QUANTILE, **at).random(out=quantiles[row], dtype=np.float32)
            generator(seed, Purpose.NOISE, **at).standard_normal(out=noise[row], dtype=np.float32)
        draws = {
            "quantiles": quantiles[:, 0],
            "next_quantiles": quantiles[:, 1],
            "noise": noise[:, 0],
            "next_noise": noise[:, 1],
        }
        return {name: torch.from_numpy(column).to(self.device) for name, column in draws.items()}

    def _loss(self, leaves: list[Tensor], targets: list[Tensor], batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(N,) loss of each agent, and (N, B) by how much each sample surprised it."""
        values = self.network.quantiles(leaves, batch["states"], batch["quantiles"], batch["noise"])
        with torch.no_grad():
            ahead = (batch["next_states"], batch["next_quantiles"], batch["next_noise"])
            next_values = self.network.quantiles(targets, *ahead)
            chooser = self.network.mean(leaves, *ahead) if self.double else next_values.mean(2)
            best = allowed(chooser, batch.get("next_masks")).argmax(-1)[:, :, None, None]
            kept = next_values.gather(-1, best.expand(-1, -1, self.quantiles, 1)).squeeze(-1)
            goals = batch["returns"][..., None] + batch["discounts"][..., None] * kept
        taken = batch["actions"][:, :, None, None].expand(-1, -1, self.quantiles, 1)
        errors = goals[:, :, None, :] - values.gather(-1, taken)
        loss = weighted_mean(quantile_huber(errors, batch["quantiles"]), batch.get("weights"))
        return loss, errors.mean((2, 3))
