"""Compare two ways to train on paired seeds with equal numbers of updates.

worlds       W different worlds, or W columns of a single world: the score in unseen worlds and in an unseen type
wall time    W worlds at once, or one world after another: seconds until a given score is reached
importance   more crisis parents in every batch, or uniform draws: value from crisis parents
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

from parallel_agents.algorithms import DQN
from parallel_agents.algorithms.ppo import PPOOptions
from parallel_agents.core.config import Config, merge
from parallel_agents.core.errors import ConfigError
from parallel_agents.market.discovery import Patterns
from parallel_agents.market.market_environment import MarketEnvironment
from parallel_agents.market.montecarlo import (
    MonteCarloSimulator,
    MonteCarloTrainingConfig,
    MonteCarloTrainingOrchestrator,
)
from parallel_agents.market.policy_agents import ExternalUpdateAgent
from parallel_agents.market.world_types import WorldType
from parallel_agents.market.world_variants import default_distribution
from parallel_agents.tracking.statistics import Interval, mean_interval

Floats = NDArray[np.float64]
Emit = Callable[[str], None]

_PPO_MODEL: Mapping[str, Any] = {
    "algorithm": "ppo",
    "hidden": (32,),
    "lr": 3e-3,
    "lr_final": 1e-4,
    "gamma": 1.0,
    "gae_lambda": 0.8,
    "ent_coef": 0.001,
    "normalize_observations": True,
    "normalize_rewards": True,
}
_UPDATES_PER_ROUND = PPOOptions().n_epochs * PPOOptions().n_minibatches
_TIME_LIMIT = 15.0  # of the slow way, as a multiple of the seconds of the quick way
_EVALUATION_SEED = 2**40  # first seed of evaluation worlds; no training uses such seeds


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


@dataclass(frozen=True)
class WorldsStudy:
    """What the comparisons of worlds have in common.

    held_out: a type of world that is left out of the training; None: none is.
    episodes: of one evaluation.
    """

    patterns: Patterns
    worlds: int = 100
    epochs: int = 160
    seeds: int = 10
    held_out: WorldType | None = None
    episodes: int = 200

    def __post_init__(self) -> None:
        _require_seeds(self.seeds)

    def environment(self, *, worlds: int, pool: int, epochs: int, seeds: int, seed: int = 0) -> MarketEnvironment:
        """Return an environment without the held-out type."""
        mix = {k.value: s for k, s in default_distribution(self.patterns).items() if k is not self.held_out}
        sizes = {"epochs": epochs, "worlds": worlds, "seeds": seeds, "max_turns": 50, "seed": seed}
        config = {
            "experiment": {**sizes, "record_period": 0},
            "world": {"pool": pool, "world_types": mix, "actions": "joint"},
            "model": {**_PPO_MODEL, "lr_updates": _UPDATES_PER_ROUND * epochs},
            "parallel": {"train_interval": 1, "policy_lag": 0, "backend": "inline"},
        }
        return MarketEnvironment(self.patterns, config)

    def score(self, environment: MarketEnvironment, kind: WorldType | None = None) -> float:
        """Return the mean profit over budget in unseen worlds, of one type or in the mix of the data."""
        shares = default_distribution(self.patterns) if kind is None else {kind: 1.0}
        mix = {k.value: share for k, share in shares.items()}
        changes = {"world": {"pool": None, "world_types": mix}, "experiment": {"seeds": 1}}
        unseen = environment.with_config(Config.build(merge(environment.config.as_dict(), changes)))
        for agent, trained in zip(unseen.agents, environment.agents, strict=True):
            agent.model.state = trained.model.state
        return unseen.evaluate(self.episodes).mean_return


def _require_seeds(seeds: int) -> None:
    if seeds < 2:
        raise ConfigError(f"{seeds} seeds give no interval: give at least 2")


def compare_worlds(study: WorldsStudy, emit: Emit = lambda _: None) -> list[Paired]:
    """Compare training in W worlds with training in a single one, with equal numbers of transitions and updates."""
    kinds = [None] if study.held_out is None else [None, study.held_out]
    ways = ("many worlds", "single world")
    tables = []
    for way, pool in zip(ways, (study.worlds, 1), strict=True):
        environment = study.environment(worlds=study.worlds, pool=pool, epochs=study.epochs, seeds=study.seeds)
        for epoch in range(1, study.epochs + 1):
            environment.run_experiment(epoch)
            emit(f"{way}: epoch {epoch} of {study.epochs}")
        replicas = environment.prepare().environments
        tables.append(np.array([[study.score(replica, kind) for kind in kinds] for replica in replicas]))
        emit(f"{way}: profit over budget in unseen worlds {tables[-1][:, 0].mean():.2f}")
    figures = ["unseen worlds" if kind is None else f"unseen type {kind.value}" for kind in kinds]
    return [Paired(figure, ways, (tables[0][:, i], tables[1][:, i])) for i, figure in enumerate(figures)]


def compare_wall_time(study: WorldsStudy, level: Sequence[float], emit: Emit = lambda _: None) -> Paired:
    """Compare the seconds of training until an agent reaches `level` (one per seed) in unseen worlds.

    One way trains in all worlds at once, the other in one world after another, with at most the same number of
    transitions. The score is taken after every tenth of the training, outside of the measured time. A training that
    never reaches the level counts with all its seconds; the slow way ends after 15 times the seconds of the quick one.
    """
    seconds: dict[str, list[float]] = {}
    for way, columns in (("at once", study.worlds), ("one after another", 1)):
        epochs = study.epochs * study.worlds // columns
        seconds[way] = []
        for seed in range(study.seeds):
            environment = study.environment(worlds=columns, pool=study.worlds, epochs=epochs, seeds=1, seed=seed)
            limit = _TIME_LIMIT * seconds["at once"][seed] if columns == 1 else math.inf
            taken = _seconds_until(study, environment, epochs, level[seed], limit)
            seconds[way].append(taken)
            emit(f"{way}: seed {seed} took {taken:.1f} s")
    slow, quick = "one after another", "at once"
    return Paired("seconds", (slow, quick), (np.array(seconds[slow]), np.array(seconds[quick])))


def _seconds_until(
    study: WorldsStudy, environment: MarketEnvironment, epochs: int, level: float, limit: float
) -> float:
    """Train in ten parts until the score reaches `level` or the time exceeds `limit`; return the seconds."""
    taken = 0.0
    for part in range(1, 11):
        start = time.perf_counter()
        environment.run_experiment(max(1, epochs * part // 10))
        taken += time.perf_counter() - start
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
    emit: Emit = lambda _: None,
) -> list[Paired]:
    """Compare DQN agents whose batches hold more crisis parents with agents of uniform draws."""
    _require_seeds(seeds)
    ways = ("importance on", "importance off")
    scores: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for seed in range(seeds):
        for way, ratio in zip(ways, (0.5, 0.0), strict=True):
            scores[way].append(_importance_run(patterns, ratio, seed, steps, worlds, episodes))
        emit(f"importance: seed {seed + 1} of {seeds}")
    on, off = (np.array(scores[way]) for way in ways)
    figures = ("crisis value per episode", "profit over budget")
    return [Paired(figure, ways, (on[:, i], off[:, i])) for i, figure in enumerate(figures)]


def _importance_run(
    patterns: Patterns, ratio: float, seed: int, steps: int, worlds: int, episodes: int
) -> tuple[float, float]:
    """Train one agent; return its mean value from crisis parents and mean profit over budget in unseen worlds."""
    config = {"n_worlds": worlds, "batch_size": worlds, "max_concurrent_worlds": worlds, "updates_per_step": 20}
    setting = {"importance_sampling_ratio": ratio, "seed": seed, "experience_buffer_size": 200_000}
    trainer = MonteCarloTrainingOrchestrator(
        MonteCarloTrainingConfig.from_dict({**config, **setting}), patterns=patterns
    )
    world = trainer.simulator.world(0)
    model = DQN(
        (len(world.names),), world.space, hidden=(64, 64), lr=1e-3, gamma=0.98, epsilon_epochs=max(1, steps // 2)
    )
    model.place(seed=seed, agent=0, worlds=1)
    asyncio.run(trainer.train_agent_with_monte_carlo(ExternalUpdateAgent(model), steps))
    model.set_epsilon(0.0)
    unseen = MonteCarloSimulator(
        episodes,
        None,
        episodes,
        1000,
        patterns=patterns,
        setting=trainer.simulator.setting,
        seed=_EVALUATION_SEED + seed,
    )
    with unseen, trainer.simulator:
        batch = asyncio.run(unseen.run_episode_batch(model))
    return float(np.mean([e.crisis_parent_revenue for e in batch])), float(np.mean([e.total_reward for e in batch]))
