"""W foreign worlds side by side, in this process.

Every world's episode is known by its seed and its actions: that is how a checkpoint brings it back, and how a world
that was lost with its process is brought back too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from parallel_agents.adapters.guests import Board, Guest
from parallel_agents.errors import ParallelAgentsError, ShapeError, WorldError
from parallel_agents.runtime.supervision import Watched
from parallel_agents.seeding import Purpose, generator
from parallel_agents.types import Array

__all__ = ["Episode", "Make", "Worlds"]

Make = Callable[[], Guest]


@dataclass
class Episode:
    """How one world got where it is."""

    seed: int = -1
    """-1: it has not begun."""
    actions: list[Array] = field(default_factory=list)


class Worlds:
    """W guests, stepped one after the other.

    `begin` and `advance` serve environments; `reset` and `step` are the same for one agent, as plain arrays:

        worlds = Worlds(lambda: GymnasiumGuest(lambda: gymnasium.make("CartPole-v1")), 25)
        seen = worlds.reset()                                            # (25, 4)
        seen, rewards, terminated, truncated = worlds.step(actions)      # a world that has ended starts afresh
    """

    def __init__(self, make: Make, n_worlds: int, *, seed: int = 0) -> None:
        if n_worlds < 1:
            raise ShapeError(f"n_worlds is {n_worlds}: at least one world is needed")
        self.n_worlds, self.seed = n_worlds, seed
        self.moment = ""
        """When it is, for messages."""
        self.episodes = [Episode() for _ in range(n_worlds)]
        self._counts = np.zeros(n_worlds, np.int64)
        self._open(make)

    def _open(self, make: Make) -> None:
        self._guests = [make() for _ in range(self.n_worlds)]
        self.places, self.limit = self._guests[0].places, self._guests[0].limit
        self.board = Board(self.places, self.n_worlds)
        self._rows = [self.board.row(world) for world in range(self.n_worlds)]

    # -- for environments ------------------------------------------------------------------------------------

    def begin(self, seeds: Mapping[int, int]) -> None:
        """Start episodes in some worlds, each from its seed."""
        for world, seed in seeds.items():
            self.episodes[world] = Episode(seed)
        self._do(dict.fromkeys(seeds, 0))

    def advance(self, which: Sequence[int]) -> None:
        """One turn of some worlds, by the actions on the board."""
        for world in which:
            self.episodes[world].actions.append(self.board["actions"][world].copy())
        self._do({world: len(self.episodes[world].actions) for world in which})

    def recall(self, episodes: Mapping[int, Episode]) -> None:
        """Play episodes again, up to where they were."""
        for world, episode in episodes.items():
            self.begin({world: episode.seed})
            for action in episode.actions:
                self.board["actions"][world] = action
                self.advance([world])

    def members(self) -> list[Watched]:
        """Worker processes, for whoever watches over a run."""
        return []

    def close(self) -> None:
        """Give back what the worlds hold."""
        for guest in self._guests:
            guest.close()
        self._guests = []

    def _do(self, steps: Mapping[int, int]) -> None:
        """Bring worlds to a step of their episodes; 0 is the start."""
        for world, step in steps.items():
            guest, row = self._guests[world], self._rows[world]
            try:
                guest.reset(self.episodes[world].seed, row) if step == 0 else guest.step(row)
            except ParallelAgentsError:
                raise
            except (Exception, SystemExit) as error:
                raise WorldError(f"{self.where(world)} raised {type(error).__name__}: {error}") from error

    def where(self, world: int) -> str:
        """Which world is at what, for messages."""
        episode = self.episodes[world]
        moment = f", {self.moment}" if self.moment else ""
        return f"world {world} (step {len(episode.actions)} of the episode from seed {episode.seed}{moment})"

    # -- for one agent, as arrays -----------------------------------------------------------------------------

    def reset(self) -> Array:
        """Start a fresh episode in every world; (W, *obs)."""
        self._start(range(self.n_worlds))
        return self._seen()

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array]:
        """(W, …) actions -> (W, *obs), (W,) rewards, terminated, truncated.

        A world that has ended starts afresh in the next step, which ignores its action and pays nothing.
        """
        if len(actions) != self.n_worlds:
            raise ShapeError(f"step() was given {len(actions)} actions for {self.n_worlds} worlds: give one for each")
        board = self.board
        over = (board["terminated"] | board["truncated"])[:, 0]
        self._start(np.flatnonzero(over))
        board.put_actions([actions])
        self.advance([int(world) for world in np.flatnonzero(~over)])
        rewards = np.where(over, 0.0, board["rewards"][:, 0]).astype(np.float32)
        return self._seen(), rewards, board["terminated"][:, 0].copy(), board["truncated"][:, 0].copy()

    def _start(self, which: Sequence[int] | Array) -> None:
        self._counts[which] += 1
        self.begin(
            {
                int(w): int(
                    generator(self.seed, Purpose.WORLD, world=int(w), epoch=int(self._counts[w])).integers(2**31)
                )
                for w in which
            }
        )

    def _seen(self) -> Array:
        return self.board.part("sights", 0).reshape(self.n_worlds, *self.places[0].sight.shape).copy()
