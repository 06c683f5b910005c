"""Sequences of turns for networks that carry a state: gathered from the rings, never across an episode's end.

Shapes: N agents, K sequences, L turns of a sequence, U = L + n_step observations of it, D numbers of an observation,
H of a state, A actions. The other columns are those of the ring, see `kernels`.

An episode falls into sequences that start at its turns 0, L, 2·L, …; a drawn transition stands for the sequence it
falls into. So the first one starts from a fresh state, as the episode did, and the others from the state that was
kept when they were played (Kapturowski et al. 2019).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parallel_agents.compiled import njit
from parallel_agents.memory.ring import Ring
from parallel_agents.types import Array

__all__ = ["gather_sequences"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def gather_sequences(
    ring: Ring, serials: Ints, *, length: int, n_step: int, gammas: NDArray[np.float64]
) -> dict[str, Array]:
    """What (N, K) drawn transitions stand for.

    states (N, K, U, D) and hidden (N, K, H), the state before them; for each of the L turns actions, returns over
    `n_step` rewards, discounts of the value that follows, `ahead`, the place of that among the U, and `counted`:
    1 where the turn was a transition whose outcome is known, else 0. Where masks are kept, also masks (N, K, U, A).
    """
    agents, samples = serials.shape
    block, span = (agents, samples, length), length + n_step
    columns: dict[str, Array] = {
        "states": np.zeros((agents, samples, span, ring.observations.shape[3]), ring.observations.dtype),
        "hidden": np.zeros((agents, samples, *ring.shape.extras["hidden"]), np.float32),
        "actions": np.zeros(block, np.int64),
        "returns": np.zeros(block, np.float32),
        "discounts": np.zeros(block, np.float32),
        "ahead": np.zeros(block, np.int64),
        "counted": np.zeros(block, np.float32),
    }
    places = np.zeros((agents, samples, span), np.int64)
    _gather(
        ring.observations, ring.actions, ring.rewards, ring.terminated, ring.truncated, ring.valid, ring.follow,
        ring.age, ring.extras["hidden"], ring.starts, ring.pos, ring.oldest, serials, n_step, gammas,
        *columns.values(), places,
    )  # fmt: skip
    if ring.shape.choices:
        flat = ring.extras["masks"].reshape(agents, -1, ring.shape.choices)
        own = flat[np.arange(agents)[:, None, None], places]
        columns["masks"] = own | ~own.any(axis=-1, keepdims=True)  # after an end nothing was asked
    return columns


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _gather(
    observations: Array,
    actions: Array,
    rewards: Array,
    terminated: Bools,
    truncated: Bools,
    valid: Bools,
    follow: Array,
    age: Array,
    hidden: Array,
    starts: Ints,
    pos: Ints,
    oldest: Ints,
    serials: Ints,
    n_step: int,
    gammas: Array,
    states: Array,
    out_hidden: Array,
    out_actions: Array,
    returns: Array,
    discounts: Array,
    ahead: Ints,
    counted: Array,
    places: Ints,
) -> None:
    agents, samples, length = returns.shape
    rows, columns, span = observations.shape[1], observations.shape[2], states.shape[2]
    for n in range(agents):
        for k in range(samples):
            flat = starts[n, serials[n, k] % starts.shape[1]]
            r, w = flat // columns, flat % columns
            p = pos[n] - 1 - (pos[n] - 1 - r) % rows
            first = max(p - age[n, r, w] % length, oldest[n])  # what is overwritten cannot be started from
            begun = age[n, first % rows, w]
            for h in range(hidden.shape[3]):
                out_hidden[n, k, h] = hidden[n, first % rows, w, h]
            furthest = 0
            for t in range(length):
                r = (first + t) % rows
                if first + t >= pos[n] or age[n, r, w] != begun + t:
                    break  # the episode has ended, or goes on beyond what is kept
                if not valid[n, r, w] or (follow[n, r, w] == 0 and not terminated[n, r, w]):
                    continue
                total, factor, q = 0.0, 1.0, first + t
                steps = 0
                for _ in range(n_step):
                    after = q + follow[n, r, w]
                    if after - first >= span:
                        break
                    steps += 1
                    total += factor * rewards[n, r, w]
                    factor *= gammas[n]
                    q = after
                    if terminated[n, r, w]:
                        factor = 0.0
                        break
                    if truncated[n, r, w]:
                        break
                    r = q % rows
                    if not (valid[n, r, w] and (follow[n, r, w] > 0 or terminated[n, r, w])):
                        break
                if steps == 0:
                    continue
                out_actions[n, k, t] = actions[n, (first + t) % rows, w, 0]
                returns[n, k, t] = total
                discounts[n, k, t] = factor
                ahead[n, k, t] = q - first
                counted[n, k, t] = 1.0
                furthest = max(furthest, q - first, t)
            for u in range(furthest + 1):
                r = (first + u) % rows
                places[n, k, u] = r * columns + w
                for d in range(observations.shape[3]):
                    states[n, k, u, d] = observations[n, r, w, d]
