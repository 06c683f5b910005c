"""`Buffer`: one agent's transitions, as users hold them in `agent.model.memory`; `ThreadSafeBuffer`: with a lock."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from parallel_agents.core.errors import ConfigError, NonFiniteError, ShapeError
from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.core.types import Array, Transitions
from parallel_agents.replay.event_classes import EVENT_TYPE, EVENT_VALUE, UNLABELLED
from parallel_agents.replay.ring import Ring, RingShape


class Lockable:
    """A buffer whose methods run within `locked()`; without a lock that does nothing."""

    _lock: AbstractContextManager[Any] = nullcontext()

    def locked(self) -> AbstractContextManager[Any]:
        """Return a context in which no other thread changes the buffer."""
        return self._lock


class Locked(Lockable):
    """A mixin that gives a buffer a lock of its own: every call then sees whole transitions only."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._lock = threading.RLock()
        super().__init__(*args, **kwargs)


class Buffer(Lockable):
    """A ring buffer of transitions: new ones overwrite the oldest.

    >>> buffer = Buffer(capacity=100, obs_shape=(2,))
    >>> for t in range(5):
    ...     buffer.add([t, t], action=t % 2, reward=1.0, done=t == 4)
    >>> len(buffer), buffer.sample(batch_size=3)[0].shape
    (5, (3, 2))

    n_frames: how many successive observations make a state. Further keywords name extra columns and their shapes,
    which `add` then takes: `Buffer(100, (2,), positions=(2,))`.
    """

    def __init__(
        self,
        capacity: int,
        obs_shape: int | tuple[int, ...],
        n_frames: int = 1,
        *,
        worlds: int = 1,
        action_shape: tuple[int, ...] = (),
        action_dtype: str = "int64",
        choices: int = 0,
        seed: int = 0,
        agent: int = 0,
        **extras: tuple[int, ...] | int,
    ) -> None:
        shapes = {name: (shape,) if isinstance(shape, int) else tuple(shape) for name, shape in extras.items()}
        self.shape = RingShape(
            capacity=capacity,
            observation=(obs_shape,) if isinstance(obs_shape, int) else tuple(obs_shape),
            worlds=worlds,
            frames=n_frames,
            action=action_shape,
            action_dtype=action_dtype,
            extras=shapes,
            choices=choices,
        )
        self.seed, self.agent = seed, agent
        self.ring = Ring(self.shape, agents=1)
        self._draws = 0
        self._first = True

    @classmethod
    def of(cls, shape: RingShape, *, seed: int, agent: int) -> Self:
        """Return an empty buffer of a given shape."""
        buffer = cls(1, 1, seed=seed, agent=agent)
        buffer.shape, buffer.ring = shape, Ring(shape, agents=1)
        return buffer

    def move_to(self, block: Ring, index: int) -> None:
        """Move the rows into part `index` of a ring that the agents of a stack share, and use that from now on."""
        with self.locked():
            block.adopt(index, self.ring)
            self.ring = block.agent(index)

    # -- writing ---------------------------------------------------------------------------------------------

    def add(self, obs: Any, action: Any, reward: float, done: bool, **extras: Any) -> None:
        """Store one transition of a single world; `done`: it ended the episode."""
        if self.shape.worlds != 1:
            raise ShapeError(
                f"add() stores one world's transition, this buffer has {self.shape.worlds} worlds: use add_turn()"
            )
        if EVENT_TYPE in self.shape.extras:
            extras = {EVENT_TYPE: UNLABELLED, EVENT_VALUE: reward, **extras}
        if set(extras) != set(self.shape.extras):
            raise ShapeError(
                f"add() was given the columns {sorted(extras)}, the buffer has {sorted(self.shape.extras)}"
            )
        reward = float(detached(reward))
        observation = _single("an observation", obs, self.shape.observation, self.shape.observation_dtype)
        actions = _single("an action", action, self.shape.action, self.shape.action_dtype)
        columns = {name: _single(name, value, self.shape.extras[name], "float32") for name, value in extras.items()}
        if not np.isfinite(observation).all() or not np.isfinite(reward):
            raise NonFiniteError("add() was given an observation or reward with NaN or infinity")
        for name, column in columns.items():
            if not np.isfinite(column).all():
                raise NonFiniteError(f"add() was given {name} with NaN or infinity")
        false = np.zeros((1, 1), np.bool_)
        with self.locked():
            turn = Transitions(
                observations=observation,
                actions=actions,
                rewards=np.full((1, 1), reward, np.float32),
                terminated=np.full((1, 1), bool(done)),
                truncated=false,
                valid=~false,
                first=np.full((1, 1), self._first),
                present=np.ones(1, np.bool_),
                version=0,
                extras=columns,
            )
            self.ring.add(turn)
            self._first = bool(done)

    def add_turn(self, turn: Transitions) -> None:
        """Store one turn of all worlds; the first axis of every array is this one agent."""
        with self.locked():
            self.ring.add(turn)

    def close_turn(self, observations: Array, *, ended: bool) -> None:
        """Store the observations (1, W, *obs) after the last turn; with `ended`, the episodes stop here."""
        with self.locked():
            self.ring.close(observations, ended=ended)

    def add_empty(self) -> None:
        """Start a new episode with the next `add`.

        If the last transition was not done, its outcome stays unknown: the next `add` removes it.
        """
        with self.locked():
            self._first = True

    def clear(self) -> None:
        """Remove all transitions."""
        with self.locked():
            self.ring.adopt(0, Ring(self.shape, agents=1))
            self._first = True

    # -- reading ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        with self.locked():
            return int(self.ring.head[0] - self.ring.tail[0])

    @property
    def capacity(self) -> int:
        return self.shape.turns * self.shape.worlds

    @property
    def size(self) -> int:
        return len(self)

    @property
    def idx(self) -> int:
        """Place of the row that the next turn is written to."""
        return int(self.ring.pos[0] % self.ring.valid.shape[1])

    def sample(self, batch_size: int) -> tuple[Array, Array, Array, Array, Array, Array]:
        """Return states, actions, rewards, next_states, dones and valid, (batch, …) each, drawn uniformly."""
        if batch_size < 1:
            raise ConfigError(f"sample(batch_size={batch_size}): give a whole number of at least 1")
        with self.locked():
            if not self.ring.sizes()[0]:
                raise ShapeError(
                    f"sample(batch_size={batch_size}) of a buffer without a whole transition: add some first"
                )
            draws = generator(self.seed, Purpose.SAMPLE, agent=self.agent, world=1, epoch=self._draws).random(
                (1, batch_size)
            )
            self._draws += 1
            batch = self.ring.gather(self.ring.serials(draws), n_step=1, gammas=np.ones(1))
        dones = (batch["discounts"] == 0.0).astype(np.float32)
        column = (batch_size, 1)
        return (
            batch["states"][0],
            batch["actions"][0].reshape(batch_size, -1),
            batch["returns"].reshape(column),
            batch["next_states"][0],
            dones.reshape(column),
            np.ones(column, np.float32),
        )

    def current_state(self) -> Array:
        """Return the observations (n_frames - 1, *obs) before the next one, zeros before the episode's start."""
        with self.locked():
            frames = np.zeros((self.shape.frames - 1, self.ring.observations.shape[3]), self.ring.observations.dtype)
            known = 0 if self._first else int(self.ring.ages[0, 0])
            for back in range(1, min(known, self.shape.frames - 1) + 1):
                row = (int(self.ring.pos[0]) - back) % self.ring.valid.shape[1]
                frames[-back] = self.ring.observations[0, row, 0]
        return frames.reshape(-1, *self.shape.observation)

    def get_buffer_snapshot(self) -> MappingProxyType[str, Any]:
        """Return a read-only copy, oldest first: states, actions, rewards, dones, extra columns, size, idx."""
        with self.locked():
            live = self.ring.live(0)
            idx, rows = self.idx, int(self.ring.pos[0] - self.ring.oldest[0])
        keep = live["valid"]
        keep[: len(keep) - rows] = False  # rows that only serve as earlier frames
        copy = {
            "states": live["observations"][keep].reshape(-1, *self.shape.observation),
            "actions": live["actions"][keep].reshape(-1, *self.shape.action),
            "rewards": live["rewards"][keep],
            "dones": (live["terminated"] | live["truncated"])[keep],
            **{name: live[f"extra.{name}"][keep] for name in self.shape.extras},
        }
        for column in copy.values():
            column.setflags(write=False)
        return MappingProxyType({**copy, "size": int(keep.sum()), "idx": idx})

    def state(self) -> dict[str, Any]:
        """Return the rows and how many samples were drawn, for digest and checkpoint."""
        with self.locked():
            return {"rows": self.ring.live(0), "draws": self._draws, "first": self._first}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the contents by what `state` returned."""
        with self.locked():
            self.ring.load_live(0, state["rows"])
            self._draws, self._first = int(state["draws"]), bool(state["first"])


def detached(value: Any) -> Any:
    """Return a tensor's numbers without its autograd graph, which would keep all its past in memory."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _single(what: str, value: Any, shape: tuple[int, ...], dtype: str) -> Array:
    """Return a single value as an array (1, 1, *shape)."""
    array = np.asarray(detached(value), dtype)
    if array.size != math.prod(shape):
        raise ShapeError(f"add() was given {what} of {array.size} numbers, the buffer keeps {shape}")
    return array.reshape(1, 1, *shape)


class ThreadSafeBuffer(Locked, Buffer):
    """`Buffer` with a lock of its own, nothing more."""

    @classmethod
    def taking_over(cls, buffer: Buffer) -> ThreadSafeBuffer:
        """Return a buffer with a lock that uses the rows of another one, which must not be used any more."""
        safe = cls.of(buffer.shape, seed=buffer.seed, agent=buffer.agent)
        safe.ring, safe._draws, safe._first = buffer.ring, buffer._draws, buffer._first
        return safe
