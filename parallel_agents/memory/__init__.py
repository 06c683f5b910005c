"""KEEP: one buffer per agent, and snapshots of what a round will read."""

from parallel_agents.memory.buffer import Buffer, ThreadSafeBuffer
from parallel_agents.memory.importance import (
    ImportanceSamplingReplayBuffer,
    ThreadSafeImportanceSamplingReplayBuffer,
)
from parallel_agents.memory.ring import Ring, RingShape

__all__ = [
    "Buffer",
    "ImportanceSamplingReplayBuffer",
    "Ring",
    "RingShape",
    "ThreadSafeBuffer",
    "ThreadSafeImportanceSamplingReplayBuffer",
]
