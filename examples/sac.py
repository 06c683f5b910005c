"""Soft actor-critic (SAC, Haarnoja et al. 2018) for continuous actions, in plain torch: copy it and change it.

parallel-agents train gymnasium:Pendulum-v1 --algo sac.py:SAC --worlds 4 --total-timesteps 20000

`a2c.py` says what a learner of your own consists of; this one learns from a replay buffer.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class Replay:
    """A ring of transitions; `load_state(state())` goes on exactly."""

    def __init__(self, capacity: int, observation: int, actions: int) -> None:
        widths = {"state": observation, "action": actions, "reward": 1, "terminal": 1, "next_state": observation}
        self.columns = {name: np.zeros((capacity, width), np.float32) for name, width in widths.items()}
        self.count = 0

    def add(
        self, state: Any, action: Any, reward: float, done: bool, *, truncated: bool, next_state: Any
    ) -> None:  # fmt: skip
        row = (np.ravel(state), action, reward, done and not truncated, np.ravel(next_state))
        for column, value in zip(self.columns.values(), row, strict=True):
            column[self.count % len(column)] = value
        self.count += 1

    def __len__(self) -> int:
        return min(self.count, len(self.columns["reward"]))

    def state(self) -> dict[str, Any]:
        return {"count": self.count, **{name: column[: len(self)] for name, column in self.columns.items()}}

    def load_state(self, state: dict[str, Any]) -> None:
        self.count = state["count"]
        for name, column in self.columns.items():
            column[: len(self)] = state[name]


class SAC:
    """A squashed Gaussian policy, two critics with targets, and a temperature that keeps the policy's entropy up."""

    def __init__(
        self, obs_shape: tuple[int, ...], actions: Any, *, lr: float = 1e-3, gamma: float = 0.99, tau: float = 0.005,
        hidden: int = 64, batch_size: int = 128, buffer_size: int = 50_000, learning_starts: int = 1_000,
        updates_per_round: int = 64,
    ) -> None:  # fmt: skip
        self.low, self.high = torch.tensor(actions.low), torch.tensor(actions.high)
        self.n_inputs, self.n_outputs = int(np.prod(obs_shape)), len(actions.low)
        self.lr, self.gamma, self.tau, self.hidden = lr, gamma, tau, hidden
        self.batch_size, self.learning_starts, self.updates = batch_size, learning_starts, updates_per_round
        self.memory = Replay(buffer_size, self.n_inputs, self.n_outputs)
        self.explores = True
        self.place(seed=0, agent=0, worlds=1)

    def place(self, *, seed: int, agent: int, worlds: int) -> None:
        """Become agent `agent` of a run with this seed: draw the weights, and everything later, from its own stream."""
        self.generator = torch.Generator().manual_seed((1_000_003 * seed + agent) % 2**63)
        with torch.random.fork_rng(devices=[]):  # torch's layers draw from the global generator, which is put back
            torch.manual_seed((1_000_003 * seed + agent) % 2**63)
            self.actor = self._network(self.n_inputs, 2 * self.n_outputs)
            self.critics = nn.ModuleList(self._network(self.n_inputs + self.n_outputs, 1) for _ in range(2))
        self.targets = copy.deepcopy(self.critics)
        self.log_alpha = torch.zeros(1, requires_grad=True)
        trained = [self.actor.parameters(), self.critics.parameters(), [self.log_alpha]]
        self.optimizers = [torch.optim.Adam(parameters, lr=self.lr) for parameters in trained]

    def _network(self, inputs: int, outputs: int) -> nn.Module:
        layers = [nn.Linear(inputs, self.hidden), nn.ReLU(), nn.Linear(self.hidden, self.hidden), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(self.hidden, outputs))

    def set_epsilon(self, epsilon: float | None) -> None:
        self.explores = epsilon is None or epsilon > 0

    @torch.no_grad()
    def take_action(self, state: Any) -> Any:
        mean, deviation = self._policy(torch.as_tensor(np.asarray(state, np.float32)).flatten())
        noise = torch.randn(mean.shape, generator=self.generator) if self.explores else torch.zeros_like(mean)
        squashed = torch.tanh(mean + deviation * noise)
        return (self.low + (squashed + 1) / 2 * (self.high - self.low)).numpy()

    def _policy(self, states: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_deviation = self.actor(states).chunk(2, dim=-1)
        return mean, log_deviation.clamp(-10, 2).exp()

    def _sample(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions in (-1, 1), through which gradients flow, and their log-probabilities."""
        mean, deviation = self._policy(states)
        noise = torch.randn(mean.shape, generator=self.generator)
        raw = mean + deviation * noise
        gaussian = -0.5 * noise.square() - deviation.log() - 0.5 * math.log(2 * math.pi)
        jacobian = 2 * (math.log(2) - raw - nn.functional.softplus(-2 * raw))  # log(1 - tanh(raw)²)
        return torch.tanh(raw), (gaussian - jacobian).sum(-1, keepdim=True)

    def train_step(self) -> dict[str, float]:
        """Make the updates of a round; what is returned is recorded as metrics of this agent."""
        if len(self.memory) < self.learning_starts:
            return {"updates": 0}
        losses = [self._update() for _ in range(self.updates)]
        return {"loss": float(np.mean(losses)), "alpha": self.log_alpha.exp().item(), "updates": self.updates}

    def _update(self) -> float:
        drawn = torch.randint(len(self.memory), (self.batch_size,), generator=self.generator).numpy()
        batch = {name: torch.from_numpy(column[drawn]) for name, column in self.memory.columns.items()}
        action = (batch["action"] - self.low) / (self.high - self.low) * 2 - 1
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            next_action, next_log_prob = self._sample(batch["next_state"])
            later = self._smallest(self.targets, batch["next_state"], next_action) - alpha * next_log_prob
            target = batch["reward"] + self.gamma * (1 - batch["terminal"]) * later
        pairs = torch.cat([batch["state"], action], dim=1)
        critic_loss = torch.stack([(critic(pairs) - target).square().mean() for critic in self.critics]).sum()
        self._step(1, critic_loss)
        sampled, log_prob = self._sample(batch["state"])
        self._step(0, (alpha * log_prob - self._smallest(self.critics, batch["state"], sampled)).mean())
        self._step(2, -(self.log_alpha * (log_prob.detach() - self.n_outputs)).mean())
        with torch.no_grad():
            for old, new in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
                old.lerp_(new, self.tau)
        return critic_loss.item()

    def _smallest(self, critics: nn.ModuleList, states: Tensor, actions: Tensor) -> Tensor:
        pairs = torch.cat([states, actions], dim=1)
        return torch.minimum(*(critic(pairs) for critic in critics))

    def _step(self, which: int, loss: Tensor) -> None:
        self.optimizers[which].zero_grad()
        loss.backward()
        self.optimizers[which].step()

    def _parts(self) -> list[Any]:
        return [self.actor, self.critics, self.targets, *self.optimizers]

    def state_dict(self) -> dict[str, Any]:
        parts = [part.state_dict() for part in self._parts()]
        return {"parts": parts, "log_alpha": self.log_alpha.detach(), "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for part, stored in zip(self._parts(), state["parts"], strict=True):
            part.load_state_dict(stored)
        self.log_alpha.data.copy_(state["log_alpha"])
        self.generator.set_state(state["generator"])
