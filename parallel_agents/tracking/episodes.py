"""Means over finished episodes: what `ep_rew_mean` and `ep_len_mean` are. `engine.collect.add_rewards` counts them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from parallel_agents.core.types import Array

WINDOW = 100
"""Newest episodes of all agents that the means of a summary are over, at least."""


def episode_means(finished: Array) -> tuple[Array, Array]:
    """Return the mean return and the mean length of finished (3, …) episodes; NaN where none has finished."""
    count = np.where(finished[0] > 0, finished[0], np.nan)
    return finished[1] / count, finished[2] / count


def newest_episodes(epochs: Sequence[Array] | deque[Array], least: int = WINDOW) -> Array:
    """Return the sum (3,) over the newest epochs' totals (3,) that together hold at least so many episodes.

    >>> newest_episodes([np.array([9.0, 9.0, 9.0]), np.array([1.0, 5.0, 2.0])], least=1).tolist()
    [1.0, 5.0, 2.0]
    """
    total = np.zeros(3)
    for epoch in reversed(epochs):
        if total[0] >= least:
            break
        total += epoch
    return total
