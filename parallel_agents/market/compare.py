"""Compare two ways to train on paired seeds with equal numbers of updates, beside the baselines.

worlds       W different worlds, or W columns of a single world: the objective in unseen worlds and in an unseen type
importance   more crisis parents in every batch, or uniform draws: value from crisis parents, value of all, spending

Both train with the engine (`MarketEnvironment`, PPO or DQN); all seeds of a way are replicas in one stack.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from parallel_agents.core.config import merge
from parallel_agents.core.errors import ConfigError
from parallel_agents.core.types import Floats
from parallel_agents.market.actions import Objective
from parallel_agents.market.baselines import Bidder, Played, compare_baselines, fit_baselines, play
from parallel_agents.market.discovery import Patterns
from parallel_agents.market.market_environment import MarketEnvironment
from parallel_agents.market.policies import TrainedBidder
from parallel_agents.market.simulation import MarketWorlds
from parallel_agents.market.worlds import WorldType, create_world_variants, default_distribution
from parallel_agents.tracking.callbacks import Callback
from parallel_agents.tracking.statistics import Interval, mean_interval


def recipe(algorithm: Literal["ppo", "dqn"], epochs: int) -> dict[str, dict[str, Any]]:
    """Return options of `MarketEnvironment` that work; PPO's learning rate falls to a tenth over the epochs."""
    model: dict[str, Any] = {"algorithm": algorithm, "hidden": (64, 64), "lr": 1e-3, "normalize_observations": True}
    if algorithm == "dqn":
        model |= {"gamma": 0.99, "batch_size": 256, "n_step": 4, "updates_per_round": 40, "learning_starts": 5_000}
        return {"world": {"actions": "joint"}, "model": model}
    passes = {"n_epochs": 4, "n_minibatches": 16}
    model |= {"gamma": 1.0, "gae_lambda": 0.9, "normalize_rewards": True, **passes}
    model |= {"lr_final": 1e-4, "lr_updates": epochs * math.prod(passes.values())}
    return {"world": {"actions": "paced"}, "model": model}


WAYS: Mapping[str, Mapping[str, Any]] = {
    "many worlds": {},
    "one world": {"world": {"pool": 1}},
    "importance": {
        "model": {"importance": {"focus_rare_events": True, "target_share": 0.5, "beta": 0.0, "beta_frames": None}}
    },
}
"""Changes of a recipe, by the name of a way to train; without a correction of weights, which would undo the shift."""
COMPARED = {"worlds": ("many worlds", "one world"), "importance": ("importance", "many worlds")}
FIGURES = {"worlds": (), "importance": ("crisis_value", "value", "spent")}
"""Figures that a comparison shows beside the objective of the training."""
TITLES = {
    "score": "score",
    "profit": "profit over budget",
    "crisis_value": "value from crisis parents",
    "value": "value",
    "spent": "share of the budget that is spent",
}
UNSEEN_SEED = 2**40
"""Seed of the worlds of evaluations; no training uses such seeds."""


@dataclass(frozen=True, eq=False)
class Paired:
    """A figure of two bidders in the same worlds: arrays (seeds, worlds); a baseline has one row for all seeds."""

    figure: str
    ways: tuple[str, str]
    results: tuple[Floats, Floats]

    @property
    def difference(self) -> Interval:
        """Mean difference of the first and the second, with its 95 % interval over seeds of the training."""
        first, second = (table.mean(axis=1) for table in self.results)
        return mean_interval(first - second)

    @property
    def over_worlds(self) -> Interval:
        """The same, with its 95 % interval over unseen worlds."""
        first, second = (table.mean(axis=0) for table in self.results)
        return mean_interval(first - second)

    def as_dict(self) -> dict[str, Any]:
        """Return the means, the difference and the number of seeds as plain values."""
        means = {way: float(table.mean()) for way, table in zip(self.ways, self.results, strict=True)}
        return {
            "figure": self.figure,
            **means,
            "difference": list(self.difference),
            "over_worlds": list(self.over_worlds),
            "seeds": len(self.results[0]),
        }


@dataclass(frozen=True, eq=False)
class Comparison:
    """Differences of two ways to train, and of the first way from every baseline, in the same unseen worlds."""

    paired: list[Paired]
    baselines: dict[str, Interval]
    """what each baseline reaches of the objective in unseen worlds, with its interval over worlds"""

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "comparisons": [one.as_dict() for one in self.paired],
            "baselines": {name: list(interval) for name, interval in self.baselines.items()},
        }


@dataclass(frozen=True)
class Study:
    """What the comparisons have in common.

    objective: what training rewards, and what the baselines are chosen by.
    held_out: a type of world that is left out of the training; None: none is.
    episodes: of one evaluation, each in a world of its own.
    """

    patterns: Patterns
    algorithm: Literal["ppo", "dqn"] = "ppo"
    objective: Objective = "score"
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
            "experiment": {
                "epochs": self.epochs,
                "worlds": self.worlds,
                "seeds": self.seeds,
                "record_period": 0,
            },
            "world": {"world_types": mix, "objective": self.objective},
            "parallel": {"train_interval": 1, "policy_lag": 0, "backend": "inline"},
        }
        return MarketEnvironment(self.patterns, merge(base, recipe(self.algorithm, self.epochs), changes))

    def unseen(self, kind: WorldType | None = None) -> MarketWorlds:
        """Return the worlds of evaluations, in the mix of the data or all of one type."""
        mix = None if kind is None else {kind: 1.0}
        worlds = create_world_variants(self.patterns, self.episodes, mix, seed=UNSEEN_SEED)
        return MarketWorlds(worlds, threads=self.threads)

    def train(self, way: str, callbacks: Sequence[Callback] = ()) -> list[list[Played]]:
        """Train every seed in a way of `WAYS`; return its results in the first episode of each market of `kinds`."""
        environment = self.environment(WAYS[way])
        environment.run_experiment(callbacks=callbacks)
        bidders = [TrainedBidder.of(replica) for replica in environment.prepare().environments]
        results: list[list[Played]] = [[] for _ in bidders]
        for kind in self.kinds:
            with self.unseen(kind) as market:
                for played, bidder in zip(results, bidders, strict=True):
                    played.append(play(market, bidder, [0]))
        return results

    @property
    def kinds(self) -> tuple[WorldType | None, ...]:
        """The types of the worlds of evaluations: all in the mix of the data, and the held-out one."""
        return (None,) if self.held_out is None else (None, self.held_out)


def compare_ways(
    study: Study,
    what: str,
    trained: Mapping[str, list[list[Played]]],
    baselines: Sequence[Mapping[str, Played]],
) -> Comparison:
    """Compare the two ways of a comparison, and the first with every baseline (by kind of `study.kinds`)."""
    first, second = COMPARED[what]
    paired = []
    for i, (kind, played) in enumerate(zip(study.kinds, baselines, strict=True)):
        place = "unseen worlds" if kind is None else f"unseen type {kind.value}"
        for name in (*FIGURES[what], study.objective):
            title = f"{TITLES[name]}, {place}"
            mine, other = (np.array([seed[i].by_world(name) for seed in trained[way]]) for way in (first, second))
            paired.append(Paired(title, (first, second), (mine, other)))
            for baseline, one in played.items():
                same = np.repeat(one.by_world(name)[None], len(mine), axis=0)
                paired.append(Paired(title, (first, baseline), (mine, same)))
    return Comparison(
        paired, {name: mean_interval(one.by_world(study.objective)) for name, one in baselines[0].items()}
    )


def play_baselines(study: Study) -> list[dict[str, Played]]:
    """Return the results of the baselines in the worlds of every kind of a study."""
    baselines = study_baselines(study.patterns, by=study.objective, threads=study.threads)
    results = []
    for kind in study.kinds:
        with study.unseen(kind) as market:
            results.append(compare_baselines(baselines, market, [0]))
    return results


def run_study(study: Study, what: str) -> Comparison:
    """Train both ways, play the baselines, and compare."""
    return compare_ways(study, what, {way: study.train(way) for way in COMPARED[what]}, play_baselines(study))


def study_baselines(patterns: Patterns, worlds: int = 60, **options: Any) -> dict[str, Bidder]:
    """Return the baselines that do best in training worlds of some patterns."""
    return fit_baselines(create_world_variants(patterns, worlds, seed=0), **options)
