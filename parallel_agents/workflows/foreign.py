"""The network-defence worlds in the forms that other libraries expect: Gymnasium's vectors, PettingZoo's agents.

>>> envs = NetworkVectorEnv(3, red="B_line", steps=30)
>>> observations, _ = envs.reset(seed=7)
>>> observations.shape, envs.step(envs.action_space.sample())[1].shape
((3, 52), (3,))
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

from parallel_agents.errors import ActionError
from parallel_agents.workflows.network import NetworkWorlds
from parallel_agents.workflows.network import tables as t

__all__ = ["NetworkEnv", "NetworkParallelEnv", "NetworkVectorEnv"]

Bits = NDArray[np.uint8]


class _Episodes:
    """Worlds that count their own episodes: each reset takes the next epoch's draws, a seed starts again."""

    def __init__(self, n_worlds: int, options: dict[str, Any]) -> None:
        self._n, self._options = n_worlds, options
        self.worlds = NetworkWorlds(n_worlds, **options)
        self._epoch = -1

    def reset(self, seed: int | None) -> Bits:
        if seed is not None:
            self.worlds = NetworkWorlds(self._n, **{**self._options, "seed": seed})
            self._epoch = -1
        self._epoch += 1
        return self.worlds.reset(self._epoch)

    def info(self) -> dict[str, Any]:
        """The truth, for whoever studies a defender; not for the defender."""
        return {"access": self.worlds.access, "ot_running": self.worlds.ot_running}


class NetworkEnv(gymnasium.Env[Bits, int]):
    """One game as a Gymnasium environment; keywords are those of `NetworkWorlds`.

    >>> env = NetworkEnv(red="Meander", steps=50)
    >>> env.reset(seed=3)[0].shape, env.step(0)[1:4]
    ((52,), (0.0, False, False))
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, **options: Any) -> None:
        self._episodes = _Episodes(1, options)
        self.observation_space = spaces.Box(0, 1, (t.OBSERVATION_SIZE,), np.uint8)
        self.action_space = spaces.Discrete(t.N_ACTIONS)  # type: ignore[assignment]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Bits, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        return self._episodes.reset(seed)[0], {}

    def step(self, action: int) -> tuple[Bits, float, bool, bool, dict[str, Any]]:
        """One turn; an episode ends as truncated."""
        observations, rewards, dones = self._episodes.worlds.step([int(action)])
        return observations[0], float(rewards[0]), False, bool(dones[0]), {}


class NetworkVectorEnv(VectorEnv[Bits, NDArray[np.int64], NDArray[Any]]):
    """`num_envs` games as one Gymnasium vector environment; keywords are those of `NetworkWorlds`.

    All episodes have the same length, so all end together, as truncated, and the step after that resets them.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int, **options: Any) -> None:
        self._episodes = _Episodes(num_envs, options)
        self.num_envs = num_envs
        self.single_observation_space = spaces.Box(0, 1, (t.OBSERVATION_SIZE,), np.uint8)
        self.single_action_space = spaces.Discrete(t.N_ACTIONS)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._over = False

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Bits, dict[str, Any]]:
        """Start an episode in every world. One seed is enough: worlds draw at addresses of their own."""
        if isinstance(seed, list):
            seed = seed[0] if seed else None
        self._over = False
        return self._episodes.reset(seed), self._episodes.info()

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[Bits, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """One turn of every world; after an episode's end, the start of the next one with reward 0."""
        none = np.zeros(self.num_envs, np.bool_)
        if self._over:
            return self.reset()[0], np.zeros(self.num_envs), none, none.copy(), self._episodes.info()
        observations, rewards, dones = self._episodes.worlds.step(actions)
        self._over = bool(dones.all())
        return observations, rewards, none, dones, self._episodes.info()


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
        self._episodes = _Episodes(1, options)
        self.possible_agents = ["defender"]
        self.agents: list[str] = []
        self._spaces = spaces.Box(0, 1, (t.OBSERVATION_SIZE,), np.uint8), spaces.Discrete(t.N_ACTIONS)

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        return self._spaces[0]

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        return self._spaces[1]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Bits], dict[str, dict[str, Any]]]:
        """Start an episode."""
        self.agents = list(self.possible_agents)
        return {"defender": self._episodes.reset(seed)[0]}, {"defender": {}}

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[dict[str, Bits], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """One turn."""
        if not self.agents:
            return {}, {}, {}, {}, {}
        if set(actions) != set(self.agents):
            raise ActionError(f"actions are given for {sorted(actions)}: give one for 'defender', and for nobody else")
        observations, rewards, dones = self._episodes.worlds.step([int(actions["defender"])])
        if dones[0]:
            self.agents = []
        return (
            {"defender": observations[0]},
            {"defender": float(rewards[0])},
            {"defender": False},
            {"defender": bool(dones[0])},
            {"defender": {}},
        )
