"""One value for everything that was learnt: equal runs, equal digests.

A sha256 in canonical agent order over names, types, shapes and bytes of every agent's weights, optimizer state,
live buffer rows and counters, the acting weights with their version, and what is pending. No timing, retry or
failure enters it, and nothing of how the work was run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parallel_agents.runtime.crew import Crew, Seat
from parallel_agents.runtime.rounds import Rounds

__all__ = ["combined", "digest"]


def digest(crew: Crew, rounds: Rounds, counters: Mapping[str, int], environment: int) -> str:
    """The digest of one environment's agents."""
    total = hashlib.sha256()
    _feed(total, "counters", {name: np.int64(value) for name, value in counters.items()})
    _feed(total, "rounds", {"published": np.int64(rounds.published), "submitted": np.int64(rounds.submitted)})
    for agent in range(len(crew.environments[environment].agents)):
        seat = Seat(environment, agent)
        for index, members in enumerate(crew.members):
            if seat in members:
                _agent(total, crew, rounds, index, members.index(seat))
    return total.hexdigest()


def _agent(total: Any, crew: Crew, rounds: Rounds, stack: int, row: int) -> None:
    part = slice(row, row + 1)
    _feed(total, "learner", rounds.newest[stack].rows(part).tensors)
    weights = crew.stacks[stack].inference.weights
    assert weights is not None
    _feed(total, "acting", {"version": np.int64(weights.version), "rows": weights.rows[part]})
    for round_ in sorted(rounds.waiting):
        state, result = rounds.waiting[round_][stack]
        _feed(total, f"pending {round_}", {**state.rows(part).tensors, "updates": result.updates[part]})
        _feed(total, "surprises", {name: column[part] for name, column in result.priorities.items()})
    _feed(total, "memory", crew.stacks[stack].ring.live(row))


def _feed(total: Any, name: str, values: Mapping[str, Any]) -> None:
    total.update(f"[{name}]".encode())
    for key in sorted(values):
        value = values[key]
        array = np.ascontiguousarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
        total.update(f"{key}:{array.dtype.str}:{array.shape}:".encode())
        total.update(array.tobytes())


def combined(digests: Sequence[str]) -> str:
    """One value for several replicas; a single one stands for itself."""
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()
