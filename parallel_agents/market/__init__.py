"""Market worlds: a bidding problem discovered from data, simulated in many different worlds at once.

sample                exports drawn from hidden parameters: data for a first run, and known answers for the tests
discovery             a GA4 export and an advertiser's reports -> `Patterns`, every number with interval and source
worlds                patterns -> `World`s of different types, every number drawn from the data
simulation            `MarketWorlds`: many worlds stepped together
actions               what a bidder can do, in three forms, and what it is rewarded for
baselines             random, the best constant, a PID pacer, and an oracle: a pacer that knows its world
market_environment    `MarketEnvironment`: bidders × worlds as a `ParallelEnvironment`; `MarketGym`: one bidder
policies              how agents act in many worlds at once; a trained policy as a bidder, and as a file
montecarlo            one agent in many worlds at once; experiences: what it leaves behind; strategies: robust ones
trainers              training of any agent in many worlds; `env.importance_training` is that in one environment
compare               two ways to train, compared on paired seeds; market_plots draws results
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parallel_agents.env.external_training import ExternalUpdateAgent
    from parallel_agents.env.importance_training import (
        ImportanceSamplingTrainingConfiguration,
        ImportanceSamplingTrainingMetrics,
        ImportanceSamplingTrainingOrchestrator,
        create_importance_sampling_trainer,
        integrate_importance_sampling_with_training,
    )
    from parallel_agents.market.discovery import load_patterns
    from parallel_agents.market.experiences import ExperienceBuffer, TrainingBatch, aggregate_parallel_experiences
    from parallel_agents.market.market_environment import MarketEnvironment
    from parallel_agents.market.montecarlo import MonteCarloSimulator, ParallelWorldOrchestrator, ParallelWorldSimulator
    from parallel_agents.market.strategies import detect_convergence_patterns
    from parallel_agents.market.trainers import MonteCarloTrainingConfig, MonteCarloTrainingOrchestrator
    from parallel_agents.market.worlds import WorldType

__all__ = [
    "ExperienceBuffer",
    "ExternalUpdateAgent",
    "ImportanceSamplingTrainingConfiguration",
    "ImportanceSamplingTrainingMetrics",
    "ImportanceSamplingTrainingOrchestrator",
    "MarketEnvironment",
    "MonteCarloSimulator",
    "MonteCarloTrainingConfig",
    "MonteCarloTrainingOrchestrator",
    "ParallelWorldOrchestrator",
    "ParallelWorldSimulator",
    "TrainingBatch",
    "WorldType",
    "aggregate_parallel_experiences",
    "create_importance_sampling_trainer",
    "detect_convergence_patterns",
    "integrate_importance_sampling_with_training",
    "load_patterns",
    "register_gymnasium",
]

_HOMES = {
    "ExperienceBuffer": "market.experiences",
    "ExternalUpdateAgent": "env.external_training",
    "ImportanceSamplingTrainingConfiguration": "env.importance_training",
    "ImportanceSamplingTrainingMetrics": "env.importance_training",
    "ImportanceSamplingTrainingOrchestrator": "env.importance_training",
    "MarketEnvironment": "market.market_environment",
    "MonteCarloSimulator": "market.montecarlo",
    "MonteCarloTrainingConfig": "market.trainers",
    "MonteCarloTrainingOrchestrator": "market.trainers",
    "ParallelWorldOrchestrator": "market.montecarlo",
    "ParallelWorldSimulator": "market.montecarlo",
    "TrainingBatch": "market.experiences",
    "WorldType": "market.worlds",
    "aggregate_parallel_experiences": "market.experiences",
    "create_importance_sampling_trainer": "env.importance_training",
    "detect_convergence_patterns": "market.strategies",
    "integrate_importance_sampling_with_training": "env.importance_training",
    "load_patterns": "market.discovery",
}


def register_gymnasium() -> None:
    """Register `parallel_agents/Market-v0`; an entry point of the package calls this when Gymnasium is imported."""
    from gymnasium.envs.registration import register, registry

    if "parallel_agents/Market-v0" not in registry:
        register("parallel_agents/Market-v0", entry_point="parallel_agents.market.market_environment:MarketGym")


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `--help` loads nothing heavy."""
    if name not in _HOMES:
        raise AttributeError(f"module 'parallel_agents.market' has no attribute {name!r}")
    return getattr(importlib.import_module(f"parallel_agents.{_HOMES[name]}"), name)
