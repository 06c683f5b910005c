"""parallel_agents: train many independent agents, the same bytes, faster.

The package from bottom to top (docs/architecture.md follows a turn and a round through it):

    core                     types, configuration, seeding, errors, files, compiled kernels and their cache
    nn, replay               networks whose parameters are rows; buffers and how they are sampled
    algorithms               DQN, IQN, PPO: one file each
    tracking                 metrics, logs, progress, timeline
    execution, checkpoint    where rounds are computed; what is stored, and its digest
    engine                   the agents of a run and the loop
    env                      what users subclass, and adapters of other people's environments
    games, market, workflows applications; testing and cli stand beside and above them, and api above all

Names are loaded when they are used, so that `parallel-agents --help` does not pay for torch.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from parallel_agents.core import __version__
from parallel_agents.core.system import import_quickly

# Read by MKL at its first call and silently ignored afterwards, hence here, before anything can import torch.
os.environ.setdefault("MKL_CBWR", "AUTO")
# Read by numpy when it is imported. The matrices here are small: threads gain nothing, and on a busy machine each
# product waits until all of them have been scheduled, which made discovery several times slower.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

_HOMES = {
    "Agent": "env",
    "Buffer": "replay",
    "Config": "core.config",
    "DQN": "algorithms",
    "Environment": "env",
    "ExperienceAggregator": "replay",
    "IQN": "algorithms",
    "ImportanceSampler": "replay",
    "ImportanceSamplingReplayBuffer": "replay",
    "PPO": "algorithms",
    "ParallelEnvironment": "env",
    "ThreadSafeBuffer": "replay",
    "evaluate": "api",
    "load_run": "api",
    "register_algorithm": "algorithms",
    "train": "api",
}

__all__ = [
    "DQN",
    "IQN",
    "PPO",
    "Agent",
    "Buffer",
    "Config",
    "Environment",
    "ExperienceAggregator",
    "ImportanceSampler",
    "ImportanceSamplingReplayBuffer",
    "ParallelEnvironment",
    "ThreadSafeBuffer",
    "__version__",
    "evaluate",
    "load_run",
    "register_algorithm",
    "train",
]

if TYPE_CHECKING:
    from parallel_agents.algorithms import DQN, IQN, PPO, register_algorithm
    from parallel_agents.api import evaluate, load_run, train
    from parallel_agents.core.config import Config
    from parallel_agents.env import Agent, Environment, ParallelEnvironment
    from parallel_agents.replay import (
        Buffer,
        ExperienceAggregator,
        ImportanceSampler,
        ImportanceSamplingReplayBuffer,
        ThreadSafeBuffer,
    )


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'parallel_agents' has no attribute {name!r}")
    return getattr(import_quickly(f"parallel_agents.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
