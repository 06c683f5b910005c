"""Deep Q-learning from sequences, with networks that carry a state (Kapturowski et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from parallel_agents.learning.dqn import DQNLearner
from parallel_agents.learning.losses import allowed, huber

__all__ = ["RecurrentDQNLearner"]


@dataclass(frozen=True)
class RecurrentDQNLearner(DQNLearner):
    """As `DQNLearner`, with a batch of sequences: both networks run through them from the states that were kept."""

    def _loss(self, leaves: list[Tensor], targets: list[Tensor], batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(N,) loss of each agent, the mean over the turns that count of all its sequences, and (N, B, L) errors."""
        seen, state, masks = batch["states"], batch["hidden"], batch.get("masks")
        values = self.network.unroll(leaves, seen, state)
        with torch.no_grad():
            target_values = self.network.unroll(targets, seen, state)
            chooser = values.detach() if self.double else target_values
            best = allowed(chooser, masks).argmax(-1, keepdim=True)
            worth = target_values.gather(-1, best).squeeze(-1)
            goals = batch["returns"] + batch["discounts"] * worth.gather(-1, batch["ahead"])
        turns = goals.shape[-1]
        taken = values[:, :, :turns].gather(-1, batch["actions"][..., None]).squeeze(-1)
        errors = (taken - goals) * batch["counted"]
        total = batch["counted"].reshape(len(goals), -1).sum(-1).clamp(min=1.0)
        return huber(errors).reshape(len(goals), -1).sum(-1) / total, errors
