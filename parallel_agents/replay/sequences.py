"""Gather sequences of turns for recurrent networks; a sequence never crosses the end of an episode.

Shapes: N agents, K sequences, L turns of a sequence, U = L + n_step observations, D numbers of an observation,
H numbers of a hidden state, A actions.

An episode is divided into sequences that start at its turns 0, L, 2 * L, …. A drawn transition stands for the sequence
that contains it. The first sequence starts from an empty hidden state, as the episode did; the others start from the
hidden state that was stored when they were played (Kapturowski et al. 2019).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parallel_agents.core.compiled import njit
from parallel_agents.core.types import Array, Floats, Ints
from parallel_agents.replay.ring import Ring, RingArrays, allowed_masks


class Sequences(NamedTuple):
    """K sequences of each of N agents."""

    states: Array
    """(N, K, U, D)"""
    hidden: Array
    """(N, K, H) hidden state before them"""
    actions: Array
    """(N, K, L), as are those below"""
    returns: Array
    """over n_step rewards"""
    discounts: Array
    """of the value that follows"""
    ahead: Ints
    """the place of that value's state among the U"""
    counted: Array
    """1 where the turn was a transition with a known outcome, else 0"""


def gather_sequences(ring: Ring, serials: Ints, *, length: int, n_step: int, gammas: Floats) -> dict[str, Array]:
    """Return the `Sequences` of drawn transitions (N, K), by name; if masks are stored, also masks (N, K, U, A)."""
    agents, samples = serials.shape
    block, span = (agents, samples, length), length + n_step
    out = Sequences(
        states=np.zeros((agents, samples, span, ring.observations.shape[3]), ring.observations.dtype),
        hidden=np.zeros((agents, samples, *ring.shape.extras["hidden"]), np.float32),
        actions=np.zeros(block, np.int64),
        returns=np.zeros(block, np.float32),
        discounts=np.zeros(block, np.float32),
        ahead=np.zeros(block, np.int64),
        counted=np.zeros(block, np.float32),
    )
    places = np.zeros((agents, samples, span), np.int64)
    _gather(ring.arrays, ring.extras["hidden"], serials, n_step, gammas, out, places)
    columns = out._asdict()
    if ring.shape.choices:
        columns["masks"] = allowed_masks(ring, places)
    return columns


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _gather(
    ring: RingArrays, hidden: Array, serials: Ints, n_step: int, gammas: Array, out: Sequences, places: Ints
) -> None:
    """Fill in the sequences, and the places (N, K, U) of their states, row * W + world."""
    agents, samples, length = out.returns.shape
    observations, age, rewards, follow = ring.observations, ring.age, ring.rewards, ring.follow
    terminated, truncated, valid, starts = ring.terminated, ring.truncated, ring.valid, ring.starts
    pos, oldest = ring.pos, ring.oldest
    rows, columns, span = observations.shape[1], observations.shape[2], out.states.shape[2]
    for n in range(agents):
        for k in range(samples):
            flat = starts[n, serials[n, k] % starts.shape[1]]
            r, w = flat // columns, flat % columns
            p = pos[n] - 1 - (pos[n] - 1 - r) % rows
            first = max(p - age[n, r, w] % length, oldest[n])  # an overwritten row cannot be started from
            begun = age[n, first % rows, w]
            for h in range(hidden.shape[3]):
                out.hidden[n, k, h] = hidden[n, first % rows, w, h]
            furthest = 0
            for t in range(length):
                r = (first + t) % rows
                if first + t >= pos[n] or age[n, r, w] != begun + t:
                    break  # the episode has ended, or goes on beyond the stored rows
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
                out.actions[n, k, t] = ring.actions[n, (first + t) % rows, w, 0]
                out.returns[n, k, t] = total
                out.discounts[n, k, t] = factor
                out.ahead[n, k, t] = q - first
                out.counted[n, k, t] = 1.0
                furthest = max(furthest, q - first, t)
            for u in range(furthest + 1):
                r = (first + u) % rows
                places[n, k, u] = r * columns + w
                for d in range(observations.shape[3]):
                    out.states[n, k, u, d] = observations[n, r, w, d]
