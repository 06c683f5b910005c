"""Ring buffers that store each state once: the next state of a transition is the state of the row after it.

`Ring` stores the turns of N agents in W worlds and serves the agents of a run. Each agent owns a part of every array;
the agents of a stack share the arrays, so that one call writes a turn of all of them. Where an episode is cut off, one
more row stores the observation that came after it. Beside the data of a transition, a row has:

    follow    how many rows later the next observation stands; more than 1 if the agent could not act for a while
    age       how many rows of the same episode came before
    starts    the stored transitions in order (row * W + world), so that a draw takes constant time

`TransitionRing` stores one stream of transitions in as few bytes as possible and serves buffers of a million rows
(see docs/adr/0014). Next states that are not the next row's state stand in a queue of their own.

Shapes in kernels: N agents, T rows (turns), W worlds, D numbers of an observation, A numbers of an action, K samples.
Rows and transitions are counted from the first one ever stored: such a serial modulo the length is a place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from parallel_agents.core.by_reference import by_reference
from parallel_agents.core.compiled import compiled_once, njit
from parallel_agents.core.errors import ConfigError, CorruptCheckpoint, ShapeError
from parallel_agents.core.serialization import require_like, restored
from parallel_agents.core.types import Array, Bools, Ints, Transitions
from parallel_agents.kernels.intrinsics import copy_numbers, prefetch

PRIORITY = "priority"
"""Name of the extra column that changes after its row was written."""


AHEAD = 16
"""How many samples ahead the gathering kernel asks for what it will read."""
BUCKETS = 2048
"""Parts of a buffer by which the gathering kernel orders its samples, at most: their counts fit the nearest cache."""


@dataclass(frozen=True)
class RingShape:
    """Sizes and types that the rings of a stack have in common."""

    capacity: int
    """Transitions stored per agent, at most; rounded up to whole turns."""
    observation: tuple[int, ...]
    worlds: int = 1
    frames: int = 1
    action: tuple[int, ...] = ()
    action_dtype: str = "int64"
    observation_dtype: str = "float32"
    extras: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Extra float32 columns and their shapes per world."""
    choices: int = 0
    """Length of the stored action masks (`masks`); 0: none are stored, all actions are allowed."""

    def __post_init__(self) -> None:
        if self.capacity < 1 or self.worlds < 1 or self.frames < 1:
            raise ConfigError(
                f"a buffer of capacity {self.capacity}, {self.worlds} worlds and {self.frames} frames: "
                "each must be at least 1"
            )

    @property
    def turns(self) -> int:
        return -(-self.capacity // self.worlds)


class RingArrays(NamedTuple):
    """The arrays of a ring, with the agent as first axis. The names of columns and counters are stored and hashed."""

    # Columns: one entry per row.
    observations: Array
    actions: Array
    rewards: Array
    terminated: Bools
    truncated: Bools
    valid: Bools
    """True where the agent acted: the row starts a transition."""
    follow: Array
    age: Array
    version: Array
    """Version of the weights that chose the actions."""
    # Counters: rows ever written; oldest row; transitions ever stored; transitions overwritten.
    pos: Ints
    oldest: Ints
    head: Ints
    tail: Ints
    opened: Ints
    """(N, W) row of the last action, whose outcome is still open; -1: none."""
    ages: Array
    """(N, W) age of the next row."""
    # An index that follows from the others.
    starts: Ints


class Ring:
    """The rings of N agents.

    >>> ring = Ring(RingShape(capacity=8, observation=(2,)), agents=3)
    >>> ring.sizes().tolist()
    [0, 0, 0]
    """

    ROWS = RingArrays._fields[:9]
    COUNTERS = RingArrays._fields[9:15]

    def __init__(self, shape: RingShape, agents: int) -> None:
        rows, worlds = shape.turns + shape.frames - 1, shape.worlds
        block = (agents, rows, worlds)
        arrays = RingArrays(
            observations=np.zeros((*block, int(np.prod(shape.observation))), shape.observation_dtype),
            actions=np.zeros((*block, int(np.prod(shape.action))), shape.action_dtype),
            rewards=np.zeros(block, np.float32),
            terminated=np.zeros(block, np.bool_),
            truncated=np.zeros(block, np.bool_),
            valid=np.zeros(block, np.bool_),
            follow=np.zeros(block, np.int32),
            age=np.zeros(block, np.int32),
            version=np.zeros((agents, rows), np.int32),
            pos=np.zeros(agents, np.int64),
            oldest=np.zeros(agents, np.int64),
            head=np.zeros(agents, np.int64),
            tail=np.zeros(agents, np.int64),
            opened=np.full((agents, worlds), -1, np.int64),
            ages=np.zeros((agents, worlds), np.int32),
            starts=np.zeros((agents, rows * worlds), np.int64),
        )
        extras = {name: np.zeros((*block, *extra), np.float32) for name, extra in shape.extras.items()}
        if shape.choices:
            extras["masks"] = np.zeros((*block, shape.choices), np.bool_)
        self._hold(shape, arrays, extras)

    def _hold(self, shape: RingShape, arrays: RingArrays, extras: dict[str, Array]) -> None:
        """Make these arrays the ring's."""
        self.shape, self.arrays, self.extras = shape, arrays, extras
        self.agents = len(arrays.pos)
        self.renewed = 0
        """How often the ring was replaced by an empty one: row numbers of before then mean other rows."""
        self._references: dict[tuple[Any, Any], RingArrays] = {}
        self._block, self._turns = (self.agents, shape.worlds, -1), shape.turns
        self.observations, self.actions, self.rewards, self.terminated, self.truncated = arrays[:5]
        self.valid, self.follow, self.age, self.version, self.pos, self.oldest = arrays[5:11]
        self.head, self.tail, self.opened, self.ages, self.starts = arrays[11:]
        self.lasting_bytes = sum(column.nbytes for column in self.lasting_columns().values())

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_references": {}}  # a copy of the ring has other arrays

    def reference(self, part: slice = slice(None)) -> RingArrays:
        """Return the arrays of some agents as `add_turn` takes them, by reference."""
        key = part.start, part.stop
        if key not in self._references:
            self._references[key] = by_reference(RingArrays._make(array[part] for array in self.arrays))
        return self._references[key]

    def agent(self, index: int) -> Ring:
        """Return one agent's ring: the same memory, without the other agents."""
        part, single = slice(index, index + 1), object.__new__(Ring)
        extras = {name: column[part] for name, column in self.extras.items()}
        single._hold(self.shape, RingArrays._make(array[part] for array in self.arrays), extras)
        single.renewed = self.renewed
        return single

    def renew(self) -> None:
        """Start empty with new arrays; whoever holds the old arrays keeps them unchanged."""
        renewed = self.renewed + 1
        self.__init__(self.shape, self.agents)  # type: ignore[misc]
        self.renewed = renewed

    def adopt(self, index: int, other: Ring) -> None:
        """Make the part of agent `index` equal to a ring of one agent and the same shape.

        Rows that neither has written are zero in both and stay untouched: touching them would give them memory.
        """
        written = 1 + max(int(self.pos[index]), int(other.pos[0]))  # `close` writes the row at `pos`
        transitions = max(int(self.head[index]), int(other.head[0]))
        sources = other._columns()
        for name, column in self._columns().items():
            column[index, :written] = sources[name][0, :written]
        for name in self.COUNTERS:
            getattr(self, name)[index] = getattr(other, name)[0]
        self.starts[index, :transitions] = other.starts[0, :transitions]

    def add(self, turn: Transitions) -> None:
        """Store one turn of all agents."""
        if self.extras:
            self._write_extras(np.flatnonzero(turn.present), turn.extras)
        add_turn(
            self.reference(),
            self._turns,
            turn.observations.reshape(self._block),
            turn.actions.reshape(self._block),
            turn.rewards,
            turn.terminated,
            turn.truncated,
            turn.valid,
            turn.first,
            turn.present,
            turn.version,
        )

    def close(self, observations: Array, *, ended: bool, extras: Mapping[str, Array] | None = None) -> None:
        """Store the observations after the last turn; with `ended`, the episodes stop here."""
        if self.extras:
            given = extras or {}
            unknown = {name: np.zeros_like(column[:, 0]) for name, column in self.extras.items() if name not in given}
            self._write_extras(np.arange(self.agents), {**unknown, **given})
        _close_turn(self.arrays, self._turns, observations.reshape(self._block), ended)

    def _write_extras(self, agents: Ints, extras: Mapping[str, Array]) -> None:
        """Write the extra columns of the row that comes next, which the kernels do not know; a priority starts at 0."""
        rows = self.pos[agents] % self.valid.shape[1]
        for name, column in self.extras.items():
            if name not in extras and name != PRIORITY:
                raise ShapeError(f"a turn came without the column {name!r}, which this buffer stores: give it one")
            column[agents, rows] = extras[name][agents] if name in extras else 0

    def sizes(self) -> Ints:
        """Return how many transitions of each agent (N,) can be drawn.

        The newest turn is left out as long as one of its outcomes is unknown, since the drawn serials are a range.
        """
        sizes: Ints = self.head - self.tail
        _leave_out(sizes, self.pos, self.valid, self.follow, self.terminated)
        return sizes

    def serials(self, uniforms: NDArray[np.float64]) -> Ints:
        """Return transition serials (N, K) for numbers (N, K) in [0, 1), uniform over each agent's transitions."""
        return np.asarray(self.tail[:, None] + (uniforms * self.sizes()[:, None]).astype(np.int64))

    def gather(self, serials: Ints, *, n_step: int, gammas: NDArray[np.float64]) -> dict[str, Array]:
        """Return the samples of transition serials (N, K): states, actions, returns, next_states, discounts.

        The return sums up to `n_step` rewards, discounted by gammas (N,); see `_gather`. If masks are stored,
        next_masks are the actions allowed in the next states.
        """
        agents, samples = serials.shape
        size = self.observations.shape[3] * self.shape.frames
        states = np.empty((agents, samples, size), self.observations.dtype)
        next_states = np.empty_like(states)
        actions = np.empty((agents, samples, self.actions.shape[3]), self.actions.dtype)
        returns = np.empty((agents, samples), np.float32)
        discounts = np.empty((agents, samples), np.float32)
        places = np.empty((agents, samples), np.int64)
        room = np.empty(2 * samples + BUCKETS, np.int64)
        _gather(self.arrays, serials, n_step, gammas, states, next_states, actions, returns, discounts, places, room)
        masks = {"next_masks": allowed_masks(self, places)} if self.shape.choices else {}
        return masks | {
            "states": states,
            "actions": actions.reshape(agents, samples, *self.shape.action),
            "returns": returns,
            "next_states": next_states,
            "discounts": discounts,
        }

    def _columns(self) -> dict[str, Array]:
        """Return what is stored by row, (N, T, …) each, under the names of digests and checkpoints."""
        extras = {f"extra.{name}": column for name, column in self.extras.items()}
        return {name: getattr(self, name) for name in self.ROWS} | extras

    def lasting_columns(self) -> dict[str, Array]:
        """Return what is stored by row and never changes once a row is closed. Priorities do change: not here."""
        return {name: column for name, column in self._columns().items() if name != f"extra.{PRIORITY}"}

    def live(self, index: int) -> dict[str, Array]:
        """Return copies of one agent's rows, oldest first, and its counters: equal contents give equal arrays."""
        order = self._live_places(index)
        stored = {name: column[index].take(order, axis=0) for name, column in self._columns().items()}
        return stored | {name: np.array(getattr(self, name)[index]) for name in self.COUNTERS}

    def load_live(self, index: int, stored: Mapping[str, Array]) -> None:
        """Replace one agent's rows and counters by those that `live` returned."""
        for name in self.COUNTERS:
            getattr(self, name)[index] = stored[name]
        self._check_counters(index)  # `_live_places` relies on them
        order = self._live_places(index)
        self.valid[index] = False
        for name, column in self._columns().items():
            self.check_rows(name, stored[name], len(order))
            column[index][order] = stored[name]
        self.check(index)
        self.list_starts(index)

    def whole(self) -> dict[str, Array]:
        """Return all rows of a ring that has not been filled yet, (N, T, W, …), and `ages`: what `append` takes."""
        rows = int(self.pos.max(initial=0))
        return {name: column[:, :rows] for name, column in self._columns().items()} | {"ages": self.ages}

    def append(self, agents: slice, parts: Sequence[tuple[slice, Mapping[str, Array]]]) -> None:
        """Store whole episodes that other rings stored, as if they had been stored here turn by turn.

        agents: whose they are; all of them have stored the same number of turns here. parts: the worlds of each part,
        which together are all worlds, and what `whole` returned.
        """
        rows, width = parts[0][1]["valid"].shape[1], self.valid.shape[1]
        if rows > self._turns:
            raise ShapeError(f"an epoch of {rows} rows does not fit into a buffer of {self._turns}")
        lines = range(*agents.indices(self.agents))
        begin = int(self.pos[lines[0]])
        for n in lines:
            self._forget(n, begin + rows - self._turns)
        start, fitting = begin % width, min(rows, width - begin % width)
        pieces = [(slice(fitting), slice(start, start + fitting)), (slice(fitting, rows), slice(rows - fitting))]
        columns = {name: column for name, column in self._columns().items() if name != "version"}
        for source, place in pieces:
            for worlds, part in parts:
                for name, column in columns.items():
                    column[agents, place, worlds] = part[name][:, source]
            self.version[agents, place] = parts[0][1]["version"][:, source]
        for worlds, part in parts:
            self.ages[agents, worlds] = part["ages"]
        self.opened[agents], self.pos[agents] = -1, begin + rows
        places = np.arange(begin, begin + rows) % width
        for n in lines:
            row, world = np.nonzero(self.valid[n, places])
            serials = np.arange(self.head[n], self.head[n] + len(row)) % self.starts.shape[1]
            self.starts[n, serials] = places[row] * self.shape.worlds + world
            self.head[n] += len(row)

    def _forget(self, index: int, end: int) -> None:
        """Forget the rows of one agent before serial `end`."""
        old = np.arange(self.oldest[index], max(self.oldest[index], end)) % self.valid.shape[1]
        self.tail[index] += np.count_nonzero(self.valid[index, old])
        self.oldest[index] += len(old)

    def _live_places(self, index: int) -> Ints:
        """Return the places of one agent's rows, with the earlier frames of its oldest row."""
        first = max(0, int(self.oldest[index]) - self.shape.frames + 1)
        return np.asarray(np.arange(first, int(self.pos[index])) % self.valid.shape[1])

    def list_starts(self, index: int) -> None:
        """Rebuild the list of one agent's transitions from its rows."""
        rows = np.arange(self.oldest[index], self.pos[index]) % self.valid.shape[1]
        row, world = np.nonzero(self.valid[index][rows])
        serials = np.arange(self.tail[index], self.head[index]) % self.starts.shape[1]
        self.starts[index][serials] = rows[row] * self.shape.worlds + world

    def check_rows(self, name: str, rows: Array, count: int) -> None:
        """Raise CorruptCheckpoint unless these are `count` rows of a column, as they are or in one byte per number.

        What comes from a network is only stored, and may be infinite.
        """
        column = self._columns()[name]
        dtype = np.uint8 if rows.dtype == np.uint8 else column.dtype
        wanted = np.broadcast_to(np.zeros((), dtype), (count, *column.shape[2:]))  # takes no memory
        if name in ("observations", "rewards", "extra.event_value", f"extra.{PRIORITY}"):
            restored(name, rows, wanted, least=0.0 if name == f"extra.{PRIORITY}" else -math.inf)
        else:
            require_like(name, rows, wanted)

    def check(self, index: int) -> None:
        """Raise CorruptCheckpoint if an agent's counters or links cannot be right: compiled code follows them."""
        self._check_counters(index)
        serials = np.arange(self.oldest[index], self.pos[index])
        follow = self.follow[index][serials % self.valid.shape[1]]
        if ((follow < 0) | (follow >= self.valid.shape[1]) | (serials[:, None] + follow > self.pos[index])).any():
            raise CorruptCheckpoint("a transition leads to a row that is not stored")

    def _check_counters(self, index: int) -> None:
        oldest, pos, tail, head = (int(counter[index]) for counter in (self.oldest, self.pos, self.tail, self.head))
        if not 0 <= oldest <= pos <= oldest + self.valid.shape[1]:
            raise CorruptCheckpoint(f"rows {oldest} to {pos} are not those of a buffer of {self.valid.shape[1]}")
        if not 0 <= tail <= head <= tail + self.starts.shape[1]:
            raise CorruptCheckpoint(f"transitions {tail} to {head} are not those of a buffer of {self.starts.shape[1]}")
        if (self.ages[index] < 0).any():
            raise CorruptCheckpoint(f"an episode began {self.ages[index].min()} turns ago")
        if not ((self.opened[index] >= -1) & (self.opened[index] < pos)).all():
            raise CorruptCheckpoint(f"an open transition stands outside of the rows {oldest} to {pos}")


def allowed_masks(ring: Ring, places: Ints) -> Bools:
    """Return the stored action masks (N, …, A) at places (N, …), row * W + world.

    After an episode's end no mask was asked for: all actions count as allowed there.
    """
    masks = ring.extras["masks"].reshape(ring.agents, -1, ring.shape.choices)
    agents = np.arange(ring.agents).reshape(-1, *(1 for _ in places.shape[1:]))
    chosen = masks[agents, places]
    return np.asarray(chosen | ~chosen.any(axis=-1, keepdims=True))


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _forget(ring: RingArrays, n: int, end: int) -> None:
    """Forget the rows before serial `end`."""
    rows, columns = ring.valid.shape[1], ring.valid.shape[2]
    while ring.oldest[n] < end:
        r = ring.oldest[n] % rows
        for w in range(columns):
            if ring.valid[n, r, w]:
                ring.tail[n] += 1
        ring.oldest[n] += 1


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _link(ring: RingArrays, n: int, w: int, p: int, ended: bool) -> None:
    """Make the observation at row p the next observation of the open transition of world w."""
    rows = ring.follow.shape[1]
    last = ring.opened[n, w]
    if last >= 0:
        if p - last < rows:
            ring.follow[n, last % rows, w] = p - last
        if ended:
            ring.opened[n, w] = -1


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _unlink(ring: RingArrays, n: int, p: int, first: Bools) -> None:
    """Separate the episodes that start at row p from the ones before.

    The observation that `close` stored at row p is lost. A transition whose only known outcome it was is forgotten.
    """
    rows, columns = ring.valid.shape[1], ring.valid.shape[2]
    if p - 1 < ring.oldest[n] or not first[n].any():
        return
    r = (p - 1) % rows
    for w in range(columns):
        last = ring.opened[n, w]
        if first[n, w] and last >= ring.oldest[n] and last + ring.follow[n, last % rows, w] == p:
            ring.follow[n, last % rows, w] -= 1
        ring.head[n] -= ring.valid[n, r, w]
    for w in range(columns):
        if first[n, w] and ring.follow[n, r, w] == 0 and not ring.terminated[n, r, w]:
            ring.valid[n, r, w] = False
        if ring.valid[n, r, w]:
            ring.starts[n, ring.head[n] % ring.starts.shape[1]] = r * columns + w
            ring.head[n] += 1


@compiled_once
def add_turn(
    ring: RingArrays,
    turns: int,
    new_observations: Array,
    new_actions: Array,
    new_rewards: Array,
    new_terminated: Bools,
    new_truncated: Bools,
    acted: Bools,
    first: Bools,
    present: Bools,
    new_version: int,
) -> None:
    """Write one turn into the ring of every agent that takes part in it; ring: by reference.

    An agent that could not act stores no transition: its reward, and the end of an episode, go to its last action.
    """
    observations, actions, rewards, terminated = ring.observations, ring.actions, ring.rewards, ring.terminated
    truncated, valid, follow, age, version = ring.truncated, ring.valid, ring.follow, ring.age, ring.version
    pos, oldest, head, opened, ages, starts = ring.pos, ring.oldest, ring.head, ring.opened, ring.ages, ring.starts
    agents, rows, columns = valid.shape
    for n in range(agents):
        if not present[n]:
            continue
        p = pos[n]
        r = p % rows
        version[n, r] = new_version
        _forget(ring, n, p - turns + 1)
        _unlink(ring, n, p, first)
        for w in range(columns):
            if first[n, w]:
                opened[n, w] = -1
                ages[n, w] = 0
            last = opened[n, w]
            over = last >= 0 and (terminated[n, last % rows, w] or truncated[n, last % rows, w])
            _link(ring, n, w, p, over)
            for d in range(observations.shape[3]):  # loops, since numba copies short slices slowly
                observations[n, r, w, d] = new_observations[n, w, d]
            for a in range(actions.shape[3]):
                actions[n, r, w, a] = new_actions[n, w, a]
            age[n, r, w] = ages[n, w]
            ages[n, w] += 1
            follow[n, r, w] = 0
            valid[n, r, w] = acted[n, w]
            terminated[n, r, w] = False
            truncated[n, r, w] = False
            rewards[n, r, w] = 0.0
            q = r
            if acted[n, w]:
                opened[n, w] = p
                starts[n, head[n] % starts.shape[1]] = r * columns + w
                head[n] += 1
            else:
                last = opened[n, w]
                if last < oldest[n]:
                    continue
                q = last % rows
            rewards[n, q, w] += new_rewards[n, w]
            terminated[n, q, w] |= new_terminated[n, w]
            truncated[n, q, w] |= new_truncated[n, w]
        pos[n] = p + 1


@njit(cache=True, nogil=True, error_model="numpy", _nrt=False)  # type: ignore[untyped-decorator]
def _close_turn(ring: RingArrays, turns: int, observations: Array, ended: bool) -> None:
    """Store the observations after the last turn. Unless the episodes ended, the next turn overwrites this row."""
    agents, rows, columns = ring.valid.shape
    for n in range(agents):
        p = ring.pos[n]
        r = p % rows
        ring.version[n, r] = 0
        _forget(ring, n, p - turns + 1)
        for w in range(columns):
            last = ring.opened[n, w]
            if last >= ring.oldest[n] and ended and not ring.terminated[n, last % rows, w]:
                ring.truncated[n, last % rows, w] = True
            _link(ring, n, w, p, ended)
            for d in range(ring.observations.shape[3]):
                ring.observations[n, r, w, d] = observations[n, w, d]
            for a in range(ring.actions.shape[3]):
                ring.actions[n, r, w, a] = 0
            ring.rewards[n, r, w] = 0.0
            ring.terminated[n, r, w] = False
            ring.truncated[n, r, w] = False
            ring.valid[n, r, w] = False
            ring.follow[n, r, w] = 0
            ring.age[n, r, w] = ring.ages[n, w]
        if ended:
            ring.pos[n] = p + 1


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _leave_out(sizes: Ints, pos: Ints, valid: Bools, follow: Array, terminated: Bools) -> None:
    """Leave the newest turn out of the sizes (N,) as long as one of its outcomes is unknown: see `Ring.sizes`."""
    agents, rows, columns = valid.shape
    for n in range(agents):
        newest, unknown, some = (pos[n] - 1) % rows, 0, False
        for w in range(columns):
            if valid[n, newest, w]:
                unknown += 1
                some |= follow[n, newest, w] == 0 and not terminated[n, newest, w]
        if some:
            sizes[n] -= unknown


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _copy_frames(
    observations: Array, age: Array, worlds: int, size: int, frames: int, place: int, out: Array, out_at: int
) -> None:
    """Copy the last frames up to a place, oldest first, with zeros before the start of an episode.

    observations: flat (R·W·D). out: flat, written from `out_at` on. Inlined: to pass arrays takes longer than the copy.
    """
    for frame in range(frames):
        back = frames - 1 - frame
        if back and back > age[place]:
            for d in range(size):  # a loop, since numba fills short slices slowly
                out[out_at + frame * size + d] = 0
        else:
            at = place - back * worlds
            if at < 0:
                at += len(age)
            copy_numbers(observations, at * size, out, out_at + frame * size, size)


@njit(cache=True, nogil=True, error_model="numpy", _nrt=False)  # type: ignore[untyped-decorator]
def _order_by_place(places: Ints, count: int, order: Ints, buckets: Ints) -> None:
    """Write the samples (K,) in about the order of their places, which are below `count`; buckets: room (BUCKETS,).

    Places are counted in even parts, about two of them a sample; within a part samples keep their order.
    """
    shift, parts = 0, min(BUCKETS, 2 * len(places) + 1)
    while (count - 1) >> shift >= parts:
        shift += 1
    for b in range(parts):
        buckets[b] = 0
    for k in range(len(places)):
        buckets[places[k] >> shift] += 1
    total = 0
    for b in range(parts):
        total += buckets[b]
        buckets[b] = total - buckets[b]
    for k in range(len(places)):
        b = places[k] >> shift
        order[buckets[b]] = k
        buckets[b] += 1


@njit(cache=True, nogil=True, error_model="numpy", _nrt=False)  # type: ignore[untyped-decorator]
def _gather(
    ring: RingArrays,
    serials: Ints,
    n_step: int,
    gammas: Array,
    states: Array,
    next_states: Array,
    actions: Array,
    returns: Array,
    discounts: Array,
    next_places: Ints,
    room: Ints,
) -> None:
    """Fill in the samples (N, K, …) of serials (N, K), with n-step returns that stop where an episode ends.

    `discounts` is the factor of the value of `next_states`: 0 after a termination, gamma**k after k steps otherwise
    (Sutton 1988). `next_places` is where the next state stands, row * W + world; `room` has 2 · K + BUCKETS numbers.
    Most of the time goes into waiting for memory, so samples are read in about the order of their places, and what a
    sample reads is asked for some samples ahead.
    """
    agents, samples = serials.shape
    _, rows, worlds, size = ring.observations.shape
    count, numbers, inputs = rows * worlds, ring.actions.shape[3], states.shape[2]
    frames = inputs // size
    places, order, buckets = room[:samples], room[samples : 2 * samples], room[2 * samples :]
    for n in range(agents):
        observations, age = ring.observations[n].reshape(-1), ring.age[n].reshape(count)
        own_states, own_next = states[n].reshape(-1), next_states[n].reshape(-1)
        taken, rewards = ring.actions[n].reshape(-1), ring.rewards[n].reshape(count)
        terminated, truncated = ring.terminated[n].reshape(count), ring.truncated[n].reshape(count)
        valid, follow, starts = ring.valid[n].reshape(count), ring.follow[n].reshape(count), ring.starts[n]
        lap = ring.tail[n] // count * count
        for k in range(samples):
            at = serials[n, k] - lap  # less than two laps: this avoids a division for each sample
            places[k] = starts[at - count if at >= count else at]
        _order_by_place(places, count, order, buckets)
        for first in range(0, samples + AHEAD, AHEAD):  # asks for AHEAD samples, then reads the AHEAD before
            for i in range(first, min(first + AHEAD, samples)):
                place = places[order[i]]
                prefetch(observations, place * size)
                prefetch(observations, place * size + 2 * size - 1)  # the next state usually stands behind it
                prefetch(rewards, place)
                prefetch(terminated, place)
                prefetch(truncated, place)
                prefetch(follow, place)
                prefetch(taken, place * numbers)
            for i in range(max(0, first - AHEAD), min(first, samples)):
                k = order[i]
                place, total, factor = places[k], 0.0, 1.0
                for step in range(n_step):
                    total += factor * rewards[place]
                    factor *= gammas[n]
                    ended, cut_off = terminated[place], truncated[place]
                    place += follow[place] * worlds
                    if place >= count:
                        place -= count
                    if ended:
                        factor = 0.0
                    if ended or cut_off or step + 1 == n_step:
                        break
                    if not (valid[place] and (follow[place] > 0 or terminated[place])):
                        break
                returns[n, k], discounts[n, k], next_places[n, k] = total, factor, place
                _copy_frames(observations, age, worlds, size, frames, places[k], own_states, k * inputs)
                _copy_frames(observations, age, worlds, size, frames, place, own_next, k * inputs)
                for a in range(numbers):
                    actions[n, k, a] = taken[places[k] * numbers + a]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def all_finite(numbers: Array) -> bool:
    """Return True if no number is NaN or infinite."""
    for number in numbers.flat:  # noqa: SIM110 - compiled
        if not np.isfinite(number):
            return False
    return True


# -- one stream of transitions --------------------------------------------------------------------------------


class _StreamArrays(NamedTuple):
    """The arrays of a `TransitionRing`. States are unsigned integers: equal if their bits are, so -0.0 is not 0.0."""

    states: Array
    """(capacity, size)"""
    records: NDArray[np.uint8]
    """(capacity, bytes of a record): the extra columns, side by side."""
    linked: NDArray[np.uint8]
    """One bit per row: its next state is the next row's state."""
    pending: Array
    """(1, size) next state of the newest row."""
    serials: Ints
    """Rows whose next state stands apart, a queue: serials only rise."""
    apart: Array
    """Next states of those rows."""
    queue: Ints
    """How many states ever came into the queue, and how many have left it."""


class TransitionRing:
    """Transitions of one stream, oldest overwritten first, with extra columns. A row's serial is its number.

    >>> ring = TransitionRing(capacity=4, size=1, columns=[("rewards", "f4")])
    >>> ring.add(np.float32([[1], [2], [7]]), np.float32([[2], [3], [8]]), {"rewards": np.ones(3)})
    >>> states, next_states, records, serials = ring.gather(np.array([0, 1, 2]))
    >>> next_states.ravel().tolist(), records["rewards"].tolist(), ring.separate
    ([2.0, 3.0, 8.0], [1.0, 1.0, 1.0], 1)

    size: numbers of a state. dtype: how states are stored, float32 or float16. columns: fields as numpy's structured
    types take them; they stand side by side in memory, so that a drawn row costs one cache miss and not one per column.
    """

    STORED = ("added", "states", "linked", "pending", "apart.serials", "apart.states")

    _ROOM, _GROWTH = 64, 1.25  # places of the queue at first, and the factor by which it grows

    def __init__(self, capacity: int, size: int, columns: list[Any], dtype: DTypeLike = np.float32) -> None:
        self.capacity, self.size, self.dtype = capacity, size, np.dtype(dtype)
        self.added = 0
        """Rows ever added: the serial of the next one."""
        self._bits = np.dtype(f"u{self.dtype.itemsize}")
        records = np.zeros(capacity, columns)
        self.columns: dict[str, Array] = {name: records[name] for name in records.dtype.names or ()}
        self._record = records.dtype
        self._arrays = _StreamArrays(
            states=np.zeros((capacity, size), self._bits),
            records=records.view(np.uint8).reshape(capacity, -1),
            linked=np.full(-(-capacity // 8), 255, np.uint8),
            pending=np.zeros((1, size), self._bits),
            serials=np.zeros(self._ROOM, np.int64),
            apart=np.zeros((self._ROOM, size), self._bits),
            queue=np.zeros(2, np.int64),
        )

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    @property
    def oldest(self) -> int:
        """Serial of the oldest row."""
        return self.added - len(self)

    @property
    def separate(self) -> int:
        """How many next states are stored apart."""
        return int(self._arrays.queue[0] - self._arrays.queue[1])

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self._arrays[:-1])

    def add(self, states: Array, next_states: Array, columns: Mapping[str, Any]) -> None:
        """Store rows (n, size), what they led to (n, size) and their columns (n, …), in this order."""
        states, next_states = states.view(self._bits), next_states.view(self._bits)
        breaks = np.empty(len(states), np.bool_)
        self._make_room(_find_breaks(self.added, self._arrays.pending, states, next_states, breaks))
        _add_stream(self._arrays, self.added, states, next_states, breaks)
        position, count = self.added % self.capacity, len(states)
        self.added += count
        if count == 1:
            for name, column in self.columns.items():
                column[position : position + 1] = columns[name]
            return
        positions = np.arange(max(self.added - count, self.added - self.capacity), self.added) % self.capacity
        for name, column in self.columns.items():
            column[positions] = columns[name][count - len(positions) :]

    def gather(self, positions: Ints) -> tuple[Array, Array, Array, Ints]:
        """Return states (n, size), next states (n, size), records (n,) and serials (n,) of positions (n,)."""
        count = len(positions)
        states, next_states = np.empty((2, count, self.size), self._bits)
        records, serials = np.empty(count, self._record), np.empty(count, np.int64)
        bytes_ = records.view(np.uint8).reshape(count, -1)
        _gather_stream(self._arrays, self.added, positions, states, next_states, bytes_, serials)
        return states.view(self.dtype), next_states.view(self.dtype), records, serials

    def _make_room(self, more: int) -> None:
        """Make room in the queue for `more` states; it needs at most one for each row and one that is leaving."""
        length = len(self._arrays.serials)
        if not more or (needed := min(self.separate + more, self.capacity + 1)) <= length:
            return
        room = min(max(needed, int(self._GROWTH * length)), self.capacity + 1)
        order = self._queue_order()
        serials, apart = np.zeros(room, np.int64), np.zeros((room, self.size), self._bits)
        serials[: len(order)], apart[: len(order)] = self._arrays.serials[order], self._arrays.apart[order]
        self._arrays = self._arrays._replace(serials=serials, apart=apart)
        self._arrays.queue[:] = len(order), 0

    def _queue_order(self) -> Ints:
        """Return the places of the queue, oldest first."""
        return np.arange(self._arrays.queue[1], self._arrays.queue[0]) % len(self._arrays.serials)

    def state(self) -> dict[str, Array]:
        """Return copies of all rows, by position; columns under their names, the rest under those of `STORED`."""
        order, arrays, size = self._queue_order(), self._arrays, len(self)
        return {
            "added": np.array(self.added, np.int64),
            "states": arrays.states[:size].view(self.dtype).copy(),
            "linked": np.unpackbits(arrays.linked, count=size, bitorder="little").astype(np.bool_),
            "pending": arrays.pending[0].view(self.dtype).copy(),
            "apart.serials": arrays.serials[order],
            "apart.states": arrays.apart[order].view(self.dtype),
            **{name: column[:size].copy() for name, column in self.columns.items()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace all rows of an empty ring by those that `state` returned; raise if they do not fit."""
        added = int(restored("added", state["added"], np.array(0), least=0, most=2**62))
        rows, linked, serials = min(added, self.capacity), state["linked"], state["apart.serials"]
        for name, column in self.columns.items():
            require_like(name, state[name], column[:rows])
        require_like("linked", linked, np.empty(rows, np.bool_))
        live = np.arange(added - rows, added)
        if not np.array_equal(serials, live[~linked[live % self.capacity]]):
            raise CorruptCheckpoint("stored next states do not fit the rows they belong to: the state is not whole")
        for name, count in (("states", (rows,)), ("pending", ()), ("apart.states", (len(serials),))):
            restored(name, state[name], np.broadcast_to(np.zeros((), self.dtype), (*count, self.size)))
        self._make_room(len(serials))
        bits, arrays = np.packbits(linked, bitorder="little"), self._arrays
        arrays.states.view(self.dtype)[:rows], arrays.linked[: len(bits)] = state["states"], bits
        arrays.pending.view(self.dtype)[0] = state["pending"]
        arrays.serials[: len(serials)], arrays.apart.view(self.dtype)[: len(serials)] = serials, state["apart.states"]
        for name, column in self.columns.items():
            column[:rows] = state[name]
        arrays.queue[0], self.added = len(serials), added


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _find_breaks(added: int, pending: Array, states: Array, next_states: Array, breaks: Bools) -> int:
    """Fill in whether each row (n,) begins elsewhere than where the row before it led, and return how many do."""
    count = 0
    for i in range(len(states)):
        before = pending[0] if i == 0 else next_states[i - 1]
        breaks[i] = False
        for d in range(states.shape[1]):
            if before[d] != states[i, d]:
                breaks[i] = added + i > 0  # before the first row there is none
                break
        count += breaks[i]
    return count


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _add_stream(ring: _StreamArrays, added: int, states: Array, next_states: Array, breaks: Bools) -> None:
    """Write rows (n, size). A break moves the next state of the row before it from `pending` into the queue."""
    rows, room = len(ring.states), len(ring.serials)
    for i in range(len(states)):
        serial = added + i
        if breaks[i]:
            place = ring.queue[0] % room
            ring.serials[place] = serial - 1
            before = (serial - 1) % rows
            ring.linked[before >> 3] &= np.uint8(255 - (1 << (before & 7)))
            for d in range(states.shape[1]):
                ring.apart[place, d] = ring.pending[0, d]
            ring.queue[0] += 1
        if ring.queue[1] < ring.queue[0] and ring.serials[ring.queue[1] % room] <= serial - rows:
            ring.queue[1] += 1
        row = serial % rows
        ring.linked[row >> 3] |= np.uint8(1 << (row & 7))
        for d in range(states.shape[1]):
            ring.states[row, d] = states[i, d]
            ring.pending[0, d] = next_states[i, d]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _gather_stream(
    ring: _StreamArrays,
    added: int,
    positions: Ints,
    out_states: Array,
    out_next: Array,
    out_records: NDArray[np.uint8],
    serials: Ints,
) -> int:
    """Copy the rows at positions (n,), and name their serials: of this lap of the ring or of the last."""
    states, records, linked = ring.states, ring.records, ring.linked
    rows, size = states.shape
    newest = (added - 1) % rows
    # Reading a little of every row first lets the cache misses overlap; the returned sum keeps the compiler from
    # leaving the reads out.
    touched = 0
    for i in range(len(positions)):
        row = positions[i]
        after = row + 1 if row + 1 < rows else 0  # where most next states stand
        touched += records[row, 0]
        for d in range(0, size, 64 // states.itemsize):
            touched += states[row, d] + states[after, d]
    for i in range(len(positions)):
        row = positions[i]
        serials[i] = added - 1 - newest + row - (rows if row > newest else 0)
        source, place = states, row + 1 if row + 1 < rows else 0
        if row == newest:
            source, place = ring.pending, 0
        elif not linked[row >> 3] >> (row & 7) & 1:
            source, place = ring.apart, _find_serial(ring.serials, ring.queue, serials[i])
        for d in range(size):  # loops, since numba copies short slices slowly
            out_states[i, d] = states[row, d]
        for d in range(size):
            out_next[i, d] = source[place, d]
        for b in range(records.shape[1]):
            out_records[i, b] = records[row, b]
    return int(touched)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _find_serial(serials: Ints, queue: Ints, wanted: int) -> int:
    """Return the place of a serial in the queue: a guess by proportion and a halving, in turn, since serials rise."""
    room = len(serials)
    low, high = queue[1], queue[0] - 1
    guess = True
    while low < high:
        first, last = serials[low % room], serials[high % room]
        middle = (low + high) // 2
        if guess and first < last:
            middle = low + int((wanted - first) * ((high - low) / (last - first)))
        guess = not guess
        serial = serials[middle % room]
        if serial == wanted:
            return int(middle % room)
        if serial < wanted:
            low = middle + 1
        else:
            high = middle - 1
    return int(low % room)
