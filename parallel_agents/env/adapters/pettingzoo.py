"""PettingZoo environments: parallel ones, and those in which agents act in turns (AEC).

parallel-agents train pettingzoo:mpe2.simple_spread_v3 --worlds 4
parallel-agents train pettingzoo:pettingzoo.classic.tictactoe_v3

In an AEC environment, one turn is one step of one agent. The other agents cannot act in it and store nothing; their
rewards are added to those of their last action.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from parallel_agents.core.errors import ContractError, TargetError
from parallel_agents.env.adapters.adapted import AdaptedEnvironment
from parallel_agents.env.adapters.spaces import AgentSpec
from parallel_agents.env.adapters.sync_envs import EnvAdapter, MakeAdapter, WorldBuffers


def pettingzoo_environment(name: str) -> type[PettingZooEnvironment]:
    """Return the environment class of a PettingZoo module: one with `parallel_env()` or `env()`."""
    _constructor(name)
    title = "".join(word.capitalize() for word in name.rpartition(".")[2].split("_"))
    return type(title, (PettingZooEnvironment,), {"name": name, "__doc__": f"PettingZoo's {name}."})


class PettingZooEnvironment(AdaptedEnvironment):
    """W instances of one PettingZoo environment, whose agents may have different spaces and may leave early."""

    default_config = {
        "experiment": {"epochs": 400, "max_turns": 25, "autoreset": True, "worlds": 4},
        "world": {"workers": 0, "options": {}},
        "parallel": {"train_interval": 1},
    }

    def adapter_factory(self) -> MakeAdapter:
        return partial(_make, self.name, dict(self.config.world["options"]))


def _constructor(name: str) -> Callable[..., Any]:
    """Return a module's `parallel_env` if it has one, else its `env`."""
    try:
        module = importlib.import_module(name)
    except Exception as error:  # another package may raise anything while it is imported
        raise TargetError(
            f"pettingzoo:{name} cannot be imported: {type(error).__name__}: {error}. It must be installed or on "
            "PYTHONPATH, the current folder is not searched"
        ) from error
    constructor: Callable[..., Any] | None = getattr(module, "parallel_env", None) or getattr(module, "env", None)
    if constructor is None:
        raise TargetError(f"pettingzoo:{name} has neither parallel_env() nor env(): name a module that has one")
    return constructor


def _make(name: str, options: Mapping[str, Any]) -> EnvAdapter:
    return adapt(_constructor(name)(**options))


def adapt(env: Any) -> EnvAdapter:
    """Return the adapter that fits the environment's interface, AEC or parallel."""
    is_aec = hasattr(env, "agent_selection") or hasattr(env, "agent_iter")
    return AECAdapter(env) if is_aec else ParallelAdapter(env)


class _PettingZooAdapter:
    """What the adapters of both interfaces have in common."""

    max_episode_steps = None

    def __init__(self, env: Any, infos: Mapping[Any, Any]) -> None:
        self.env = env
        names = list(getattr(env, "possible_agents", None) or env.agents)
        self._indices = {name: index for index, name in enumerate(names)}
        self.agents = tuple(
            AgentSpec.of(
                str(name),
                f"{name} in {env}",
                env.observation_space(name),
                env.action_space(name),
                infos.get(name, {}),
            )
            for name in names
        )
        self._ended: set[Any] = set()
        """Agents whose episode has ended."""

    def close(self) -> None:
        self.env.close()

    def _clear(self, row: WorldBuffers) -> None:
        """Remove everything of the last episode, also for agents that join late."""
        self._ended = set()
        row.rewards[:], row.terminated[:], row.truncated[:] = 0.0, False, False
        for observation, mask in zip(row.observations, row.masks, strict=True):
            observation[:], mask[:] = 0.0, True

    def _action(self, name: Any, row: WorldBuffers) -> Any:
        index = self._indices[name]
        return self.agents[index].action.decode(row.actions[index])

    def _write_observations(
        self, observations: Mapping[Any, Any], infos: Mapping[Any, Any], can_act: set[Any], row: WorldBuffers
    ) -> None:
        """Write what agents observe, whether they can act, and which actions are allowed."""
        for name, index in self._indices.items():
            row.can_act[index] = name in can_act
            if name in observations:
                agent, observation = self.agents[index], observations[name]
                agent.observation.write(observation, row.observations[index])
                agent.write_mask(observation, infos.get(name), row.masks[index], can_act=name in can_act)

    def _write_results(
        self,
        rewards: Mapping[Any, float],
        terminated: Mapping[Any, bool],
        truncated: Mapping[Any, bool],
        row: WorldBuffers,
    ) -> None:
        """Write rewards and ends of episodes."""
        for name, index in self._indices.items():
            row.rewards[index] = rewards.get(name, 0.0)
            if terminated.get(name) or truncated.get(name):
                row.terminated[index] = bool(terminated.get(name))
                row.truncated[index] = bool(truncated.get(name))
                self._ended.add(name)

    def _check_agents(self, before: set[Any], row: WorldBuffers) -> None:
        """Raise if an agent came back, or left without an end; once all have left, end those that never joined."""
        present = set(self.env.agents)
        back, lost = present & self._ended, before - present - self._ended
        if back:
            raise ContractError(f"{self.env}: {sorted(map(str, back))} came back after their episode's end")
        if lost:
            raise ContractError(f"{self.env}: {sorted(map(str, lost))} left without being terminated or truncated")
        if not present:
            row.truncated[~row.terminated] = True


class ParallelAdapter(_PettingZooAdapter):
    """An environment in which all agents act at once."""

    def __init__(self, env: Any) -> None:
        super().__init__(env, env.reset(seed=0)[1])

    def reset(self, seed: int, row: WorldBuffers) -> None:
        observations, infos = self.env.reset(seed=seed)
        self._clear(row)
        self._write_observations(observations, infos, set(self.env.agents), row)

    def step(self, row: WorldBuffers) -> None:
        before = set(self.env.agents)
        actions = {name: self._action(name, row) for name in self.env.agents}
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        self._write_results(rewards, terminated, truncated, row)
        self._write_observations(observations, infos, set(self.env.agents), row)
        self._check_agents(before, row)


class AECAdapter(_PettingZooAdapter):
    """An environment in which one agent acts at a time."""

    def __init__(self, env: Any) -> None:
        env.reset(seed=0)
        super().__init__(env, env.infos)

    def reset(self, seed: int, row: WorldBuffers) -> None:
        self.env.reset(seed=seed)
        self._clear(row)
        self._finish_turn(row)

    def step(self, row: WorldBuffers) -> None:
        env, before = self.env, set(self.env.agents)
        env.step(self._action(env.agent_selection, row))
        self._write_results(env.rewards, env.terminations, env.truncations, row)
        self._finish_turn(row)
        self._check_agents(before, row)

    def _finish_turn(self, row: WorldBuffers) -> None:
        """Write what every agent observes, let agents leave whose episode has ended, and select who acts next."""
        env = self.env
        observations = {name: env.observe(name) for name in env.agents}
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)  # the API asks for this empty step of an agent whose episode has ended
        self._write_observations(observations, env.infos, {env.agent_selection} if env.agents else set(), row)
