"""One agent's buffer, as users hold it, and the same behind a lock."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from parallel_agents.errors import ConfigError, NonFiniteError, ShapeError
from parallel_agents.memory.events import EVENT_TYPE, EVENT_VALUE, UNLABELLED
from parallel_agents.memory.incoming import detached
from parallel_agents.memory.ring import Ring, RingShape
from parallel_agents.seeding import Purpose, generator
from parallel_agents.types import Array, Transitions

__all__ = ["Buffer", "ThreadSafeBuffer"]


class Buffer:
    """A ring buffer of transitions; the oldest give way to the newest.

    >>> buffer = Buffer(capacity=100, obs_shape=(2,))
    >>> for t in range(5):
    ...     buffer.add([t, t], action=t % 2, reward=1.0, done=t == 4)
    >>> len(buffer), buffer.sample(batch_size=3)[0].shape
    (5, (3, 2))

    n_frames: how many successive observations make a state. Extra columns are named by keyword, with their
    shape: `Buffer(100, (2,), positions=(2,))`, and then given to `add`.
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
        """A buffer of a given shape, without going through keywords."""
        return cls(
            shape.capacity,
            shape.observation,
            shape.frames,
            worlds=shape.worlds,
            action_shape=shape.action,
            action_dtype=shape.action_dtype,
            choices=shape.choices,
            seed=seed,
            agent=agent,
            **shape.extras,
        )

    def locked(self) -> Any:
        """A context in which nobody else changes the buffer; here there is nobody else."""
        return nullcontext()

    def move_to(self, block: Ring, index: int) -> None:
        """Live in row `index` of a block that keeps the buffers of a stack side by side."""
        with self.locked():
            block.adopt(index, self.ring)
            self.ring = block.agent(index)

    # -- writing ---------------------------------------------------------------------------------------------

    def add(self, obs: Any, action: Any, reward: float, done: bool, **extras: Any) -> None:
        """Keep one transition of a single world. `done` says that the episode came to its end with it."""
        if self.shape.worlds != 1:
            raise ShapeError(
                f"add() keeps one world's transition, this buffer has {self.shape.worlds} worlds: use add_turn()"
            )
        if EVENT_TYPE in self.shape.extras:
            extras = {EVENT_TYPE: UNLABELLED, EVENT_VALUE: reward, **extras}
        if set(extras) != set(self.shape.extras):
            raise ShapeError(
                f"add() was given the columns {sorted(extras)}, the buffer has {sorted(self.shape.extras)}"
            )
        reward = float(detached(reward))
        observation = _one("an observation", obs, self.shape.observation, self.shape.observation_dtype)
        chosen = _one("an action", action, self.shape.action, self.shape.action_dtype)
        columns = {name: _one(name, value, self.shape.extras[name], "float32") for name, value in extras.items()}
        if not np.isfinite(observation).all() or not np.isfinite(reward):
            raise NonFiniteError("add() was given an observation or reward with NaN or infinity")
        for name, column in columns.items():
            if not np.isfinite(column).all():
                raise NonFiniteError(f"add() was given {name} with NaN or infinity")
        no = np.zeros((1, 1), np.bool_)
        with self.locked():
            turn = Transitions(
                observations=observation,
                actions=chosen,
                rewards=np.full((1, 1), reward, np.float32),
                terminated=np.full((1, 1), bool(done)),
                truncated=no,
                valid=~no,
                first=np.full((1, 1), self._first),
                present=np.ones(1, np.bool_),
                version=0,
                extras=columns,
            )
            self.ring.add(turn)
            self._first = bool(done)

    def add_turn(self, turn: Transitions) -> None:
        """Keep one turn of all worlds; every array has this one agent as its first axis."""
        with self.locked():
            self.ring.add(turn)

    def close_turn(self, observations: Array, *, ended: bool) -> None:
        """Keep what the last turn led to, (1, W, *obs); with `ended`, the episodes stop here."""
        with self.locked():
            self.ring.close(observations, ended=ended)

    def add_empty(self) -> None:
        """Say that the next observation starts a new episode.

        If the last one was not done, nobody will know what it led to, and it is forgotten with the next `add`.
        """
        with self.locked():
            self._first = True

    def clear(self) -> None:
        """Forget everything."""
        with self.locked():
            fresh = Ring(self.shape, agents=1)
            self.ring.adopt(0, fresh)
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
        """The row that the next turn will be written to."""
        return int(self.ring.pos[0] % self.ring.valid.shape[1])

    def sample(self, batch_size: int) -> tuple[Array, Array, Array, Array, Array, Array]:
        """states, actions, rewards, next_states, dones and valid, (batch, …) each, uniform over what is kept."""
        if batch_size < 1:
            raise ConfigError(f"sample(batch_size={batch_size}): give a whole number of at least 1")
        with self.locked():
            if not self.ring.sizes()[0]:
                raise ShapeError(
                    f"sample(batch_size={batch_size}) of a buffer that keeps no whole transition yet: add some first"
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
        """(n_frames - 1, *obs): the observations before the one to come, zeros before the episode's start."""
        with self.locked():
            kept = np.zeros((self.shape.frames - 1, self.ring.observations.shape[3]), self.ring.observations.dtype)
            known = 0 if self._first else int(self.ring.ages[0, 0])
            for back in range(1, min(known, self.shape.frames - 1) + 1):
                row = (int(self.ring.pos[0]) - back) % self.ring.valid.shape[1]
                kept[-back] = self.ring.observations[0, row, 0]
        return kept.reshape(-1, *self.shape.observation)

    def get_buffer_snapshot(self) -> MappingProxyType[str, Any]:
        """A frozen copy of what is kept, oldest first: states, actions, rewards, dones, extra columns, size, idx."""
        with self.locked():
            live = self.ring.live(0)
            idx, kept = self.idx, int(self.ring.pos[0] - self.ring.oldest[0])
        keep = live["valid"]
        keep[: len(keep) - kept] = False  # rows that only serve as earlier frames
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
        """Return all that is kept and how many samples were drawn, for digest and checkpoint."""
        with self.locked():
            return {"rows": self.ring.live(0), "draws": self._draws, "first": self._first}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace what is kept by what `state` returned."""
        with self.locked():
            self.ring.load_live(0, state["rows"])
            self._draws, self._first = int(state["draws"]), bool(state["first"])


def _one(what: str, value: Any, shape: tuple[int, ...], dtype: str) -> Array:
    """A single value as a (1, 1, *shape) array."""
    array = np.asarray(detached(value), dtype)
    if array.size != math.prod(shape):
        raise ShapeError(f"add() was given {what} of {array.size} numbers, the buffer keeps {shape}")
    return array.reshape(1, 1, *shape)


class ThreadSafeBuffer(Buffer):
    """`Buffer` behind its own lock, nothing more: every call sees whole transitions only."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._lock = threading.RLock()
        super().__init__(*args, **kwargs)

    @classmethod
    def taking_over(cls, buffer: Buffer) -> ThreadSafeBuffer:
        """What another buffer keeps, behind a lock; that one must not be used any more."""
        safe = cls.of(buffer.shape, seed=buffer.seed, agent=buffer.agent)
        safe.ring, safe._draws, safe._first = buffer.ring, buffer._draws, buffer._first
        return safe

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock for as long as the context lasts."""
        with self._lock:
            yield
