"""Monte Carlo simulation: one agent in many different worlds at once, and training on its experiences.

experiences            what an episode and a batch of episodes leave behind, and their summary
experience_buffer      `ExperienceBuffer`: a million transitions, compact
simulator              `MonteCarloSimulator`, `ParallelWorldSimulator` (one world alone), `ParallelWorldOrchestrator`
strategies             fixed strategies, which of them are robust, and learning that starts from them
monte_carlo_training   `MonteCarloTrainingOrchestrator`
"""

from parallel_agents.market.montecarlo.experience_buffer import ExperienceBuffer
from parallel_agents.market.montecarlo.experiences import (
    EpisodeBatch,
    EpisodeExperience,
    Failure,
    aggregate_experiences,
    training_batch,
    world_context,
)
from parallel_agents.market.montecarlo.monte_carlo_training import (
    MonteCarloTrainingConfig,
    MonteCarloTrainingOrchestrator,
)
from parallel_agents.market.montecarlo.simulator import (
    EpisodeSetting,
    MonteCarloSimulator,
    ParallelWorldOrchestrator,
    ParallelWorldSimulator,
)
from parallel_agents.market.montecarlo.strategies import (
    ConvergencePatterns,
    Focus,
    Strategy,
    constant_strategies,
    detect_convergence_patterns,
    play_strategies,
)

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
