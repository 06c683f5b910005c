"""Generalised advantage estimation on ordered trajectories (Schulman et al. 2016)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parallel_agents.compiled import njit
from parallel_agents.types import Array

__all__ = ["advantages"]


def advantages(
    rewards: Array,
    values: Array,
    terminated: Array,
    truncated: Array,
    valid: Array,
    follow: Array,
    gammas: NDArray[np.float64],
    lambdas: NDArray[np.float64],
) -> NDArray[np.float32]:
    """(N, T, W) columns in order, gammas and lambdas (N,) -> (N, T, W) advantages; 0 where nothing is valid.

    follow: how many rows on the next observation stands; its value is in that row, also where an episode was
    truncated or the trajectory stops. After a termination nothing has value; nothing is carried across an end.
    """
    out = np.zeros(rewards.shape, np.float32)
    _sweep(rewards, values, terminated, truncated, valid, follow, gammas, lambdas, out)
    return out


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _sweep(
    rewards: Array,
    values: Array,
    terminated: Array,
    truncated: Array,
    valid: Array,
    follow: Array,
    gammas: Array,
    lambdas: Array,
    out: Array,
) -> None:
    agents, rows, worlds = rewards.shape
    for n in range(agents):
        for w in range(worlds):
            for t in range(rows - 1, -1, -1):
                if not valid[n, t, w]:
                    continue
                after = t + follow[n, t, w]
                delta = rewards[n, t, w] - values[n, t, w]
                carried = 0.0
                if not terminated[n, t, w]:
                    delta += gammas[n] * values[n, after, w]
                    if not truncated[n, t, w] and after > t and valid[n, after, w]:
                        carried = gammas[n] * lambdas[n] * out[n, after, w]
                out[n, t, w] = delta + carried
