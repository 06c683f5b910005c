"""One Gymnasium vector environment as W worlds.

It starts its own worlds afresh in the step after their end, as our loop does; so the two agree turn by turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import iterate

from parallel_agents.adapters.guests import Board, Place
from parallel_agents.adapters.spaces import Deeds, Sight
from parallel_agents.adapters.worlds import Episode, Worlds
from parallel_agents.errors import ContractError, WorldError
from parallel_agents.types import Array

__all__ = ["VectorWorlds"]


class VectorWorlds(Worlds):
    """The worlds of a vector environment that `make(num_envs=W)` gives."""

    def __init__(self, make: Callable[..., Any], n_worlds: int, *, seed: int = 0) -> None:
        self._make_vector = make
        super().__init__(self._never, n_worlds, seed=seed)

    def _never(self) -> Any:
        raise ContractError("a vector environment has no single worlds")

    def _open(self, make: Callable[[], Any]) -> None:
        self.env = env = self._make_vector(num_envs=self.n_worlds)
        name = str(env.spec.id if env.spec is not None else env)
        if env.metadata.get("autoreset_mode") != AutoresetMode.NEXT_STEP:
            raise ContractError(
                f"{name} resets its worlds in the mode {env.metadata.get('autoreset_mode')}: only NEXT_STEP is "
                "supported, see gymnasium.vector.AutoresetMode"
            )
        sight, deeds = Sight.of(env.single_observation_space, name), Deeds.of(env.single_action_space, name)
        self._plain = isinstance(env.single_observation_space, spaces.Box)
        self.limit = env.spec.max_episode_steps if env.spec is not None else None
        self.places = (Place("agent_0", sight, deeds),)
        self.board = Board(self.places, self.n_worlds)
        self.board["able"][:] = True

    def begin(self, seeds: Mapping[int, int]) -> None:
        """Start every world; worlds that have ended were started by the step just taken."""
        if len(seeds) == self.n_worlds:
            self.episodes = [Episode(seed) for seed in seeds.values()]
            seen, _ = self.env.reset(seed=next(iter(seeds.values())))
            for name in ("rewards", "terminated", "truncated"):
                self.board[name][:] = 0
            self._show(seen)

    def advance(self, which: Sequence[int]) -> None:
        """One turn of all worlds, in which those that have ended start afresh."""
        actions = [self.places[0].deeds.native(row) for row in self.board["actions"]]
        try:
            seen, rewards, terminated, truncated, _ = self.env.step(np.stack(actions))
        except (Exception, SystemExit) as error:
            raise WorldError(f"{self.env} raised {type(error).__name__}: {error} ({self.moment})") from error
        ends = {"rewards": rewards, "terminated": terminated, "truncated": truncated}
        for name, column in ends.items():
            self.board[name][:, 0] = column
        self._show(seen)

    def close(self) -> None:
        self.env.close()

    def _show(self, seen: Any) -> None:
        sights: Array = self.board["sights"]
        if self._plain:
            sights[:] = seen.reshape(self.n_worlds, -1)
            return
        for world, own in enumerate(iterate(self.env.observation_space, seen)):
            self.places[0].sight.write(own, sights[world])
