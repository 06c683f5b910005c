"""The network-defence worlds behind other interfaces: plain arrays, Gymnasium, PettingZoo and the challenge's own.

>>> envs = ParallelEnvWrapper(n_envs=25)
>>> envs.reset().shape
(25, 52)
>>> observations, rewards, dones = envs.step(np.zeros(25, np.int64))
>>> observations.shape, rewards.shape, dones.any()
((25, 52), (25,), np.False_)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike, NDArray
from pettingzoo import ParallelEnv

from parallel_agents.core.errors import ActionError, ConfigError, ContractError
from parallel_agents.core.types import Array
from parallel_agents.env.adapters.gymnasium import GymnasiumAdapter
from parallel_agents.env.adapters.worker_envs import WorkerEnvs
from parallel_agents.workflows.network import NetworkWorlds
from parallel_agents.workflows.network.scenario import ACTION_NAMES, HOSTS, N_ACTIONS, OBSERVATION_SIZE

Bits = NDArray[np.uint8]

_ACTIVITY, _COMPROMISED = ("None", "None", "Scan", "Exploit"), ("No", "User", "Unknown", "Privileged")
_ACCESS = ("None", "User", "Privileged")


class _Episodes:
    """Network-defence worlds that count their episodes: every reset uses the draws of the next epoch."""

    def __init__(self, n_worlds: int, options: dict[str, Any]) -> None:
        self._n_worlds, self._options = n_worlds, options
        self.worlds = NetworkWorlds(n_worlds, **options)
        self.episode = -1

    def reset(self, seed: int | None = None) -> Bits:
        """Start the next episode, or with a seed the first one of that seed; return observations (W, 52)."""
        if seed is not None:
            self.worlds = NetworkWorlds(self._n_worlds, **{**self._options, "seed": seed})
            self.episode = -1
        self.episode += 1
        return self.worlds.reset(self.episode)

    def info(self, world: int | None = None) -> dict[str, Any]:
        """Return the true state of all worlds or of one, for those who study a defender; no defender may read it."""
        state = {"access": self.worlds.access, "ot_running": self.worlds.ot_running}
        return state if world is None else {name: column[world] for name, column in state.items()}


class ParallelEnvWrapper:
    """`n_envs` environments stepped together: network-defence worlds, or Gymnasium environments in processes.

    Without `make` they are network-defence worlds in this process, and `options` are those of `NetworkWorlds`. All
    episodes have the same length and end together: call `reset()` when `dones` is true. A step after the end raises
    ContractError, so that no return leaks from one episode into the next.

    With `make`, a function that returns a Gymnasium environment, the environments live in `workers` processes (by
    default one per core) and exchange data through shared memory. One that hangs for `deadline` seconds, or dies with
    its process, is replaced and replayed up to the current turn. An environment whose episode has ended is reset by the
    next step, which ignores its action and gives reward 0.
    """

    def __init__(
        self,
        n_envs: int = 25,
        make: Callable[[], gymnasium.Env[Any, Any]] | None = None,
        *,
        workers: int | None = None,
        deadline: float = 60.0,
        seed: int = 0,
        **options: Any,
    ) -> None:
        if n_envs < 1:
            raise ConfigError(f"n_envs is {n_envs}: at least one environment is needed")
        if make is None and workers is not None:
            raise ConfigError("workers is given, but the network-defence worlds live in this process: leave it out")
        if make is not None and options:
            raise ConfigError(
                f"{', '.join(options)} given together with make: set the options of a foreign environment inside make()"
            )
        self.n_envs = n_envs
        self.options = {**options, "seed": seed}
        """The keywords of `NetworkWorlds` that these environments were made with."""
        self._envs: _Episodes | WorkerEnvs = _Episodes(n_envs, self.options) if make is None else WorkerEnvs(
            partial(GymnasiumAdapter, make), n_envs, workers=workers or min(n_envs, os.cpu_count() or 1),
            deadline=deadline, seed=seed,
        )  # fmt: skip

    @property
    def worlds(self) -> NetworkWorlds:
        """The network-defence worlds; raise ContractError if the environments are foreign."""
        return self._own_episodes.worlds

    @property
    def _own_episodes(self) -> _Episodes:
        if isinstance(self._envs, WorkerEnvs):
            raise ContractError("these environments are foreign: only network-defence worlds show their state")
        return self._envs

    @property
    def episode(self) -> int:
        """Number of the current episode of network-defence worlds, from 0; -1 before the first reset."""
        return self._own_episodes.episode

    @episode.setter
    def episode(self, number: int) -> None:
        self._own_episodes.episode = number

    def reset(self) -> Array:
        """Start an episode in every environment; return observations (n, 52), or those of foreign environments."""
        return self._envs.reset()

    def step(self, actions: ArrayLike) -> tuple[Array, Array, NDArray[np.bool_]]:
        """Step every environment; return observations (n, …), rewards (n,) and dones (n,)."""
        if isinstance(self._envs, WorkerEnvs):
            observations, rewards, terminated, truncated = self._envs.step(np.asarray(actions))
            return observations, rewards, terminated | truncated
        return self.worlds.step(actions)

    @property
    def access(self) -> NDArray[np.uint8]:
        """Red's true access to every host, (n, 13). Compliance is judged on it; no defender may read it."""
        return self.worlds.access

    @property
    def repaired(self) -> NDArray[np.int64]:
        """The host that each world's last action took from red, or -1, (n,)."""
        return self.worlds.repaired

    @property
    def restarts(self) -> int:
        """Processes replaced so far."""
        return self._envs.restarts if isinstance(self._envs, WorkerEnvs) else 0

    def close(self) -> None:
        """End the processes, if there are any. Calling it twice is allowed."""
        if isinstance(self._envs, WorkerEnvs):
            self._envs.close()


class NetworkEnv(gymnasium.Env[Bits, int]):
    """One game as a Gymnasium environment; keywords are those of `NetworkWorlds`.

    >>> env = NetworkEnv(red="Meander", steps=50)
    >>> env.reset(seed=3)[0].shape, env.step(0)[1:4]
    ((52,), (0.0, False, False))
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, **options: Any) -> None:
        self._episodes = _Episodes(1, options)
        self.observation_space = spaces.Box(0, 1, (OBSERVATION_SIZE,), np.uint8)
        self.action_space = spaces.Discrete(N_ACTIONS)  # type: ignore[assignment]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Bits, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        return self._episodes.reset(seed)[0], self._episodes.info(0)

    def step(self, action: int) -> tuple[Bits, float, bool, bool, dict[str, Any]]:
        """Play one turn; an episode ends as truncated. `info` holds the true state."""
        observations, rewards, dones = self._episodes.worlds.step([int(action)])
        return observations[0], float(rewards[0]), False, bool(dones[0]), self._episodes.info(0)


class ChallengeWrapper:
    """One game with the methods of the challenge's ChallengeWrapper; keywords are those of `NetworkWorlds`.

    `reset()` returns the vector of 52 numbers; `step(action)` the vector, the reward, whether `steps` turns are over,
    and an `info` with the true state, the tables and both sides' actions. Actions are numbered and named as in CybORG.

    >>> env = ChallengeWrapper(red="Meander", version="leaderboard", steps=30)
    >>> env.reset().shape, env.get_action_space("Blue"), env.action_names[139]
    ((52,), 145, 'Restore Op_Server0')
    >>> vector, reward, done, info = env.step(1)
    >>> info["table"][0]
    {'Subnet': 'Enterprise', 'Hostname': 'Defender', 'Activity': 'None', 'Compromised': 'No'}
    >>> env.get_last_action("Red"), env.get_true_table()[8]["Access"]
    ('DiscoverRemoteSystems:User', 'Privileged')
    """

    action_names = ACTION_NAMES
    action_space = spaces.Discrete(N_ACTIONS)
    observation_space = spaces.Box(-1.0, 1.0, (OBSERVATION_SIZE,), np.float32)

    def __init__(self, **options: Any) -> None:
        self._episodes, self._action = _Episodes(1, options), "Sleep"
        self._vector = np.zeros(OBSERVATION_SIZE)

    def reset(self) -> NDArray[np.float64]:
        """Start an episode; return the vector."""
        self._vector, self._action = self._episodes.reset()[0].astype(np.float64), "Sleep"
        return self._vector

    def step(self, action: int) -> tuple[NDArray[np.float64], float, bool, dict[str, Any]]:
        """Play one turn."""
        observations, rewards, dones = self._episodes.worlds.step([int(action)])
        self._vector, self._action = observations[0].astype(np.float64), ACTION_NAMES[int(action)]
        info = self._episodes.info(0) | {
            "table": self.get_table(), "true_table": self.get_true_table(), "action": self._action,
            "red_action": self.get_last_action("Red"),
        }  # fmt: skip
        return self._vector, float(rewards[0]), bool(dones[0]), info

    def get_observation(self, agent: str = "Blue") -> NDArray[np.float64]:
        """Return blue's last vector."""
        return self._vector

    def get_action_space(self, agent: str = "Blue") -> int:
        """Return the number of blue's actions, as the challenge gives it to `get_action`."""
        return N_ACTIONS

    def get_last_action(self, agent: str) -> str:
        """Return the last action of "Blue" or "Red" by name."""
        return self._action if agent == "Blue" else self._episodes.worlds.red_actions[0]

    def get_table(self) -> list[dict[str, str]]:
        """Return what blue observes as rows of the challenge's table, without addresses, which are drawn at random."""
        bits = self._vector.astype(np.int64).reshape(len(HOSTS), 4)
        return [
            {"Subnet": host.subnet, "Hostname": host.name, "Activity": _ACTIVITY[2 * row[0] + row[1]],
             "Compromised": _COMPROMISED[2 * row[2] + row[3]]} for host, row in zip(HOSTS, bits, strict=True)
        ]  # fmt: skip

    def get_true_table(self) -> list[dict[str, str]]:
        """Return red's true access as rows of a table."""
        access = self._episodes.worlds.access[0]
        return [
            {"Subnet": host.subnet, "Hostname": host.name, "Access": _ACCESS[level]}
            for host, level in zip(HOSTS, access, strict=True)
        ]


class NetworkVectorEnv(VectorEnv[Bits, NDArray[np.int64], NDArray[Any]]):
    """`num_envs` games as one Gymnasium vector environment; keywords are those of `NetworkWorlds`.

    All episodes have the same length, so all end together, as truncated, and the next step resets them.

    >>> envs = NetworkVectorEnv(3, red="B_line", steps=30)
    >>> observations, _ = envs.reset(seed=7)
    >>> observations.shape, envs.step(envs.action_space.sample())[1].shape
    ((3, 52), (3,))
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int, **options: Any) -> None:
        self._episodes = _Episodes(num_envs, options)
        self.num_envs = num_envs
        self.single_observation_space = spaces.Box(0, 1, (OBSERVATION_SIZE,), np.uint8)
        self.single_action_space = spaces.Discrete(N_ACTIONS)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._ended = False

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Bits, dict[str, Any]]:
        """Start an episode in every world. Of a list of seeds the first is used: each world has draws of its own."""
        if isinstance(seed, list):
            seed = seed[0] if seed else None
        self._ended = False
        return self._episodes.reset(seed), self._episodes.info()

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[Bits, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Play one turn of every world; after the end of an episode, start the next one with reward 0."""
        never = np.zeros(self.num_envs, np.bool_)
        if self._ended:
            return self.reset()[0], np.zeros(self.num_envs), never, never.copy(), self._episodes.info()
        observations, rewards, dones = self._episodes.worlds.step(actions)
        self._ended = bool(dones.all())
        return observations, rewards, never, dones, self._episodes.info()


class NetworkParallelEnv(ParallelEnv):  # type: ignore[misc]
    """One game for PettingZoo: the agent "defender" against the scripted red agent of the world.

    >>> env = NetworkParallelEnv(red="Meander", steps=50)
    >>> observations, _ = env.reset(seed=1)
    >>> observations["defender"].shape, env.agents
    ((52,), ['defender'])
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "network_defence_v0", "render_modes": []}
    render_mode = None

    def __init__(self, **options: Any) -> None:
        self._env = NetworkEnv(**options)
        self.possible_agents = ["defender"]
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        """Return the space of the 52 bits."""
        return self._env.observation_space

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        """Return the space of the 145 actions."""
        return self._env.action_space

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Bits], dict[str, dict[str, Any]]]:
        """Start an episode."""
        self.agents = list(self.possible_agents)
        observation, info = self._env.reset(seed=seed)
        return {"defender": observation}, {"defender": info}

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[dict[str, Bits], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Play one turn."""
        if not self.agents:
            return {}, {}, {}, {}, {}
        if set(actions) != set(self.agents):
            raise ActionError(f"actions are given for {sorted(actions)}: give one for 'defender', and for nobody else")
        observation, reward, terminated, truncated, info = self._env.step(actions["defender"])
        if truncated:
            self.agents = []
        return (
            {"defender": observation}, {"defender": reward}, {"defender": terminated}, {"defender": truncated},
            {"defender": info},
        )  # fmt: skip
