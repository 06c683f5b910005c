"""From network outputs and addressed draws to actions. Shapes: N agents, W worlds, A actions."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from parallel_agents.errors import ActionError
from parallel_agents.types import Array

__all__ = ["EPSILON_SLOTS", "epsilon_greedy"]

EPSILON_SLOTS = 2
"""Draws of one ε-greedy choice: whether to explore, and where."""


def epsilon_greedy(
    values: Array, draws: NDArray[np.float64], epsilons: NDArray[np.float64], masks: Array | None = None
) -> NDArray[np.int64]:
    """values (N, W, A), draws (N, W, 2), epsilons (N,), masks (N, W, A) bool -> (N, W) actions.

    Both draws are spent whether or not the agent explores, so that nothing shifts.

    >>> epsilon_greedy(np.array([[[0.0, 2.0, 1.0]]]), np.array([[[0.9, 0.5]]]), np.array([0.1])).item()
    1
    """
    agents, worlds, actions = values.shape
    if masks is None:
        masks = np.ones((1, 1, actions), np.bool_)
    elif not masks.any(axis=-1).all():
        agent, world = np.argwhere(~masks.any(axis=-1))[0]
        raise ActionError(f"the action mask of agent {agent} in world {world} forbids every action: allow at least one")
    chosen = np.empty((agents, worlds), np.int64)
    _choose(values, draws, epsilons, np.broadcast_to(masks, values.shape), chosen)
    return chosen


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _choose(values: Array, draws: Array, epsilons: Array, masks: Array, chosen: Array) -> None:
    agents, worlds, actions = values.shape
    for n in range(agents):
        for w in range(worlds):
            best, allowed = -1, 0
            for a in range(actions):
                if masks[n, w, a]:
                    allowed += 1
                    if best < 0 or values[n, w, a] > values[n, w, best]:
                        best = a
            if draws[n, w, 0] < epsilons[n]:
                left = int(draws[n, w, 1] * allowed)
                for a in range(actions):
                    if masks[n, w, a]:
                        if left == 0:
                            best = a
                            break
                        left -= 1
            chosen[n, w] = best
