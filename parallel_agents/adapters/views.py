"""Environments of ours as those of PettingZoo and Gymnasium.

    to_pettingzoo(game)          a ParallelEnv: every agent for itself; one world
    to_gymnasium(game)           an Env; one world
    to_gymnasium_vector(game)    a VectorEnv; as many worlds as the game has, started afresh in the step after their end

With several agents, Gymnasium's views are joint: observations (N, *obs), one action per agent (MultiDiscrete), the
sum of all rewards, and each agent's own in `info["rewards"]`. For agents that see different things there is
`to_pettingzoo`.

All agents act on what they saw before the turn. Nothing is learnt here: the models only tell what there is to see
and to do.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from pettingzoo import ParallelEnv

from parallel_agents.adapters.spaces import MASK
from parallel_agents.adapters.stage import Outcome, Stage, action_space
from parallel_agents.environment import Environment
from parallel_agents.errors import ActionError, ContractError
from parallel_agents.types import Array

__all__ = ["to_gymnasium", "to_gymnasium_vector", "to_pettingzoo"]


def to_pettingzoo(environment: Environment) -> PettingZooView:
    """An environment with one world as a PettingZoo ParallelEnv."""
    return PettingZooView(_single(environment, "to_pettingzoo"))


def to_gymnasium(environment: Environment) -> GymnasiumView:
    """An environment with one world as a Gymnasium Env."""
    return GymnasiumView(_single(environment, "to_gymnasium"))


def to_gymnasium_vector(environment: Environment) -> GymnasiumVectorView:
    """An environment with W worlds as a Gymnasium VectorEnv."""
    return GymnasiumVectorView(environment)


def _single(environment: Environment, asked: str) -> Environment:
    if environment.n_worlds != 1:
        raise ContractError(
            f"{asked}() was given {environment.n_worlds} worlds: set experiment.worlds = 1, "
            "or use to_gymnasium_vector()"
        )
    return environment


def _sight_space(shape: tuple[int, ...]) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, shape, np.float32)


class PettingZooView(ParallelEnv):  # type: ignore[misc]
    """One world, every agent for itself."""

    def __init__(self, environment: Environment) -> None:
        self.stage = Stage(environment)
        self.metadata = {"name": type(environment).__name__, "render_modes": []}
        self.render_mode = None
        self.possible_agents = list(self.stage.names)
        self.agents: list[str] = []
        self._sees = dict(zip(self.possible_agents, map(_sight_space, self.stage.shapes), strict=True))
        self._does = dict(zip(self.possible_agents, map(action_space, environment.agents), strict=True))

    def observation_space(self, agent: str) -> spaces.Box:
        return self._sees[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._does[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, dict[str, Any]]]:
        """Start an episode."""
        self.stage.start(seed)
        self.agents = list(self.possible_agents)
        return self._told(self.agents)

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[dict[str, Array], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """One turn; `actions` holds one for every agent whose episode goes on."""
        if set(actions) != set(self.agents):
            raise ActionError(f"actions are given for {sorted(actions)}, wanted are those of {sorted(self.agents)}")
        every = [_checked(actions.get(name), self._does[name], name) for name in self.possible_agents]
        outcome = self.stage.play([own[None] for own in every])
        self.stage.go_on()
        present, numbers = self.agents, [self.possible_agents.index(name) for name in self.agents]
        seen, infos = self._told(present)
        rewards, terminated, truncated = (
            dict(zip(present, column[numbers, 0].tolist(), strict=True)) for column in outcome
        )
        self.agents = [name for name in present if not (terminated[name] or truncated[name])]
        return seen, rewards, terminated, truncated, infos

    def close(self) -> None:
        self.stage.game.close()

    def _told(self, present: list[str]) -> tuple[dict[str, Array], dict[str, dict[str, Any]]]:
        seen, masks, able = self.stage.seen(), self.stage.masks(), self.stage.able
        infos: dict[str, dict[str, Any]] = {}
        for index, name in enumerate(self.possible_agents):
            infos[name] = {"can_act": bool(able[index, 0])}
            mask = masks[index]
            if mask is not None:
                infos[name][MASK] = np.asarray(mask[0], np.int8)
        numbers = {name: self.possible_agents.index(name) for name in present}
        return {name: seen[index][0] for name, index in numbers.items()}, {name: infos[name] for name in present}


class Joint:
    """All agents of every world as one."""

    def __init__(self, environment: Environment) -> None:
        self.stage = Stage(environment)
        shapes, does = set(self.stage.shapes), [action_space(agent) for agent in environment.agents]
        agents = len(does)
        if len(shapes) > 1 or (agents > 1 and not all(isinstance(own, spaces.Discrete) for own in does)):
            raise ContractError(
                f"the agents of {type(environment).__name__} see or do different things, which one joint view cannot "
                "hold: use to_pettingzoo()"
            )
        shape = shapes.pop()
        self.many = agents > 1
        self.observation_space = _sight_space((agents, *shape) if self.many else shape)
        sizes = [int(own.n) for own in does if isinstance(own, spaces.Discrete)]
        self.action_space = spaces.MultiDiscrete(sizes) if self.many else does[0]

    def seen(self) -> Array:
        """(W, *obs) or (W, N, *obs)."""
        seen = self.stage.seen()
        return np.stack(seen, axis=1) if self.many else seen[0]

    def play(self, actions: Array) -> Outcome:
        """(W, …) joint actions."""
        return self.stage.play([actions[:, i] for i in range(actions.shape[1])] if self.many else [actions])

    def summed(self, outcome: Outcome) -> tuple[Array, Array, Array]:
        """(W,) rewards; ended because the last episodes ended; because they were cut off."""
        ended = np.any(outcome.terminated | outcome.truncated, axis=0)
        over: Array = ended & ~np.any(self.stage.alive, axis=0)
        cut: Array = over & np.any(outcome.truncated, axis=0)
        return outcome.rewards.sum(axis=0), over & ~cut, cut


class GymnasiumView(gymnasium.Env[Array, Any]):
    """One world, all agents as one."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, environment: Environment) -> None:
        self._joint = Joint(environment)
        self.observation_space, self.action_space = self._joint.observation_space, self._joint.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        self._joint.stage.start(seed)
        return self._joint.seen()[0], {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """One turn."""
        outcome = self._joint.play(_checked(action, self.action_space, "the agents")[None])
        self._joint.stage.go_on()
        rewards, terminated, truncated = self._joint.summed(outcome)
        info = {"rewards": outcome.rewards[:, 0].copy()}
        return self._joint.seen()[0], float(rewards[0]), bool(terminated[0]), bool(truncated[0]), info

    def close(self) -> None:
        self._joint.stage.game.close()


class GymnasiumVectorView(VectorEnv[Array, Any, Array]):
    """W worlds, the agents of each as one."""

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, environment: Environment) -> None:
        self._joint = Joint(environment)
        self.num_envs = environment.n_worlds
        self.single_observation_space = self._joint.observation_space
        self.single_action_space = self._joint.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Start an episode in every world. One seed is enough: worlds draw at addresses of their own."""
        self._joint.stage.start(seed[0] if isinstance(seed, list) else seed)
        return self._joint.seen(), {}

    def step(self, actions: Any) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """One turn; a world that has ended starts afresh, whatever its action, and pays nothing."""
        stage = self._joint.stage
        over: Array = ~np.any(stage.alive, axis=0)
        acts = _checked(actions, self.action_space, "the worlds")
        if over.all():
            zeros = np.zeros_like(stage.alive)
            outcome = Outcome(np.zeros(zeros.shape), zeros, zeros)
        else:
            outcome = self._joint.play(acts)
        rewards, terminated, truncated = self._joint.summed(outcome)
        stage.restart(over)
        stage.go_on()
        return self._joint.seen(), rewards, terminated, truncated, {"rewards": outcome.rewards.T.copy()}

    def close_extras(self, **_: Any) -> None:
        self._joint.stage.game.close()


def _checked(action: Any, space: spaces.Space[Any], who: str) -> Array:
    """An action that is in its space; for one who takes no part any more, any."""
    if action is None:
        return np.asarray(space.low if isinstance(space, spaces.Box) else np.zeros(space.shape or (), np.int64))
    given = np.asarray(action)
    if given.shape != (space.shape or ()) or not space.contains(given.astype(space.dtype)):
        raise ActionError(f"the action of {who} is {action!r}, which is not in {space}")
    return given
