"""One value for all that decides how a run continues: equal runs have equal digests.

A sha256 in canonical agent order over names, types, shapes and bytes of all that a checkpoint stores of each agent
(weights, optimizer state, live buffer rows, frames, recurrent state, hyper-parameters, pending rounds; the state of
agents outside of stacks) and of the worlds (which episodes go on, which start, their own state with autoreset). No
timing, retry, failure or statistic enters it, and nothing of how the work was run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from parallel_agents.algorithms.learner import LearnerState
from parallel_agents.core.serialization import pack
from parallel_agents.core.types import AgentId, Array

if TYPE_CHECKING:
    from parallel_agents.engine.run import Run


def stack_arrays(run: Run, index: int) -> dict[str, Array]:
    """Return what decides how the agents of a stack continue, without their buffers. The first axis is the agent."""
    stack = run.group.stacks[index]
    arrays = _state_arrays("newest", run.rounds.newest[index])
    arrays["acting"] = stack.acting_rows.detach().cpu().numpy()
    if run.config.experiment.autoreset:  # otherwise every episode starts without frames and recurrent state
        arrays["frames"], arrays["recall"] = stack.frames.window, stack.recurrent.after
    for round_, trained in sorted(run.rounds.waiting.items()):
        state, result = trained[index]
        arrays |= _state_arrays(f"pending.{round_}", state)
        arrays[f"updates.{round_}"] = result.updates
        arrays[f"rejected.{round_}"] = result.rejected
        arrays |= {f"surprise.{round_}.{name}": column for name, column in result.priorities.items()}
    return arrays


def loop_arrays(run: Run, k: int) -> dict[str, Array]:
    """Return which episodes of an environment go on; with autoreset also the state of its worlds."""
    arrays: dict[str, Array] = {"alive": run.loop.alive[k], "first": run.loop.first[k]}
    if run.config.experiment.autoreset and run.environments[k].has_state:
        arrays |= {f"world.{name}": np.asarray(value) for name, value in run.environments[k].state().items()}
    return arrays


def _state_arrays(prefix: str, state: LearnerState) -> dict[str, Array]:
    return {f"{prefix}.{name}": tensor.detach().cpu().numpy() for name, tensor in state.tensors.items()}


def digests(run: Run) -> list[str]:
    """Return one digest per environment, each over its own agents and worlds alone."""
    stacks = [stack_arrays(run, index) for index in range(len(run.group.stacks))]
    return [_digest(run, stacks, k) for k in range(len(run.environments))]


def combined(digests: Sequence[str]) -> str:
    """Return one digest for several replicas; that of a single one is its own."""
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _digest(run: Run, stacks: Sequence[Mapping[str, Array]], environment: int) -> str:
    total = hashlib.sha256()
    counters = {"epochs": run.epoch, "published": run.rounds.published, "submitted": run.rounds.submitted}
    _feed(total, "counters", {name: np.int64(value) for name, value in counters.items()})
    _feed(total, "loop", loop_arrays(run, environment))
    for agent in range(len(run.environments[environment].agents)):
        agent_id = AgentId(environment, agent)
        place = run.group.row_of(agent_id)
        if place is not None:
            index, row = place
            stack = run.group.stacks[index]
            _feed(total, "agent", {name: array[row] for name, array in stacks[index].items()})
            _feed(total, "memory", stack.ring.live(row))
            _feed(total, "version", {"acting": np.int64(stack.inference.version)})
            _feed_values(total, stack.models[row].settings())
        _feed_values(total, run.group.state_of(agent_id))
    return total.hexdigest()


def _feed(total: Any, section: str, arrays: Mapping[str, Any]) -> None:
    """Add names, types, shapes and bytes of arrays to a hash."""
    total.update(f"[{section}]".encode())
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        total.update(f"{name}:{array.dtype.str}:{array.shape}:".encode())
        total.update(array.tobytes())


def _feed_values(total: Any, values: Any) -> None:
    """Add nested values to a hash."""
    arrays: dict[str, Array] = {}
    total.update(json.dumps(pack(values, arrays, "")).encode())
    _feed(total, "values", arrays)
