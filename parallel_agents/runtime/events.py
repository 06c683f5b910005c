"""What kind of event each transition of a turn was: what the environment tells, in each agent's own class ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parallel_agents.errors import ContractError, NonFiniteError, ShapeError
from parallel_agents.memory import EVENT_COLUMNS, UNLABELLED
from parallel_agents.runtime.turn import Events, all_finite
from parallel_agents.types import Array

__all__ = ["class_ids", "event_columns", "told_events"]


def class_ids(env: Any, agent: Any) -> Array:
    """The id of each of the environment's event types among the agent's classes; the last entry is for no label."""
    known = list(agent.model.event_types)
    for name in env.event_types:
        if name not in known:
            raise ContractError(
                f"{type(env).__name__}.event_types holds {name!r}, which {agent.name} does not know: its event types "
                f"are {', '.join(known)}; add it to model.importance.class_weights"
            )
    return np.array([*(known.index(name) for name in env.event_types), UNLABELLED], np.float32)


def told_events(env: Any, rewards: Array) -> Events:
    """(N, W) places in `event_types`, or UNLABELLED, and (N, W) values: what the environment says, or the rewards."""
    told = env.events()
    if told is None:
        return np.full(rewards.shape, UNLABELLED), rewards
    types, values = np.asarray(told[0]), rewards if told[1] is None else np.asarray(told[1], np.float32)
    name, known = type(env).__name__, len(env.event_types)
    if types.shape != rewards.shape or values.shape != rewards.shape or types.dtype.kind not in "iu":
        raise ShapeError(
            f"{name}.events() gave types of shape {types.shape} ({types.dtype}) and values of shape {values.shape}, "
            f"wanted are whole numbers and numbers, (agents, worlds) = {rewards.shape} each"
        )
    if types.size and not UNLABELLED <= types.min() <= types.max() < known:
        raise ContractError(
            f"{name}.events() gave types {types.min()} .. {types.max()}: give places in its event_types, "
            f"0 .. {known - 1}, or {UNLABELLED} for no label"
        )
    if not all_finite(values):
        agent, world = np.argwhere(~np.isfinite(values))[0]
        raise NonFiniteError(
            f"{name}.events() gave {env.agents[agent].name} in world {world} the value {values[agent, world]}: "
            "give a finite number"
        )
    return types, values


def event_columns(
    members: Sequence[Any], ids: Mapping[Any, Array], told: Sequence[Events | None], worlds: int
) -> dict[str, Array]:
    """The event columns (N, W) of some seats; those of environments that took no part are 0."""
    types = np.zeros((len(members), worlds), np.float32)
    values = np.zeros((len(members), worlds), np.float32)
    for row, seat in enumerate(members):
        own = told[seat.environment]
        if own is not None:
            types[row], values[row] = ids[seat][own[0][seat.agent]], own[1][seat.agent]
    return dict(zip(EVENT_COLUMNS, (types, values), strict=True))
