"""A small environment of users, a DQN that learns through external updates, and an agent without this library."""

from __future__ import annotations

import numpy as np

from parallel_agents.algorithms import DQN
from parallel_agents.env.external_training import ExternalUpdateAgent


class Street:
    """One user per step: feature 0 tells whether it is in a crisis; then action 1 pays 0.9, else action 0 pays 0.1."""

    def __init__(self, steps=20, words=True):
        self.steps, self.words = steps, words

    def reset(self, *, seed=None):
        self._draws = np.random.Generator(np.random.Philox(seed))
        self._step = 0
        return self._user(), {}

    def _user(self):
        self._rare = bool(self._draws.random() < 0.2)
        return np.array([float(self._rare), self._draws.standard_normal()], np.float32)

    def step(self, action):
        self._step += 1
        rare = self._rare
        reward = (9.0 if rare else 0.0) if action else (0.0 if rare else 1.0)
        info = {"true_event_type": "crisis_parent" if rare else "regular_parent"}
        if self.words:
            info["metadata"] = {"user_profile": "urgent case" if rare else "not in crisis"}
        return self._user(), 0.1 * reward, False, self._step >= self.steps, info


def external_agent(seed=0, **options):
    model = DQN((2,), 2, hidden=(16,), lr=5e-3, gamma=0.0, epsilon_epochs=10, **options)
    model.place(seed=seed, agent=0, worlds=1)
    return ExternalUpdateAgent(model)


class RunningMeans:
    """An agent without this library: weighted mean rewards by (crisis?, action)."""

    def __init__(self):
        self.sums, self.weights = np.zeros((2, 2)), np.full((2, 2), 1e-9)
        self.calls = 0
        self._explore = np.random.Generator(np.random.Philox(5))

    def select_action(self, state):
        if self._explore.random() < 0.3:
            return int(self._explore.integers(2))
        return int((self.sums / self.weights)[int(state[0] > 0.5)].argmax())

    def update_policy(self, batch):
        self.calls += 1
        at = (batch["states"][:, 0] > 0.5).astype(int), batch["actions"]
        np.add.at(self.sums, at, batch["weights"] * batch["rewards"])
        np.add.at(self.weights, at, batch["weights"])
        return {"loss": float(np.var(batch["rewards"]))}
