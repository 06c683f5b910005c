"""The store behind buffers: for each agent a ring over turns, with one column per world.

An agent's transitions are rows of its own arrays. The agents of one stack keep theirs side by side in one
block, so that a turn of all of them is written by one call; no agent ever reads another's part.

What a transition led to is the next row of its column, so nothing is stored twice. Where an episode is cut
off, one more row keeps the observation that came after it. `follow` says how many rows on the next
observation stands (more than one where an agent could not act for a while), `age` how many rows of the same
episode came before, and `starts` lists the kept transitions in order, so that a draw takes O(1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_agents.errors import ConfigError
from parallel_agents.memory import kernels
from parallel_agents.types import Array, Transitions

__all__ = ["PRIORITY", "Ring", "RingShape"]

PRIORITY = "priority"
"""Name of the further column that changes after its row was written."""


@dataclass(frozen=True)
class RingShape:
    """What the rings of a stack have in common."""

    capacity: int
    """Transitions kept per agent, at most; rounded up to whole turns."""
    observation: tuple[int, ...]
    worlds: int = 1
    frames: int = 1
    action: tuple[int, ...] = ()
    action_dtype: str = "int64"
    observation_dtype: str = "float32"
    extras: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Further float32 columns and their shapes per world."""
    choices: int = 0
    """Actions of a mask that says which were allowed, kept as `masks`; 0: all always were."""

    def __post_init__(self) -> None:
        if self.capacity < 1 or self.worlds < 1 or self.frames < 1:
            raise ConfigError(
                f"a buffer of capacity {self.capacity}, {self.worlds} worlds and {self.frames} frames: "
                "each must be at least 1"
            )

    @property
    def turns(self) -> int:
        return -(-self.capacity // self.worlds)


class Ring:
    """The rings of N agents.

    >>> ring = Ring(RingShape(capacity=8, observation=(2,)), agents=3)
    >>> ring.sizes().tolist()
    [0, 0, 0]
    """

    ROWS = ("observations", "actions", "rewards", "terminated", "truncated", "valid", "follow", "age", "version")
    COUNTERS = ("pos", "oldest", "head", "tail", "opened", "ages")

    def __init__(self, shape: RingShape, agents: int) -> None:
        self.shape = shape
        self.agents = agents
        self.renewed = 0
        """How often it has started afresh: then rows of before are not those of now, whatever they are called."""
        rows, worlds = shape.turns + shape.frames - 1, shape.worlds
        size = int(np.prod(shape.observation, dtype=np.int64))
        acts = int(np.prod(shape.action, dtype=np.int64))
        block = (agents, rows, worlds)
        self.observations = np.zeros((*block, size), shape.observation_dtype)
        self.actions = np.zeros((*block, acts), shape.action_dtype)
        self.rewards = np.zeros(block, np.float32)
        self.terminated = np.zeros(block, np.bool_)
        self.truncated = np.zeros(block, np.bool_)
        self.valid = np.zeros(block, np.bool_)
        self.follow = np.zeros(block, np.int32)
        self.age = np.zeros(block, np.int32)
        self.version = np.zeros((agents, rows), np.int32)
        self.extras: dict[str, Array] = {
            name: np.zeros((*block, *extra), np.float32) for name, extra in shape.extras.items()
        }
        if shape.choices:
            self.extras["masks"] = np.zeros((*block, shape.choices), np.bool_)
        self.starts = np.zeros((agents, rows * worlds), np.int64)
        self.pos = np.zeros(agents, np.int64)
        self.oldest = np.zeros(agents, np.int64)
        self.head = np.zeros(agents, np.int64)
        self.tail = np.zeros(agents, np.int64)
        self.opened = np.full((agents, worlds), -1, np.int64)
        self.ages = np.zeros((agents, worlds), np.int32)
        self._columns = tuple(getattr(self, name) for name in self.ROWS)

    def agent(self, index: int) -> Ring:
        """One agent's ring: the same memory, seen alone."""
        alone = object.__new__(Ring)
        alone.shape, alone.agents, alone.renewed = self.shape, 1, self.renewed
        part = slice(index, index + 1)
        for name in (*self.ROWS, *self.COUNTERS, "starts"):
            setattr(alone, name, getattr(self, name)[part])
        alone.extras = {name: column[part] for name, column in self.extras.items()}
        alone._columns = tuple(getattr(alone, name) for name in self.ROWS)
        return alone

    def renew(self) -> None:
        """Start empty with fresh arrays; whoever holds the old ones keeps them as they are."""
        renewed = self.renewed + 1
        self.__init__(self.shape, self.agents)  # type: ignore[misc]
        self.renewed = renewed

    def adopt(self, index: int, other: Ring) -> None:
        """Take over what another ring of the same shape keeps of one agent."""
        for name in (*self.ROWS, *self.COUNTERS, "starts"):
            getattr(self, name)[index] = getattr(other, name)[0]
        for name, column in self.extras.items():
            column[index] = other.extras[name][0]

    def add(self, turn: Transitions) -> None:
        """Keep one turn of all agents."""
        if self.extras:
            self._stamp(np.flatnonzero(turn.present), turn.extras)
        block = (self.agents, self.shape.worlds, -1)
        kernels.push(
            *self._columns,
            self.starts,
            self.pos,
            self.oldest,
            self.head,
            self.tail,
            self.opened,
            self.ages,
            self.shape.turns,
            turn.observations.reshape(block),
            turn.actions.reshape(block),
            turn.rewards,
            turn.terminated,
            turn.truncated,
            turn.valid,
            turn.first,
            turn.present,
            turn.version,
        )

    def close(self, observations: Array, *, ended: bool, extras: Mapping[str, Array] | None = None) -> None:
        """Keep what the last turn led to; with `ended`, the episodes stop here."""
        if self.extras:
            self._stamp(np.arange(self.agents), extras or {})
        kernels.close(
            *self._columns,
            self.pos,
            self.oldest,
            self.tail,
            self.opened,
            self.ages,
            self.shape.turns,
            observations.reshape(self.agents, self.shape.worlds, -1),
            ended,
        )

    def _stamp(self, agents: NDArray[np.int64], extras: Mapping[str, Array]) -> None:
        """Write the further columns of the coming row, which the kernels do not know."""
        rows = self.pos[agents] % self.valid.shape[1]
        for name, column in self.extras.items():
            column[agents, rows] = extras[name][agents] if name in extras else 0

    def sizes(self) -> NDArray[np.int64]:
        """(N,) transitions that can be sampled: all kept ones, up to the first whose next observation is unknown.

        Those are the newest turn's. It is left out whole, since the sampled serials are a range.
        """
        newest = np.arange(self.agents), (self.pos - 1) % self.valid.shape[1]
        loose = self.valid[newest] & (self.follow[newest] == 0) & ~self.terminated[newest]
        unknown = np.where(loose.any(axis=1), self.valid[newest].sum(axis=1), 0)
        return np.asarray(self.head - self.tail - unknown)

    def serials(self, uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
        """(N, K) draws in [0, 1) -> serials of transitions, uniform over what each agent keeps."""
        return np.asarray(self.tail[:, None] + (uniforms * self.sizes()[:, None]).astype(np.int64))

    def gather(self, serials: NDArray[np.int64], *, n_step: int, gammas: NDArray[np.float64]) -> dict[str, Array]:
        """The samples behind (N, K) serials: states, actions, returns, next_states, discounts; gammas: (N,).

        Where masks are kept, also next_masks: what was allowed in the next state.
        """
        agents, samples = serials.shape
        size = self.observations.shape[3] * self.shape.frames
        states = np.empty((agents, samples, size), self.observations.dtype)
        next_states = np.empty_like(states)
        actions = np.empty((agents, samples, self.actions.shape[3]), self.actions.dtype)
        returns = np.empty((agents, samples), np.float32)
        discounts = np.empty((agents, samples), np.float32)
        nexts = np.empty((agents, samples), np.int64)
        kernels.gather(
            *self._columns[:-1], self.starts, self.pos, serials, n_step, gammas,
            states, next_states, actions, returns, discounts, nexts,
        )  # fmt: skip
        allowed = {}
        if self.shape.choices:
            flat = self.extras["masks"].reshape(agents, -1, self.shape.choices)
            own = flat[np.arange(agents)[:, None], nexts]
            allowed["next_masks"] = own | ~own.any(axis=-1, keepdims=True)  # after an end nothing was asked
        return allowed | {
            "states": states,
            "actions": actions.reshape(agents, samples, *self.shape.action),
            "returns": returns,
            "next_states": next_states,
            "discounts": discounts,
        }

    def live(self, index: int) -> dict[str, Array]:
        """What one agent keeps, oldest row first, for digest and checkpoint: equal contents, equal arrays."""
        rows = self.valid.shape[1]
        first = max(0, int(self.oldest[index]) - self.shape.frames + 1)
        order = np.arange(first, int(self.pos[index])) % rows
        kept: dict[str, Any] = {name: getattr(self, name)[index][order] for name in self.ROWS}
        kept |= {f"extra.{name}": column[index][order] for name, column in self.extras.items()}
        return kept | {name: np.array(getattr(self, name)[index]) for name in self.COUNTERS}

    def load_live(self, index: int, kept: Mapping[str, Array]) -> None:
        """Replace what one agent keeps by what `live` returned."""
        for name in self.COUNTERS:
            getattr(self, name)[index] = kept[name]
        first = max(0, int(self.oldest[index]) - self.shape.frames + 1)
        order = np.arange(first, int(self.pos[index])) % self.valid.shape[1]
        self.valid[index] = False
        for name in self.ROWS:
            getattr(self, name)[index][order] = kept[name]
        for name, column in self.extras.items():
            column[index][order] = kept[f"extra.{name}"]
        self.list_starts(index)

    def list_starts(self, index: int) -> None:
        """Rebuild the list of one agent's kept transitions, which follows from its rows."""
        rows = np.arange(self.oldest[index], self.pos[index]) % self.valid.shape[1]
        place, world = np.nonzero(self.valid[index][rows])
        serials = np.arange(self.tail[index], self.head[index]) % self.starts.shape[1]
        self.starts[index][serials] = rows[place] * self.shape.worlds + world
