"""Two ways to train, compared on paired seeds with equal updates.

worlds       over W different worlds, against W columns of a single one: how good on unseen worlds and an unseen type
wall time    over W worlds at once, against one world after another: seconds until as good as the single-world agent
importance   crisis parents sought in every batch, against drawn as they come: value from crisis parents
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_agents.config import Config, merge
from parallel_agents.errors import ConfigError
from parallel_agents.market.discovery import Patterns
from parallel_agents.market.environment import MarketEnvironment
from parallel_agents.market.importance import PolicyDoor
from parallel_agents.market.montecarlo import (
    MonteCarloSimulator,
    MonteCarloTrainingConfig,
    MonteCarloTrainingOrchestrator,
)
from parallel_agents.market.worlds import WorldType, default_distribution
from parallel_agents.models import DQN
from parallel_agents.models.ppo import PPOOptions
from parallel_agents.tracking.statistics import Interval, mean_interval

__all__ = ["PPO_MODEL", "Paired", "WorldsStudy", "compare_importance", "compare_wall_time", "compare_worlds"]

Floats = NDArray[np.float64]
Tell = Callable[[str], None]

PPO_MODEL: Mapping[str, Any] = {
    "algorithm": "ppo",
    "hidden": (32,),
    "lr": 3e-3,
    "lr_final": 1e-4,
    "gamma": 1.0,
    "gae_lambda": 0.8,
    "entropy": 0.001,
    "normalise_observations": True,
    "normalise_rewards": True,
}
_UPDATES = PPOOptions().passes * PPOOptions().minibatches  # of a round
_PATIENCE = 15.0  # times the seconds of the quick way
_EVALUATION = 2**40  # seeds of evaluation worlds, which no training has


@dataclass(frozen=True, eq=False)
class Paired:
    """A figure of two ways, one number per seed."""

    figure: str
    ways: tuple[str, str]
    values: tuple[Floats, Floats]

    @property
    def difference(self) -> Interval:
        """How much the first way is ahead, with its 95 % interval over seeds."""
        return mean_interval(self.values[0] - self.values[1])

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        means = {way: float(v.mean()) for way, v in zip(self.ways, self.values, strict=True)}
        return {"figure": self.figure, **means, "difference": list(self.difference), "seeds": len(self.values[0])}


@dataclass(frozen=True)
class WorldsStudy:
    """What both studies of worlds have in common. Without a held-out type, all types are trained on."""

    patterns: Patterns
    worlds: int = 100
    epochs: int = 160
    seeds: int = 10
    held_out: WorldType | None = None
    episodes: int = 200
    """of one evaluation"""
    model: Mapping[str, Any] | None = None
    max_turns: int = 50

    def __post_init__(self) -> None:
        if self.seeds < 2:
            raise ConfigError(f"{self.seeds} seeds tell nothing of chance: give at least 2")

    def environment(self, *, worlds: int, pool: int, epochs: int, seeds: int, seed: int = 0) -> MarketEnvironment:
        """An environment whose training never meets the held-out type."""
        mix = {k.value: s for k, s in default_distribution(self.patterns).items() if k is not self.held_out}
        sizes = {"epochs": epochs, "worlds": worlds, "seeds": seeds, "max_turns": self.max_turns, "seed": seed}
        config = {
            "experiment": {**sizes, "record_period": 0},
            "world": {"pool": pool, "world_types": mix, "actions": "joint"},
            "model": {**PPO_MODEL, "lr_updates": _UPDATES * epochs} if self.model is None else dict(self.model),
            "parallel": {"train_interval": 1, "policy_lag": 0, "backend": "inline"},
        }
        return MarketEnvironment(self.patterns, config)

    def score(self, environment: MarketEnvironment, kind: WorldType | None = None) -> float:
        """Mean profit over budget in unseen worlds, of one type or as they come in the data."""
        mix = (
            {k.value: s for k, s in default_distribution(self.patterns).items()} if kind is None else {kind.value: 1.0}
        )
        changed = {"world": {"pool": None, "world_types": mix}, "experiment": {"seeds": 1}}
        stage = environment.remade(Config.build(merge(environment.config.as_dict(), changed)))
        for own, trained in zip(stage.agents, environment.agents, strict=True):
            own.model.state = trained.model.state
        return stage.evaluate(self.episodes).mean_return


def compare_worlds(study: WorldsStudy, tell: Tell = lambda _: None) -> list[Paired]:
    """Agents trained over all worlds against agents trained in a single one, equal transitions and updates."""
    scores: dict[str, list[list[float]]] = {}
    for way, pool in (("many worlds", study.worlds), ("single world", 1)):
        environment = study.environment(worlds=study.worlds, pool=pool, epochs=study.epochs, seeds=study.seeds)
        for epoch in range(1, study.epochs + 1):
            environment.run_experiment(epoch)
            tell(f"{way}: epoch {epoch} of {study.epochs}")
        kinds = [None] if study.held_out is None else [None, study.held_out]
        runs = environment.prepare().environments
        scores[way] = [[study.score(one, kind) for kind in kinds] for one in runs]
        tell(f"{way}: profit over budget in unseen worlds {np.mean([s[0] for s in scores[way]]):.2f}")
    figures = ["unseen worlds"] + ([f"unseen type {study.held_out.value}"] if study.held_out else [])
    tables = [np.array(scores[way]) for way in scores]
    return [
        Paired(figure, ("many worlds", "single world"), (tables[0][:, i], tables[1][:, i]))
        for i, figure in enumerate(figures)
    ]


def compare_wall_time(study: WorldsStudy, level: Sequence[float], tell: Tell = lambda _: None) -> Paired:
    """Seconds of training until an agent is as good as `level` (one per seed) on unseen worlds.

    All worlds at once, against one world after another with the same number of transitions at most. Evaluations, after
    every tenth of the training, are not counted; a training that never gets there counts with all its seconds, and the
    slow one is given up after 15 times the seconds of the quick one.
    """
    seconds: dict[str, list[float]] = {}
    for way, columns in (("at once", study.worlds), ("one after another", 1)):
        epochs = study.epochs * study.worlds // columns
        seconds[way] = []
        for seed in range(study.seeds):
            one = study.environment(worlds=columns, pool=study.worlds, epochs=epochs, seeds=1, seed=seed)
            limit = _PATIENCE * seconds["at once"][seed] if columns == 1 else math.inf
            taken = _until(study, one, epochs, level[seed], limit)
            seconds[way].append(taken)
            tell(f"{way}: seed {seed} took {taken:.1f} s")
    slow, quick = "one after another", "at once"
    return Paired("seconds", (slow, quick), (np.array(seconds[slow]), np.array(seconds[quick])))


def _until(study: WorldsStudy, environment: MarketEnvironment, epochs: int, level: float, limit: float) -> float:
    taken = 0.0
    for part in range(1, 11):
        began = time.perf_counter()
        environment.run_experiment(max(1, epochs * part // 10))
        taken += time.perf_counter() - began
        if taken > limit or study.score(environment) >= level:
            break
    return taken


def compare_importance(
    patterns: Patterns,
    *,
    seeds: int = 10,
    steps: int = 30,
    worlds: int = 50,
    episodes: int = 200,
    options: Mapping[str, Any] | None = None,
    tell: Tell = lambda _: None,
) -> list[Paired]:
    """DQN agents with crisis parents sought in every batch, against the same without: value from crisis parents."""
    if seeds < 2:
        raise ConfigError(f"{seeds} seeds tell nothing of chance: give at least 2")
    found: dict[str, list[tuple[float, float]]] = {"importance on": [], "importance off": []}
    for seed in range(seeds):
        for way, ratio in (("importance on", 0.5), ("importance off", 0.0)):
            found[way].append(_importance_run(patterns, ratio, seed, steps, worlds, episodes, options or {}))
        tell(f"importance: seed {seed + 1} of {seeds}")
    tables = [np.array(rows) for rows in found.values()]
    ways = ("importance on", "importance off")
    return [
        Paired(figure, ways, (tables[0][:, i], tables[1][:, i]))
        for i, figure in enumerate(("crisis value per episode", "profit over budget"))
    ]


def _importance_run(
    patterns: Patterns, ratio: float, seed: int, steps: int, worlds: int, episodes: int, options: Mapping[str, Any]
) -> tuple[float, float]:
    config = {"n_worlds": worlds, "batch_size": worlds, "max_concurrent_worlds": worlds, "updates_per_step": 20}
    setting = {"importance_sampling_ratio": ratio, "seed": seed, "experience_buffer_size": 200_000}
    trainer = MonteCarloTrainingOrchestrator(
        MonteCarloTrainingConfig.from_dict({**config, **options, **setting}), patterns=patterns
    )
    world = trainer.simulator.world(0)
    model = DQN(
        (len(world.names),), world.space, hidden=(64, 64), lr=1e-3, gamma=0.98, epsilon_epochs=max(1, steps // 2)
    )
    model.place(seed=seed, agent=0, worlds=1)
    asyncio.run(trainer.train_agent_with_monte_carlo(PolicyDoor(model), steps))
    model.set_epsilon(0.0)
    unseen = MonteCarloSimulator(
        episodes, None, episodes, 1000, patterns=patterns, setting=trainer.simulator.setting, seed=_EVALUATION + seed
    )
    with unseen, trainer.simulator:
        batch = asyncio.run(unseen.run_episode_batch(model))
    return float(np.mean([e.crisis_parent_revenue for e in batch])), float(np.mean([e.total_reward for e in batch]))
