"""Training with importance sampling, around any agent that acts and has `update_policy`.

configuration   options, and the sampler, buffer and judge they describe
door            `update_policy` for models of this library
training        agent, buffer and judge put together: remember, update
orchestrator    episodes, listeners, checkpoints
checkpoint      a training on disk
metrics         what there is to tell
tuning          settings and seeds trained as one stack, compared on paired seeds
"""

from parallel_agents.market.importance.configuration import ImportanceSamplingTrainingConfiguration
from parallel_agents.market.importance.door import PolicyAgent, PolicyDoor
from parallel_agents.market.importance.metrics import ImportanceSamplingTrainingMetrics
from parallel_agents.market.importance.orchestrator import (
    EpisodeEnvironment,
    ImportanceSamplingTrainingOrchestrator,
    create_importance_sampling_trainer,
)
from parallel_agents.market.importance.training import (
    ImportanceSamplingTraining,
    integrate_importance_sampling_with_training,
)
from parallel_agents.market.importance.tuning import OnOff, SamplingSetting, Sweep, Task, Tuning, grid

__all__ = [
    "EpisodeEnvironment",
    "ImportanceSamplingTraining",
    "ImportanceSamplingTrainingConfiguration",
    "ImportanceSamplingTrainingMetrics",
    "ImportanceSamplingTrainingOrchestrator",
    "OnOff",
    "PolicyAgent",
    "PolicyDoor",
    "SamplingSetting",
    "Sweep",
    "Task",
    "Tuning",
    "create_importance_sampling_trainer",
    "grid",
    "integrate_importance_sampling_with_training",
]
