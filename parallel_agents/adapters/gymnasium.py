"""Gymnasium environments as worlds: one agent, W instances, stepped in this process.

parallel-agents train gymnasium:CartPole-v1 --algo ppo --worlds 8
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from parallel_agents.environment import Agent, ParallelEnvironment
from parallel_agents.errors import ContractError, TargetError
from parallel_agents.networks import SquashedGaussian
from parallel_agents.seeding import Purpose, generator
from parallel_agents.types import Array

__all__ = ["GymnasiumEnvironment", "gymnasium_environment"]

PPO_DEFAULTS = {
    "lr": 1e-3,
    "lr_final": 1e-5,
    "lr_updates": 11_720,
    "passes": 20,
    "minibatches": 1,
    "gamma": 0.98,
    "gae_lambda": 0.8,
}
"""For short rounds of 32 turns and many passes over each: quick on small tasks. Every key can be set otherwise."""
LONGEST = 100_000
"""Turns after which an evaluation gives up on an environment without a time limit."""


def gymnasium_environment(name: str) -> type[GymnasiumEnvironment]:
    """The environment class of a registered Gymnasium environment."""
    try:
        gymnasium.spec(name)
    except gymnasium.error.Error as error:
        raise TargetError(f"gymnasium:{name} is not a registered environment: {error}") from error
    title = "".join(word.capitalize() for word in name.replace("/", "-").split("-"))
    return type(title, (GymnasiumEnvironment,), {"name": name, "__doc__": f"Gymnasium's {name}."})


class GymnasiumEnvironment(ParallelEnvironment):
    """W instances of one Gymnasium environment."""

    name = ""
    default_config = {
        "experiment": {"epochs": 586, "max_turns": 32, "autoreset": True, "worlds": 8},
        "parallel": {"train_interval": 1},
    }

    def setup_agents(self) -> None:
        """Make the instances and one agent whose model fits their spaces."""
        self.instances = [gymnasium.make(self.name) for _ in range(self.n_worlds)]
        spec = self.instances[0].spec
        self.evaluation_turns = (spec.max_episode_steps if spec is not None else None) or LONGEST
        seen = self.instances[0].observation_space
        if not isinstance(seen, spaces.Box | spaces.Discrete):
            raise ContractError(f"{self.name} has the observation space {seen}: only Box and Discrete are supported")
        self._onehot = int(seen.n) if isinstance(seen, spaces.Discrete) else 0
        shape = (self._onehot,) if self._onehot else tuple(seen.shape or (1,))
        self.agents = [Agent(model=self.make_model(shape, self._actions(self.instances[0].action_space)))]
        self._seen = np.zeros((1, self.n_worlds, *shape), np.float32)
        self._ends = np.zeros((2, 1, self.n_worlds), np.bool_)
        self._history: list[tuple[int, list[Any]]] = [(0, []) for _ in range(self.n_worlds)]
        """The seed of every world's episode, and the actions since."""

    def make_model(self, obs_shape: Any, n_actions: Any) -> Any:
        """A fresh model as the `model` section describes it, with defaults that suit these environments."""
        if self.config.model.get("algorithm") == "ppo":
            self.config = replace(self.config, model={**PPO_DEFAULTS, **self.config.model})
        return super().make_model(obs_shape, n_actions)

    def _actions(self, space: Any) -> Any:
        self._first_action = 0
        match space:
            case spaces.Discrete():
                self._first_action = int(space.start)
                return int(space.n)
            case spaces.MultiDiscrete():
                return tuple(int(n) for n in space.nvec.reshape(-1))
            case spaces.Box():
                return SquashedGaussian(
                    tuple(map(float, space.low.reshape(-1))), tuple(map(float, space.high.reshape(-1)))
                )
        raise ContractError(
            f"{self.name} has the action space {space}: only Discrete, MultiDiscrete and Box are supported"
        )

    def reset(self) -> None:
        self.reset_worlds(np.ones(self.n_worlds, np.bool_))

    def reset_worlds(self, which: Array) -> None:
        """Start fresh episodes, each from a seed of its own."""
        for world in np.flatnonzero(which):
            draws = generator(self.seed, Purpose.WORLD, world=int(world), epoch=self.epoch, turn=self.turn)
            self._begin(int(world), int(draws.integers(2**31)))
            self._ends[:, 0, world] = False

    def observe(self) -> Array:
        return self._seen

    def apply_actions(self, actions: Array) -> Array:
        rewards = np.zeros((1, self.n_worlds), np.float32)
        for world in np.flatnonzero(self.active):
            action = actions[0, world]
            action = int(action) + self._first_action if np.ndim(action) == 0 else action
            rewards[0, world] = self._step(int(world), action)
        return rewards

    def _begin(self, world: int, seed: int) -> None:
        seen, _ = self.instances[world].reset(seed=seed)
        self._history[world] = (seed, [])
        self._show(world, seen)

    def _step(self, world: int, action: Any) -> float:
        seen, reward, terminated, truncated, _ = self.instances[world].step(action)
        self._history[world][1].append(action)
        self._show(world, seen)
        self._ends[:, 0, world] = terminated, truncated
        return float(reward)

    def state(self) -> dict[str, Array]:
        """The seed of every world's episode and the actions since: a foreign world gives nothing else away."""
        seeds = np.array([seed for seed, _ in self._history], np.int64)
        lengths = np.array([len(actions) for _, actions in self._history], np.int64)
        taken = [np.asarray(action) for _, actions in self._history for action in actions]
        return {"seeds": seeds, "lengths": lengths, "actions": np.stack(taken) if taken else np.zeros(0, np.int64)}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Play every world's episode again, up to where it was."""
        at = 0
        for world, (seed, length) in enumerate(zip(state["seeds"], state["lengths"], strict=True)):
            self._begin(world, int(seed))
            for action in state["actions"][at : at + int(length)]:
                self._step(world, int(action) if np.ndim(action) == 0 else action)
            at += int(length)

    def dones(self) -> tuple[Array, Array]:
        return self._ends[0].copy(), self._ends[1].copy()

    def _show(self, world: Any, seen: Any) -> None:
        self._seen[0, world] = np.eye(self._onehot)[int(seen)] if self._onehot else seen
