"""Compiled loops of the ring: write a turn, close it, and gather what a round reads.

Shapes: N agents, T rows of the ring (turns), W worlds (columns), D numbers of an observation, A of an action,
K samples, F frames. `pos` counts the rows ever written, `head` and `tail` the transitions ever kept and ever
overwritten: they are serials, and a serial modulo the length is a place.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parallel_agents.compiled import njit
from parallel_agents.types import Array

__all__ = ["close", "gather", "push"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _evict(n: int, upto: int, oldest: Ints, tail: Ints, valid: Bools) -> None:
    """Forget the rows before serial `upto`."""
    rows, columns = valid.shape[1], valid.shape[2]
    while oldest[n] < upto:
        r = oldest[n] % rows
        for w in range(columns):
            if valid[n, r, w]:
                tail[n] += 1
        oldest[n] += 1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _link(n: int, w: int, p: int, opened: Ints, follow: Array, ended: bool) -> None:
    """The observation at row p is what the open transition of this column led to."""
    rows = follow.shape[1]
    last = opened[n, w]
    if last >= 0:
        if p - last < rows:
            follow[n, last % rows, w] = p - last
        if ended:
            opened[n, w] = -1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _leave(
    n: int,
    p: int,
    first: Bools,
    terminated: Bools,
    valid: Bools,
    follow: Array,
    starts: Ints,
    oldest: Ints,
    head: Ints,
    opened: Ints,
) -> None:
    """An episode starts at row p: the one before may not be led into it.

    What `close` kept at row p is lost. A transition that led nowhere else is forgotten, since nobody knows
    what came of it.
    """
    rows, columns = valid.shape[1], valid.shape[2]
    if p - 1 < oldest[n] or not first[n].any():
        return
    r = (p - 1) % rows
    for w in range(columns):
        last = opened[n, w]
        if first[n, w] and last >= oldest[n] and last + follow[n, last % rows, w] == p:
            follow[n, last % rows, w] -= 1
        head[n] -= valid[n, r, w]
    for w in range(columns):
        if first[n, w] and follow[n, r, w] == 0 and not terminated[n, r, w]:
            valid[n, r, w] = False
        if valid[n, r, w]:
            starts[n, head[n] % starts.shape[1]] = r * columns + w
            head[n] += 1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def push(
    observations: Array,
    actions: Array,
    rewards: Array,
    terminated: Bools,
    truncated: Bools,
    valid: Bools,
    follow: Array,
    age: Array,
    version: Array,
    starts: Ints,
    pos: Ints,
    oldest: Ints,
    head: Ints,
    tail: Ints,
    opened: Ints,
    ages: Array,
    logical: int,
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
    """Write one turn into the ring of every agent that takes part in it.

    An agent that could not act stores nothing: what it earns goes to its last action, and so does the end of
    an episode that comes meanwhile.
    """
    agents, rows, columns = valid.shape
    for n in range(agents):
        if not present[n]:
            continue
        p = pos[n]
        r = p % rows
        version[n, r] = new_version
        _evict(n, p - logical + 1, oldest, tail, valid)
        _leave(n, p, first, terminated, valid, follow, starts, oldest, head, opened)
        for w in range(columns):
            if first[n, w]:
                opened[n, w] = -1
                ages[n, w] = 0
            last = opened[n, w]
            over = last >= 0 and (terminated[n, last % rows, w] or truncated[n, last % rows, w])
            _link(n, w, p, opened, follow, over)
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


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def close(
    observations: Array,
    actions: Array,
    rewards: Array,
    terminated: Bools,
    truncated: Bools,
    valid: Bools,
    follow: Array,
    age: Array,
    version: Array,
    pos: Ints,
    oldest: Ints,
    tail: Ints,
    opened: Ints,
    ages: Array,
    logical: int,
    final: Array,
    ended: bool,
) -> None:
    """Keep what the last turn led to. `ended`: the episodes stop here; else the next turn overwrites this row."""
    agents, rows, columns = valid.shape
    for n in range(agents):
        p = pos[n]
        r = p % rows
        version[n, r] = 0
        _evict(n, p - logical + 1, oldest, tail, valid)
        for w in range(columns):
            last = opened[n, w]
            if last >= oldest[n] and ended and not terminated[n, last % rows, w]:
                truncated[n, last % rows, w] = True
            _link(n, w, p, opened, follow, ended)
            for d in range(observations.shape[3]):
                observations[n, r, w, d] = final[n, w, d]
            for a in range(actions.shape[3]):
                actions[n, r, w, a] = 0
            rewards[n, r, w] = 0.0
            terminated[n, r, w] = False
            truncated[n, r, w] = False
            valid[n, r, w] = False
            follow[n, r, w] = 0
            age[n, r, w] = ages[n, w]
        if ended:
            pos[n] = p + 1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _frames(observations: Array, age: Array, n: int, p: int, w: int, out: Array, k: int) -> None:
    """The last F observations up to serial p into out[n, k], oldest first; zeros before the episode's start."""
    rows, size = observations.shape[1], observations.shape[3]
    frames = out.shape[2] // size
    known = age[n, p % rows, w]
    for f in range(frames):
        back = frames - 1 - f
        r = (p - back) % rows
        if back <= known:
            for d in range(size):
                out[n, k, f * size + d] = observations[n, r, w, d]
        else:
            for d in range(size):
                out[n, k, f * size + d] = 0


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def gather(
    observations: Array,
    actions: Array,
    rewards: Array,
    terminated: Bools,
    truncated: Bools,
    valid: Bools,
    follow: Array,
    age: Array,
    starts: Ints,
    pos: Ints,
    serials: Ints,
    n_step: int,
    gammas: Array,
    states: Array,
    next_states: Array,
    out_actions: Array,
    returns: Array,
    discounts: Array,
    nexts: Ints,
) -> None:
    """Fill (N, K, …) samples from (N, K) serials: n-step returns that stop where an episode ends.

    The return sums up to `n_step` rewards; `discounts` is what the value of `next_states` counts: 0 after a
    termination, gamma**k after k steps otherwise. Sutton 1988. `nexts` is where the next state stands, row·W + world.
    """
    agents, samples = serials.shape
    rows, columns = observations.shape[1], observations.shape[2]
    for n in range(agents):
        for k in range(samples):
            flat = starts[n, serials[n, k] % starts.shape[1]]
            r, w = flat // columns, flat % columns
            p = pos[n] - 1 - (pos[n] - 1 - r) % rows
            _frames(observations, age, n, p, w, states, k)
            for a in range(actions.shape[3]):
                out_actions[n, k, a] = actions[n, r, w, a]
            total, factor = 0.0, 1.0
            for step in range(n_step):
                total += factor * rewards[n, r, w]
                factor *= gammas[n]
                p += follow[n, r, w]
                if terminated[n, r, w]:
                    factor = 0.0
                    break
                if truncated[n, r, w]:
                    break
                r = p % rows
                known = valid[n, r, w] and (follow[n, r, w] > 0 or terminated[n, r, w])
                if step + 1 < n_step and not known:
                    break
            _frames(observations, age, n, p, w, next_states, k)
            returns[n, k] = total
            discounts[n, k] = factor
            nexts[n, k] = (p % rows) * columns + w
