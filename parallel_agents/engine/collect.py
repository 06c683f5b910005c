"""Whole epochs in one compiled call, where the worlds are compiled too.

An environment offers its worlds as a `CompiledWorld`: numba functions over a tuple of arrays. `collector` makes of them
one function without the lock that plays many turns: it observes, lets the agents act (`algorithms.acting_kernels`),
applies the actions and stores the transitions, in the order of `Loop.turn` and with the same bytes.

Shapes: N agents, W worlds, D numbers of an observation, A numbers of an action.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_agents.algorithms.acting_kernels import Acting, Turn, act, act_agent
from parallel_agents.core.compiled import njit
from parallel_agents.core.errors import ContractError
from parallel_agents.core.kernel_cache import source_hash
from parallel_agents.core.types import Array
from parallel_agents.kernels.intrinsics import bits32
from parallel_agents.replay.ring import RingArrays, add_turn

Bools = NDArray[np.bool_]
Kernel = Callable[..., Any]
BAD_OBSERVATION, BAD_REWARD, BAD_ACTION = range(1, 4)
EXPONENT = np.int32(0x7F800000)
"""The bits that are all set in numbers that are not finite."""


def _unbound(*_: Any) -> Any:
    """Stand for a function of a world, which `collector` binds."""
    raise ContractError("_collect() has no world: call collector()")


reset = begin_turn = observe = apply = observe_agent = apply_agent = _unbound
one_by_one = False


class CompiledWorld(NamedTuple):
    """The worlds of an environment as numba functions, all of which take `arrays` first.

    The functions allocate as little as they can and never call Python. They stand at the top of a module.
    """

    arrays: Any
    """A tuple, or a named tuple, of the arrays and numbers that describe the worlds."""
    reset: Kernel
    """reset(arrays, which, epoch, turn): start a new episode in the worlds of a (W,) mask."""
    begin_turn: Kernel
    """begin_turn(arrays, active, able, epoch, turn): move everything that is not an agent.

    active: (W,) worlds whose episode goes on. able: (N, W) bool, all True; set it False where an agent cannot act.
    """
    observe: Kernel
    """observe(arrays, out): write the observations into a float32 array (N, W, D)."""
    apply: Kernel
    """apply(arrays, actions, acting, active, rewards, terminated, truncated, epoch, turn): apply actions (N, W, A).

    acting: (N, W) agents that act. rewards: (N, W) float32, all 0. terminated and truncated: (N, W) bool, all False.
    Return -1, or n * W + w where an action does not exist.
    """
    observe_agent: Kernel | None = None
    """observe_agent(arrays, n, out): write what agent n observes now into a float32 array (W, D).

    None, as `apply_agent`: with `parallel.turn_order = "sequential"`, turns are taken one by one in Python.
    """
    apply_agent: Kernel | None = None
    """apply_agent(arrays, n, actions, …): let agent n act, and add what that brings to rewards, which hold what the
    agents before it brought; after the last agent, end the turn. Where an agent before it has made it unable to act in
    this turn, set acting[n, w] to False. The other arguments and the result are `apply`'s.
    """


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def nothing_restarts(arrays: Any, which: Bools, epoch: int, turn: int) -> None:
    """Do nothing: the `reset` of worlds whose episodes last an epoch, which the environment starts."""


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def nothing_moves(arrays: Any, active: Bools, able: Bools, epoch: int, turn: int) -> None:
    """Do nothing: the `begin_turn` of worlds in which nothing but the agents moves."""


class Progress(NamedTuple):
    """Where the loop stands: what a compiled epoch reads and writes of it."""

    alive: Bools
    """(N, W) agents whose episode goes on."""
    first: Bools
    """(N, W) agents whose episode starts with the next turn."""
    returns: NDArray[np.float64]
    """(N, W) reward of each agent in this epoch."""
    running: NDArray[np.float64]
    """(2, N, W) return and length of the episodes that go on."""
    finished: NDArray[np.float64]
    """(3, N) number, returns and lengths of the episodes that ended in this epoch."""
    counters: NDArray[np.int64]
    """(5,) turns of the epoch, transitions, what went wrong, where (n * W + w), and steps of single worlds."""


class Store(NamedTuple):
    """What a turn stores beside the columns of every ring."""

    turns: int
    """Turns that a ring holds."""
    columns: tuple[Array, Array, Array, Array]
    """(N, rows, W, E) log-probability, value, unsquashed action and priority; E is 0 where there is none."""
    version: int
    """Version of the acting weights."""
    active: bool
    """Whether anything is stored."""


class Room(NamedTuple):
    """Arrays of one turn. They come from outside, since every allocation takes long to compile."""

    active: Bools
    """(W,) worlds in which an episode goes on, then those that restart."""
    able: Bools
    """(N, W), like the next four."""
    acting: Bools
    terminated: Bools
    truncated: Bools
    rewards: NDArray[np.float32]
    present: Bools
    """(N,) agents that take part: all."""

    @staticmethod
    def of(agents: int, worlds: int) -> Room:
        """Return the arrays for so many agents and worlds."""
        able, acting, terminated, truncated = np.zeros((4, agents, worlds), np.bool_)
        return Room(
            active=np.zeros(worlds, np.bool_),
            able=able,
            acting=acting,
            terminated=terminated,
            truncated=truncated,
            rewards=np.zeros((agents, worlds), np.float32),
            present=np.ones(agents, np.bool_),
        )


@njit(cache=True, nogil=True, error_model="numpy", _nrt=False)  # type: ignore[untyped-decorator]
def add_rewards(
    alive: Bools,
    acting: Bools,
    rewards: NDArray[np.float32],
    terminated: Bools,
    truncated: Bools,
    returns: NDArray[np.float64],
    running: NDArray[np.float64],
    finished: NDArray[np.float64],
) -> int:
    """Add the rewards (N, W) of a turn to returns, running and finished as in `Progress`; return how many acted.

    Return -1 - (n * W + w) where a reward is NaN or infinite.
    """
    agents, worlds = rewards.shape
    acted = 0
    for n in range(agents):
        for w in range(worlds):
            reward = rewards[n, w]
            if not np.isfinite(reward):
                return int(-1 - (n * worlds + w))
            acted += acting[n, w]
            returns[n, w] += reward
            running[0, n, w] += reward
            running[1, n, w] += alive[n, w]
            if terminated[n, w] or truncated[n, w]:
                finished[0, n] += 1.0
                finished[1, n] += running[0, n, w]
                finished[2, n] += running[1, n, w]
                running[0, n, w] = running[1, n, w] = 0.0
    return int(acted)


def _collect(
    world: Any,
    acting: Acting,
    ring: RingArrays,
    store: Store,
    progress: Progress,
    room: Room,
    draws: NDArray[np.float64],
    autoreset: bool,
    epoch: int,
    start: int,
    end: int,
) -> None:
    """Play turns start … end - 1, or until every episode has ended; draws: (end - start, N, W, slots)."""
    alive, first, returns, running, finished, counters = progress
    active, able, acts, terminated, truncated, rewards, present = room
    turn, observations = acting.turn, acting.turn.observations
    agents, worlds, size = observations.shape
    for number in range(start, end):
        some = autoreset
        for w in range(worlds):
            active[w] = False
            for n in range(agents):
                active[w] |= alive[n, w]
                able[n, w] = True
            some |= active[w]
            counters[4] += active[w]
        if not some:
            return
        counters[0] = number
        begin_turn(world, active, able, epoch, number)
        for n in range(agents):
            for w in range(worlds):
                acts[n, w] = alive[n, w] and able[n, w]
                rewards[n, w], terminated[n, w], truncated[n, w] = 0.0, False, False
        if not one_by_one:
            observe(world, observations)
        for n in range(agents):
            if one_by_one:
                observe_agent(world, n, observations[n])
            for w in range(worlds):
                unusual = 0
                for d in range(size):  # without a branch, so that it compiles to a few wide comparisons
                    unusual += (bits32(observations[n, w, d]) & EXPONENT) == EXPONENT
                if unusual:
                    counters[2], counters[3] = BAD_OBSERVATION, n * worlds + w
                    return
            if one_by_one:
                act_agent(acting, draws[number - start], first, n)
                invalid = apply_agent(
                    world, n, turn.actions, acts, active, rewards, terminated, truncated, epoch, number
                )
                if invalid >= 0:
                    counters[2], counters[3] = BAD_ACTION, invalid
                    return
        if not one_by_one:
            act(acting, draws[number - start], first)
            invalid = apply(world, turn.actions, acts, active, rewards, terminated, truncated, epoch, number)
            if invalid >= 0:
                counters[2], counters[3] = BAD_ACTION, invalid
                return
        for n in range(agents):
            for w in range(worlds):
                if not alive[n, w]:
                    rewards[n, w], terminated[n, w], truncated[n, w] = 0.0, False, False
                truncated[n, w] = truncated[n, w] and not terminated[n, w]
        acted = add_rewards(alive, acts, rewards, terminated, truncated, returns, running, finished)
        if acted < 0:
            counters[2], counters[3] = BAD_REWARD, -1 - acted
            return
        counters[1] += acted
        if store.active:
            _store_columns(ring, store, turn)
            add_turn(
                ring, store.turns, observations, turn.actions, rewards, terminated, truncated, acts, first, present,
                store.version,
            )  # fmt: skip
        restarts = False
        for w in range(worlds):
            active[w] = not active[w]  # from here on the worlds that restart
            restarts |= active[w]
            for n in range(agents):
                first[n, w] = False
                if terminated[n, w] or truncated[n, w]:
                    alive[n, w] = False
        if autoreset and restarts:
            reset(world, active, epoch, number)
            for w in range(worlds):
                for n in range(agents):
                    alive[n, w] |= active[w]
                    first[n, w] |= active[w]


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _store_columns(ring: RingArrays, store: Store, turn: Turn) -> None:
    """Write what a turn stores beside the columns of every ring into the next row; a priority starts at 0."""
    agents, rows, worlds = ring.valid.shape
    log_prob, value, raw, priority = store.columns
    for n in range(agents):
        r = ring.pos[n] % rows
        for w in range(worlds):
            for e in range(log_prob.shape[3]):
                log_prob[n, r, w, e] = turn.log_prob[n, w, e]
                value[n, r, w, e] = turn.value[n, w, e]
            for e in range(raw.shape[3]):
                raw[n, r, w, e] = turn.raw[n, w, e]
            for e in range(priority.shape[3]):
                priority[n, r, w, e] = 0.0


@cache
def collector(
    reset: Kernel,
    begin_turn: Kernel,
    observe: Kernel,
    apply: Kernel,
    observe_agent: Kernel | None = None,
    apply_agent: Kernel | None = None,
    *,
    one_by_one: bool = False,
) -> Kernel:
    """Return `_collect` compiled for one kind of world. one_by_one: agents observe after the earlier ones have acted.

    numba stores compiled code under the name of a function, so each kind of world gives its own, with a hash of the
    sources of the world in it: the cache itself looks only at what this module imports.
    """
    functions = {"reset": reset, "begin_turn": begin_turn}
    functions |= {"observe_agent": observe_agent, "apply_agent": apply_agent} if one_by_one else {}  # type: ignore[dict-item]
    functions |= {} if one_by_one else {"observe": observe, "apply": apply}
    codes = [(own.py_func.__module__, own.py_func.__code__) for own in functions.values()]  # type: ignore[attr-defined]
    paths = [Path(code.co_filename) for _, code in codes]
    digest = hashlib.sha256(repr([(module, code.co_qualname) for module, code in codes]).encode())
    stored = all(path.is_file() for path in paths)  # not in a notebook
    if stored:
        digest.update(source_hash(*paths).encode())
        for path in paths:  # read again: a module that was edited and reloaded has the same path
            digest.update(path.read_bytes())
    name = f"collect_{'in_turn_' if one_by_one else ''}{digest.hexdigest()[:12]}"
    bound = FunctionType(_collect.__code__, {**globals(), **functions, "one_by_one": one_by_one}, name)
    bound.__qualname__ = name
    for own in functions.values():  # they may allocate, though what calls them counts no references
        own.targetoptions.setdefault("_nrt", True)  # type: ignore[attr-defined]
    compiled: Kernel = njit(cache=stored, nogil=True, error_model="numpy", _nrt=False)(bound)
    return compiled
