"""W environments of another library, stepped one after the other in this process.

An `EnvAdapter` gives every library's environment the same interface: it is reset by a seed and stepped by the actions
in its row of the `SharedBuffers`, and writes observations, rewards and ends into the same row. Each episode is stored
as its seed and its actions. That is enough to replay it, for a checkpoint or after a worker process has died.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from parallel_agents.core.errors import ParallelAgentsError, ShapeError, WorldError
from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.core.types import Array
from parallel_agents.env.adapters.spaces import AgentSpec
from parallel_agents.execution.backend import Monitored
from parallel_agents.execution.workers import SharedBlock


@dataclass(frozen=True)
class WorldBuffers:
    """The row of one world in the shared buffers; N agents."""

    actions: tuple[Array, ...]
    """Per agent, the numbers of its action."""
    observations: tuple[Array, ...]
    """Per agent, the numbers of its observation."""
    masks: tuple[Array, ...]
    """Per agent, the allowed actions; empty for agents without masks."""
    rewards: Array
    """(N,)"""
    terminated: Array
    """(N,)"""
    truncated: Array
    """(N,)"""
    can_act: Array
    """(N,)"""


class EnvAdapter(Protocol):
    """One environment of another library, behind the interface that all of them share here."""

    @property
    def agents(self) -> tuple[AgentSpec, ...]:
        """Its agents."""

    @property
    def max_episode_steps(self) -> int | None:
        """The number of steps after which an episode is truncated; None if it is not known."""

    @property
    def env(self) -> Any:
        """The environment itself."""

    def reset(self, seed: int, row: WorldBuffers) -> None:
        """Start an episode from a seed."""

    def step(self, row: WorldBuffers) -> None:
        """Take one step with the actions of the row."""

    def close(self) -> None:
        """Release what the environment holds."""


MakeAdapter = Callable[[], EnvAdapter]


class SharedBuffers:
    """Actions, observations, masks, rewards and ends of W worlds: arrays with one row per world.

    shared: put them into memory that worker processes can share.
    """

    def __init__(self, agents: Sequence[AgentSpec], n_worlds: int, *, shared: bool = False) -> None:
        widths = {
            "actions": [agent.action.size for agent in agents],
            "observations": [agent.observation.size for agent in agents],
            "masks": [(agent.action.n_actions or 0) if agent.masked else 0 for agent in agents],
            **dict.fromkeys(("rewards", "terminated", "truncated", "can_act"), [1] * len(agents)),
        }
        dtypes = {"actions": torch.float64, "observations": torch.float32, "rewards": torch.float32}
        self._names = tuple(widths)
        self._block = SharedBlock(
            {name: ((n_worlds, sum(sizes)), dtypes.get(name, torch.bool)) for name, sizes in widths.items()},
            shared=shared,
        )
        self._slices = {name: _slices(widths[name]) for name in ("actions", "observations", "masks")}

    def __getitem__(self, name: str) -> Array:
        """Return one array of all worlds, (W, …)."""
        array: Array = self._block[name].numpy()
        return array

    def of_agent(self, name: str, agent: int) -> Array:
        """Return one agent's (W, …) part of `actions`, `observations` or `masks`."""
        return self[name][:, self._slices[name][agent]]

    def row(self, world: int) -> WorldBuffers:
        """Return the row of one world, as views."""
        arrays = {name: self[name][world] for name in self._names}
        parts = {name: tuple(arrays[name][part] for part in slices) for name, slices in self._slices.items()}
        return WorldBuffers(**{**arrays, **parts})

    def write_actions(self, actions: Any) -> None:
        """Copy (N, W, …) actions, or one (W, …) array per agent, into the buffers."""
        for agent in range(len(self._slices["actions"])):
            out = self.of_agent("actions", agent)
            out[:] = np.asarray(actions[agent]).reshape(out.shape)


def _slices(widths: Sequence[int]) -> list[slice]:
    """Return the slice of each of several parts that lie one after the other."""
    ends = np.cumsum(widths, dtype=np.int64)
    return [slice(int(end) - width, int(end)) for end, width in zip(ends, widths, strict=True)]


@dataclass
class Episode:
    """What is needed to replay the episode of one world: its seed and its actions so far."""

    seed: int = -1
    """-1: no episode has begun."""
    actions: list[Array] = field(default_factory=list)


class SyncEnvs:
    """W adapted environments in this process.

    `begin` and `advance` are called by `AdaptedEnvironment`; `reset` and `step` do the same for a single agent, with
    plain arrays:

        envs = SyncEnvs(lambda: GymnasiumAdapter(lambda: gymnasium.make("CartPole-v1")), 25)
        observations = envs.reset()                                              # (25, 4)
        observations, rewards, terminated, truncated = envs.step(actions)        # a world that has ended restarts
    """

    agents: tuple[AgentSpec, ...]
    max_episode_steps: int | None
    buffers: SharedBuffers

    def __init__(self, make: MakeAdapter, n_worlds: int, *, seed: int = 0) -> None:
        if n_worlds < 1:
            raise ShapeError(f"n_worlds is {n_worlds}: at least one world is needed")
        self.n_worlds, self.seed = n_worlds, seed
        self.turn_label = ""
        """The current epoch and turn, for errors."""
        self.episodes = [Episode() for _ in range(n_worlds)]
        self._episode_counts = np.zeros(n_worlds, np.int64)
        self._open(make)

    def _open(self, make: MakeAdapter) -> None:
        """Make the environments and set `agents`, `max_episode_steps` and `buffers`."""
        self._adapters = [make() for _ in range(self.n_worlds)]
        self.agents, self.max_episode_steps = self._adapters[0].agents, self._adapters[0].max_episode_steps
        self.buffers = SharedBuffers(self.agents, self.n_worlds)
        self._rows = [self.buffers.row(world) for world in range(self.n_worlds)]

    def render(self) -> Any:
        """Return what the first environment's own `render` returns."""
        return self._adapters[0].env.render()

    # -- for AdaptedEnvironment --------------------------------------------------------------------------------

    def begin(self, seeds: Mapping[int, int]) -> None:
        """Start an episode in each of some worlds, from its seed."""
        self.replay({world: Episode(seed) for world, seed in seeds.items()})

    def advance(self, worlds: Sequence[int]) -> None:
        """Take one step in each of some worlds, with the actions in the buffers."""
        for world in worlds:
            self.episodes[world].actions.append(self.buffers["actions"][world].copy())
        self._play({world: len(self.episodes[world].actions) for world in worlds})

    def replay(self, episodes: Mapping[int, Episode]) -> None:
        """Replay the episode of each of some worlds, up to its last action."""
        for world, episode in episodes.items():
            self.episodes[world] = episode
        self._play(dict.fromkeys(episodes, 0))

    def stored_episodes(self) -> list[Episode]:
        """Return what is needed to replay the episode of every world."""
        return self.episodes

    def workers(self) -> list[Monitored]:
        """Return the worker processes, for the watchdog."""
        return []

    def close(self) -> None:
        """Close the environments."""
        for adapter in self._adapters:
            adapter.close()
        self._adapters = []

    def _play(self, first_steps: Mapping[int, int]) -> None:
        """Play the episode of each of some worlds from a step on, up to its last action; step 0 is the reset."""
        for world, first in first_steps.items():
            adapter, row, episode = self._adapters[world], self._rows[world], self.episodes[world]
            for step in range(first, len(episode.actions) + 1):
                try:
                    if step == 0:
                        adapter.reset(episode.seed, row)
                    else:
                        self.buffers["actions"][world] = episode.actions[step - 1]
                        adapter.step(row)
                except ParallelAgentsError:
                    raise
                except (Exception, SystemExit) as error:
                    raise WorldError(f"{self.describe(world, step)} raised {type(error).__name__}: {error}") from error

    def describe(self, world: int, step: int | None = None) -> str:
        """Return which world is at which step, for errors; None: the last one."""
        episode = self.episodes[world]
        step = len(episode.actions) if step is None else step
        turn = f", {self.turn_label}" if self.turn_label else ""
        return f"world {world} (step {step} of the episode from seed {episode.seed}{turn})"

    # -- for a single agent, as arrays -------------------------------------------------------------------------

    def reset(self) -> Array:
        """Start an episode in every world and return (W, *obs)."""
        self._start(range(self.n_worlds))
        return self._observations()

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array]:
        """Take (W, …) actions; return (W, *obs), (W,) rewards, terminated and truncated.

        A world that has ended restarts in the next step, which ignores its action and gives the reward 0.
        """
        if len(actions) != self.n_worlds:
            raise ShapeError(f"step() was given {len(actions)} actions for {self.n_worlds} worlds: give one for each")
        buffers = self.buffers
        ended = (buffers["terminated"] | buffers["truncated"])[:, 0]
        self._start(np.flatnonzero(ended))
        buffers.write_actions([actions])
        self.advance([int(world) for world in np.flatnonzero(~ended)])
        rewards = np.where(ended, 0.0, buffers["rewards"][:, 0]).astype(np.float32)
        return self._observations(), rewards, buffers["terminated"][:, 0].copy(), buffers["truncated"][:, 0].copy()

    def _start(self, worlds: Sequence[int] | Array) -> None:
        """Start an episode in some worlds, with a seed that depends on the world and on how many it has had."""
        self._episode_counts[worlds] += 1
        seeds = {}
        for world in map(int, worlds):
            count = int(self._episode_counts[world])
            seeds[world] = int(generator(self.seed, Purpose.WORLD, world=world, epoch=count).integers(2**31))
        self.begin(seeds)

    def _observations(self) -> Array:
        shape = self.agents[0].observation.shape
        return self.buffers.of_agent("observations", 0).reshape(self.n_worlds, *shape).copy()
