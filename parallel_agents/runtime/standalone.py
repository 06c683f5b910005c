"""The state of agents outside of stacks, for digest and checkpoint.

An agent is outside of a stack if it overrides `get_action` or `add_memory`, or if its model is an object of the user's
own. What it learns and remembers is read from three places: the agent's `state()`, the model's `state_dict()` (or
`state()`), and the `state()` of the model's memory. Where one of them is missing, nobody can say what the agent knows:
then the run has no digest and cannot be checkpointed, and `unknown` says why.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from parallel_agents.errors import CorruptCheckpoint
from parallel_agents.models import Model

__all__ = ["agent_states", "class_data", "constants", "load_agent_states", "load_state", "state", "unknown"]

Pair = tuple[Callable[[], Any], Callable[[Any], Any]]
"""Reads an object's state, and puts it back."""


def unknown(bodies: Sequence[Any], constant: Mapping[str, Any] | None) -> str | None:
    """Return why the state of an agent cannot be told; None: it can.

    bodies: the agent in every world. constant: what `constants` said of its model at the start of the run.
    """
    agent = bodies[0]
    if agent.untold:
        return (
            f"{agent.name} ({type(agent).__name__}) overrides get_action() or add_memory() and has attributes of its "
            f"own ({', '.join(agent.untold)}): write state() and load_state() for it, with {{}} if it carries nothing "
            "from epoch to epoch"
        )
    model, memory = agent.model, getattr(agent.model, "memory", None)
    if _pair(model) is None and (constant is None or constant != constants(model)):
        return (
            f"the model of {agent.name} ({type(model).__name__}) can learn or remember, but has no state_dict() and "
            "load_state_dict(state): write them, with everything that it carries from epoch to epoch"
        )
    if memory is not None and not isinstance(model, Model) and _pair(memory) is None:
        return (
            f"the memory of {agent.name} ({type(memory).__name__}) has no state() and load_state(state): write them, "
            "or use parallel_agents.Buffer"
        )
    return None


def constants(model: Any) -> dict[str, Any] | None:
    """Return the attributes of a model that can neither learn nor remember; None if it may do either.

    Such a model has no `train_step`, no `memory`, and only attributes that cannot be changed in place; whether one of
    them was replaced is seen by asking again.
    """
    if hasattr(model, "train_step") or hasattr(model, "memory") or not hasattr(model, "__dict__"):
        return None
    held = dict(vars(model))
    return held if all(map(_constant, held.values())) and not class_data(type(model), object) else None


def class_data(kind: type, base: type) -> list[str]:
    """Return the names of attributes of a class, and of those between it and `base`, that can be changed in place."""
    between = kind.__mro__[: kind.__mro__.index(base)]
    held = {name: value for cls in between for name, value in vars(cls).items() if not name.startswith("__")}
    return [
        name for name, value in held.items() if not (callable(value) or hasattr(value, "__get__") or _constant(value))
    ]


def state(bodies: Sequence[Any]) -> dict[str, Any]:
    """Return all that one agent outside of stacks knows."""
    pairs = _pairs(bodies[0].model)
    return {"agent": agent_states(bodies), **{name: pair[0]() for name, pair in pairs}}


def load_state(bodies: Sequence[Any], told: Mapping[str, Any]) -> None:
    """Put back what `state` returned."""
    pairs = _pairs(bodies[0].model)
    if sorted(told) != sorted(["agent", *(name for name, _ in pairs)]):
        raise CorruptCheckpoint(f"the state of {bodies[0].name} in the checkpoint is of another kind of agent")
    load_agent_states(bodies, told["agent"])
    for name, pair in pairs:
        pair[1](told[name])


def agent_states(bodies: Sequence[Any]) -> list[Any]:
    """Return what the agent itself, in every world, carries from epoch to epoch; empty where it tells nothing."""
    return [body.state() for body in bodies if body.gives_state]


def load_agent_states(bodies: Sequence[Any], told: Sequence[Any]) -> None:
    """Put back what `agent_states` returned."""
    for body, own in zip([body for body in bodies if body.gives_state], told, strict=True):
        body.load_state(own)


def _pairs(model: Any) -> list[tuple[str, Pair]]:
    """What gives the state of a model: itself, and its memory where that is a part of its own."""
    parts = {"model": model} if isinstance(model, Model) else {"model": model, "memory": getattr(model, "memory", None)}
    return [(name, pair) for name, part in parts.items() if (pair := _pair(part)) is not None]


def _pair(part: Any) -> Pair | None:
    for read, write in (("state_dict", "load_state_dict"), ("state", "load_state")):
        if callable(getattr(part, read, None)) and callable(getattr(part, write, None)):
            return getattr(part, read), getattr(part, write)
    return None


def _constant(value: Any) -> bool:
    """True for values that cannot be changed in place."""
    if isinstance(value, tuple | frozenset):
        return all(map(_constant, value))
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return all(map(_constant, [*cells, *(value.__defaults__ or ())]))
    return value is None or isinstance(value, bool | int | float | complex | str | bytes | type | types.ModuleType)
