"""Which sampling is best: settings x seeds are agents, and all of them are trained as one stack.

A row of the stack is one setting with one seed. It has a buffer and a sampler of its own; the rows of one seed share
the seed of everything else (data, first weights, draws), so that settings are compared on paired seeds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from parallel_agents.errors import ConfigError
from parallel_agents.memory import ImportanceSamplingReplayBuffer
from parallel_agents.models import DQN
from parallel_agents.models.door import as_snapshot
from parallel_agents.networks import numerics
from parallel_agents.sampling import ImportanceSampler
from parallel_agents.tracking.statistics import Interval, mean_interval
from parallel_agents.types import Array, Identity, Snapshot

__all__ = ["OnOff", "SamplingSetting", "Sweep", "Task", "Tuning", "grid"]

Values = Callable[[Array], NDArray[np.float32]]
"""States (n, *obs) -> values of actions (n, A)."""

_UPDATES = 16  # of a round: what is gathered at once


@dataclass(frozen=True)
class SamplingSetting:
    """One way to draw batches; `enabled=False` draws uniformly."""

    crisis_parent_weight: float = 5.0
    alpha: float = 1.0
    beta: float = 1.0
    temperature: float = 1.0
    enabled: bool = True

    def sampler(self, seed: int) -> ImportanceSampler:
        """A fresh sampler with constant beta."""
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
    """Every combination of crisis weight, alpha, beta and temperature.

    >>> len(grid(weights=(2.0, 5.0), betas=(0.4, 1.0)))
    4
    """
    return [SamplingSetting(*chosen) for chosen in itertools.product(weights, alphas, betas, temperatures)]


class Task(Protocol):
    """What is learned: the data of a seed, and how good the learned values are."""

    def fill(self, memory: ImportanceSamplingReplayBuffer, seed: int) -> None:
        """Add the transitions of this seed."""

    def score(self, values: Values, seed: int) -> float:
        """How good a policy is that acts by these values; more is better."""


class Sweep(NamedTuple):
    """Settings and their scores (settings, seeds), the best first."""

    settings: tuple[SamplingSetting, ...]
    scores: NDArray[np.float64]
    intervals: tuple[Interval, ...]
    """95 % of each setting's mean over seeds"""
    leads: tuple[Interval, ...]
    """95 % of the paired difference of the best over each: one that holds 0 is no worse, as far as can be told"""

    @property
    def best(self) -> SamplingSetting:
        return self.settings[0]


class OnOff(NamedTuple):
    """A setting against uniform draws, on paired seeds."""

    on: Interval
    off: Interval
    difference: Interval


@dataclass(frozen=True)
class Tuning:
    """How each row is trained."""

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
            tuple(mean_interval(own) for own in ranked),
            tuple(mean_interval(ranked[0] - own) for own in ranked),
        )

    def compare(self, on: SamplingSetting, seeds: Sequence[int]) -> OnOff:
        """With importance sampling and without, on the same seeds."""
        with_, without = self.scores([on, SamplingSetting(enabled=False)], seeds)
        return OnOff(mean_interval(with_), mean_interval(without), mean_interval(with_ - without))

    def scores(self, settings: Sequence[SamplingSetting], seeds: Sequence[int]) -> NDArray[np.float64]:
        """Scores (settings, seeds)."""
        policies = self.train(settings, seeds)
        found = [self.task.score(values, seeds[row % len(seeds)]) for row, values in enumerate(policies)]
        return np.array(found).reshape(len(settings), len(seeds))

    def train(self, settings: Sequence[SamplingSetting], seeds: Sequence[int]) -> list[Values]:
        """The learned values of every setting and seed, the seeds of one setting side by side."""
        if not settings or not seeds:
            raise ConfigError(f"{len(settings)} settings and {len(seeds)} seeds: give at least one of each")
        numerics.require()
        memories = [self._memory(setting, seed) for setting in settings for seed in seeds]
        uniform = [not setting.enabled for setting in settings for _ in seeds]
        model = DQN(self.obs_shape, self.n_actions, batch_size=self.batch_size, **self.model)
        identity = Identity(tuple(seeds) * len(settings), (0,) * len(memories))
        state = model.blueprint.learner().init(identity, [model.hyper] * len(memories))
        for first in range(0, self.updates, _UPDATES):
            count = min(_UPDATES, self.updates - first)
            parts = [self._snapshot(model, memories, uniform) for _ in range(count)]
            columns = {
                name: column if name == "ready" else np.concatenate([part[name] for part in parts], axis=1)
                for name, column in parts[0].columns.items()
            }
            state, _ = model.blueprint.learner(updates=count).learn(state, Snapshot(first, columns), identity)
        return [_values(model, state["online"][row : row + 1]) for row in range(len(memories))]

    def _memory(self, setting: SamplingSetting, seed: int) -> ImportanceSamplingReplayBuffer:
        memory = ImportanceSamplingReplayBuffer(self.rows, self.obs_shape, setting.sampler(seed))
        self.task.fill(memory, seed)
        return memory

    def _snapshot(
        self, model: DQN, memories: Sequence[ImportanceSamplingReplayBuffer], uniform: Sequence[bool]
    ) -> Snapshot:
        batches = []
        for memory, plain in zip(memories, uniform, strict=True):
            draw = memory.sample_uniform if plain else memory.sample_importance_weighted
            batch, weights, _ = draw(self.batch_size)
            batches.append({**batch, "weights": weights})
        return as_snapshot(batches, model.blueprint, gammas=[model.hyper["gamma"]] * len(batches))


def _values(model: DQN, row: torch.Tensor) -> Values:
    network = model.blueprint.network

    def values(states: Array) -> NDArray[np.float32]:
        inputs = torch.from_numpy(np.asarray(states, np.float32).reshape(1, len(states), -1))
        with torch.inference_mode():
            return np.asarray(network.forward(network.bind(row), inputs)[0].numpy())

    return values
