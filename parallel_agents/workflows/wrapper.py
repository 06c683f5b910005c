"""`ParallelEnvWrapper`: n environments stepped together, as arrays.

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
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallel_agents.adapters.gymnasium import GymnasiumGuest
from parallel_agents.adapters.processes import ProcessWorlds
from parallel_agents.errors import ConfigError, ContractError
from parallel_agents.types import Array
from parallel_agents.workflows.network import NetworkWorlds

__all__ = ["ParallelEnvWrapper"]


class ParallelEnvWrapper:
    """`n_envs` network-defence worlds in one compiled loop, or as many foreign environments in processes.

    Without `make`, the worlds are ours and live in this process; `options` are those of `NetworkWorlds`. All episodes
    have the same length and end together: when `dones` says so, call `reset()`. A step beyond the end is refused, so
    that no return can leak from one episode into the next.

    With `make`, a function that gives a Gymnasium environment, n of them live in `workers` processes (by default one
    per core), fed through shared memory. One that hangs for `deadline` seconds or dies with its process is replaced
    and played again up to where it was. An episode that has ended starts afresh in the next step, which ignores that
    environment's action and pays nothing.
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
            raise ConfigError(f"{', '.join(options)}: a foreign environment takes its options from its own maker")
        self.n_envs = n_envs
        self.episode = -1
        """Which episode of our worlds is played, counted from 0; its draws are those of this epoch."""
        self._ours: NetworkWorlds | None = None
        self._guests: ProcessWorlds | None = None
        if make is None:
            self._ours = NetworkWorlds(n_envs, seed=seed, **options)
        else:
            count = workers or min(n_envs, os.cpu_count() or 1)
            self._guests = ProcessWorlds(
                partial(GymnasiumGuest, make), n_envs, workers=count, deadline=deadline, seed=seed
            )

    @property
    def worlds(self) -> NetworkWorlds:
        """Our worlds."""
        if self._ours is None:
            raise ContractError("these environments are foreign: only network-defence worlds show their inside")
        return self._ours

    def reset(self) -> Array:
        """Start an episode in every environment. Observations (n, 52), or as the foreign environments have them."""
        if self._guests is not None:
            return self._guests.reset()
        self.episode += 1
        return self.worlds.reset(self.episode)

    def step(self, actions: ArrayLike) -> tuple[Array, Array, NDArray[np.bool_]]:
        """One turn everywhere: observations (n, …), rewards (n,), dones (n,)."""
        if self._guests is not None:
            seen, rewards, terminated, truncated = self._guests.step(np.asarray(actions))
            return seen, rewards, terminated | truncated
        return self.worlds.step(actions)

    @property
    def access(self) -> NDArray[np.uint8]:
        """Red's access to every host, (n, 13): what compliance is judged on, and no defender sees."""
        return self.worlds.access

    @property
    def restarts(self) -> int:
        """Processes that had to be replaced so far."""
        return 0 if self._guests is None else self._guests.restarts

    def close(self) -> None:
        """End the processes, if there are any; may be called twice."""
        if self._guests is not None:
            self._guests.close()
