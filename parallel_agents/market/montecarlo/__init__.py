"""Monte Carlo simulation: one agent in many different worlds at once, and training on its experiences.

experiences            what episodes leave behind, their summary, and `ExperienceBuffer`: the transitions of many
simulator              `MonteCarloSimulator`, `ParallelWorldSimulator` (one world alone), `ParallelWorldOrchestrator`
strategies             fixed strategies, which of them are robust, and learning that starts from them
monte_carlo_training   `MonteCarloTrainingOrchestrator`
"""

from parallel_agents.market.montecarlo.experiences import (
    EpisodeBatch,
    EpisodeExperience,
    ExperienceBuffer,
    Failure,
    TrainingBatch,
    aggregate_experiences,
    aggregate_parallel_experiences,
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
    "TrainingBatch",
    "aggregate_experiences",
    "aggregate_parallel_experiences",
    "constant_strategies",
    "detect_convergence_patterns",
    "play_strategies",
    "world_context",
]
