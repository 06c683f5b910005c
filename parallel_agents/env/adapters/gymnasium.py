"""Gymnasium environments: W instances, in this process or in workers, or one vector environment.

parallel-agents train gymnasium:CartPole-v1 --algo ppo --worlds 8
parallel-agents train gymnasium:minigrid:MiniGrid-Empty-5x5-v0     # `minigrid` is imported first
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import iterate

from parallel_agents.core.config import merge
from parallel_agents.core.errors import ConfigError, ContractError, TargetError, WorldError
from parallel_agents.engine.collect import CompiledWorld
from parallel_agents.env.adapters.adapted import AdaptedEnvironment
from parallel_agents.env.adapters.classic_worlds import NAMES, ClassicEnvs
from parallel_agents.env.adapters.spaces import ActionSpace, AgentSpec, ObservationSpace
from parallel_agents.env.adapters.sync_envs import Episode, MakeAdapter, SharedBuffers, SyncEnvs, WorldBuffers


def gymnasium_environment(name: str) -> type[GymnasiumEnvironment]:
    """Return the environment class of a registered Gymnasium environment, `Name-v0` or `package:Name-v0`."""
    package, _, env_id = name.rpartition(":")
    try:
        if package:
            importlib.import_module(package)
        gymnasium.spec(env_id)
    except (ImportError, gymnasium.error.Error) as error:
        reason = str(error) if str(error).endswith((".", "?")) else f"{error}."
        raise TargetError(
            f"gymnasium:{name} is not a registered environment: {reason} If a package registers it, name that too: "
            "gymnasium:package:Name-v0; it must be installed or on PYTHONPATH, the current folder is not searched"
        ) from error
    title = "".join(word.capitalize() for word in env_id.replace("/", "-").split("-"))
    return type(title, (GymnasiumEnvironment,), {"name": name, "__doc__": f"Gymnasium's {env_id}."})


class GymnasiumEnvironment(AdaptedEnvironment):
    """W instances of one Gymnasium environment."""

    default_config = {
        "experiment": {"max_turns": 32, "autoreset": True, "worlds": 8},
        "world": {"workers": 0, "vector": False, "options": {}},
        "parallel": {"train_interval": 1},
    }

    @classmethod
    def defaults(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the tuned settings of the algorithm that the configuration names."""
        model = given.get("model", {})
        algorithm = model.get("algorithm", "dqn") if isinstance(model, Mapping) else None
        return merge(cls.default_config, tuned_settings(str(algorithm), cls.name))

    def adapter_factory(self) -> MakeAdapter:
        return partial(GymnasiumAdapter, partial(gymnasium.make, self.name, **self.config.world["options"]))

    def open_envs(self) -> SyncEnvs:
        section = self.config.world
        if self.name in NAMES and not (section["vector"] or section["workers"] or section["options"]):
            return ClassicEnvs(self.name, self.adapter_factory(), self.n_worlds)
        if not section["vector"]:
            return super().open_envs()
        if section["workers"]:
            raise ConfigError("world.vector and world.workers are both set: a vector environment steps its own worlds")
        make: Any = partial(gymnasium.make_vec, self.name, **section["options"])
        return GymnasiumVectorEnvs(make, self.n_worlds)

    def compiled_world(self) -> CompiledWorld | str:
        """Return the worlds as compiled code, where this library has them."""
        if not isinstance(self.envs, ClassicEnvs):
            return f"{self.name} is stepped by Gymnasium"
        return self.hook_in_python(GymnasiumEnvironment) or self.envs.compiled(self.seed)

    @property
    def has_state(self) -> bool:
        """False for a vector environment, whose worlds cannot be replayed one by one."""
        return not self.config.world["vector"]


class GymnasiumAdapter:
    """One Gymnasium environment."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.env = make()
        name, self.max_episode_steps = _name_and_limit(self.env)
        _, info = self.env.reset(seed=0)
        self.agents = (AgentSpec.of("agent_0", name, self.env.observation_space, self.env.action_space, info),)

    def reset(self, seed: int, row: WorldBuffers) -> None:
        observation, info = self.env.reset(seed=seed)
        row.rewards[:], row.terminated[:], row.truncated[:], row.can_act[:] = 0.0, False, False, True
        self._write(observation, info, row)

    def step(self, row: WorldBuffers) -> None:
        action = self.agents[0].action.decode(row.actions[0])
        observation, reward, terminated, truncated, info = self.env.step(action)
        row.rewards[:], row.terminated[:], row.truncated[:] = reward, terminated, truncated
        self._write(observation, info, row)

    def close(self) -> None:
        self.env.close()

    def _write(self, observation: Any, info: Any, row: WorldBuffers) -> None:
        self.agents[0].observation.write(observation, row.observations[0])
        ended = row.terminated[0] or row.truncated[0]
        self.agents[0].write_mask(observation, info, row.masks[0], can_act=not ended)


class GymnasiumVectorEnvs(SyncEnvs):
    """The W worlds of one Gymnasium vector environment, which `make(num_envs=W)` returns.

    It restarts a world in the step after the world's end, as our loop does, so both agree in every turn.
    """

    def _open(self, make: Callable[..., Any]) -> None:
        self.env = env = make(num_envs=self.n_worlds)
        name, self.max_episode_steps = _name_and_limit(env)
        if env.metadata.get("autoreset_mode") != AutoresetMode.NEXT_STEP:
            raise ContractError(
                f"{name} resets its worlds in the mode {env.metadata.get('autoreset_mode')}: only NEXT_STEP is "
                "supported, see gymnasium.vector.AutoresetMode"
            )
        observation = ObservationSpace.of(env.single_observation_space, name)
        self.agents = (AgentSpec("agent_0", observation, ActionSpace.of(env.single_action_space, name)),)
        self.buffers = SharedBuffers(self.agents, self.n_worlds)
        self.buffers["can_act"][:] = True

    def begin(self, seeds: Mapping[int, int]) -> None:
        """Start every world; single worlds that have ended were already restarted by the last step."""
        if len(seeds) == self.n_worlds:
            self.episodes = [Episode(seed) for seed in seeds.values()]
            observations, _ = self.env.reset(seed=next(iter(seeds.values())))
            for name in ("rewards", "terminated", "truncated"):
                self.buffers[name][:] = 0
            self._write(observations)

    def advance(self, worlds: Sequence[int]) -> None:
        """Take one step in all worlds; those that have ended restart in it."""
        actions = [self.agents[0].action.decode(numbers) for numbers in self.buffers["actions"]]
        try:
            observations, rewards, terminated, truncated, _ = self.env.step(np.stack(actions))
        except (Exception, SystemExit) as error:
            raise WorldError(f"{self.env} raised {type(error).__name__}: {error} ({self.turn_label})") from error
        results = {"rewards": rewards, "terminated": terminated, "truncated": truncated}
        for name, column in results.items():
            self.buffers[name][:, 0] = column
        self._write(observations)

    def close(self) -> None:
        self.env.close()

    def _write(self, observations: Any) -> None:
        out = self.buffers["observations"]
        if isinstance(self.env.single_observation_space, spaces.Box):
            out[:] = observations.reshape(self.n_worlds, -1)
            return
        for world, observation in enumerate(iterate(self.env.observation_space, observations)):
            self.agents[0].observation.write(observation, out[world])


def _name_and_limit(env: Any) -> tuple[str, int | None]:
    """Return an environment's name for errors, and its time limit if it has one."""
    return (str(env), None) if env.spec is None else (str(env.spec.id), env.spec.max_episode_steps)


# -- hyperparameters that are known to work ------------------------------------------------------------------------
# They are defaults: what a user sets overrides them. `docs/learners.md` gives the returns that they reach, and
# `tests/env/adapters/test_tuned_settings.py` trains with them again.

Sections = Mapping[str, Mapping[str, Any]]

TUNED_BY_ALGORITHM: dict[str, Sections] = {
    "ppo": {  # short rollouts of 32 turns and many passes over each: quick on small tasks
        "experiment": {"epochs": 586},
        "model": {"lr": 1e-3, "lr_final": 1e-5, "lr_updates": 11_720, "n_epochs": 20, "n_minibatches": 1,
                  "gamma": 0.98, "gae_lambda": 0.8},
    },
    "dqn": {  # 64 updates for 256 transitions; 4-step returns, slow targets and a decaying rate keep it stable
        "experiment": {"epochs": 780, "eval_every": 30},
        "model": {"lr": 1e-3, "lr_final": 1e-5, "lr_updates": 49_920, "gamma": 0.99, "n_step": 4, "batch_size": 64,
                  "updates_per_round": 64, "learning_starts": 1_000, "buffer_size": 100_000, "tau": 0.005,
                  "epsilon_epochs": 125, "epsilon_final": 0.04},
    },
}  # fmt: skip
TUNED_BY_NAME: dict[tuple[str, str], Sections] = {
    ("ppo", "Pendulum-v1"): {  # rollouts of 1024 transitions and a short horizon
        "experiment": {"epochs": 100, "max_turns": 128},
        "model": {"lr_updates": 16_000, "n_epochs": 10, "n_minibatches": 16, "gamma": 0.9, "gae_lambda": 0.95,
                  "normalize_rewards": True},
    },
    ("ppo", "LunarLander-v3"): {  # long episodes: a long horizon, 2048 transitions of a rollout, a rate that stays
        "experiment": {"epochs": 220, "max_turns": 128, "worlds": 16},
        "model": {"lr": 3e-4, "lr_final": None, "lr_updates": 0, "n_epochs": 10, "n_minibatches": 32, "gamma": 0.999,
                  "gae_lambda": 0.98, "ent_coef": 0.01},
    },
    ("ppo", "minigrid:MiniGrid-Empty-5x5-v0"): {  # its reward is rare: with the rates above, exploration ends too soon
        "experiment": {"epochs": 60, "max_turns": 64},
        "model": {"lr": 3e-4, "lr_final": None, "lr_updates": 0, "n_epochs": 4, "n_minibatches": 4, "gamma": 0.99,
                  "gae_lambda": 0.95},
    },
}  # fmt: skip


def tuned_settings(algorithm: str, name: str) -> Sections:
    """Return the tuned sections for an algorithm on an environment; empty if there are none.

    >>> tuned_settings("ppo", "CartPole-v1")["model"]["gamma"]
    0.98
    """
    return merge(TUNED_BY_ALGORITHM.get(algorithm, {}), TUNED_BY_NAME.get((algorithm, name), {}))
