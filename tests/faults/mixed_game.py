"""A game whose agents are of every kind: in a stack, choosing by itself, and with a learner of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from parallel_agents import Agent, ParallelEnvironment
from parallel_agents.algorithms import DQN
from parallel_agents.core.seeding import Purpose, generator

CELLS = 6
ACTIONS = 3


class Wary(Agent):
    """Chooses by itself every third time, and learns as everybody does."""

    def __init__(self, model: Any) -> None:
        super().__init__(model=model)
        self.asked = 0

    def get_action(self, state: Any) -> Any:
        self.asked += 1
        return 1 if self.asked % 3 == 0 else self.model.take_action(state)

    def state(self) -> dict[str, int]:
        return {"asked": self.asked}

    def load_state(self, state: dict[str, int]) -> None:
        self.asked = state["asked"]


class Table:
    """Values of actions in a table, learnt from what was kept since the last training."""

    def __init__(self) -> None:
        self.values = np.zeros((CELLS, ACTIONS))
        self.kept: list[tuple[int, int, float]] = []
        self.draws = generator(1, Purpose.ACT, agent=9)

    def take_action(self, state: Any) -> int:
        explores = self.draws.random() < 0.2
        return int(self.draws.integers(ACTIONS) if explores else self.values[int(state[0])].argmax())

    def train_step(self) -> float:
        for cell, action, reward in self.kept:
            self.values[cell, action] += 0.05 * (reward - self.values[cell, action])
        self.kept = []
        return 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values, "kept": self.kept, "draws": self.draws.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values, self.kept = state["values"], state["kept"]
        self.draws.bit_generator.state = state["draws"]


class Notes(Agent):
    """Gives its model what it has lived through, in the model's own form."""

    def add_memory(self, state: Any, action: Any, reward: float, done: bool) -> None:
        self.model.kept.append((int(state[0]), int(action), reward))


class Mixed(ParallelEnvironment):
    """Be where the goal is, on a line."""

    default_config = {
        "experiment": {"epochs": 20, "max_turns": 20},
        "world": {"agents": 4},
        "model": {"algorithm": "dqn", "learning_starts": 20, "batch_size": 8},
        "parallel": {},
    }

    def setup_agents(self) -> None:
        stacked = [Agent(model=self.make_model((2,), ACTIONS)) for _ in range(self.config.world["agents"] - 2)]
        wary = Wary(DQN((2,), ACTIONS, hidden=(8,), batch_size=8, learning_starts=20))
        self.agents = [*stacked, wary, Notes(model=Table())]

    def reset(self) -> None:
        self.place = np.zeros((len(self.agents), self.n_worlds), np.int64)
        self.goal = np.array([stream.integers(CELLS) for stream in self.streams])

    def observe(self) -> Any:
        goals = np.broadcast_to(self.goal, self.place.shape)
        return np.stack([self.place, goals], axis=-1).astype(np.float32)

    def apply_actions(self, actions: Any) -> Any:
        self.place = np.clip(self.place + np.asarray(actions) - 1, 0, CELLS - 1)
        return -np.abs(self.place - self.goal).astype(np.float32)
