"""Social outcomes of an episode: how much a group earns, how evenly, for how long, how peacefully.

The four metrics of Perolat et al. (2017), "A multi-agent reinforcement learning model of common-pool resource
appropriation". Rewards are (T, N, W): turn, agent, world; each metric is (W,), one number per world.

>>> rewards = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 2.0]])[:, :, None]
>>> efficiency(rewards), equality(rewards), sustainability(rewards)
(array([1.33333333]), array([1.]), array([2.25]))
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parallel_agents.errors import ShapeError
from parallel_agents.types import Array

__all__ = ["efficiency", "equality", "peace", "sustainability"]

Numbers = NDArray[np.float64]


def efficiency(rewards: Array) -> Numbers:
    """What the group earns a turn."""
    return np.asarray(_checked(rewards).sum(axis=(0, 1)) / len(rewards))


def equality(rewards: Array) -> Numbers:
    """1 less the Gini coefficient of the returns: 1 where all have the same, 1 / N where one has all.

    It may be less where some lost. Worlds in which nothing was earned on the whole have no Gini coefficient: nan.
    """
    returns = np.sort(_checked(rewards).sum(axis=0), axis=0)
    agents = len(returns)
    rank = 2.0 * np.arange(1, agents + 1) - agents - 1.0  # Σᵢⱼ |Rᵢ - Rⱼ| = 2 Σᵢ rankᵢ Rᵢ, sorted
    total = returns.sum(axis=0)
    apart = rank @ returns
    return np.asarray(1.0 - np.divide(apart, agents * total, out=np.full_like(total, np.nan), where=total > 0.0))


def sustainability(rewards: Array) -> Numbers:
    """The mean turn, from 1, at which agents earn something: high if there is something left late.

    An agent that earns nothing counts with turn 0.
    """
    earned = _checked(rewards) > 0.0
    turns = np.arange(1, len(rewards) + 1, dtype=np.float64)
    count = earned.sum(axis=0)
    return np.asarray((np.tensordot(turns, earned, axes=1) / np.maximum(count, 1)).mean(axis=0))


def peace(free: Array) -> Numbers:
    """From (T, N, W) flags, who was free to act: how many agents were, a turn."""
    return np.asarray(_checked(free).sum(axis=1).mean(axis=0), np.float64)


def _checked(turns: Array) -> Array:
    turns = np.asarray(turns)
    if turns.ndim != 3 or not turns.size:
        raise ShapeError(f"an episode of shape {turns.shape}: give (turns, agents, worlds), none of them empty")
    return turns.astype(np.float64) if turns.dtype.kind == "f" else turns
