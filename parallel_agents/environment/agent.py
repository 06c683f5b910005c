"""An agent: a body in a world and a model of its own."""

from __future__ import annotations

from typing import Any

from parallel_agents.errors import ContractError
from parallel_agents.runtime.standalone import class_data

__all__ = ["Agent"]

BODY = ("observation_spec", "action_spec", "model", "location", "name")
"""Attributes of every agent; none of them holds anything that an agent has learnt or remembers."""


class Agent:
    """Subclass it for worlds made of objects; for vectorised worlds it only holds the model.

    `pov`, `act` and `is_done` say what the agent sees, does and when it is done. `get_action` and
    `add_memory` may be overridden too; then the agent acts, or remembers, by itself instead of in a stack.
    If it then keeps anything in attributes of its own, write `state` and `load_state` as well.
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

    @property
    def remembers_by_itself(self) -> bool:
        """True where `add_memory` was overridden."""
        return type(self).add_memory is not Agent.add_memory

    @property
    def chooses_by_itself(self) -> bool:
        """True where `get_action` was overridden."""
        return type(self).get_action is not Agent.get_action

    @property
    def acts_by_itself(self) -> bool:
        """True where `get_action` or `add_memory` was overridden."""
        return self.chooses_by_itself or self.remembers_by_itself

    @property
    def n_actions(self) -> int | None:
        """How many actions there are, where the model or the action space tells; None: unknown."""
        for teller in (getattr(self.model, "blueprint", None), self.model, self.action_spec):
            for name in ("actions", "n_actions"):
                count = getattr(teller, name, None)
                if isinstance(count, int):
                    return count
        return None

    def reset(self) -> None:
        """Called at the start of each episode."""

    def can_act(self) -> bool:
        """False while the agent is frozen: then it stores nothing, and what it earns goes to its last action."""
        return True

    def pov(self, world: Any) -> Any:
        """What the agent sees: an array, or a dict or tuple of arrays."""
        raise ContractError(f"{type(self).__name__}.pov(world) is missing: return what the agent sees as an array")

    def action_mask(self, world: Any) -> Any:
        """(A,) bool: which actions are allowed now; None: all."""
        return None

    def get_action(self, state: Any) -> Any:
        """Choose an action; by default the model's."""
        return self.model.take_action(state)

    def act(self, world: Any, action: Any) -> float:
        """Do it; the reward."""
        raise ContractError(f"{type(self).__name__}.act(world, action) is missing: carry it out and return the reward")

    def is_done(self, world: Any) -> bool:
        """True once the agent's episode has come to its end."""
        return bool(getattr(world, "is_done", False))

    def event_type(self, world: Any) -> str | None:
        """What kind of event the last action was, asked where agents draw by event class; None: its reward decides."""
        return None

    def add_memory(self, state: Any, action: Any, reward: float, done: bool) -> None:
        """Keep a transition; by default in the model's own memory, where it has one."""
        memory = getattr(self.model, "memory", None)
        if memory is not None:
            memory.add(state, action, reward, done)

    def state(self) -> Any:
        """Return what this agent itself (not its model) carries from epoch to epoch; {}: nothing.

        Numbers, strings, arrays, tensors, and dicts, lists and tuples of these. It is part of the digest, and `resume`
        gives it back to `load_state`.
        """
        return {}

    def load_state(self, state: Any) -> None:
        """Put back what `state` returned."""
        raise ContractError(f"{type(self).__name__}.load_state(state) is missing: it is the way back from state()")

    @property
    def gives_state(self) -> bool:
        """True where `state` was overridden."""
        return type(self).state is not Agent.state

    @property
    def untold(self) -> list[str]:
        """Names of attributes in which an agent that acts by itself may remember what `state` does not tell."""
        if not self.acts_by_itself or self.gives_state:
            return []
        return sorted({*vars(self), *class_data(type(self), Agent)} - set(BODY))
