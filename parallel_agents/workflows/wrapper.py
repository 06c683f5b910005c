"""`ParallelEnvWrapper`: n environments stepped together, as arrays.

>>> envs = ParallelEnvWrapper(n_envs=25)
>>> envs.reset().shape
(25, 52)
>>> observations, rewards, dones = envs.step(np.zeros(25, np.int64))
>>> observations.shape, rewards.shape, dones.any()
((25, 52), (25,), np.False_)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallel_agents.errors import ConfigError
from parallel_agents.workflows.network import NetworkWorlds

__all__ = ["ParallelEnvWrapper"]


class ParallelEnvWrapper:
    """`n_envs` network-defence worlds in this process, in one compiled loop; keywords are those of `NetworkWorlds`.

    All episodes have the same length and end together: when `dones` says so, call `reset()`. A step beyond the end
    is refused, so that no return can leak from one episode into the next.
    """

    def __init__(self, n_envs: int = 25, **options: Any) -> None:
        if n_envs < 1:
            raise ConfigError(f"n_envs is {n_envs}: at least one environment is needed")
        self.n_envs = n_envs
        self.worlds = NetworkWorlds(n_envs, **options)
        self.episode = -1
        """Which episode is played, counted from 0; its draws are those of this epoch."""

    def reset(self) -> NDArray[np.uint8]:
        """Start the next episode in every environment. Observations (n, 52)."""
        self.episode += 1
        return self.worlds.reset(self.episode)

    def step(self, actions: ArrayLike) -> tuple[NDArray[np.uint8], NDArray[np.float64], NDArray[np.bool_]]:
        """One turn everywhere: observations (n, 52), rewards (n,), dones (n,)."""
        return self.worlds.step(actions)

    @property
    def access(self) -> NDArray[np.uint8]:
        """Red's access to every host, (n, 13): what compliance is judged on, and no defender sees."""
        return self.worlds.access

    def close(self) -> None:
        """Nothing to give back."""
