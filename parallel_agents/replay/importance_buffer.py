"""`ImportanceSamplingReplayBuffer`: one agent's transitions with event types, drawn by class or uniformly.

    add ──► TransitionRing, class index ──► sampler draws positions ──► batch, importance weights, indices
                        ▲                                                                       │
                        └──────────────────────── update_priorities ◄───────────────────────────┘

An index is the serial of a row: the number of rows added before it. It never means another row. Once its row is
overwritten, asking for it raises, and a new priority for it is dropped. Metadata are stored as JSON text, and only for
the newest `metadata_rows` rows that have any: a million rows cannot fill the memory with dictionaries.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallel_agents.core.errors import (
    ActionError,
    ConfigError,
    ContractError,
    CorruptCheckpoint,
    NonFiniteError,
    ShapeError,
)
from parallel_agents.core.files import parse_json
from parallel_agents.core.serialization import restored
from parallel_agents.core.types import Array, Floats, Ints
from parallel_agents.replay.buffer import Lockable, Locked, detached
from parallel_agents.replay.class_index import sample_uniforms, uniform_positions
from parallel_agents.replay.importance_sampler import ImportanceSampler
from parallel_agents.replay.priorities import whole_numbers, within
from parallel_agents.replay.ring import TransitionRing, all_finite

_LARGEST = float(np.finfo(np.float32).max)
Sample = tuple[dict[str, Array], Floats, Ints]


class ImportanceSamplingReplayBuffer(Lockable):
    """A ring buffer of transitions with an event type and a value each: new ones overwrite the oldest.

    >>> sampler = ImportanceSampler(crisis_parent_weight=5.0, seed=0)
    >>> memory = ImportanceSamplingReplayBuffer(capacity=100, obs_shape=(2,), importance_sampler=sampler)
    >>> for t in range(20):
    ...     kind = "crisis_parent" if t % 10 == 0 else "regular_parent"
    ...     serial = memory.add([t, 0], 1, 0.5, [t + 1, 0], done=False, event_type=kind, value=1.0)
    >>> batch, weights, indices = memory.sample_importance_weighted(8)
    >>> batch["states"].shape, bool((batch["states"][:, 0] == indices).all())
    ((8, 2), True)

    action_dtype: how actions are stored; whole numbers are returned as int64, others in this type.
    columns: names and types of further numbers of a row.
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
        columns: Sequence[tuple[str, str]] = (),
    ) -> None:
        if capacity < 1 or metadata_rows < 0:
            raise ConfigError(
                f"a buffer of capacity {capacity} with metadata of {metadata_rows} rows: give at least 1 and 0"
            )
        self.capacity = capacity
        self.obs_shape = (obs_shape,) if isinstance(obs_shape, int) else tuple(obs_shape)
        self.sampler = ImportanceSampler() if importance_sampler is None else importance_sampler
        self.index = self.sampler.make_index(capacity)
        self._action_shape, self._stored_action_dtype, self._extra = action_shape, action_dtype, tuple(columns)
        self._ring = self._empty_ring()
        self._action_dtype = np.dtype(np.int64) if np.dtype(action_dtype).kind in "iu" else np.dtype(action_dtype)
        self._metadata: dict[int, str] = {}
        self._metadata_rows = metadata_rows
        self._draws = 0
        self.sampler.attach(self)

    def _empty_ring(self) -> TransitionRing:
        """Return a ring of the shape of this buffer."""
        columns = [
            ("rewards", "f4"),
            ("values", "f4"),
            ("actions", self._stored_action_dtype, self._action_shape),
            ("dones", "?"),
            *self._extra,
        ]
        return TransitionRing(self.capacity, math.prod(self.obs_shape), columns)

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
        **extra: Any,
    ) -> int:
        """Store one transition, with the numbers of further columns, and return its index."""
        columns = {
            "actions": _one_action(action, self._ring.columns["actions"]),
            "rewards": _one_number("reward", reward),
            "values": _one_number("value", value),
            "dones": bool(done),
            **extra,
        }
        states = _one_state("state", state, self.obs_shape)
        next_states = _one_state("next_state", next_state, self.obs_shape)
        which = self.sampler.class_id(event_type)
        texts = _json_texts([metadata], 1) if metadata else {}
        with self.locked():
            serial = self._ring.added
            self._ring.add(states, next_states, columns)
            self.index.put(serial % self.capacity, which)
            self._store_metadata(serial, texts)
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
        **extra: ArrayLike,
    ) -> Ints:
        """Store n transitions in this order and return their indices (n,). A single event type is that of all.

        extra: further columns (n,), by name.
        """
        rows = _state_rows("states", states, self.obs_shape)
        columns = {
            "next_states": _state_rows("next_states", next_states, self.obs_shape),
            "actions": _fitting_actions(actions, self._ring.columns["actions"]),
            "rewards": _finite("rewards", rewards),
            "values": _finite("values", values),
            "dones": np.asarray(dones, np.bool_),
            **{name: np.asarray(extra[name], kind) for name, kind in self._extra},
        }
        classes, count = self.sampler.class_ids(event_types), len(rows)
        if isinstance(event_types, str):
            classes = np.full(count, classes[0])
        for name, column in {**columns, "event_types": classes}.items():
            shape = column.shape if name in ("rewards", "values", "dones") else column.shape[:1]
            if shape != (count,):
                raise ShapeError(f"add was given {count} states and {name} of shape {shape}: give one for each")
        texts = _json_texts(metadata, count)
        with self.locked():
            first = self._ring.added
            self._ring.add(rows, columns["next_states"], columns)
            serials = np.arange(first, self._ring.added)
            self.index.assign(serials % self.capacity, classes)
            self._store_metadata(first, texts)
            return serials

    def _store_metadata(self, first: int, texts: Mapping[int, str]) -> None:
        """Store the metadata of new rows and drop those of old ones; serials only rise, so the oldest come first."""
        self._metadata.update({first + row: text for row, text in texts.items()})
        while self._metadata:
            oldest = next(iter(self._metadata))
            if oldest >= self._ring.oldest and len(self._metadata) <= self._metadata_rows:
                return
            del self._metadata[oldest]

    def update_priorities(self, indices: ArrayLike, td_errors: ArrayLike) -> int:
        """Give rows (n,) the priorities of their TD errors (n,), and return how many rows got one.

        Rows that were overwritten meanwhile get none.
        """
        serials, errors = np.atleast_1d(np.asarray(indices)), np.atleast_1d(np.asarray(td_errors, np.float64))
        if serials.shape != errors.shape:
            raise ShapeError(f"{serials.shape} indices and {errors.shape} TD errors: give one for each")
        with self.locked():
            serials = self._known(serials)
            if not within(serials, self._ring.oldest, self._ring.added):
                live = serials >= self._ring.oldest
                serials, errors = serials[live], errors[live]
            self.sampler.update_priorities(serials % self.capacity, errors)
        return len(serials)

    # -- reading ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._ring)

    def sample_importance_weighted(self, batch_size: int, temperature: float | None = None) -> Sample:
        """Return B transitions drawn by class, their importance weights (B,) and their indices (B,).

        With beta = 1, mean(weights * f) estimates the buffer's mean of f, up to the one constant of max-normalisation.
        A learner multiplies each sample's loss by its weight once, before the mean.
        """
        with self.locked():
            drawn = self.sampler.draw(batch_size, temperature)
            batch, indices = self._fetch(drawn.positions)
            return batch, drawn.weights, indices

    def sample_uniform(self, batch_size: int) -> Sample:
        """Return B transitions drawn uniformly, weights (B,) of exactly 1 and their indices (B,)."""
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
        """Return the rows at positions (B,), as the sampler names them; `get` takes indices."""
        return self._fetch(positions)[0]

    def _fetch(self, positions: Ints) -> tuple[dict[str, Array], Ints]:
        """Return the rows at positions (B,) and their indices (B,)."""
        states, next_states, records, indices = self._ring.gather(positions)
        shape = (len(positions), *self.obs_shape)
        batch = {
            "states": states.reshape(shape),
            "actions": records["actions"].astype(self._action_dtype),
            "rewards": records["rewards"].copy(),
            "next_states": next_states.reshape(shape),
            "dones": records["dones"].copy(),
            **{name: records[name].copy() for name, _ in self._extra},
        }
        return batch, indices

    def get(self, indices: ArrayLike) -> dict[str, Array]:
        """Return the rows of indices (B,), as in a batch; raise if one of them was overwritten."""
        with self.locked():
            return self.rows(self._live(indices))

    def event_types(self, indices: ArrayLike) -> list[str]:
        """Return the event types of indices (B,)."""
        with self.locked():
            return [self.sampler.event_types[k] for k in self.index.classes_at(self._live(indices))]

    def values(self, indices: ArrayLike) -> NDArray[np.float32]:
        """Return the values (B,) of indices (B,)."""
        with self.locked():
            return self._ring.columns["values"][self._live(indices)]

    def metadata(self, indices: ArrayLike) -> list[dict[str, Any]]:
        """Return the metadata of indices (B,); empty if none was given, or if it was dropped for newer ones."""
        with self.locked():
            self._live(indices)
            return [json.loads(self._metadata.get(int(serial), "{}")) for serial in np.atleast_1d(np.asarray(indices))]

    @property
    def oldest(self) -> int:
        """The smallest index that is still stored."""
        return self._ring.oldest

    @property
    def nbytes(self) -> int:
        """Bytes of the rows and of the class index, without priorities and metadata."""
        return self._ring.nbytes + self.index.nbytes

    def statistics(self) -> dict[str, float]:
        """Return the sampler's statistics, and rows, share of rows and share of value of every event type."""
        with self.locked():
            result = self.sampler.statistics()
            size = len(self)
            classes = self.index.classes_at(np.arange(size))
            values = self._ring.columns["values"][:size]
            worth = np.bincount(classes, values, minlength=len(self.sampler.event_types))
            for name, rows, value in zip(self.sampler.event_types, self.index.counts, worth, strict=True):
                result[f"{name}_rows"] = int(rows)
                result[f"{name}_share"] = float(rows / max(size, 1))
                result[f"{name}_value_share"] = float(value / worth.sum()) if worth.sum() else 0.0
            return result | {"rows": size, "overwritten": self._ring.oldest, "bytes": self.nbytes}

    def get_buffer_snapshot(self) -> MappingProxyType[str, Any]:
        """Return a read-only copy of all rows, oldest first: as a batch, with class ids, values and indices."""
        with self.locked():
            serials = np.arange(self._ring.oldest, self._ring.added)
            positions = serials % self.capacity
            copy = self.rows(positions)
            copy |= {
                "classes": self.index.classes_at(positions),
                "values": self._ring.columns["values"][positions],
                "indices": serials,
            }
        for column in copy.values():
            column.setflags(write=False)
        return MappingProxyType({**copy, "event_types": self.sampler.event_types, "size": len(serials)})

    # -- storing ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Array]:
        """Return all contents as arrays; the sampler has a state of its own."""
        with self.locked():
            text = json.dumps({str(serial): entry for serial, entry in self._metadata.items()})
            return {
                "draws": np.array(self._draws, np.int64),
                "metadata": np.frombuffer(text.encode(), np.uint8),
                **{self._stored_name(name): array for name, array in self._ring.state().items()},
                **{f"index.{name}": array for name, array in self.index.state().items()},
            }

    @staticmethod
    def _stored_name(name: str) -> str:
        """Return the name under which an array of the ring is stored."""
        return f"ring.{name}" if name in TransitionRing.STORED else name

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the contents by what `state` of a buffer of the same shape returned; raise if it does not fit."""
        ring, index = self._empty_ring(), self.sampler.make_index(self.capacity)
        stored = {name: self._stored_name(name) for name in (*TransitionRing.STORED, *ring.columns)}
        names = {"draws", "metadata", *stored.values(), *(f"index.{name}" for name in index.state())}
        if set(state) != names:
            raise CorruptCheckpoint(f"the stored buffer had other columns: {sorted(set(state) ^ names)} differ")
        ring.load_state({name: state[key] for name, key in stored.items()})
        for name in ("rewards", "values", "actions"):
            restored(name, state[name], state[name])
        index.load_state({name.removeprefix("index."): a for name, a in state.items() if name.startswith("index.")})
        if len(index) != len(ring) or (state["index.order"] >= len(ring)).any():
            raise CorruptCheckpoint(f"the stored class index has {len(index)} rows, not the {len(ring)} stored ones")
        metadata = _stored_metadata(state["metadata"], ring)
        draws = int(restored("draws", state["draws"], np.array(0), least=0))
        with self.locked():
            self._ring, self.index, self._metadata, self._draws = ring, index, metadata, draws

    # -- checks ----------------------------------------------------------------------------------------------

    def _known(self, indices: ArrayLike) -> Ints:
        """Return indices (n,); raise if one of them was never given out."""
        serials = whole_numbers("indices", indices)
        if not within(serials, 0, self._ring.added):
            raise ContractError(
                f"an index of {serials.min()} .. {serials.max()} was never given out: "
                f"{self._ring.added} rows were added so far"
            )
        return serials

    def _live(self, indices: ArrayLike) -> Ints:
        """Return the positions (n,) of indices (n,); raise if one of them was overwritten."""
        serials = self._known(indices)
        if serials.size and serials.min() < self._ring.oldest:
            raise ContractError(
                f"the row of index {serials.min()} was overwritten: kept are {self._ring.oldest} .. "
                f"{self._ring.added - 1}; take a larger capacity or ask earlier"
            )
        return np.asarray(serials % self.capacity)


class ThreadSafeImportanceSamplingReplayBuffer(Locked, ImportanceSamplingReplayBuffer):
    """`ImportanceSamplingReplayBuffer` with a lock of its own, nothing more."""


# -- checks: everything is checked, and converted to one type, before anything is written ---------------------------


def _finite(name: str, values: ArrayLike) -> NDArray[np.float32]:
    """Return numbers of any shape as float32."""
    with np.errstate(over="ignore"):  # a number that is too large becomes infinity, which is refused here
        array = np.asarray(detached(values), np.float32)
    if not np.isfinite(array).all():
        raise NonFiniteError(f"{name} hold NaN, infinity or a number beyond float32: give finite numbers")
    return array


def _state_rows(name: str, states: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return states (n, *shape) as rows (n, size)."""
    array = _finite(name, states)
    if array.shape[1:] != shape:
        raise ShapeError(f"{name} have shape {array.shape[1:]} each: this buffer keeps {shape}")
    return np.ascontiguousarray(array).reshape(len(array), -1)


def _one_state(name: str, state: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return one state (*shape) as a row (1, size)."""
    if type(state) is np.ndarray and state.dtype == np.float32 and state.shape == shape:
        row = np.ascontiguousarray(state).reshape(1, -1)
        if not all_finite(row):
            raise NonFiniteError(f"{name} holds NaN or infinity: give finite numbers")
        return row
    return _state_rows(name, np.asarray(detached(state))[None], shape)


def _fitting_actions(values: ArrayLike, column: Array) -> Array:
    """Return actions (n, ...) that the column (capacity, ...) can store without changing them."""
    actions = np.asarray(detached(values))
    if actions.shape[1:] != column.shape[1:]:
        raise ShapeError(f"actions have shape {actions.shape[1:]} each: this buffer keeps {column.shape[1:]}")
    if column.dtype.kind not in "iu":
        return _finite("actions", actions)
    limits = np.iinfo(column.dtype)
    if actions.dtype.kind not in "iub" or (
        actions.size and not limits.min <= actions.min() <= actions.max() <= limits.max
    ):
        raise ActionError(
            f"actions of type {actions.dtype} cannot be kept as {column.dtype}, whole numbers from {limits.min} to "
            f"{limits.max}: give the buffer another action_dtype"
        )
    return actions


def _one_action(value: ArrayLike, column: Array) -> Any:
    """Return one action that the column (capacity, ...) can store without changing it."""
    return _fitting_actions(np.asarray(detached(value))[None], column)[0]


def _one_number(name: str, value: Any) -> float:
    """Return one number that float32 can hold."""
    number = float(detached(value))
    if not -_LARGEST <= number <= _LARGEST:
        raise NonFiniteError(f"{name} is {number}: give a finite number that float32 can hold")
    return number


def _stored_metadata(stored: Array, ring: TransitionRing) -> dict[int, str]:
    """Return the metadata of a stored buffer, JSON by serial; raise if they are not those of rows of the ring."""
    try:
        texts = {int(serial): text for serial, text in parse_json(stored.tobytes()).items()}
        for serial, text in texts.items():
            if not (ring.oldest <= serial < ring.added and isinstance(parse_json(text), dict)):
                raise ValueError(f"row {serial} has {text!r}")
    except (TypeError, ValueError, AttributeError) as error:
        raise CorruptCheckpoint(f"stored metadata are not readable: {error}") from error
    return texts


def _json_texts(metadata: Sequence[Mapping[str, Any] | None] | None, count: int) -> dict[int, str]:
    """Return the metadata of `count` rows as JSON, by row; rows without metadata are left out."""
    if metadata is None:
        return {}
    if len(metadata) != count:
        raise ShapeError(f"{len(metadata)} metadata for {count} transitions: give one for each, or None")
    try:
        return {row: json.dumps(dict(entry), allow_nan=False) for row, entry in enumerate(metadata) if entry}
    except (TypeError, ValueError) as error:
        raise ContractError(f"metadata cannot be kept as JSON: {error}") from error
