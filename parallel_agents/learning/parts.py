"""A round of many agents, a few at a time.

One stacked update of many networks streams the weights, moments and activations of all of them through memory, and the
next update does so again. A few agents at a time, through all updates of a round, stay in cache. Each agent's bytes are
the same however a stack is cut, so the size of a part is a matter of speed alone; it follows from sizes, never from
the clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from parallel_agents.types import Identity, RoundResult, Snapshot, State

__all__ = ["in_parts", "part_rows", "touched"]

Learn = Callable[[State, Snapshot, Identity], RoundResult]
CACHE = 2**23
"""Numbers that an update of a part may touch."""
FEWEST = 4
"""Agents of a part, at least: with fewer, calling an operation weighs more than where its numbers are."""
PER_SAMPLE = 4
"""Times that what is computed for a sample is held or passed over, forth and back."""


def touched(network: Any, copies: int, samples: int) -> int:
    """Numbers that one agent's update touches: copies of its weights, and what the layers give for its samples."""
    computed = network.inputs + sum(shape[0] for shape in network.layout.shapes)
    return int(copies * network.size + PER_SAMPLE * samples * computed)


def part_rows(agents: int, numbers: int) -> int:
    """How many agents to train at a time, if an update of one touches so many numbers; in even shares.

    >>> part_rows(128, 2**16), part_rows(128, 2**20), part_rows(9, 2**20), part_rows(128, 2**24)
    (128, 8, 5, 4)
    """
    parts = -(-agents // max(FEWEST, CACHE // numbers))
    return -(-agents // parts)


def in_parts(
    learn: Learn, state: State, snapshot: Snapshot, identity: Identity, numbers: int
) -> tuple[State, RoundResult]:
    """A round of all agents; `learn` trains some of them, writing their rows of the new state."""
    agents = len(identity)
    if not snapshot["ready"].any():
        return state, RoundResult.nothing(snapshot.round, agents)
    began = time.perf_counter()
    new = state.clone()
    size = part_rows(agents, numbers)
    results = []
    for part in (slice(first, min(first + size, agents)) for first in range(0, agents, size)):
        read = snapshot.rows(part)
        if read["ready"].any():
            results.append(learn(new.rows(part), read, identity.rows(part)))
        else:
            results.append(RoundResult.nothing(snapshot.round, part.stop - part.start))
    return new, replace(RoundResult.join(results), seconds=time.perf_counter() - began)
