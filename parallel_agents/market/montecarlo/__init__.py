"""Monte Carlo simulation: one agent in a hundred different worlds at once, and training on what it meets there.

experiences    what an episode and a batch of episodes leave behind
actors         how any agent acts in many worlds
flight         worlds stepped together; `ParallelWorldSimulator`, one by itself
worlds         `ParallelWorldOrchestrator`: which worlds, and how their mix follows the agent
simulator      `MonteCarloSimulator`: batches, failures, buffer
buffer         `ExperienceBuffer`: a million transitions, compact
aggregate      what a batch amounts to
training       `MonteCarloTrainingOrchestrator`
robust         `detect_convergence_patterns`: what works across worlds
strategies     fixed ways to bid, and learning that starts from good ones
"""

from parallel_agents.market.montecarlo.aggregate import aggregate_experiences, training_batch
from parallel_agents.market.montecarlo.buffer import ExperienceBuffer
from parallel_agents.market.montecarlo.experiences import EpisodeBatch, EpisodeExperience, Failure, world_context
from parallel_agents.market.montecarlo.flight import EpisodeSetting, ParallelWorldSimulator
from parallel_agents.market.montecarlo.robust import ConvergencePatterns, detect_convergence_patterns
from parallel_agents.market.montecarlo.simulator import MonteCarloSimulator
from parallel_agents.market.montecarlo.strategies import Focus, Strategy, constant_strategies, play_strategies
from parallel_agents.market.montecarlo.training import MonteCarloTrainingConfig, MonteCarloTrainingOrchestrator
from parallel_agents.market.montecarlo.worlds import ParallelWorldOrchestrator

__all__ = [
    "ConvergencePatterns",
    "EpisodeBatch",
    "EpisodeExperience",
    "EpisodeSetting",
    "ExperienceBuffer",
    "Failure",
    "Focus",
    "MonteCarloSimulator",
    "MonteCarloTrainingConfig",
    "MonteCarloTrainingOrchestrator",
    "ParallelWorldOrchestrator",
    "ParallelWorldSimulator",
    "Strategy",
    "aggregate_experiences",
    "constant_strategies",
    "detect_convergence_patterns",
    "play_strategies",
    "training_batch",
    "world_context",
]
