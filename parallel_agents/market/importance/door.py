"""The door for trainers: `update_policy(batch) -> metrics`, one update from a batch that somebody else has drawn.

An agent, as a trainer sees it, acts and has this door; nothing else is asked of it. `PolicyDoor` gives the door to a
model that learns from a replay buffer: the batch becomes a snapshot of one update, which the model's own learner takes
by the same kernel as in a run. Corrections come in as the batch's `weights` and multiply each sample's loss once,
before the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from parallel_agents.errors import ActionError, CheckpointError, ContractError, NonFiniteError, RunError, ShapeError
from parallel_agents.learning import DQNLearner
from parallel_agents.learning.losses import double_q_targets, q_targets, values_of
from parallel_agents.models import DQN, Blueprint, Model
from parallel_agents.models.dqn import ReplayBlueprint
from parallel_agents.networks import numerics
from parallel_agents.types import Array, Snapshot, State

__all__ = ["PolicyAgent", "PolicyDoor", "acting_of", "as_snapshot", "td_errors"]

COLUMNS = ("states", "actions", "rewards", "next_states", "dones")
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
        if not isinstance(model.blueprint, ReplayBlueprint) or model.blueprint.n_frames != 1:
            raise ContractError(
                f"{type(model).__name__} cannot learn from single rows: give a DQN or IQN that sees one frame"
            )
        numerics.require()
        self.model = model

    def take_action(self, state: Any) -> Any:
        """Choose an action, exploring as in training."""
        return self.model.take_action(state)

    def start_epoch_action(self, epoch: int = 0, **_: Any) -> None:
        """Called before each episode: exploration and draws follow from its number."""
        self.model.start_epoch_action(epoch=epoch)

    def update_policy(self, batch: Mapping[str, ArrayLike]) -> dict[str, Any]:
        """One update; its loss, gradient norm and, for DQN, the TD errors (B,) it started from."""
        model = self.model
        if model.busy is not None:
            raise RunError(f"update_policy() was called while {model.busy}: the scheduled rounds train this agent")
        snapshot = as_snapshot([batch], model.blueprint, gammas=[model.hyper["gamma"]])
        learner = replace(model.blueprint.learner(updates=1), batch=snapshot["returns"].shape[1])
        found: dict[str, Any] = {}
        if isinstance(model, DQN):
            found["td_errors"] = td_errors(learner, model.state, snapshot)[0]
        model.state, result = learner.learn(model.state, snapshot, model.identity)
        if not result.updates[0]:
            raise NonFiniteError("update_policy() was given a batch whose loss or gradient is not finite: no update")
        found |= {name: float(figure[0]) for name, figure in result.metrics.items()}
        return found | {"updates": int(model.state["updates"][0])}

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


def as_snapshot(
    batches: Sequence[Mapping[str, ArrayLike]], blueprint: Blueprint, *, gammas: Sequence[float], round_: int = 0
) -> Snapshot:
    """One batch per agent, B rows each, as the snapshot of N agents; every array is checked first."""
    columns: dict[str, list[Array]] = {}
    for batch, gamma in zip(batches, gammas, strict=True):
        for name, column in _columns(batch, gamma, blueprint).items():
            columns.setdefault(name, []).append(column)
    ready = np.ones(len(batches), np.bool_)
    return Snapshot(round_, {**{name: np.stack(parts) for name, parts in columns.items()}, "ready": ready})


def _columns(batch: Mapping[str, ArrayLike], gamma: float, blueprint: Blueprint) -> dict[str, Array]:
    missing = [name for name in COLUMNS if name not in batch]
    if missing:
        raise ShapeError(f"a batch has no {', '.join(missing)}: give {', '.join(COLUMNS)}, and weights if it has any")
    rows = len(np.asarray(batch["rewards"]))
    columns: dict[str, Array] = {
        "states": np.asarray(batch["states"], np.float32).reshape(rows, -1),
        "actions": np.asarray(batch["actions"], np.int64),
        "returns": np.asarray(batch["rewards"], np.float32),
        "next_states": np.asarray(batch["next_states"], np.float32).reshape(rows, -1),
        "discounts": np.where(np.asarray(batch["dones"], np.bool_), 0.0, gamma).astype(np.float32),
        "weights": np.asarray(batch.get("weights", np.ones(rows)), np.float32),
    }
    for name, column in columns.items():
        shape = (rows, blueprint.network.inputs) if name.endswith("states") else (rows,)
        if column.shape != shape:
            raise ShapeError(f"a batch of {rows} rows has {name} of shape {column.shape}: give {shape}")
    actions = columns["actions"]
    if blueprint.actions is not None and rows and not 0 <= actions.min() <= actions.max() < blueprint.actions:
        raise ActionError(f"a batch has actions {actions.min()} .. {actions.max()}: there are {blueprint.actions}")
    if not (np.isfinite(columns["weights"]).all() and (columns["weights"] >= 0).all()):
        raise NonFiniteError("a batch has weights that are negative or not finite: give the corrections of its sampler")
    return columns


def td_errors(learner: DQNLearner, state: State, snapshot: Snapshot) -> NDArray[np.float32]:
    """(N, B) differences of the taken actions' values from their goals, before an update."""
    forward, bind = learner.network.forward, learner.network.bind
    batch = {name: torch.from_numpy(column) for name, column in snapshot.columns.items()}
    with torch.inference_mode():
        after = forward(bind(state["target"]), batch["next_states"])
        if learner.double:
            online = forward(bind(state["online"]), batch["next_states"])
            goals = double_q_targets(batch["returns"], batch["discounts"], after, online)
        else:
            goals = q_targets(batch["returns"], batch["discounts"], after)
        values = values_of(forward(bind(state["online"]), batch["states"]), batch["actions"])
        return np.asarray((values - goals).numpy())
