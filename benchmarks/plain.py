"""Ordinary learners, one object per agent, as they are usually written, for loops over agents.

Each does the same arithmetic as our learner of that name, with torch's modules and a fused Adam of its own, and counts
its updates and their samples.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from parallel_agents.algorithms.learner import advantages
from parallel_agents.core.types import Array

Batch = Mapping[str, Tensor]
COSINES = 64


def mlp(inputs: int, hidden: tuple[int, ...], outputs: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return a multilayer perceptron."""
    sizes = (inputs, *hidden)
    layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), activation())]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))


class PlainDQN:
    """Double DQN with a soft target, for any module."""

    def __init__(self, online: nn.Module) -> None:
        self.online = online
        self.updates = self.samples = 0
        self.target = copy.deepcopy(self.online)
        self.optimizer = torch.optim.Adam(self.online.parameters(), 1e-3, fused=True)

    def act(self, observations: Tensor) -> Array:
        with torch.inference_mode():
            return np.asarray(self.online(observations).argmax(-1).numpy())

    def learn(self, columns: Batch, updates: int) -> None:
        size = len(columns["returns"]) // updates
        for update in range(updates):
            batch = {name: column[update * size : (update + 1) * size] for name, column in columns.items()}
            self._step(self.loss(batch))
            self.samples += batch["returns"].numel()

    def loss(self, batch: Batch) -> Tensor:
        with torch.no_grad():
            best = self.online(batch["next_states"]).argmax(-1, keepdim=True)
            values = self.target(batch["next_states"]).gather(-1, best).squeeze(-1)
            targets = batch["returns"] + batch["discounts"] * values
        chosen = self.online(batch["states"]).gather(-1, batch["actions"][:, None]).squeeze(-1)
        return nn.functional.smooth_l1_loss(chosen, targets)

    def _step(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.online.parameters(), 10.0)
        self.optimizer.step()
        self.updates += 1
        with torch.no_grad():
            for online, target in zip(self.online.parameters(), self.target.parameters(), strict=True):
                target.lerp_(online, 0.01)


class NoisyLinear(nn.Module):
    """A linear layer with factorised noise, drawn for every call that learns."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(fan_in)
        self.weight = nn.Parameter(torch.empty(fan_out, fan_in).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(fan_out).uniform_(-bound, bound))
        self.weight_deviation = nn.Parameter(torch.full((fan_out, fan_in), 0.5 * bound))
        self.bias_deviation = nn.Parameter(torch.full((fan_out,), 0.5 * bound))

    def forward(self, x: Tensor, noisy: bool) -> Tensor:
        if not noisy:
            return nn.functional.linear(x, self.weight, self.bias)
        inner, outer = (noise.sign() * noise.abs().sqrt() for noise in map(torch.randn, reversed(self.weight.shape)))
        weight = self.weight + self.weight_deviation * torch.outer(outer, inner)
        return nn.functional.linear(x, weight, self.bias + self.bias_deviation * outer)


class QuantileModule(nn.Module):
    """The network of IQN: quantiles embedded by cosines, noisy dueling heads."""

    def __init__(self, inputs: int, layer: int, actions: int) -> None:
        super().__init__()
        self.encoder, self.cosines = nn.Linear(inputs, layer), nn.Linear(COSINES, layer)
        self.joined, self.head = NoisyLinear(layer, layer), NoisyLinear(layer, actions + 1)
        self.register_buffer("steps", torch.arange(1, COSINES + 1) * math.pi)

    def forward(self, x: Tensor, quantiles: Tensor, noisy: bool) -> Tensor:
        embedded = torch.relu(self.cosines(torch.cos(quantiles[..., None] * self.steps)))
        joined = torch.relu(self.encoder(x))[:, None] * embedded
        head = self.head(torch.relu(self.joined(joined, noisy)), noisy)
        value, advantage = head[..., :1], head[..., 1:]
        return value + advantage - advantage.mean(-1, keepdim=True)


class PlainIQN(PlainDQN):
    """Implicit quantiles with noisy, dueling layers."""

    def __init__(self, inputs: int, layer: int, actions: int, quantiles: int = 12) -> None:
        super().__init__(QuantileModule(inputs, layer, actions))
        self.quantiles = quantiles
        self.fixed = (torch.arange(quantiles) + 0.5)[None] / quantiles

    def act(self, observations: Tensor) -> Array:
        with torch.inference_mode():
            quantiles = self.fixed.expand(len(observations), -1)
            return np.asarray(self.online(observations, quantiles, False).mean(1).argmax(-1).numpy())

    def loss(self, batch: Batch) -> Tensor:
        shape = (len(batch["returns"]), self.quantiles)
        quantiles, ahead = torch.rand(shape), torch.rand(shape)
        with torch.no_grad():
            best = self.online(batch["next_states"], ahead, True).mean(1).argmax(-1)
            values = self.target(batch["next_states"], ahead, True)
            kept = values.gather(-1, best[:, None, None].expand(-1, self.quantiles, 1)).squeeze(-1)
            targets = batch["returns"][:, None] + batch["discounts"][:, None] * kept
        values = self.online(batch["states"], quantiles, True)
        chosen = values.gather(-1, batch["actions"][:, None, None].expand(-1, self.quantiles, 1))
        errors = targets[:, None, :] - chosen
        size = errors.abs().clamp(max=1.0)
        huber = size * (errors.abs() - 0.5 * size)
        return ((quantiles[..., None] - (errors < 0).float()).abs() * huber).mean(-1).sum(-1).mean()


class PlainPPO:
    """PPO with separate networks for policy and value, including the advantages."""

    def __init__(self, policy: nn.Module, value: nn.Module, parameters: list[nn.Parameter] | None = None) -> None:
        self.policy, self.value = policy, value
        self.parameters = parameters or [*policy.parameters(), *value.parameters()]
        self.optimizer = torch.optim.Adam(self.parameters, 1e-3, fused=True)
        self.entropy = 0.01
        self.updates = self.samples = 0

    def act(self, observations: Tensor) -> Array:
        with torch.inference_mode():
            distribution = torch.distributions.Categorical(logits=self.policy(observations), validate_args=False)
            action = distribution.sample()  # type: ignore[no-untyped-call]
            distribution.log_prob(action).numpy()  # type: ignore[no-untyped-call]
            self.value(observations).numpy()
            return np.asarray(action.numpy())

    def learn(self, columns: Mapping[str, Array], updates: int) -> None:
        """Make so many updates from (T, W) columns, four minibatches per epoch."""
        data, indices = self.data(columns)
        draws = np.random.default_rng(0)
        for _ in range(updates // 4):
            for part in np.array_split(draws.permutation(indices), 4):
                chosen = torch.from_numpy(part)
                self._step({name: column[chosen] for name, column in data.items()})

    def data(self, columns: Mapping[str, Array]) -> tuple[dict[str, Tensor], Array]:
        """Return flat columns, with advantages and targets, and the indices of the valid samples."""
        own = {name: column[None] for name, column in columns.items()}
        gae = advantages(own, np.array([0.99]), np.array([0.95]))[0]
        targets = gae + columns["value"]
        gae = (gae - gae.mean()) / (gae.std() + 1e-8)
        data: dict[str, Any] = {name: columns[name] for name in ("observations", "actions", "log_prob")}
        flat = {name: torch.from_numpy(column.reshape(gae.size, -1)) for name, column in data.items()}
        flat |= {"advantages": torch.from_numpy(gae.reshape(-1)), "targets": torch.from_numpy(targets.reshape(-1))}
        return flat, np.flatnonzero(columns["valid"])

    def features(self, batch: Batch) -> Tensor:
        """Return the inputs of policy and value."""
        return batch["observations"]

    def _step(self, batch: Batch) -> None:
        features = self.features(batch)
        logs = torch.log_softmax(self.policy(features), -1)
        log_prob = logs.gather(-1, batch["actions"]).squeeze(-1)
        ratio = torch.exp(log_prob - batch["log_prob"].squeeze(-1))
        surrogate = torch.minimum(ratio * batch["advantages"], ratio.clamp(0.8, 1.2) * batch["advantages"])
        error = (self.value(features).squeeze(-1) - batch["targets"]) ** 2
        entropy = -(logs.exp() * logs).sum(-1)
        each = -surrogate + 0.5 * error - self.entropy * entropy
        counted = batch.get("counted")
        loss = each.mean() if counted is None else (each * counted).sum() / counted.sum()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.parameters, 0.5)
        self.optimizer.step()
        self.updates += 1
        self.samples += len(each) if counted is None else int(counted.sum())
