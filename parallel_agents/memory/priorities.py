"""Rows of a ring drawn by priority: what surprised the learner most comes back oftener (Schaul et al. 2016).

A transition's priority is one more column of the ring. It stands still within a round and is written when the round
is published, keyed by the row's serial, so that rows overwritten meanwhile are left alone. A row that has never been
learned from has priority 0 there and counts as the largest, so that it is soon drawn once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_agents.memory.ring import PRIORITY, Ring

__all__ = ["PRIORITY_COLUMNS", "PriorityDraw", "draw_by_priority", "write_priorities"]

PRIORITY_COLUMNS: dict[str, tuple[int, ...]] = {PRIORITY: ()}
SMALLEST = 1e-6
"""Added to every error: nothing becomes unreachable."""


class PriorityDraw(NamedTuple):
    """Drawn rows (S,): serials, corrections, and the places their new priorities will go to."""

    serials: NDArray[np.int64]
    weights: NDArray[np.float32]
    places: NDArray[np.float64]


def draw_by_priority(
    ring: Ring, agent: int, uniforms: NDArray[np.float64], *, alpha: float, beta: float
) -> PriorityDraw:
    """uniforms (S,) -> rows with P(i) proportional to priority ** alpha, and weights (n P(i)) ** -beta.

    Weights are divided by the largest that any kept row could have, so that they only ever scale updates down.
    """
    size, tail = int(ring.sizes()[agent]), int(ring.tail[agent])
    if not size:
        nothing = np.zeros(len(uniforms), np.int64)
        return PriorityDraw(nothing, np.ones(len(uniforms), np.float32), np.full(len(uniforms), np.nan))
    kept = ring.starts[agent][np.arange(tail, tail + size) % ring.starts.shape[1]]
    known = ring.extras[PRIORITY][agent].reshape(-1)[kept].astype(np.float64)
    priorities = np.where(known > 0, known, known.max() or 1.0) ** alpha
    bounds = np.cumsum(priorities)
    chosen = np.minimum(np.searchsorted(bounds, uniforms * bounds[-1], side="right"), size - 1)
    density = priorities * (size / bounds[-1])
    weights = (density[chosen] / density.min()) ** -beta
    return PriorityDraw(tail + chosen, weights.astype(np.float32), _places(ring, agent, kept[chosen]))


def _places(ring: Ring, agent: int, kept: NDArray[np.int64]) -> NDArray[np.float64]:
    """Serial of the row times W plus world: what identifies a transition for as long as it is kept."""
    rows, worlds = ring.valid.shape[1:]
    newest = int(ring.pos[agent]) - 1
    serial = newest - (newest - kept // worlds) % rows
    return np.asarray(serial * worlds + kept % worlds, np.float64)


def write_priorities(ring: Ring, places: NDArray[np.float64], errors: NDArray[np.float64]) -> None:
    """(N, S) places and the errors found there; whatever is overwritten, or was not learned from (NaN), is left."""
    rows, worlds = ring.valid.shape[1:]
    for agent in range(ring.agents):
        found = np.isfinite(errors[agent]) & np.isfinite(places[agent])
        serial, world = np.divmod(places[agent][found].astype(np.int64), worlds)
        live = serial >= ring.oldest[agent]
        ring.extras[PRIORITY][agent][serial[live] % rows, world[live]] = np.abs(errors[agent][found][live]) + SMALLEST
