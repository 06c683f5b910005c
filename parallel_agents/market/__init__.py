"""Market worlds: a bidding problem discovered from data, simulated in many different worlds at once.

sample                exports drawn from hidden parameters: data for a first run, and known answers for the tests
discovery             a GA4 export and an advertiser's reports -> `Patterns`, every number with interval and source
worlds                patterns -> `World`s of different types, every number drawn from the data
simulation            `MarketWorlds`: many worlds stepped together
actions               what a bidder can do, in three forms, and what it is rewarded for
baselines             random, the best constant, a PID pacer, and the best constant of every world
market_environment    `MarketEnvironment`: bidders × worlds as a `ParallelEnvironment`; `MarketGym`: one bidder
policies              how simulators and trainers call an agent; a trained policy as a bidder, and as a file
montecarlo            one agent in many worlds at once; experiences: what it leaves behind; strategies: robust ones
trainers              training of any agent, with importance sampling; importance_tuning compares settings of it
compare               two ways to train, compared on paired seeds; market_plots draws results
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parallel_agents.market.discovery import load_patterns
    from parallel_agents.market.experiences import ExperienceBuffer, TrainingBatch, aggregate_parallel_experiences
    from parallel_agents.market.market_environment import MarketEnvironment
    from parallel_agents.market.montecarlo import MonteCarloSimulator, ParallelWorldOrchestrator, ParallelWorldSimulator
    from parallel_agents.market.policies import ExternalUpdateAgent
    from parallel_agents.market.strategies import detect_convergence_patterns
    from parallel_agents.market.trainers import (
        ImportanceSamplingTrainingConfiguration,
        ImportanceSamplingTrainingMetrics,
        ImportanceSamplingTrainingOrchestrator,
        MonteCarloTrainingConfig,
        MonteCarloTrainingOrchestrator,
        create_importance_sampling_trainer,
        integrate_importance_sampling_with_training,
    )
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

_MODULES = {
    "ExperienceBuffer": "experiences",
    "ExternalUpdateAgent": "policies",
    "MarketEnvironment": "market_environment",
    "TrainingBatch": "experiences",
    "WorldType": "worlds",
    "aggregate_parallel_experiences": "experiences",
    "create_importance_sampling_trainer": "trainers",
    "detect_convergence_patterns": "strategies",
    "integrate_importance_sampling_with_training": "trainers",
    "load_patterns": "discovery",
}


def register_gymnasium() -> None:
    """Register `parallel_agents/Market-v0`; an entry point of the package calls this when Gymnasium is imported."""
    from gymnasium.envs.registration import register, registry

    if "parallel_agents/Market-v0" not in registry:
        register("parallel_agents/Market-v0", entry_point="parallel_agents.market.market_environment:MarketGym")


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `--help` loads nothing heavy."""
    if name not in __all__:
        raise AttributeError(f"module 'parallel_agents.market' has no attribute {name!r}")
    default = "trainers" if "Training" in name else "montecarlo"
    return getattr(importlib.import_module(f"parallel_agents.market.{_MODULES.get(name, default)}"), name)
