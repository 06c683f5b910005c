"""The values that pass between the parts: one turn of all agents, and the records that callbacks receive.

The first axis of an array is the agent, the second the world. Shapes: N agents, W worlds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class AgentId(NamedTuple):
    """Which agent of which environment of a run (one environment per replica)."""

    environment: int
    agent: int


@dataclass(slots=True)
class Transitions:
    """One turn of the agents of a stack, as it is stored."""

    observations: Array
    """(N, W, *obs)"""
    actions: Array
    """(N, W) or (N, W, A)"""
    rewards: Array
    """(N, W)"""
    terminated: Array
    """(N, W) bool: the episode ended by itself."""
    truncated: Array
    """(N, W) bool: the episode was cut off; the state after it still has a value."""
    valid: Array
    """(N, W) bool: the agent really acted."""
    first: Array
    """(N, W) bool: the first turn of an episode."""
    present: Array
    """(N,) bool: the agent's environment takes part in this turn."""
    version: int
    """Version of the weights that chose the actions."""
    extras: Mapping[str, Array] = field(default_factory=dict)
    """(N, W, …) further columns, such as the log-probability of the action."""


Masks = Sequence[Array | None] | None
"""Action masks of an environment, one (W, A) bool array per agent; None: everything is allowed."""


@dataclass(slots=True)
class Step:
    """A turn of a run: what the agents choose from, and what it gave. Every list has one entry per environment.

    A loop has one step and writes it anew in each turn; what stands there of environments that take no part is old.
    """

    sequential: bool
    """Agents observe again at their place in the order (`act_in_turn`), before their actions are read."""
    masks: list[Masks]
    first: list[Array]
    """(N, W) bool, like the next four: the turn is the first of an episode."""
    acted: list[Array]
    terminated: list[Array]
    truncated: list[Array]
    rewards: list[Array]
    """(N, W) float32"""
    events: list[tuple[Array, Array] | None]
    """Event types and values; None where no agent draws by event class."""
    observations: list[Any] = field(default_factory=list)
    """(N, W, *obs), or one (W, *obs) per agent."""
    environments: Sequence[int] = ()
    """The environments that take part in the turn."""
    epoch: int = 0
    turn: int = 0


@dataclass(frozen=True, slots=True)
class RoundStats:
    """What callbacks receive when a round is published: all agents of a run, in canonical order."""

    round: int
    updates: Array
    """(agents,) updates accepted in this round."""
    rejected: Array
    """(agents,) updates rejected because a loss or gradient was not finite."""
    metrics: Mapping[str, Array]
    """(agents,) means over the round, such as the loss."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What callbacks receive when a run starts."""

    run_id: str
    environment: str
    agents: tuple[str, ...]
    worlds: int
    replicas: int
    epochs: int
    first_epoch: int
    config: Mapping[str, Any]
    fingerprint: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class EpochStats:
    """What callbacks receive after each epoch."""

    epoch: int
    turns: int
    """World turns of this epoch (turns of the loop, not multiplied by worlds)."""
    transitions: int
    """Transitions stored by all agents together."""
    rewards: Array
    """(agents,) reward of each agent, mean over worlds; replicas one after the other."""
    version: int
    """Version of the acting weights."""
    lag: int
    """How many rounds old they were."""
    updates: int
    """Updates of all agents so far."""
    seconds: float
    metrics: Mapping[str, Array] = field(default_factory=dict)
    """(agents,) further metrics: epsilon, buffer fill, …"""
    total_timesteps: int = 0
    """Steps of single worlds so far, in each replica."""
    timesteps: int = 0
    """Those of this epoch."""
    wall_seconds: float = 0.0
    """Seconds of the whole run so far."""
    episodes: Array = field(default_factory=lambda: np.zeros((3, 0)))
    """(3, agents) number, sum of returns and sum of lengths of the episodes that ended in this epoch."""
