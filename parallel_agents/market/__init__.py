"""Market worlds: a bidding problem discovered from data, simulated in many different worlds at once.

- sample: exports drawn from hidden parameters, the data of a first run and the oracle of the tests
- discovery: from a GA4 export and an advertiser's reports to `Patterns`, every number with interval and provenance
- worlds: from patterns to `World`s, no two alike, no number typed in
- simulation: `MarketWorlds`, W worlds stepped as one
- environment: `MarketEnvironment`, the same as agents' environment
- importance: training with importance sampling
- montecarlo: one agent in a hundred worlds at once, training on what it meets there, and robust strategies
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_MONTE_CARLO = (
    "ExperienceBuffer",
    "MonteCarloSimulator",
    "MonteCarloTrainingConfig",
    "MonteCarloTrainingOrchestrator",
    "ParallelWorldOrchestrator",
    "ParallelWorldSimulator",
    "detect_convergence_patterns",
)
_HOMES = {
    "MarketEnvironment": "environment",
    "WorldType": "worlds",
    "patterns_of": "source",
    **dict.fromkeys(_MONTE_CARLO, "montecarlo"),
}

__all__ = [
    "ExperienceBuffer",
    "MarketEnvironment",
    "MonteCarloSimulator",
    "MonteCarloTrainingConfig",
    "MonteCarloTrainingOrchestrator",
    "ParallelWorldOrchestrator",
    "ParallelWorldSimulator",
    "WorldType",
    "detect_convergence_patterns",
    "patterns_of",
]

if TYPE_CHECKING:
    from parallel_agents.market.environment import MarketEnvironment
    from parallel_agents.market.montecarlo import (
        ExperienceBuffer,
        MonteCarloSimulator,
        MonteCarloTrainingConfig,
        MonteCarloTrainingOrchestrator,
        ParallelWorldOrchestrator,
        ParallelWorldSimulator,
        detect_convergence_patterns,
    )
    from parallel_agents.market.source import patterns_of
    from parallel_agents.market.worlds import WorldType


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'parallel_agents.market' has no attribute {name!r}")
    return getattr(importlib.import_module(f"parallel_agents.market.{_HOMES[name]}"), name)
