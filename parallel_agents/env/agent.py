"""The agent that users subclass: an object in a world with a model of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parallel_agents.core.errors import ContractError
from parallel_agents.engine.standalone import mutable_class_attributes

_BASE_ATTRIBUTES = ("observation_spec", "action_spec", "model", "location", "name")
"""Attributes of every agent; none of them holds anything that the agent learns or remembers."""


class Agent:
    """Subclass it for environments made of objects; in vectorised environments it only holds the model.

    `pov`, `act` and `is_done` say what the agent observes and does, and when its episode ends. `get_action` and
    `add_memory` may be overridden too; then the agent is computed on its own (standalone) instead of in a stack. If
    such an agent keeps anything in attributes, implement `state` and `load_state` as well.
    """

    def __init__(
        self,
        observation_spec: Any = None,
        action_spec: Any = None,
        model: Any = None,
        location: Any = None,
        *,
        name: str | None = None,
    ) -> None:
        if model is None:
            raise ContractError("an agent was made without a model: give it one of its own, Agent(model=…)")
        self.observation_spec = observation_spec
        self.action_spec = action_spec
        self.model = model
        self.location = location
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, model={self.model!r})"

    # -- hooks that users write --------------------------------------------------------------------------------

    def reset(self) -> None:
        """Prepare for a new episode; called at the start of each."""

    def can_act(self) -> bool:
        """Return False while the agent is frozen: it then stores nothing, and its rewards go to its last action."""
        return True

    def pov(self, world: Any) -> Any:
        """Return the agent's observation: an array, or a dict or tuple of arrays."""
        raise ContractError(f"{type(self).__name__}.pov(world) is missing: return what the agent sees as an array")

    def action_mask(self, world: Any) -> Any:
        """Return the allowed actions as (A,) bool, or None if all are allowed."""
        return None

    def get_action(self, state: Any) -> Any:
        """Choose an action; by default the model does."""
        return self.model.take_action(state)

    def act(self, world: Any, action: Any) -> float:
        """Carry out an action and return the reward."""
        raise ContractError(f"{type(self).__name__}.act(world, action) is missing: carry it out and return the reward")

    def is_done(self, world: Any) -> bool:
        """Return True once the agent's episode has terminated."""
        return bool(getattr(world, "is_done", False))

    def event_type(self, world: Any) -> str | None:
        """Return the event type of the last action, for sampling by event class; None: its reward decides."""
        return None

    def add_memory(self, state: Any, action: Any, reward: float, done: bool, **context: Any) -> None:
        """Store a transition; by default in the model's memory, if it has one.

        An own `add_memory`, or the `add` of an own memory, may name the keywords `world`, `truncated` and `next_state`,
        and gets those that it names.
        """
        memory = getattr(self.model, "memory", None)
        if memory is not None:
            memory.add(state, action, reward, done, **context)

    def state(self) -> Any:
        """Return what this agent itself (not its model) carries from epoch to epoch; {}: nothing.

        Numbers, strings, arrays, tensors, and dicts, lists and tuples of these. It is part of the digest, and `resume`
        passes it to `load_state`.
        """
        return {}

    def load_state(self, state: Any) -> None:
        """Take over what `state` returned."""
        raise ContractError(f"{type(self).__name__}.load_state(state) is missing: restore what state() returned")

    # -- what the engine reads ---------------------------------------------------------------------------------

    @property
    def overrides_add_memory(self) -> bool:
        """True if `add_memory` is overridden, in the class or on the agent itself."""
        return getattr(self.add_memory, "__func__", None) is not Agent.add_memory

    @property
    def overrides_get_action(self) -> bool:
        """True if `get_action` is overridden, in the class or on the agent itself."""
        return getattr(self.get_action, "__func__", None) is not Agent.get_action

    @property
    def is_standalone(self) -> bool:
        """True if `get_action` or `add_memory` is overridden, so that the agent cannot be part of a stack."""
        return self.overrides_get_action or self.overrides_add_memory

    @property
    def has_state(self) -> bool:
        """True if `state` is overridden."""
        return type(self).state is not Agent.state

    def unsaved_attributes(self, replaced: Sequence[str]) -> list[str]:
        """Return the attributes in which a standalone agent may remember something that `state` does not return.

        replaced: attributes, of the agent or its classes, that have another value than at the start of the run.
        """
        if not self.is_standalone or self.has_state:
            return []
        return sorted({*vars(self), *mutable_class_attributes(type(self), Agent), *replaced} - set(_BASE_ATTRIBUTES))

    @property
    def n_actions(self) -> int | None:
        """The number of actions, if the model or the action space gives it; else None."""
        for source in (getattr(self.model, "spec", None), self.model, self.action_spec):
            for name in ("actions", "n_actions"):
                count = getattr(source, name, None)
                if isinstance(count, int):
                    return count
        return None
