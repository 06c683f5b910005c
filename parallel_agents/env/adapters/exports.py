"""Our environments as PettingZoo and Gymnasium environments.

    to_pettingzoo(environment)          a ParallelEnv, one world, with a separate observation and reward per agent
    to_gymnasium(environment)           an Env, one world
    to_gymnasium_vector(environment)    a VectorEnv with all worlds; a world restarts in the step after its end

With several agents, a Gymnasium export joins them: observations are (N, *obs), an action holds one action per agent
(MultiDiscrete), and the reward is the sum of all rewards, with those of each agent in `info["rewards"]`. If the agents'
observations or actions differ, use `to_pettingzoo`.

All agents act at once on what they observed before the turn. Nothing is learned here; the models only define the
action spaces.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from pettingzoo import ParallelEnv

from parallel_agents.core.config import Config, merge
from parallel_agents.core.errors import ActionError, ConfigError, ContractError
from parallel_agents.core.types import Array
from parallel_agents.env import Environment
from parallel_agents.env.adapters.spaces import MASK
from parallel_agents.nn import MultiDiscrete, SquashedGaussian


def to_pettingzoo(environment: Environment) -> ExportedParallelEnv:
    """Return an environment with one world as a PettingZoo ParallelEnv."""
    return ExportedParallelEnv(_single_world(environment, "to_pettingzoo"))


def to_gymnasium(environment: Environment, render_mode: str | None = None) -> ExportedEnv:
    """Return an environment with one world as a Gymnasium Env.

    render_mode: "rgb_array" or "ansi", for grid games and others that have `render()` and `grid.text()`.
    """
    return ExportedEnv(_single_world(environment, "to_gymnasium"), render_mode)


def to_gymnasium_vector(environment: Environment) -> ExportedVectorEnv:
    """Return an environment with W worlds as a Gymnasium VectorEnv."""
    return ExportedVectorEnv(environment)


def _single_world(environment: Environment, function: str) -> Environment:
    """Return the environment; raise if it has several worlds."""
    if environment.n_worlds != 1:
        raise ContractError(
            f"{function}() was given {environment.n_worlds} worlds: set experiment.worlds = 1, "
            "or use to_gymnasium_vector()"
        )
    return environment


class TurnResult(NamedTuple):
    """Rewards and ends of one turn, (N, W) each; zero for agents whose episode had ended before."""

    rewards: Array
    terminated: Array
    truncated: Array


class TurnDriver:
    """Takes the turns of an environment one by one, outside of a run: `start`, `step`, `begin_turn`, `step`, …

    Episodes are truncated after `experiment.max_turns` turns. A seed makes a new environment, so that equal seeds and
    equal actions give equal episodes; without a seed, the random numbers of the next epoch are used.
    """

    def __init__(self, environment: Environment) -> None:
        self.env = environment
        self.names = [str(agent.name) for agent in environment.agents]
        self._epoch = 0
        self.start(None)
        self.shapes = [tuple(np.shape(observation)[1:]) for observation in self.observations()]
        self._epoch = 0

    def start(self, seed: int | None) -> None:
        """Start an episode in every world."""
        if seed is not None:
            config = merge(self.env.config.as_dict(), {"experiment": {"seed": seed}})
            self.env, self._epoch = self.env.with_config(Config.build(config)), 0
        self._epoch += 1
        self.alive = np.ones((len(self.names), self.env.n_worlds), np.bool_)
        self._ages = np.zeros(self.env.n_worlds, np.int64)
        self._turn = 0
        self.env.begin_epoch(self._epoch)
        self.env.reset_worlds(np.ones(self.env.n_worlds, np.bool_))
        self.begin_turn()

    def begin_turn(self) -> None:
        """Begin the next turn unless all episodes have ended; until then, observations are those after the last one."""
        if not self.alive.any():
            return
        self._turn += 1
        self.env.turn, self.env.active = self._turn, np.any(self.alive, axis=0)
        self.env.begin_turn()
        can_act = self.env.can_act()
        self.can_act = self.alive if can_act is None else self.alive & can_act

    def observations(self) -> list[Array]:
        """Return a copy of each agent's (W, *obs)."""
        return [np.array(observation, np.float32) for observation in self.env.observe()]

    def masks(self) -> list[Array | None]:
        """Return each agent's (W, A) allowed actions, or None if all are allowed."""
        return list(self.env.action_masks()) if self.env.masks_actions else [None] * len(self.names)

    def step(self, actions: list[Array]) -> TurnResult:
        """Apply the (W, …) actions of every agent."""
        if not self.alive.any():
            raise ActionError("the episode has ended: call reset() before the next step()")
        alive, env = self.alive, self.env
        env.acting = self.can_act
        same_shape = len({action.shape for action in actions}) == 1
        rewards = np.where(alive, env.apply_actions(np.stack(actions) if same_shape else actions), 0.0)
        terminated, truncated = env.dones() or (np.zeros_like(alive), np.zeros_like(alive))
        self._ages += env.active
        terminated = terminated & alive
        truncated = (truncated | (self._ages >= env.config.experiment.max_turns)) & alive & ~terminated
        self.alive = alive & ~(terminated | truncated)
        return TurnResult(rewards, terminated, truncated)

    def restart(self, which: Array) -> None:
        """Start an episode in the worlds of the (W,) mask, from the next turn on."""
        if which.any():
            self.env.reset_worlds(which)
            self.alive = self.alive | which
            self._ages[which] = 0


def _observation_space(shape: tuple[int, ...]) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, shape, np.float32)


def _action_space(agent: Any) -> spaces.Space[Any]:
    """Return the action space of an agent, from its model."""
    if agent.n_actions is not None:
        return spaces.Discrete(agent.n_actions)
    match getattr(getattr(agent.model, "spec", None), "distribution", None):
        case MultiDiscrete(sizes=sizes):
            return spaces.MultiDiscrete(list(sizes))
        case SquashedGaussian(low=low, high=high):
            return spaces.Box(np.array(low, np.float32), np.array(high, np.float32))
    raise ContractError(
        f"the action space of {agent.name} is unknown: its model has neither n_actions nor a distribution"
    )


def _check_action(action: Any, space: spaces.Space[Any], owner: str) -> Array:
    """Return an action as an array; raise if it is not in its space. For None, return any action."""
    if action is None:
        return np.asarray(space.low if isinstance(space, spaces.Box) else np.zeros(space.shape or (), np.int64))
    array = np.asarray(action)
    if array.shape != (space.shape or ()) or not space.contains(array.astype(space.dtype)):
        raise ActionError(f"the action of {owner} is {action!r}, which is not in {space}")
    return array


class ExportedParallelEnv(ParallelEnv):  # type: ignore[misc]
    """One world as a PettingZoo environment in which every agent acts in every turn."""

    def __init__(self, environment: Environment) -> None:
        self.driver = TurnDriver(environment)
        self.metadata = {"name": type(environment).__name__, "render_modes": []}
        self.render_mode = None
        self.possible_agents = list(self.driver.names)
        self.agents: list[str] = []
        self._observation_spaces = dict(
            zip(self.possible_agents, map(_observation_space, self.driver.shapes), strict=True)
        )
        self._action_spaces = dict(zip(self.possible_agents, map(_action_space, environment.agents), strict=True))

    def observation_space(self, agent: str) -> spaces.Box:
        return self._observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, dict[str, Any]]]:
        """Start an episode."""
        self.driver.start(seed)
        self.agents = list(self.possible_agents)
        return self._observations_and_infos()

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[dict[str, Array], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Take one turn; `actions` holds one action for every agent whose episode goes on."""
        if set(actions) != set(self.agents):
            raise ActionError(
                f"step() was given actions for {sorted(actions)}, but the agents are {sorted(self.agents)}"
            )
        checked = [_check_action(actions.get(name), self._action_spaces[name], name) for name in self.possible_agents]
        result = self.driver.step([action[None] for action in checked])
        self.driver.begin_turn()
        observations, infos = self._observations_and_infos()
        indices = [self.possible_agents.index(name) for name in self.agents]
        rewards, terminated, truncated = (
            dict(zip(self.agents, column[indices, 0].tolist(), strict=True)) for column in result
        )
        self.agents = [name for name in self.agents if not (terminated[name] or truncated[name])]
        return observations, rewards, terminated, truncated, infos

    def close(self) -> None:
        self.driver.env.close()

    def _observations_and_infos(self) -> tuple[dict[str, Array], dict[str, dict[str, Any]]]:
        """Return the observations of the agents that are present; infos hold `can_act` and the action mask."""
        observations, masks = self.driver.observations(), self.driver.masks()
        present = {name: self.possible_agents.index(name) for name in self.agents}
        infos: dict[str, dict[str, Any]] = {}
        for name, index in present.items():
            infos[name] = {"can_act": bool(self.driver.can_act[index, 0])}
            mask = masks[index]
            if mask is not None:
                infos[name][MASK] = np.asarray(mask[0], np.int8)
        return {name: observations[index][0] for name, index in present.items()}, infos


class JointDriver(TurnDriver):
    """Takes the turns of an environment whose agents are joined into one."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        shapes, action_spaces = set(self.shapes), [_action_space(agent) for agent in environment.agents]
        sizes = [int(space.n) for space in action_spaces if isinstance(space, spaces.Discrete)]
        agents = len(action_spaces)
        if len(shapes) > 1 or (agents > 1 and len(sizes) < agents):
            raise ContractError(
                f"the agents of {type(environment).__name__} have different observation or action spaces, which cannot "
                "be joined: use to_pettingzoo()"
            )
        shape = shapes.pop()
        self._several = agents > 1
        self.observation_space = _observation_space((agents, *shape) if self._several else shape)
        self.action_space = spaces.MultiDiscrete(sizes) if self._several else action_spaces[0]

    def joint_observations(self) -> Array:
        """Return (W, *obs), or (W, N, *obs) for several agents."""
        observations = self.observations()
        return np.stack(observations, axis=1) if self._several else observations[0]

    def joint_step(self, actions: Array, *, autoreset: bool = False) -> tuple[Array, Array, Array, Array, Array]:
        """Apply (W, …) joint actions and begin the next turn; return what follows.

        (W, …) observations, (W,) summed rewards, terminated and truncated, and (N, W) rewards. A world has ended once
        all its agents have. autoreset: a world that had ended before restarts instead, with the reward 0.
        """
        ended_before = ~np.any(self.alive, axis=0)
        if autoreset and ended_before.all():
            zeros = np.zeros_like(self.alive)
            result = TurnResult(np.zeros(zeros.shape), zeros, zeros)
        else:
            result = self.step([actions[:, index] for index in range(actions.shape[1])] if self._several else [actions])
        ended: Array = np.any(result.terminated | result.truncated, axis=0) & ~np.any(self.alive, axis=0)
        truncated: Array = ended & np.any(result.truncated, axis=0)
        if autoreset:
            self.restart(ended_before)
        self.begin_turn()
        return self.joint_observations(), result.rewards.sum(axis=0), ended & ~truncated, truncated, result.rewards


class ExportedEnv(gymnasium.Env[Array, Any]):
    """One world as a Gymnasium environment, all agents joined."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array", "ansi"], "render_fps": 8}

    def __init__(self, environment: Environment, render_mode: str | None = None) -> None:
        drawn = {"rgb_array": hasattr(environment, "render"), "ansi": hasattr(environment, "grid")}
        if render_mode is not None and not drawn.get(render_mode):
            known = ", ".join(mode for mode, can in drawn.items() if can) or "none"
            raise ConfigError(f"{type(environment).__name__} has no render_mode {render_mode!r}: it has {known}")
        self.render_mode = render_mode
        self._driver = JointDriver(environment)
        self.observation_space, self.action_space = self._driver.observation_space, self._driver.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        self._driver.start(seed)
        return self._driver.joint_observations()[0], {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Take one turn."""
        checked = _check_action(action, self.action_space, "the agents")
        observations, total, terminated, truncated, rewards = self._driver.joint_step(checked[None])
        info = {"rewards": rewards[:, 0].copy()}
        return observations[0], float(total[0]), bool(terminated[0]), bool(truncated[0]), info

    def render(self) -> Any:
        """Return a picture (rows, columns, 3) or text of the world; None without a render_mode."""
        world: Any = self._driver.env
        match self.render_mode:
            case "rgb_array":
                return world.render()
            case "ansi":
                return world.grid.text()
        return None

    def close(self) -> None:
        self._driver.env.close()


class ExportedVectorEnv(VectorEnv[Array, Any, Array]):
    """W worlds as a Gymnasium vector environment, the agents of each world joined."""

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, environment: Environment) -> None:
        self._driver = JointDriver(environment)
        self.num_envs = environment.n_worlds
        self.single_observation_space = self._driver.observation_space
        self.single_action_space = self._driver.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Start an episode in every world. Of several seeds the first is used: it gives each world its own draws."""
        self._driver.start(seed[0] if isinstance(seed, list) else seed)
        return self._driver.joint_observations(), {}

    def step(self, actions: Any) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Take one turn; a world that has ended restarts instead, whatever its action, with the reward 0."""
        checked = _check_action(actions, self.action_space, "the worlds")
        *results, rewards = self._driver.joint_step(checked, autoreset=True)
        return *results, {"rewards": rewards.T.copy()}  # type: ignore[return-value]

    def close_extras(self, **_: Any) -> None:
        self._driver.env.close()
