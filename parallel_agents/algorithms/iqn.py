"""Implicit quantile learning of N independent agents in stacked updates (Dabney et al. 2018).

Everything but the network and the loss is that of DQN. Shapes: N agents, B samples, K and J quantiles, A actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from parallel_agents.algorithms.base import Model
from parallel_agents.algorithms.dqn import (
    DQNLearner,
    QLearningOptions,
    QLearningSpec,
    huber,
    mask_values,
    weighted_mean,
)
from parallel_agents.algorithms.external_update import rows_snapshot, train_on
from parallel_agents.algorithms.learner import Snapshot
from parallel_agents.algorithms.normalization import normalize
from parallel_agents.algorithms.options import require_at_least
from parallel_agents.core.config import build_section
from parallel_agents.core.seeding import Identity, Purpose, key
from parallel_agents.core.types import Array
from parallel_agents.kernels import implicit_quantiles as kernel
from parallel_agents.kernels.q_learning import Agents, Results, Samples
from parallel_agents.nn import QuantileNetwork


@dataclass(frozen=True, kw_only=True)
class IQNOptions(QLearningOptions):
    """The `model` section for `algorithm = "iqn"`."""

    layer: int = 250
    """Width of the hidden layers."""
    quantiles: int = 12
    """Quantiles drawn for each sample of an update."""
    acting_quantiles: int = 12
    """Evenly spaced quantiles whose mean acting uses."""
    batch_size: int = 64
    n_step: int = 3
    n_frames: int = 5
    gamma: float = 0.99
    tau: float = 0.001
    updates_per_round: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 1, "layer", "quantiles", "acting_quantiles")


@dataclass(frozen=True, kw_only=True)
class IQNSpec(QLearningSpec):
    """IQN at given shapes."""

    layer: int
    quantiles: int
    acting_quantiles: int

    @cached_property
    def network(self) -> QuantileNetwork:
        return QuantileNetwork(self.inputs, self.layer, self.actions, self.acting_quantiles)

    def learner(self, *, device: str = "cpu", updates: int | None = None) -> Any:
        count = updates or self.updates
        learner = IQNLearner(self.network, count, self.batch, self.double, device, self.kernels, self.quantiles)
        return normalize(learner, self.inputs, self.normalize)


@dataclass(frozen=True)
class IQNLearner(DQNLearner):
    """`DQNLearner` with values at quantiles and noisy layers; `network` is a `QuantileNetwork`."""

    network: QuantileNetwork
    quantiles: int = 12

    def _compute(self, agents: Agents, samples: Samples, results: Results, identity: Identity) -> None:
        """Call the compiled round."""
        network = self.network
        layers = network.layout.table(0, network.widths())
        scratch = kernel.Scratch.of(network.size, layers, network.outputs, self.batch, self.quantiles)
        shape = (network.outputs, self.double, self.updates, self.batch)
        kernel.learn_iqn(layers, *shape, _keys(identity), agents, samples, scratch, results)

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
        for row, own in enumerate(_keys(identity)):
            kernel.fill_quantiles(own[0], int(updates[row]), int(joined[row]), quantiles[row].reshape(-1))
            kernel.fill_noise(own[1], int(updates[row]), int(joined[row]), noise[row].reshape(-1))
        draws = {
            "quantiles": quantiles[:, 0],
            "next_quantiles": quantiles[:, 1],
            "noise": noise[:, 0],
            "next_noise": noise[:, 1],
        }
        return {name: torch.from_numpy(column).to(self.device) for name, column in draws.items()}

    def _loss(
        self, weights: list[Tensor], target_weights: list[Tensor], batch: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of each agent (N,) and the mean TD errors of its samples (N, B)."""
        values = self.network.quantiles(weights, batch["states"], batch["quantiles"], batch["noise"])
        with torch.no_grad():
            after = (batch["next_states"], batch["next_quantiles"], batch["next_noise"])
            next_values = self.network.quantiles(target_weights, *after)
            chooser = self.network.mean(weights, *after) if self.double else next_values.mean(2)
            best = mask_values(chooser, batch.get("next_masks")).argmax(-1)[:, :, None, None]
            best_values = next_values.gather(-1, best.expand(-1, -1, self.quantiles, 1)).squeeze(-1)
            targets = batch["returns"][..., None] + batch["discounts"][..., None] * best_values
        taken = batch["actions"][:, :, None, None].expand(-1, -1, self.quantiles, 1)
        errors = targets[:, :, None, :] - values.gather(-1, taken)
        loss = weighted_mean(quantile_huber(errors, batch["quantiles"]), batch.get("weights"))
        return loss, errors.mean((2, 3))


def _keys(identity: Identity) -> NDArray[np.uint64]:
    """Return the keys (N, 2, 2) of each agent's quantiles and of its noise."""
    purposes = (Purpose.QUANTILE, Purpose.NOISE)
    rows = zip(identity.seeds, identity.agents, strict=True)
    return np.array([[key(seed, purpose, agent) for purpose in purposes] for seed, agent in rows], np.uint64)


def quantile_huber(errors: Tensor, quantiles: Tensor) -> Tensor:
    """Return losses (N, B) from errors (N, B, K, J) of K quantiles (N, B, K) against J targets. Dabney et al. 2018."""
    shares = torch.abs(quantiles[..., None] - (errors < 0).float())
    return (shares * huber(errors)).mean(-1).sum(-1)


class IQN(Model):
    """An implicit quantile learner with noisy, dueling layers; defaults as in sorrel's games.

    >>> model = IQN(obs_shape=(3,), n_actions=2, layer=8, n_frames=1, learning_starts=1)
    >>> for t in range(4):
    ...     model.memory.add([t, 0, 1], action=0, reward=1.0, done=t == 3)
    >>> model.train_step() >= 0.0, model.take_action([0, 0, 1]) in (0, 1)
    (True, True)
    """

    def __init__(self, obs_shape: int | tuple[int, ...], n_actions: int, *, worlds: int = 1, **options: Any) -> None:
        chosen = build_section(IQNOptions, options, "model")
        shape = {name: getattr(chosen, name) for name in ("layer", "quantiles", "acting_quantiles")}
        spec = IQNSpec(**chosen.spec(obs_shape, n_actions, worlds), **shape)
        super().__init__(spec, chosen.hyper(), chosen)

    def update_policy(self, batch: Mapping[str, ArrayLike]) -> dict[str, Any]:
        """Train once on B rows that the caller has drawn; return metrics. See `external_update`."""
        snapshot = rows_snapshot(self, batch)
        return dict(train_on(self, snapshot, snapshot["returns"].shape[1]))
