"""Advantage actor-critic (A2C, Mnih et al. 2016) as a learner of your own, in plain torch: copy it and change it.

parallel-agents train gymnasium:CartPole-v1 --algo a2c.py:A2C --worlds 8

A learner is any object with `take_action` and `train_step`. What else this one has:
place                        gives it the seed of its agent; every random number comes from a generator of its own
memory.add                   gets every transition, with the keywords that it names
set_epsilon                  0 in an evaluation (the best actions), None in training
state_dict, load_state_dict  everything it carries from epoch to epoch: for digest, `resume` and `eval`
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class Rollout:
    """The transitions since the last update, in order, for each world."""

    def __init__(self) -> None:
        self.worlds: dict[int, list[Any]] = {}

    def add(
        self, state: Any, action: Any, reward: float, done: bool, *, world: int, truncated: bool, next_state: Any
    ) -> None:
        step = [np.array(state), int(action), reward, done, truncated, np.array(next_state)]
        self.worlds.setdefault(world, []).append(step)

    def state(self) -> dict[int, list[Any]]:
        return self.worlds

    def load_state(self, state: dict[int, list[Any]]) -> None:
        self.worlds = state


class A2C:
    """A policy and a value, updated once per round from everything that was played since the last one."""

    def __init__(
        self, obs_shape: tuple[int, ...], n_actions: int, *, lr: float = 7e-3, gamma: float = 0.99,
        hidden: int = 64, vf_coef: float = 0.5, ent_coef: float = 0.01, max_grad_norm: float = 0.5,
    ) -> None:  # fmt: skip
        self.n_actions, self.gamma = n_actions, gamma
        self.vf_coef, self.ent_coef, self.max_grad_norm = vf_coef, ent_coef, max_grad_norm
        self._sizes, self._lr = (int(np.prod(obs_shape)), hidden), lr
        self.memory = Rollout()
        self.explores = True
        self.place(seed=0, agent=0, worlds=1)

    def place(self, *, seed: int, agent: int, worlds: int) -> None:
        """Become agent `agent` of a run with this seed: draw the weights, and everything later, from its own stream."""
        self.generator = torch.Generator().manual_seed((1_000_003 * seed + agent) % 2**63)
        with torch.random.fork_rng(devices=[]):  # torch's layers draw from the global generator, which is put back
            torch.manual_seed((1_000_003 * seed + agent) % 2**63)
            self.policy, self.value = self._network(self.n_actions), self._network(1)
        parameters = [*self.policy.parameters(), *self.value.parameters()]
        self.optimizer = torch.optim.RMSprop(parameters, lr=self._lr, alpha=0.99, eps=1e-5)

    def _network(self, outputs: int) -> nn.Module:
        inputs, hidden = self._sizes
        return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs))

    def set_epsilon(self, epsilon: float | None) -> None:
        self.explores = epsilon is None or epsilon > 0

    @torch.no_grad()
    def take_action(self, state: Any) -> int:
        logits = self.policy(_tensor(state).flatten())
        if not self.explores:
            return int(logits.argmax())
        return int(torch.multinomial(logits.softmax(-1), 1, generator=self.generator))

    def train_step(self) -> dict[str, float]:
        """Take one step on the mean over all worlds; what is returned is recorded as metrics of this agent."""
        worlds = [steps for _, steps in sorted(self.memory.worlds.items())]
        self.memory.worlds = {}
        if not worlds:
            return {"updates": 0}
        steps = [step for own in worlds for step in own]
        states = _tensor(np.stack([step[0] for step in steps])).flatten(1)
        actions = torch.tensor([step[1] for step in steps])
        returns = torch.cat([self._returns(own) for own in worlds])
        values = self.value(states)[:, 0]
        advantages = (returns - values).detach()
        log_probs = self.policy(states).log_softmax(-1)
        entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
        policy_loss = -(log_probs.gather(1, actions[:, None])[:, 0] * advantages).mean()
        value_loss = (returns - values).square().mean()
        loss = policy_loss + self.vf_coef * value_loss - self.ent_coef * entropy
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_([*self.policy.parameters(), *self.value.parameters()], self.max_grad_norm)
        self.optimizer.step()
        return {"loss": loss.item(), "value_loss": value_loss.item(), "entropy": entropy.item()}

    @torch.no_grad()
    def _returns(self, steps: list[Any]) -> Tensor:
        """Return the discounted rewards after each step of one world; what follows the last one is its value."""
        following = self.value(_tensor(np.stack([step[5] for step in steps])).flatten(1))[:, 0].tolist()
        returns, later = [], following[-1]
        for (_, _, reward, done, truncated, _), value in zip(reversed(steps), reversed(following), strict=True):
            if done:
                later = value if truncated else 0.0
            later = reward + self.gamma * later
            returns.append(later)
        return torch.tensor(returns[::-1])

    def _parts(self) -> dict[str, Any]:
        return {"policy": self.policy, "value": self.value, "optimizer": self.optimizer}

    def state_dict(self) -> dict[str, Any]:
        parts = {name: part.state_dict() for name, part in self._parts().items()}
        return {**parts, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in self._parts().items():
            part.load_state_dict(state[name])
        self.generator.set_state(state["generator"])


def _tensor(array: Any) -> Tensor:
    return torch.as_tensor(np.asarray(array, np.float32))
