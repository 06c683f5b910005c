"""A world that costs almost nothing, for whole loops beside peers: each agent pushes a point of its own about.

x becomes 0.9·x + push of the action, the reward is -|x₀|, and no episode ends. `peers/jax_side.py` has the same world.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from parallel_agents import Agent, ParallelEnvironment
from parallel_agents.engine.collect import CompiledWorld, nothing_moves

INPUTS, ACTIONS = 8, 4


class Points(NamedTuple):
    """Where the agents' points are."""

    x: Any
    """(N, W, inputs) float32"""
    pushes: Any
    """(ACTIONS, inputs) float32"""


@njit
def reset(points: Any, which: Any, epoch: int, turn: int) -> None:
    points.x[:] = np.float32(0.0)


@njit
def observe(points: Any, out: Any) -> None:
    out[:] = points.x


@njit
def apply(
    points: Any, actions: Any, acting: Any, active: Any, rewards: Any, terminated: Any, truncated: Any, epoch: int,
    turn: int,
) -> int:  # fmt: skip
    agents, worlds, inputs = points.x.shape
    for n in range(agents):
        for w in range(worlds):
            own, push = points.x[n, w], points.pushes[int(actions[n, w, 0])]
            for d in range(inputs):
                own[d] = np.float32(0.9) * own[d] + push[d]
            rewards[n, w] = -abs(own[0])
    return -1


class Drift(ParallelEnvironment):
    """N agents, each with a point of its own in every world."""

    default_config = {
        "experiment": {"autoreset": True},
        "world": {"agents": 8, "inputs": INPUTS},
        "model": {},
        "parallel": {},
    }

    def setup_agents(self) -> None:
        count, inputs = self.config.world["agents"], self.config.world["inputs"]
        self.agents = [Agent(model=self.make_model((inputs,), n_actions=ACTIONS)) for _ in range(count)]
        pushes = np.sin(np.arange(ACTIONS * inputs)).reshape(ACTIONS, inputs).astype(np.float32)
        self.points = Points(np.zeros((count, self.n_worlds, inputs), np.float32), pushes)

    def compiled_world(self) -> CompiledWorld | str:
        return CompiledWorld(self.points, reset, nothing_moves, observe, apply)

    def reset(self) -> None:
        self.points.x[:] = 0.0

    def observe(self) -> Any:
        return self.points.x

    def apply_actions(self, actions: Any) -> Any:
        rewards = np.zeros((len(self.agents), self.n_worlds), np.float32)
        apply(self.points, actions[..., None], None, None, rewards, None, None, self.epoch, self.turn)
        return rewards
