"""One value for everything that decides how a run goes on: equal runs, equal digests.

A sha256 in canonical agent order over names, types, shapes and bytes of all that a checkpoint stores of each agent
(weights, optimizer state, live buffer rows, frames, recurrent state, hyper-parameters, what is pending; the state of
agents outside of stacks) and of the worlds (whose episode goes on, whose starts, their own state with autoreset). No
timing, retry, failure or statistic enters it, and nothing of how the work was run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from parallel_agents.runtime.checkpoints.contents import loop_arrays, stack_arrays
from parallel_agents.runtime.checkpoints.packing import pack
from parallel_agents.runtime.intake import Seat
from parallel_agents.types import Array

if TYPE_CHECKING:
    from parallel_agents.runtime.run import Run

__all__ = ["combined", "digests"]


def digests(run: Run) -> list[str]:
    """Return one digest per environment, each over its own agents and worlds alone."""
    stacks = [stack_arrays(run, index) for index in range(len(run.crew.stacks))]
    return [_digest(run, stacks, k) for k in range(len(run.environments))]


def _digest(run: Run, stacks: Sequence[Mapping[str, Array]], environment: int) -> str:
    total = hashlib.sha256()
    counters = {"epochs": run.epoch, "published": run.rounds.published, "submitted": run.rounds.submitted}
    _feed(total, "counters", {name: np.int64(value) for name, value in counters.items()})
    _feed(total, "loop", loop_arrays(run, environment))
    for agent in range(len(run.environments[environment].agents)):
        seat = Seat(environment, agent)
        place = run.crew.place(seat)
        if place is not None:
            index, row = place
            stack = run.crew.stacks[index]
            _feed(total, "agent", {name: array[row] for name, array in stacks[index].items()})
            _feed(total, "memory", stack.ring.live(row))
            _feed(total, "version", {"acting": np.int64(stack.inference.version)})
            _feed_values(total, stack.models[row].settings())
        _feed_values(total, run.crew.own_state(seat))
    return total.hexdigest()


def _feed(total: Any, name: str, values: Mapping[str, Any]) -> None:
    total.update(f"[{name}]".encode())
    for key in sorted(values):
        array = np.asarray(values[key], order="C")
        total.update(f"{key}:{array.dtype.str}:{array.shape}:".encode())
        total.update(array.tobytes())


def _feed_values(total: Any, values: Any) -> None:
    arrays: dict[str, Array] = {}
    total.update(json.dumps(pack(values, arrays, "")).encode())
    _feed(total, "values", arrays)


def combined(digests: Sequence[str]) -> str:
    """Return one value for several replicas; a single one stands for itself."""
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()
