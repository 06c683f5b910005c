"""parallel_agents: train many independent agents, the same bytes, faster.

The package from bottom to top:

    errors, compiled, seeding, config, types, protocols   values and contracts; kernels and their cache
    networks | sampling                            rows, the numeric rules; importance sampling
    acting | memory | learning | tracking          the four stages; none imports another
    models                                         what a user holds as agent.model
    runtime                                        the loop, where the stages meet
    environment, adapters                          what users subclass
    games | market | workflows, testing, cli       applications

Names are loaded when they are used, so that `parallel-agents --help` does not pay for torch.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

# Read by MKL at its first call and silently ignored afterwards, hence here, before anything can import torch.
os.environ.setdefault("MKL_CBWR", "AUTO")

__version__ = "0.1.0"

_HOMES = {
    "Agent": "environment",
    "Buffer": "memory",
    "Config": "config",
    "Environment": "environment",
    "ExperienceAggregator": "sampling",
    "ImportanceSampler": "sampling",
    "ImportanceSamplingReplayBuffer": "memory",
    "ParallelEnvironment": "environment",
    "ThreadSafeBuffer": "memory",
}

__all__ = [
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
]

if TYPE_CHECKING:
    from parallel_agents.config import Config
    from parallel_agents.environment import Agent, Environment, ParallelEnvironment
    from parallel_agents.memory import Buffer, ImportanceSamplingReplayBuffer, ThreadSafeBuffer
    from parallel_agents.sampling import ExperienceAggregator, ImportanceSampler


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'parallel_agents' has no attribute {name!r}")
    return getattr(importlib.import_module(f"parallel_agents.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
