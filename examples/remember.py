"""Remember: a cue is shown once and asked for later. Nothing but memory helps.

An episode has `delay + 2` turns. The first one shows one of `cues` signs, drawn anew for each agent and world; then
nothing is seen for `delay` turns; the last one shows only that the sign is asked for. Naming it then is worth 1, and
nothing else is worth anything.

What is seen when the sign is asked for is the same whatever the sign was. So whoever acts on what it sees alone is
right once in `cues` times, however it was trained, while a recurrent agent can learn to be right always.

    parallel-agents train examples/remember.py --algo ppo --epochs 160
    parallel-agents train examples/remember.py --algo dqn --epochs 160
    parallel-agents train examples/remember.py --algo ppo --epochs 160 --set model.recurrent=false
"""

from dataclasses import replace
from typing import Any

import numpy as np

from parallel_agents.environment import Agent, ParallelEnvironment
from parallel_agents.errors import ConfigError
from parallel_agents.seeding import Purpose, uniforms

SUITABLE: dict[str, dict[str, Any]] = {
    "ppo": {"lr": 5e-3, "gamma": 0.95, "entropy": 0.01},
    "dqn": {"lr": 5e-3, "epsilon_epochs": 60, "learning_starts": 64, "tau": 0.05, "updates_per_round": 16},
}
"""For such short episodes; every key can be set otherwise."""


class Remember(ParallelEnvironment):
    """N agents in W worlds, each for itself."""

    default_config = {
        "experiment": {"epochs": 160, "max_turns": 8, "worlds": 16},
        "world": {"agents": 2, "cues": 2, "delay": 6},
        "model": {"algorithm": "ppo", "recurrent": True, "hidden": 32},
        "parallel": {"train_interval": 4},
    }

    def setup_agents(self) -> None:
        agents, cues, delay = (self.config.world[key] for key in ("agents", "cues", "delay"))
        self.length = delay + 2
        if self.config.experiment.max_turns < self.length:
            raise ConfigError(f"world.delay is {delay}: set experiment.max_turns to {self.length}, an episode's length")
        suitable = SUITABLE.get(self.config.model["algorithm"], {})
        self.config = replace(self.config, model={**suitable, **self.config.model})
        self.agents = [Agent(model=self.make_model((cues + 1,), cues)) for _ in range(agents)]
        self.signs = np.zeros((agents, self.n_worlds), np.int64)

    def reset(self) -> None:
        agents, worlds = self.signs.shape
        who = [self.seed] * agents, Purpose.WORLD, range(agents), range(worlds)
        draws = uniforms(*who, epoch=self.epoch, turns=1, slots=1)
        self.signs = (draws[0, ..., 0] * self.config.world["cues"]).astype(np.int64)

    def observe(self) -> np.ndarray:
        cues = self.config.world["cues"]
        seen = np.zeros((*self.signs.shape, cues + 1), np.float32)
        if self.turn <= 1:
            seen[..., :cues] = np.eye(cues)[self.signs]
        if self.turn == self.length:
            seen[..., -1] = 1.0
        return seen

    def apply_actions(self, actions: np.ndarray) -> np.ndarray:
        return (actions == self.signs) * np.float32(self.turn == self.length)

    def dones(self) -> tuple[np.ndarray, np.ndarray]:
        over = np.full(self.signs.shape, self.turn == self.length)
        return over, np.zeros_like(over)
