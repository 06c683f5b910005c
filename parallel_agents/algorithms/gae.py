"""Generalised advantage estimation on ordered trajectories (Schulman et al. 2016)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.compiled import njit
from parallel_agents.core.types import Array


class _Steps(NamedTuple):
    """Columns (N, T, W) of ordered trajectories."""

    rewards: Array
    value: Array
    terminated: Array
    truncated: Array
    valid: Array
    follow: Array
    """How many rows further the next observation stands; its value is in that row, also where an episode was truncated
    or the trajectory stops."""


def advantages(
    columns: Mapping[str, Array], gammas: NDArray[np.float64], lambdas: NDArray[np.float64]
) -> NDArray[np.float32]:
    """Return advantages (N, T, W) from the columns of `_Steps`; 0 in rows that are not valid. gammas, lambdas: (N,).

    After a termination the value is 0. Nothing is carried across an episode's end.
    """
    out = np.zeros(columns["rewards"].shape, np.float32)
    _backward(_Steps._make(columns[name] for name in _Steps._fields), gammas, lambdas, out)
    return out


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _backward(steps: _Steps, gammas: Array, lambdas: Array, out: Array) -> None:
    agents, rows, worlds = steps.rewards.shape
    for n in range(agents):
        for w in range(worlds):
            for t in range(rows - 1, -1, -1):
                if not steps.valid[n, t, w]:
                    continue
                after = t + steps.follow[n, t, w]
                delta = steps.rewards[n, t, w] - steps.value[n, t, w]
                carried = 0.0
                if not steps.terminated[n, t, w]:
                    delta += gammas[n] * steps.value[n, after, w]
                    if not steps.truncated[n, t, w] and after > t and steps.valid[n, after, w]:
                        carried = gammas[n] * lambdas[n] * out[n, after, w]
                out[n, t, w] = delta + carried
