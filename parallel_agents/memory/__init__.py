"""KEEP: one buffer per agent, and snapshots of what a round will read."""

from parallel_agents.memory.buffer import Buffer, ThreadSafeBuffer
from parallel_agents.memory.events import EVENT_COLUMNS, UNLABELLED, EventWeighting, draw_classed, draw_rows
from parallel_agents.memory.importance import (
    ImportanceSamplingReplayBuffer,
    ThreadSafeImportanceSamplingReplayBuffer,
)
from parallel_agents.memory.priorities import PRIORITY_COLUMNS, draw_by_priority, write_priorities
from parallel_agents.memory.ring import PRIORITY, Ring, RingShape
from parallel_agents.memory.sequences import gather_sequences

__all__ = [
    "EVENT_COLUMNS",
    "PRIORITY",
    "PRIORITY_COLUMNS",
    "UNLABELLED",
    "Buffer",
    "EventWeighting",
    "ImportanceSamplingReplayBuffer",
    "Ring",
    "RingShape",
    "ThreadSafeBuffer",
    "ThreadSafeImportanceSamplingReplayBuffer",
    "draw_by_priority",
    "draw_classed",
    "draw_rows",
    "gather_sequences",
    "write_priorities",
]
