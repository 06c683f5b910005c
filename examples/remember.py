"""Remember: a cue is shown once and must be named later. Only memory helps.

An episode has `delay + 2` turns. The first turn shows one of `cues` signs, drawn for each agent and world. The next
`delay` turns show nothing. The last turn shows only that the sign must be named; naming it then earns 1, and nothing
else earns anything.

The last observation is the same for every sign. An agent without memory is therefore right once in `cues` times,
however it was trained, while a recurrent agent can learn to be always right.

    parallel-agents train examples/remember.py --algo ppo --epochs 160
    parallel-agents train examples/remember.py --algo dqn --epochs 160
    parallel-agents train examples/remember.py --algo ppo --epochs 160 --set model.recurrent=false
"""

from dataclasses import replace
from typing import Any

import numpy as np

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.seeding import Purpose, uniforms
from parallel_agents.env import Agent, ParallelEnvironment

SUITABLE: dict[str, dict[str, Any]] = {
    "ppo": {"lr": 5e-3, "gamma": 0.95, "ent_coef": 0.01},
    "dqn": {"lr": 5e-3, "epsilon_epochs": 60, "learning_starts": 64, "tau": 0.05, "updates_per_round": 16},
}
"""Settings for such short episodes; every key can be changed."""


class Remember(ParallelEnvironment):
    """N agents in W worlds, each on its own."""

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
        address = [self.seed] * agents, Purpose.WORLD, range(agents), range(worlds)
        draws = uniforms(*address, epoch=self.epoch, turns=1, slots=1)
        self.signs = (draws[0, ..., 0] * self.config.world["cues"]).astype(np.int64)

    def observe(self) -> np.ndarray:
        cues = self.config.world["cues"]
        observations = np.zeros((*self.signs.shape, cues + 1), np.float32)
        if self.turn <= 1:
            observations[..., :cues] = np.eye(cues)[self.signs]
        if self.turn == self.length:
            observations[..., -1] = 1.0
        return observations

    def apply_actions(self, actions: np.ndarray) -> np.ndarray:
        return (actions == self.signs) * np.float32(self.turn == self.length)

    def dones(self) -> tuple[np.ndarray, np.ndarray]:
        terminated = np.full(self.signs.shape, self.turn == self.length)
        return terminated, np.zeros_like(terminated)
