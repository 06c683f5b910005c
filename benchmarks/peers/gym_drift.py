"""The world of `benchmarks/drift.py` for one agent, as a Gymnasium environment."""

from typing import Any

import gymnasium
import numpy as np


class GymDrift(gymnasium.Env[Any, Any]):
    """One agent's point: x becomes 0.9 x + push of the action, the reward is -|x0|, and no episode ends."""

    def __init__(self, inputs: int, actions: int) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (inputs,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(actions)
        self.pushes = np.sin(np.arange(actions * inputs)).reshape(actions, inputs).astype(np.float32)
        self.x = np.zeros(inputs, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.x = np.zeros_like(self.x)
        return self.x, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.x = np.float32(0.9) * self.x + self.pushes[action]
        return self.x, -abs(float(self.x[0])), False, False, {}
