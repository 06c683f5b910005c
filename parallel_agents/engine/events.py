"""Read the event types and values of a turn from an environment, and translate them to each agent's class ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from parallel_agents.core.errors import ContractError, NonFiniteError, ShapeError
from parallel_agents.core.types import AgentId, Array
from parallel_agents.replay import EVENT_COLUMNS, UNLABELLED


def class_ids(env: Any, agent: Any) -> Array:
    """Return the agent's class id of each of the environment's event types; the last entry is for no label."""
    known = list(agent.model.event_types)
    for name in env.event_types:
        if name not in known:
            raise ContractError(
                f"{type(env).__name__}.event_types holds {name!r}, which {agent.name} does not know: its event types "
                f"are {', '.join(known)}; add it to model.importance.class_weights"
            )
    return np.array([*(known.index(name) for name in env.event_types), UNLABELLED], np.float32)


def read_events(env: Any, rewards: Array) -> tuple[Array, Array]:
    """Return event types (N, W), positions in `event_types` or UNLABELLED, and values (N, W), else the rewards."""
    events = env.events()
    if events is None:
        return np.full(rewards.shape, UNLABELLED), rewards
    types, values = np.asarray(events[0]), rewards if events[1] is None else np.asarray(events[1], np.float32)
    name, known = type(env).__name__, len(env.event_types)
    if types.shape != rewards.shape or values.shape != rewards.shape or types.dtype.kind not in "iu":
        raise ShapeError(
            f"{name}.events() gave types of shape {types.shape} ({types.dtype}) and values of shape {values.shape}, "
            f"wanted are whole numbers and numbers, (agents, worlds) = {rewards.shape} each"
        )
    if types.size and not UNLABELLED <= types.min() <= types.max() < known:
        raise ContractError(
            f"{name}.events() gave types {types.min()} .. {types.max()}: give positions in its event_types, "
            f"0 .. {known - 1}, or {UNLABELLED} for no label"
        )
    if not np.isfinite(values).all():
        agent, world = np.argwhere(~np.isfinite(values))[0]
        raise NonFiniteError(
            f"{name}.events() gave {env.agents[agent].name} in world {world} the value {values[agent, world]}: "
            "give a finite number"
        )
    return types, values


def event_columns(
    ids: Sequence[AgentId], own_ids: Sequence[Array], events: Sequence[tuple[Array, Array] | None], worlds: int
) -> dict[str, Array]:
    """Return the event columns (N, W) of some agents; 0 for environments that took no part in the turn.

    own_ids: what `class_ids` returned for each agent. events: what `read_events` returned for each environment.
    """
    types = np.zeros((len(ids), worlds), np.float32)
    values = np.zeros((len(ids), worlds), np.float32)
    for row, (k, i) in enumerate(ids):
        own = events[k]
        if own is not None:
            types[row], values[row] = own_ids[row][own[0][i]], own[1][i]
    return dict(zip(EVENT_COLUMNS, (types, values), strict=True))
