"""Foreign worlds as an environment: what all of them share, whatever their interface."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from parallel_agents.adapters.processes import ProcessWorlds
from parallel_agents.adapters.worlds import Episode, Make, Worlds
from parallel_agents.environment import Agent, ParallelEnvironment
from parallel_agents.errors import ConfigError, ContractError
from parallel_agents.runtime.supervision import Watched
from parallel_agents.seeding import Purpose, generator
from parallel_agents.types import Array

__all__ = ["ForeignEnvironment"]

LONGEST = 100_000
"""Turns after which an evaluation gives up on a world without a time limit."""


class ForeignEnvironment(ParallelEnvironment):
    """W instances of one foreign world, in this process or (`world.workers`) in others."""

    name = ""

    def maker(self) -> Make:
        """What makes one world."""
        raise ContractError(f"{type(self).__name__}.maker() is missing: return what makes one world")

    def open_worlds(self) -> Worlds:
        """All worlds, where the `world` section wants them."""
        flags, workers = self.config.parallel, self.config.world["workers"]
        if not isinstance(workers, int) or workers < 0:
            raise ConfigError(f"world.workers is {workers!r}: give a number of processes, 0 for none")
        if workers == 0:
            return Worlds(self.maker(), self.n_worlds)
        return ProcessWorlds(
            self.maker(),
            self.n_worlds,
            workers=workers,
            deadline=flags.world_deadline,
            failures=flags.max_failures,
        )

    def setup_agents(self) -> None:
        """Make the worlds, and an agent for each place in them whose model fits its spaces."""
        self.worlds = self.open_worlds()
        self.evaluation_turns = self.worlds.limit or LONGEST
        self.agents = [
            Agent(model=self.make_model(place.sight.shape, place.deeds.model), name=place.name)
            for place in self.worlds.places
        ]
        for place in self.worlds.places[:1]:
            if place.sight.left_out:
                warnings.warn(
                    f"{self.name}: agents do not see {', '.join(place.sight.left_out)}, which holds no numbers",
                    stacklevel=2,
                )
        shapes = {place.sight.shape for place in self.worlds.places}
        self._shape = shapes.pop() if len(shapes) == 1 else None
        """The shape of what every agent sees; None where they differ."""

    def close(self) -> None:
        self.worlds.close()

    def members(self) -> list[Watched]:
        """Worker processes of the worlds, for whoever watches over a run."""
        return self.worlds.members()

    # -- the loop's hooks --------------------------------------------------------------------------------------

    def reset(self) -> None:
        self.reset_worlds(np.ones(self.n_worlds, np.bool_))

    def reset_worlds(self, which: Array) -> None:
        """Start fresh episodes, each from a seed of its own."""
        self._mark()
        seeds = {}
        for world in map(int, np.flatnonzero(which)):
            draws = generator(self.seed, Purpose.WORLD, world=world, epoch=self.epoch, turn=self.turn)
            seeds[world] = int(draws.integers(2**31))
        self.worlds.begin(seeds)

    def observe(self) -> Any:
        if self._shape is not None:
            seen = self.worlds.board["sights"].reshape(self.n_worlds, len(self.agents), *self._shape)
            return seen.swapaxes(0, 1)
        return [
            self.worlds.board.part("sights", index).reshape(self.n_worlds, *place.sight.shape)
            for index, place in enumerate(self.worlds.places)
        ]

    def can_act(self) -> Array:
        return self.worlds.board["able"].T.copy()

    @property
    def masks_actions(self) -> bool:
        """True where the worlds say which actions are allowed."""
        return any(place.masked for place in self.worlds.places)

    def action_masks(self) -> list[Array | None]:
        return [
            self.worlds.board.part("masks", index) if place.masked else None
            for index, place in enumerate(self.worlds.places)
        ]

    def apply_actions(self, actions: Any) -> Array:
        self._mark()
        self.worlds.board.put_actions(actions)
        self.worlds.advance([int(world) for world in np.flatnonzero(self.active)])
        return np.where(self.active, self.worlds.board["rewards"].T, 0.0).astype(np.float32)

    def dones(self) -> tuple[Array, Array]:
        return self.worlds.board["terminated"].T.copy(), self.worlds.board["truncated"].T.copy()

    def _mark(self) -> None:
        self.worlds.moment = f"epoch {self.epoch}, turn {self.turn}"

    # -- checkpoints -----------------------------------------------------------------------------------------

    def state(self) -> dict[str, Array]:
        """The seed of every world's episode and the actions since: a foreign world gives nothing else away."""
        episodes = self.worlds.episodes
        actions = [action for episode in episodes for action in episode.actions]
        width = self.worlds.board["actions"].shape[1]
        return {
            "seeds": np.array([episode.seed for episode in episodes], np.int64),
            "lengths": np.array([len(episode.actions) for episode in episodes], np.int64),
            "actions": np.array(actions, np.float64).reshape(-1, width),
        }

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Play every world's episode again, up to where it was."""
        ends = np.cumsum(state["lengths"])
        parts = np.split(state["actions"], ends[:-1])
        episodes = zip(state["seeds"], parts, strict=True)
        self.worlds.recall({w: Episode(int(seed), list(actions)) for w, (seed, actions) in enumerate(episodes)})
