"""Buffers of transitions and how samples are drawn from them.

ring                 the store: write a turn, gather samples; each state is stored once
buffer               `Buffer`, one agent's transitions, and `ThreadSafeBuffer`
sequences            sequences of turns for recurrent networks
priorities           prioritised drawing
event_classes        class-weighted drawing; class_index: which positions belong to which class
importance_sampler   `ImportanceSampler` and the options of `model.importance`
importance_buffer    `ImportanceSamplingReplayBuffer`; event_types: `ExperienceAggregator`, what kind of event a row is
importance_weights   the mathematics of shares and corrections; world_weights: weights of whole worlds
"""

from parallel_agents.replay.buffer import Buffer, ThreadSafeBuffer
from parallel_agents.replay.event_classes import EVENT_COLUMNS, UNLABELLED, draw_classed, draw_rows
from parallel_agents.replay.event_types import ExperienceAggregator
from parallel_agents.replay.importance_buffer import (
    ImportanceSamplingReplayBuffer,
    ThreadSafeImportanceSamplingReplayBuffer,
)
from parallel_agents.replay.importance_sampler import EventWeighting, ImportanceSampler
from parallel_agents.replay.priorities import PRIORITY_COLUMNS, draw_by_priority, write_priorities
from parallel_agents.replay.ring import PRIORITY, Ring, RingShape, TransitionRing
from parallel_agents.replay.sequences import gather_sequences

__all__ = [
    "EVENT_COLUMNS",
    "PRIORITY",
    "PRIORITY_COLUMNS",
    "UNLABELLED",
    "Buffer",
    "EventWeighting",
    "ExperienceAggregator",
    "ImportanceSampler",
    "ImportanceSamplingReplayBuffer",
    "Ring",
    "RingShape",
    "ThreadSafeBuffer",
    "ThreadSafeImportanceSamplingReplayBuffer",
    "TransitionRing",
    "draw_by_priority",
    "draw_classed",
    "draw_rows",
    "gather_sequences",
    "write_priorities",
]
