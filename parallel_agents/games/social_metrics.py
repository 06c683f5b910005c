"""Social outcomes of an episode: how much a group earns, how equally, for how long, how peacefully.

The four metrics of Perolat et al. (2017), "A multi-agent reinforcement learning model of common-pool resource
appropriation". Rewards are (T, N, W): turn, agent, world; each metric is (W,), one number per world.

>>> rewards = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 2.0]])[:, :, None]
>>> efficiency(rewards), equality(rewards), sustainability(rewards)
(array([1.33333333]), array([1.]), array([2.25]))
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.errors import ShapeError
from parallel_agents.core.types import Array, EpochStats
from parallel_agents.tracking.callbacks import BaseCallback, Throttle
from parallel_agents.tracking.metric_bins import Bins
from parallel_agents.tracking.plots import chart, line, write_section

if TYPE_CHECKING:
    from parallel_agents.games.environment import GridEnvironment

Metric = NDArray[np.float64]


def efficiency(rewards: Array) -> Metric:
    """Return the mean reward of the whole group per turn."""
    return np.asarray(_checked(rewards).sum(axis=(0, 1)) / len(rewards))


def equality(rewards: Array) -> Metric:
    """Return 1 minus the Gini coefficient of the returns: 1 if all are equal, 1 / N if one agent has everything.

    It may be less if some agents lost. It is nan for worlds in which the group earned nothing in total.
    """
    returns = np.sort(_checked(rewards).sum(axis=0), axis=0)
    agents = len(returns)
    rank = 2.0 * np.arange(1, agents + 1) - agents - 1.0  # Σᵢⱼ |Rᵢ - Rⱼ| = 2 Σᵢ rankᵢ Rᵢ, sorted
    total = returns.sum(axis=0)
    difference = rank @ returns
    return np.asarray(1.0 - np.divide(difference, agents * total, out=np.full_like(total, np.nan), where=total > 0.0))


def sustainability(rewards: Array) -> Metric:
    """Return the mean turn, from 1, in which agents earn something: high if something is left late.

    An agent that earns nothing counts as turn 0.
    """
    earned = _checked(rewards) > 0.0
    turns = np.arange(1, len(rewards) + 1, dtype=np.float64)
    count = earned.sum(axis=0)
    return np.asarray((np.tensordot(turns, earned, axes=1) / np.maximum(count, 1)).mean(axis=0))


def peace(free: Array) -> Metric:
    """Return the mean number of agents able to act per turn, from (T, N, W) flags of who was."""
    return np.asarray(_checked(free).sum(axis=1).mean(axis=0), np.float64)


def _checked(episode: Array) -> Array:
    """Return an episode as an array, or raise an error if it is not (turns, agents, worlds)."""
    episode = np.asarray(episode)
    if episode.ndim != 3 or not episode.size:
        raise ShapeError(f"an episode of shape {episode.shape}: give (turns, agents, worlds), none of them empty")
    return episode.astype(np.float64) if episode.dtype.kind == "f" else episode


class SocialRecorder(BaseCallback):
    """Keep sustainability and peace of a game, mean over its worlds, as charts in the run folder.

    Efficiency and equality follow from the metrics of any run; these two need every turn, so an epoch that is played
    whole in compiled code has none.
    """

    def __init__(self, game: GridEnvironment, folder: Path) -> None:
        self._game, self._folder = game, folder
        self._throttle = Throttle(every=2.0)
        self._rewards: list[Array] = []
        self._free: list[Array] = []
        self._bins = Bins()
        game.social = self

    def add(self, rewards: Array) -> None:
        """Keep the (N, W) rewards of a turn; the game calls it."""
        if self._game.turn == 1:  # also after an evaluation
            self._rewards, self._free = [], []
        self._rewards.append(rewards.copy())
        self._free.append(~self._game.frozen())

    def on_epoch(self, stats: EpochStats) -> None:
        """Add the metrics of the epoch."""
        if not self._rewards:
            return
        found = {"Sustainability": sustainability(np.stack(self._rewards)), "Peace": peace(np.stack(self._free))}
        for name, values in found.items():
            self._bins.add(name, np.array([stats.epoch]), np.array([[values.mean()]]))
        self._rewards, self._free = [], []
        self._throttle.call(self._write)

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Write the charts once more."""
        if self._bins.names():
            self._write()

    def _write(self) -> None:
        notes = {"Sustainability": "mean turn in which agents earn", "Peace": "mean number of agents able to act"}
        charts = [chart(name, self._bins.epochs(), [line("", self._bins.means(name)[:, 0])], note=note)
                  for name, note in notes.items()]  # fmt: skip
        write_section(self._folder, "social", "Sustainability and peace", charts)
