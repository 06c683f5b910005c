"""A game that does not want to end: each kind of it stands in the way of Ctrl-C in another manner."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any, ClassVar

import numpy as np

from parallel_agents import Agent, ParallelEnvironment
from parallel_agents.algorithms.dqn import DQNLearner
from tests.execution.conftest import children, worker_processes

KINDS = ("plain", "learner", "world", "slow", "hung", "base")
"""What is in the way: nothing; a train_step() or a world that catches every Exception and goes on; a long turn; a
learner that hangs; a world that catches even BaseException."""
FROM = 3
"""The epoch from which on it is in the way."""


class Deaf:
    """A model whose training takes long and survives every Exception."""

    n_actions = 3
    game: Any = None

    def take_action(self, state: Any) -> int:
        return 0

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        """Carries nothing from epoch to epoch."""

    def train_step(self) -> None:
        if self.game.epoch >= FROM:
            _survive(Exception)


def _survive(kind: type[BaseException]) -> None:
    until = time.monotonic() + 60.0
    while time.monotonic() < until:
        try:
            time.sleep(60.0)
        except kind:
            continue


def _hang(self: Any, *given: Any) -> Any:
    threading.Event().wait(60.0)


class Stubborn(ParallelEnvironment):
    """Counts turns."""

    default_config: ClassVar[dict[str, Any]] = {
        "experiment": {"epochs": 1_000_000, "max_turns": 5, "checkpoint_every": 1},
        "world": {"kind": "plain"},
        "model": {"hidden": (4,), "batch_size": 2, "updates_per_round": 2, "learning_starts": 2, "buffer_size": 50},
        "parallel": {"train_interval": 1, "num_workers": 1},
    }

    def setup_agents(self) -> None:
        self.agents = [Agent(model=self.make_model((2,), 3)) for _ in range(2)]
        if self.config.world["kind"] == "learner":
            self.agents.append(Agent(model=Deaf()))
            self.agents[-1].model.game = self

    def reset(self) -> None:
        pass

    def observe(self) -> Any:
        return np.full((len(self.agents), self.n_worlds, 2), self.turn, np.float32)

    def apply_actions(self, actions: Any) -> Any:
        time.sleep(0.002)
        if self.epoch >= FROM:
            match self.config.world["kind"]:
                case "world":
                    _survive(Exception)
                case "base":
                    _survive(BaseException)
                case "slow":
                    time.sleep(8.0)
                case "hung":
                    DQNLearner.learn = _hang  # type: ignore[method-assign]
                    for process in [*worker_processes(os.getpid()), *children(os.getpid())]:
                        os.kill(process, signal.SIGSTOP)
        return np.zeros((len(self.agents), self.n_worlds), np.float32)
