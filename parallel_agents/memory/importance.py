"""One agent's buffer with event types: rows are drawn by class, with corrections, or uniformly.

    add ──► chain of states, columns ──► index by class ──► sampler draws ──► batch, weights, indices
                                              ▲                                          │
                                              └──────────── update_priorities ◄──────────┘

An index is an insertion serial: it names one row for ever. Once that row is overwritten, asking for it is refused, and
a new priority for it is dropped; it never means another row. Metadata are kept as JSON text, beside the columns and
only for rows that have any: those of the newest `metadata_rows` such rows, so that a million rows cannot fill the
memory with dictionaries. What must be known of every row belongs into `value` or into the state.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallel_agents.compiled import njit
from parallel_agents.errors import CheckpointError, ConfigError, ContractError, ShapeError
from parallel_agents.memory.chain import Chain
from parallel_agents.memory.incoming import (
    finite,
    fitting_actions,
    json_texts,
    observations,
    one_action,
    one_number,
    one_observation,
)
from parallel_agents.sampling import ImportanceSampler, sample_uniforms, uniform_positions
from parallel_agents.sampling.arrays import within
from parallel_agents.types import Array

__all__ = ["ImportanceSamplingReplayBuffer", "ThreadSafeImportanceSamplingReplayBuffer"]

Ints = NDArray[np.int64]
Sampled = tuple[dict[str, Array], NDArray[np.float64], Ints]


class ImportanceSamplingReplayBuffer:
    """A ring buffer of transitions with an event type and a value each; the oldest give way to the newest.

    >>> sampler = ImportanceSampler(crisis_parent_weight=5.0, seed=0)
    >>> memory = ImportanceSamplingReplayBuffer(capacity=100, obs_shape=(2,), importance_sampler=sampler)
    >>> for t in range(20):
    ...     kind = "crisis_parent" if t % 10 == 0 else "regular_parent"
    ...     serial = memory.add([t, 0], 1, 0.5, [t + 1, 0], done=False, event_type=kind, value=1.0)
    >>> batch, weights, indices = memory.sample_importance_weighted(8)
    >>> batch["states"].shape, bool((batch["states"][:, 0] == indices).all())
    ((8, 2), True)

    action_dtype: how actions are kept; whole numbers come back as int64, others as they are kept.
    """

    def __init__(
        self,
        capacity: int,
        obs_shape: int | tuple[int, ...],
        importance_sampler: ImportanceSampler | None = None,
        *,
        action_shape: tuple[int, ...] = (),
        action_dtype: str = "int16",
        metadata_rows: int = 10_000,
    ) -> None:
        if capacity < 1 or metadata_rows < 0:
            raise ConfigError(
                f"a buffer of capacity {capacity} with metadata of {metadata_rows} rows: give at least 1 and 0"
            )
        self.capacity = capacity
        self.obs_shape = (obs_shape,) if isinstance(obs_shape, int) else tuple(obs_shape)
        self.sampler = ImportanceSampler() if importance_sampler is None else importance_sampler
        self.index = self.sampler.make_index(capacity)
        self._chain = Chain(capacity, math.prod(self.obs_shape))
        # Side by side in memory: a row that is drawn is one miss of the cache, not four.
        beside = np.zeros(
            capacity,
            [("rewards", "f4"), ("values", "f4"), ("actions", action_dtype, action_shape), ("dones", "?")],
        )
        self._columns: dict[str, Array] = {name: beside[name] for name in ("actions", "rewards", "values", "dones")}
        self._flat_actions = self._columns["actions"].reshape(capacity, -1)
        self._action_dtype = np.dtype(np.int64) if np.dtype(action_dtype).kind in "iu" else np.dtype(action_dtype)
        self._metadata: dict[int, str] = {}
        self._metadata_rows = metadata_rows
        self._draws = 0
        self.sampler.attach(self)

    def locked(self) -> Any:
        """A context in which nobody else changes the buffer; here there is nobody else."""
        return nullcontext()

    # -- writing ---------------------------------------------------------------------------------------------

    def add(
        self,
        state: ArrayLike,
        action: ArrayLike,
        reward: float,
        next_state: ArrayLike,
        done: bool,
        event_type: str,
        value: float,
        metadata: Mapping[str, Any] | None = None,
    ) -> int:
        """Keep one transition; its index."""
        columns = {
            "actions": one_action(action, self._columns["actions"]),
            "rewards": one_number("reward", reward),
            "values": one_number("value", value),
            "dones": bool(done),
        }
        before = one_observation("state", state, self.obs_shape)
        after = one_observation("next_state", next_state, self.obs_shape)
        which = self.sampler.class_id(event_type)
        texts = json_texts([metadata], 1) if metadata else {}
        with self.locked():
            serial = self._chain.added
            self._chain.add(before, after)
            position = serial % self.capacity
            for name, number in columns.items():
                self._columns[name][position] = number
            self.index.put(position, which)
            self._remember(serial, texts)
            return serial

    def add_many(
        self,
        states: ArrayLike,
        actions: ArrayLike,
        rewards: ArrayLike,
        next_states: ArrayLike,
        dones: ArrayLike,
        event_types: str | Sequence[str],
        values: ArrayLike,
        metadata: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> Ints:
        """Keep n transitions in this order; their indices (n,). A single event type stands for all."""
        kept = observations("states", states, self.obs_shape)
        columns = {
            "next_states": observations("next_states", next_states, self.obs_shape),
            "actions": fitting_actions(actions, self._columns["actions"]),
            "rewards": finite("rewards", rewards),
            "values": finite("values", values),
            "dones": np.asarray(dones, np.bool_),
        }
        classes, count = self.sampler.class_ids(event_types), len(kept)
        if isinstance(event_types, str):
            classes = np.full(count, classes[0])
        for name, column in {**columns, "event_types": classes}.items():
            rows = column.shape if name in ("rewards", "values", "dones") else column.shape[:1]
            if rows != (count,):
                raise ShapeError(f"add was given {count} states and {name} of shape {rows}: give one for each")
        texts = json_texts(metadata, count)
        with self.locked():
            return self._write(kept, columns, classes, texts)

    def _write(
        self, states: NDArray[np.float32], columns: Mapping[str, Array], classes: Ints, texts: Mapping[int, str]
    ) -> Ints:
        first = self._chain.added
        self._chain.add(states, columns["next_states"])
        serials = np.arange(first, self._chain.added)
        positions = serials % self.capacity
        kept = slice(max(0, len(serials) - self.capacity), None)
        for name, column in self._columns.items():
            column[positions[kept]] = columns[name][kept]
        self.index.assign(positions, classes)
        self._remember(first, texts)
        return serials

    def _remember(self, first: int, texts: Mapping[int, str]) -> None:
        """Metadata of new rows come, those of old ones go: serials only rise, so the oldest come first."""
        self._metadata.update({first + place: text for place, text in texts.items()})
        while self._metadata:
            eldest = next(iter(self._metadata))
            if eldest >= self._chain.oldest and len(self._metadata) <= self._metadata_rows:
                return
            del self._metadata[eldest]

    def update_priorities(self, indices: ArrayLike, td_errors: ArrayLike) -> int:
        """Give rows (n,) the priorities of their TD errors (n,); rows overwritten meanwhile are dropped.

        The number of rows that got theirs.
        """
        serials, errors = np.atleast_1d(np.asarray(indices)), np.atleast_1d(np.asarray(td_errors, np.float64))
        if serials.shape != errors.shape:
            raise ShapeError(f"{serials.shape} indices and {errors.shape} TD errors: give one for each")
        with self.locked():
            serials = self._known(serials)
            if not within(serials, self._chain.oldest, self._chain.added):
                live = serials >= self._chain.oldest
                serials, errors = serials[live], errors[live]
            self.sampler.update_priorities(serials % self.capacity, errors)
        return len(serials)

    # -- reading ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._chain)

    def sample_importance_weighted(self, batch_size: int, temperature: float | None = None) -> Sampled:
        """A batch by class: arrays of B rows, their corrections (B,) and their indices (B,).

        With beta = 1, mean(weights * f) estimates the buffer's mean of f, up to the one constant of
        max-normalisation; the learner multiplies each sample's loss by its weight once, before the mean.
        """
        with self.locked():
            drawn = self.sampler.draw(batch_size, temperature)
            batch, indices = self._fetch(drawn.positions)
            return batch, drawn.weights, indices

    def sample_uniform(self, batch_size: int) -> Sampled:
        """As `sample_importance_weighted`, with equal chances for all rows and weights of exactly 1."""
        with self.locked():
            if not 1 <= batch_size <= len(self):
                raise ContractError(
                    f"a batch of {batch_size} was asked of a buffer of {len(self)} rows: give 1 .. {len(self)}"
                )
            draws = sample_uniforms(self.sampler.seed, self.sampler.agent, self._draws, batch_size)
            self._draws += 1
            positions = uniform_positions(draws, len(self))
            batch, indices = self._fetch(positions)
            return batch, np.ones(batch_size), indices

    def rows(self, positions: Ints) -> dict[str, Array]:
        """The rows at positions (B,) as the sampler names them; others name rows by index, see `get`."""
        return self._fetch(positions)[0]

    def _fetch(self, positions: Ints) -> tuple[dict[str, Array], Ints]:
        """The rows at positions (B,), and their indices (B,)."""
        states, next_states = self._chain.pairs(positions)
        count, kept = len(positions), self._columns
        actions = np.empty((count, *kept["actions"].shape[1:]), self._action_dtype)
        rewards, dones, indices = np.empty(count, np.float32), np.empty(count, np.bool_), np.empty(count, np.int64)
        _gather(
            self._flat_actions, kept["rewards"], kept["dones"], self._chain.added, positions,
            actions.reshape(count, -1), rewards, dones, indices,
        )  # fmt: skip
        shape = (count, *self.obs_shape)
        batch = {
            "states": states.reshape(shape),
            "actions": actions,
            "rewards": rewards,
            "next_states": next_states.reshape(shape),
            "dones": dones,
        }
        return batch, indices

    def get(self, indices: ArrayLike) -> dict[str, Array]:
        """The rows of indices (B,), as in a batch; refused if one of them was overwritten."""
        with self.locked():
            return self.rows(self._live(indices))

    def event_types(self, indices: ArrayLike) -> list[str]:
        """The event types of indices (B,)."""
        with self.locked():
            return [self.sampler.event_types[k] for k in self.index.classes_at(self._live(indices))]

    def values(self, indices: ArrayLike) -> NDArray[np.float32]:
        """The values (B,) of indices (B,)."""
        with self.locked():
            return self._columns["values"][self._live(indices)]

    def metadata(self, indices: ArrayLike) -> list[dict[str, Any]]:
        """The metadata of indices (B,); empty where none was given, or where so many came since that it was dropped."""
        with self.locked():
            self._live(indices)
            return [json.loads(self._metadata.get(int(serial), "{}")) for serial in np.atleast_1d(np.asarray(indices))]

    @property
    def oldest(self) -> int:
        """The smallest index that is still kept."""
        return self._chain.oldest

    @property
    def nbytes(self) -> int:
        """Memory of the rows and of the class index, without priorities and metadata."""
        return self._chain.nbytes + sum(column.nbytes for column in self._columns.values()) + 9 * self.capacity

    def statistics(self) -> dict[str, float]:
        """The sampler's statistics, and rows, share of rows and share of value of every event type."""
        with self.locked():
            found = self.sampler.statistics()
            size = len(self)
            classes = self.index.classes_at(np.arange(size))
            worth = np.bincount(classes, self._columns["values"][:size], minlength=len(self.sampler.event_types))
            for name, rows, value in zip(self.sampler.event_types, self.index.counts, worth, strict=True):
                found[f"{name}_rows"] = int(rows)
                found[f"{name}_share"] = float(rows / max(size, 1))
                found[f"{name}_value_share"] = float(value / worth.sum()) if worth.sum() else 0.0
            return found | {"rows": size, "overwritten": self._chain.oldest, "bytes": self.nbytes}

    def get_buffer_snapshot(self) -> MappingProxyType[str, Any]:
        """A frozen copy of what is kept, oldest first: a batch of all rows, with class ids, values and indices."""
        with self.locked():
            serials = np.arange(self._chain.oldest, self._chain.added)
            positions = serials % self.capacity
            copy = self.rows(positions)
            copy |= {
                "classes": self.index.classes_at(positions),
                "values": self._columns["values"][positions],
                "indices": serials,
            }
        for column in copy.values():
            column.setflags(write=False)
        return MappingProxyType({**copy, "event_types": self.sampler.event_types, "size": len(serials)})

    # -- storing ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Array]:
        """Everything that is kept, as arrays; the sampler has a state of its own."""
        with self.locked():
            size, text = len(self), json.dumps({str(serial): t for serial, t in self._metadata.items()})
            state = {
                "draws": np.array(self._draws, np.int64),
                **{name: column[:size].copy() for name, column in self._columns.items()},
                "metadata": np.frombuffer(text.encode(), np.uint8),
            }
            state |= {f"chain.{name}": array for name, array in self._chain.state().items()}
            return state | {f"index.{name}": array for name, array in self.index.state().items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over a stored state of a buffer of the same shape, checked first."""
        names = {"draws", "metadata", *self._columns}
        names |= {f"chain.{name}" for name in Chain.STORED} | {f"index.{name}" for name in self.index.state()}
        if set(state) != names:
            raise CheckpointError(f"the stored buffer had other columns: {sorted(set(state) ^ names)} differ")
        chain, index = Chain(self.capacity, math.prod(self.obs_shape)), self.sampler.make_index(self.capacity)
        chain.load_state({name.removeprefix("chain."): a for name, a in state.items() if name.startswith("chain.")})
        index.load_state({name.removeprefix("index."): a for name, a in state.items() if name.startswith("index.")})
        for name, column in self._columns.items():
            if np.shape(state[name]) != (len(chain), *column.shape[1:]) or len(index) != len(chain):
                raise CheckpointError(
                    f"stored {name} have shape {np.shape(state[name])}, the class index {len(index)} rows: "
                    f"{len(chain)} rows are stored"
                )
        try:
            texts = json.loads(bytes(np.asarray(state["metadata"], np.uint8)))
            metadata = {int(serial): str(text) for serial, text in texts.items()}
        except (ValueError, AttributeError) as error:
            raise CheckpointError(f"stored metadata are not readable: {error}") from error
        with self.locked():
            self._chain, self.index, self._metadata = chain, index, metadata
            self._draws = int(state["draws"])
            for name, column in self._columns.items():
                column[: len(chain)] = state[name]

    # -- checks ----------------------------------------------------------------------------------------------

    def _known(self, indices: ArrayLike) -> Ints:
        serials = np.atleast_1d(np.asarray(indices))
        if serials.ndim != 1 or (serials.size and serials.dtype.kind not in "iu"):
            raise ShapeError(
                f"indices of shape {serials.shape} and type {serials.dtype}: give whole numbers, shape (n,)"
            )
        whole = np.ascontiguousarray(serials, np.int64)
        if not within(whole, 0, self._chain.added):
            raise ContractError(
                f"an index of {serials.min()} .. {serials.max()} was never given out: "
                f"{self._chain.added} rows were added so far"
            )
        return whole

    def _live(self, indices: ArrayLike) -> Ints:
        """Positions (n,) of indices (n,) that are still kept."""
        serials = self._known(indices)
        if serials.size and serials.min() < self._chain.oldest:
            raise ContractError(
                f"the row of index {serials.min()} was overwritten: kept are {self._chain.oldest} .. "
                f"{self._chain.added - 1}; take a larger capacity or ask earlier"
            )
        return np.asarray(serials % self.capacity)


class ThreadSafeImportanceSamplingReplayBuffer(ImportanceSamplingReplayBuffer):
    """`ImportanceSamplingReplayBuffer` behind its own lock, nothing more: every call sees whole transitions only."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._lock = threading.RLock()
        super().__init__(*args, **kwargs)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock for as long as the context lasts."""
        with self._lock:
            yield


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _gather(
    actions: Array,
    rewards: NDArray[np.float32],
    dones: NDArray[np.bool_],
    added: int,
    positions: Ints,
    out_actions: Array,
    out_rewards: NDArray[np.float32],
    out_dones: NDArray[np.bool_],
    indices: Ints,
) -> None:
    """Copy the columns of positions (B,), and name their serials: of this lap of the ring or of the last."""
    capacity = len(rewards)
    lap, place = added // capacity, added % capacity
    for i in range(len(positions)):
        row = positions[i]
        for a in range(actions.shape[1]):
            out_actions[i, a] = actions[row, a]
        out_rewards[i] = rewards[row]
        out_dones[i] = dones[row]
        indices[i] = row + capacity * (lap if row < place else lap - 1)
