"""The door for trainers: `update_policy(batch) -> metrics`, one update from a batch that somebody else has drawn.

An agent, as a trainer sees it, acts and has this door; nothing else is asked of it. Models of this library have it
(`models.door`); `PolicyDoor` lends one that learns from single rows a state that a trainer can store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike

from parallel_agents.errors import CheckpointError, ContractError
from parallel_agents.models import DQN, IQN, Model
from parallel_agents.types import Array, State

__all__ = ["PolicyAgent", "PolicyDoor", "acting_of"]

ACTING = ("take_action", "select_action", "get_action", "act")
"""What agents call acting; the first of these that an agent has is used."""


class PolicyAgent(Protocol):
    """What a trainer asks of an agent: one of `ACTING`, and the door."""

    def update_policy(self, batch: Mapping[str, Array]) -> Mapping[str, Any]:
        """Learn from B rows: states, actions, rewards, next_states, dones and weights; what came of it."""


def acting_of(agent: Any) -> Callable[[Any], Any]:
    """How the agent acts: state -> action."""
    for name in ACTING:
        if callable(getattr(agent, name, None)):
            found: Callable[[Any], Any] = getattr(agent, name)
            return found
    raise ContractError(f"{type(agent).__name__} does not act: give it one of {', '.join(ACTING)}")


class PolicyDoor:
    """A model that learns from a replay buffer, with `update_policy` instead of a buffer of its own.

    >>> agent = PolicyDoor(DQN(obs_shape=(2,), n_actions=2, hidden=(8,)))
    >>> batch = {"states": np.ones((4, 2)), "actions": [0, 1, 0, 1], "rewards": np.ones(4),
    ...          "next_states": np.ones((4, 2)), "dones": np.ones(4, bool), "weights": np.ones(4)}
    >>> sorted(agent.update_policy(batch))
    ['gradient_norm', 'loss', 'td_errors', 'updates']
    """

    def __init__(self, model: Model) -> None:
        if not isinstance(model, DQN | IQN) or model.blueprint.ring.frames != 1:
            raise ContractError(
                f"{type(model).__name__} cannot learn from single rows: give a DQN or IQN that sees one frame"
            )
        self.model: DQN | IQN = model

    def take_action(self, state: Any) -> Any:
        """Choose an action, exploring as in training."""
        return self.model.take_action(state)

    def start_epoch_action(self, epoch: int = 0, **_: Any) -> None:
        """Called before each episode: exploration and draws follow from its number."""
        self.model.start_epoch_action(epoch=epoch)

    def update_policy(self, batch: Mapping[str, ArrayLike]) -> dict[str, Any]:
        """One update; see the model's own `update_policy`."""
        return self.model.update_policy(batch)

    def state(self) -> dict[str, Array]:
        """The learner's state as arrays."""
        return {name: tensor.cpu().numpy() for name, tensor in self.model.state.tensors.items()}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Take over a stored state of a model of the same shape, checked first."""
        own = self.model.state
        found = {name: np.shape(array) for name, array in state.items()}
        if found != {name: tuple(tensor.shape) for name, tensor in own.tensors.items()}:
            raise CheckpointError(f"the stored agent has arrays {found}: it is another kind of model or another shape")
        kinds = {name: tensor.dtype for name, tensor in own.tensors.items()}
        self.model.state = State({name: torch.tensor(array, dtype=kinds[name]) for name, array in state.items()})
