"""Compare settings of importance sampling: settings × seeds are agents that are trained as one stack.

A row of the stack is one setting with one seed, with its own buffer and sampler. Rows of the same seed have the same
data, initial weights and random numbers, so settings are compared on paired seeds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from parallel_agents.algorithms import DQN
from parallel_agents.algorithms.external_update import batches_snapshot
from parallel_agents.algorithms.learner import Snapshot
from parallel_agents.core.errors import ConfigError
from parallel_agents.core.seeding import Identity
from parallel_agents.core.types import Array
from parallel_agents.nn import numerics
from parallel_agents.replay import ImportanceSampler, ImportanceSamplingReplayBuffer
from parallel_agents.tracking.statistics import Interval, mean_interval

Values = Callable[[Array], NDArray[np.float32]]
"""States (n, *obs) -> action values (n, A)."""

_UPDATES_PER_ROUND = 16  # batches that are drawn at once


@dataclass(frozen=True)
class SamplingSetting:
    """One setting of importance sampling; `enabled=False` draws uniformly."""

    crisis_parent_weight: float = 5.0
    alpha: float = 1.0
    beta: float = 1.0
    temperature: float = 1.0
    enabled: bool = True

    def sampler(self, seed: int) -> ImportanceSampler:
        """Return a new sampler with constant beta."""
        return ImportanceSampler(
            self.crisis_parent_weight,
            self.alpha,
            self.beta,
            temperature=self.temperature,
            beta_frames=None,
            seed=seed,
        )


def grid(
    weights: Iterable[float] = (5.0,),
    alphas: Iterable[float] = (1.0,),
    betas: Iterable[float] = (1.0,),
    temperatures: Iterable[float] = (1.0,),
) -> list[SamplingSetting]:
    """Return every combination of crisis weight, alpha, beta and temperature.

    >>> len(grid(weights=(2.0, 5.0), betas=(0.4, 1.0)))
    4
    """
    return [SamplingSetting(*chosen) for chosen in itertools.product(weights, alphas, betas, temperatures)]


class Task(Protocol):
    """What is learned: the data of a seed, and a score of the learned values."""

    def fill(self, memory: ImportanceSamplingReplayBuffer, seed: int) -> None:
        """Add the transitions of this seed."""

    def score(self, values: Values, seed: int) -> float:
        """Return the score of the policy that acts by these values; larger is better."""


class Sweep(NamedTuple):
    """Settings and their scores (settings, seeds), the best first."""

    settings: tuple[SamplingSetting, ...]
    scores: NDArray[np.float64]
    intervals: tuple[Interval, ...]
    """95 % interval of each setting's mean over seeds"""
    leads: tuple[Interval, ...]
    """95 % interval of the paired difference of the best and each setting: if it holds 0, none is shown to be better"""

    @property
    def best(self) -> SamplingSetting:
        return self.settings[0]


class OnOff(NamedTuple):
    """Scores with a setting and with uniform draws, on paired seeds."""

    on: Interval
    off: Interval
    difference: Interval


@dataclass(frozen=True)
class Tuning:
    """A task, and how the rows are trained on it."""

    task: Task
    obs_shape: tuple[int, ...]
    n_actions: int
    rows: int
    """capacity of each buffer"""
    updates: int = 500
    batch_size: int = 32
    model: dict[str, Any] = field(default_factory=dict)
    """options of `DQN`"""

    def sweep(self, settings: Sequence[SamplingSetting], seeds: Sequence[int]) -> Sweep:
        """Train every setting on every seed as one stack, and rank the settings by their mean score."""
        scores = self.scores(settings, seeds)
        order = np.argsort(-scores.mean(1), kind="stable")
        ranked = scores[order]
        return Sweep(
            tuple(settings[place] for place in order),
            ranked,
            tuple(mean_interval(row) for row in ranked),
            tuple(mean_interval(ranked[0] - row) for row in ranked),
        )

    def compare(self, on: SamplingSetting, seeds: Sequence[int]) -> OnOff:
        """Compare a setting with uniform draws on the same seeds."""
        weighted, uniform = self.scores([on, SamplingSetting(enabled=False)], seeds)
        return OnOff(mean_interval(weighted), mean_interval(uniform), mean_interval(weighted - uniform))

    def scores(self, settings: Sequence[SamplingSetting], seeds: Sequence[int]) -> NDArray[np.float64]:
        """Train every setting on every seed and return the scores (settings, seeds)."""
        policies = self.train(settings, seeds)
        scores = [self.task.score(values, seeds[row % len(seeds)]) for row, values in enumerate(policies)]
        return np.array(scores).reshape(len(settings), len(seeds))

    def train(self, settings: Sequence[SamplingSetting], seeds: Sequence[int]) -> list[Values]:
        """Return the learned action values of every setting and seed, setting by setting."""
        if not settings or not seeds:
            raise ConfigError(f"{len(settings)} settings and {len(seeds)} seeds: give at least one of each")
        numerics.require()
        memories = [self._memory(setting, seed) for setting in settings for seed in seeds]
        uniform = [not setting.enabled for setting in settings for _ in seeds]
        model = DQN(self.obs_shape, self.n_actions, batch_size=self.batch_size, **self.model)
        identity = Identity(tuple(seeds) * len(settings), (0,) * len(memories))
        state = model.spec.learner().init(identity, [model.hyper] * len(memories))
        for first in range(0, self.updates, _UPDATES_PER_ROUND):
            count = min(_UPDATES_PER_ROUND, self.updates - first)
            parts = [self._snapshot(model, memories, uniform) for _ in range(count)]
            columns = {
                name: column if name == "ready" else np.concatenate([part[name] for part in parts], axis=1)
                for name, column in parts[0].columns.items()
            }
            state, _ = model.spec.learner(updates=count).learn(state, Snapshot(first, columns), identity)
        return [_action_values(model, state["online"][row : row + 1]) for row in range(len(memories))]

    def _memory(self, setting: SamplingSetting, seed: int) -> ImportanceSamplingReplayBuffer:
        memory = ImportanceSamplingReplayBuffer(self.rows, self.obs_shape, setting.sampler(seed))
        self.task.fill(memory, seed)
        return memory

    def _snapshot(
        self, model: DQN, memories: Sequence[ImportanceSamplingReplayBuffer], uniform: Sequence[bool]
    ) -> Snapshot:
        """Draw one batch for every row."""
        batches = []
        for memory, is_uniform in zip(memories, uniform, strict=True):
            draw = memory.sample_uniform if is_uniform else memory.sample_importance_weighted
            batch, weights, _ = draw(self.batch_size)
            batches.append({**batch, "weights": weights})
        return batches_snapshot(batches, model.spec, gammas=[model.hyper["gamma"]] * len(batches))


def _action_values(model: DQN, row: torch.Tensor) -> Values:
    """Return the network of one row as a function."""
    network = model.spec.network

    def values(states: Array) -> NDArray[np.float32]:
        inputs = torch.from_numpy(np.asarray(states, np.float32).reshape(1, len(states), -1))
        with torch.inference_mode():
            return np.asarray(network.forward(network.bind(row), inputs)[0].numpy())

    return values
