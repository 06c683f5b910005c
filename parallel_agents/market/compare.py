"""Compare two ways to train on paired seeds with equal numbers of updates, beside the baselines.

worlds       W different worlds, or W columns of a single world: the score in unseen worlds and in an unseen type
importance   more crisis parents in every batch, or uniform draws: value from crisis parents, and the score

Both train with the engine (`MarketEnvironment`, PPO or DQN); all seeds of a way are replicas in one stack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.config import merge
from parallel_agents.core.errors import ConfigError
from parallel_agents.market.baselines import Bidder, Played, compare_baselines, fit_baselines, play
from parallel_agents.market.discovery import Patterns
from parallel_agents.market.market_environment import MarketEnvironment
from parallel_agents.market.simulation import MarketWorlds
from parallel_agents.market.trained import TrainedBidder
from parallel_agents.market.world_types import WorldType
from parallel_agents.market.world_variants import create_world_variants, default_distribution
from parallel_agents.tracking.statistics import Interval, mean_interval

Floats = NDArray[np.float64]
Emit = Callable[[str], None]

RECIPES: Mapping[str, Mapping[str, Any]] = {
    "ppo": {
        "world": {"actions": "continuous"},
        "model": {
            "algorithm": "ppo", "hidden": (64, 64), "lr": 1e-3, "gamma": 1.0, "gae_lambda": 0.95, "ent_coef": 0.0,
            "normalize_observations": True, "normalize_rewards": True,
        },
    },
    "dqn": {
        "world": {"actions": "joint"},
        "model": {
            "algorithm": "dqn", "hidden": (64, 64), "lr": 1e-3, "gamma": 0.99, "batch_size": 256, "n_step": 4,
            "updates_per_round": 40, "learning_starts": 5_000, "normalize_observations": True,
        },
    },
}  # fmt: skip
"""Options of `MarketEnvironment` that work, by algorithm."""
UNSEEN_SEED = 2**40
"""Seed of the worlds of evaluations; no training uses such seeds."""


@dataclass(frozen=True, eq=False)
class Paired:
    """A figure of two ways to train, one number per seed."""

    figure: str
    ways: tuple[str, str]
    values: tuple[Floats, Floats]

    @property
    def difference(self) -> Interval:
        """Mean difference of the first and the second way, with its 95 % interval over seeds."""
        return mean_interval(self.values[0] - self.values[1])

    def as_dict(self) -> dict[str, Any]:
        """Return the means, the difference and the number of seeds as plain values."""
        means = {way: float(v.mean()) for way, v in zip(self.ways, self.values, strict=True)}
        return {"figure": self.figure, **means, "difference": list(self.difference), "seeds": len(self.values[0])}


@dataclass(frozen=True, eq=False)
class Comparison:
    """Differences of two ways, and the score of each baseline in the same unseen worlds, with its interval."""

    paired: list[Paired]
    baselines: dict[str, Interval]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "comparisons": [one.as_dict() for one in self.paired],
            "baselines": {name: list(interval) for name, interval in self.baselines.items()},
        }


@dataclass(frozen=True)
class Study:
    """What the comparisons have in common.

    held_out: a type of world that is left out of the training; None: none is.
    episodes: of one evaluation, each in a world of its own.
    """

    patterns: Patterns
    algorithm: Literal["ppo", "dqn"] = "ppo"
    worlds: int = 100
    epochs: int = 150
    seeds: int = 10
    held_out: WorldType | None = None
    episodes: int = 200
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.seeds < 2:
            raise ConfigError(f"seeds {self.seeds} is too few for an interval: give at least 2")

    def environment(self, changes: Mapping[str, Any]) -> MarketEnvironment:
        """Return an environment without the held-out type, with some changes of its options."""
        mix = {k.value: s for k, s in default_distribution(self.patterns).items() if k is not self.held_out}
        base = {
            "experiment": {"epochs": self.epochs, "worlds": self.worlds, "seeds": self.seeds, "record_period": 0},
            "world": {"world_types": mix},
            "parallel": {"train_interval": 1, "policy_lag": 0, "backend": "inline"},
        }
        return MarketEnvironment(self.patterns, merge(merge(base, dict(RECIPES[self.algorithm])), dict(changes)))

    def unseen(self, kind: WorldType | None = None) -> MarketWorlds:
        """Return the worlds of evaluations, in the mix of the data or all of one type."""
        mix: dict[WorldType | str, float] | None = None if kind is None else {kind: 1.0}
        return MarketWorlds(
            create_world_variants(self.patterns, self.episodes, mix, seed=UNSEEN_SEED), threads=self.threads
        )

    def train(self, changes: Mapping[str, Any], markets: Sequence[MarketWorlds]) -> list[list[Played]]:
        """Train every seed; return the results of each seed in the first episode of each market's worlds."""
        environment = self.environment(changes)
        environment.run_experiment()
        return [
            [play(market, TrainedBidder.of(replica), [0]) for market in markets]
            for replica in environment.prepare().environments
        ]


def compare_worlds(study: Study, emit: Emit = lambda _: None) -> Comparison:
    """Compare training in many worlds and in one, with equal transitions and updates, on worlds neither has seen."""
    kinds = [None, *([study.held_out] if study.held_out else [])]
    markets = [study.unseen(kind) for kind in kinds]
    ways = ("many worlds", "one world")
    results = []
    for way, pool in zip(ways, (study.worlds, 1), strict=True):
        emit(f"training in {way}")
        results.append(study.train({"world": {"pool": pool}}, markets))
    paired = [
        Paired(figure, ways, _values(results, i, name))
        for i, kind in enumerate(kinds)
        for figure, name in (
            (f"score, {'unseen worlds' if kind is None else f'unseen type {kind.value}'}", "score"),
            (f"profit over budget, {'unseen worlds' if kind is None else f'unseen type {kind.value}'}", "profit"),
        )
    ]
    return Comparison(paired, baseline_scores(study, markets[0], emit))


def compare_importance(study: Study, emit: Emit = lambda _: None) -> Comparison:
    """Compare batches of which a half are crisis parents with uniform batches, at equal updates."""
    market = study.unseen()
    ways = ("importance on", "importance off")
    on = {"focus_rare_events": True, "target_share": 0.5, "beta": 1.0, "beta_frames": None}
    results = []
    for way, options in zip(ways, ({"model": {"importance": on}}, {}), strict=True):
        emit(f"training with {way}")
        results.append(study.train(options, [market]))
    names = (("value from crisis parents", "crisis_value"), ("score", "score"), ("profit over budget", "profit"))
    paired = [Paired(figure, ways, _values(results, 0, name)) for figure, name in names]
    return Comparison(paired, baseline_scores(study, market, emit))


def _values(results: Sequence[Sequence[Sequence[Played]]], market: int, name: str) -> tuple[Floats, Floats]:
    """Return the mean figure of every seed, of both ways."""
    first, second = (np.array([getattr(seed[market], name).mean() for seed in way]) for way in results)
    return first, second


def baseline_scores(study: Study, market: MarketWorlds, emit: Emit = lambda _: None) -> dict[str, Interval]:
    """Return the score of random play, the best constant, the pacer and the oracle, with intervals over worlds."""
    emit("fitting and playing the baselines")
    baselines = study_baselines(study.patterns, threads=study.threads)
    results = compare_baselines(baselines, market, [0])
    return {name: mean_interval(played.score.mean(axis=1)) for name, played in results.items()}


def study_baselines(patterns: Patterns, worlds: int = 60, **options: Any) -> dict[str, Bidder]:
    """Return the baselines that do best in training worlds of some patterns."""
    return fit_baselines(create_world_variants(patterns, worlds, seed=0), **options)
