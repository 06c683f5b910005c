"""Training of agents that learn from batches that somebody else draws: `update_policy(batch) -> metrics`.

An agent can be any object that has this method and acts by one of `ACTION_METHODS`. Models of this library have it;
`ExternalUpdateAgent` adds a state that a trainer can store. `AgentTrainer` is what trainers share: a history, callbacks
and checkpoints. A training depends on its options and the agent alone, so one that was stopped and resumed equals one
that was not, if the agent has `state` and `load_state`.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike

from parallel_agents.algorithms import DQN, IQN, Model
from parallel_agents.checkpoint.store import Manifest, Store
from parallel_agents.core.errors import CheckpointError, ContractError, CorruptCheckpoint, ParallelAgentsError
from parallel_agents.core.files import plain
from parallel_agents.core.folder_lock import FolderLock
from parallel_agents.core.types import Array
from parallel_agents.tracking.callbacks import Callback, CallbackList

ACTION_METHODS = ("take_action", "select_action", "get_action", "act")
"""Names of the method by which an agent acts; the first one that it has is used."""
_KEPT_CHECKPOINTS = 3
Parts = dict[str, dict[str, Array]]
"""Arrays of a checkpoint, by part of the training and name."""


class PolicyAgent(Protocol):
    """An agent that a trainer can train: it also has one of `ACTION_METHODS`."""

    def update_policy(self, batch: Mapping[str, Array]) -> Mapping[str, Any]:
        """Learn from B rows (states, actions, rewards, next_states, dones, weights) and return metrics."""


def action_function(agent: Any) -> Callable[[Any], Any]:
    """Return the agent's function from a state to an action."""
    for name in ACTION_METHODS:
        method: Callable[[Any], Any] | None = getattr(agent, name, None)
        if callable(method):
            return method
    raise ContractError(f"{type(agent).__name__} does not act: give it one of {', '.join(ACTION_METHODS)}")


def require_update_policy(agent: Any) -> None:
    """Raise an error for an agent that cannot learn from batches."""
    if not callable(getattr(agent, "update_policy", None)):
        raise ContractError(
            f"{type(agent).__name__} has no update_policy(batch): give it one, or wrap a model in ExternalUpdateAgent"
        )


class ExternalUpdateAgent:
    """A DQN or IQN that learns from batches of single rows, and whose state a trainer can store.

    >>> agent = ExternalUpdateAgent(DQN(obs_shape=(2,), n_actions=2, hidden=(8,)))
    >>> batch = {"states": np.ones((4, 2)), "actions": [0, 1, 0, 1], "rewards": np.ones(4),
    ...          "next_states": np.ones((4, 2)), "dones": np.ones(4, bool), "weights": np.ones(4)}
    >>> sorted(agent.update_policy(batch))
    ['gradient_norm', 'loss', 'td_errors', 'updates']
    """

    def __init__(self, model: Model) -> None:
        if not isinstance(model, DQN | IQN) or model.spec.ring.frames != 1:
            raise ContractError(
                f"{type(model).__name__} cannot learn from single rows: give a DQN or IQN with n_frames=1"
            )
        self.model: DQN | IQN = model

    def take_action(self, state: Any) -> Any:
        """Choose an action, exploring as in training."""
        return self.model.take_action(state)

    def start_epoch_action(self, epoch: int = 0, **_: Any) -> None:
        """Set exploration and random numbers to those of an episode; trainers call it before each episode."""
        self.model.start_epoch_action(epoch=epoch)

    def update_policy(self, batch: Mapping[str, ArrayLike]) -> dict[str, Any]:
        """Make one update with the model's own `update_policy`."""
        return self.model.update_policy(batch)

    def state(self) -> dict[str, Array]:
        """Return the learner's state as arrays."""
        return {name: tensor.cpu().numpy() for name, tensor in self.model.state.tensors.items()}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Replace the learner's state by a stored one, after checking that this model can have it."""
        self.model.state = self.model.state.replaced({name: torch.from_numpy(a.copy()) for name, a in state.items()})


class AgentTrainer(ABC):
    """A training of an agent, step by step: its history, callbacks, and checkpoints in a folder."""

    def __init__(self, folder: Path | None, callbacks: Iterable[Callback], options: Any, *changeable: str) -> None:
        """options: a dataclass; all but the `changeable` ones must be the same when a training is resumed."""
        self.folder, self._options, self._changeable = folder, plain(options), changeable
        self.history: list[dict[str, Any]] = []
        """one line of figures per step of the training"""
        self._callbacks = CallbackList(callbacks)
        self._lock: FolderLock | None = None

    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """Return the figures of the whole training."""

    @abstractmethod
    def _state(self) -> tuple[Mapping[str, Mapping[str, Any]], Mapping[str, Any]]:
        """Return what a checkpoint holds besides agent and history: arrays by part, and values of JSON."""

    @abstractmethod
    def _load_state(self, parts: Parts, values: Mapping[str, Any]) -> None:
        """Take what `_state` returned back from a checkpoint; raise if it cannot be right."""

    def save(self, agent: Any) -> None:
        """Write a checkpoint, if there is a folder for it."""
        if self.folder is None:
            return
        store, step, (parts, values) = Store(self.folder, self._lock), len(self.history), self._state()
        store.open_for_writing()
        states = {**parts, "agent": agent.state() if hasattr(agent, "state") else {}}
        arrays = {f"{part}.{name}": np.asarray(a) for part, state in states.items() for name, a in state.items()}
        name = f"state-{step:06d}.safetensors"
        stored = {**values, "configuration": self._options, "history": plain(self.history)}
        store.commit(Manifest(step, {name: store.write(name, arrays)}, stored))
        store.rotate(step, _KEPT_CHECKPOINTS)
        store.close()

    def _save_if_due(self, agent: Any, last: int) -> None:
        """Write a checkpoint after every `checkpoint_every` steps and after the last one."""
        done = len(self.history)
        if done == last or done % self._options["checkpoint_every"] == 0:
            self.save(agent)

    def _restore(self, agent: Any) -> None:
        """Continue from the newest checkpoint that can be right."""
        if self.folder is None:
            raise ContractError("there is nothing to resume: create the trainer with the folder of its checkpoints")
        store, troubles = Store(self.folder), list[str]()
        for manifest in store.good(troubles):
            try:
                self._restore_from(store, manifest, agent)
            except (CorruptCheckpoint, KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
                troubles.append(f"step {manifest.epoch}: {type(error).__name__}: {error}")
            else:
                if troubles:
                    warnings.warn(f"resumed from step {manifest.epoch}: {'; '.join(troubles)}", stacklevel=3)
                return
        raise store.none_usable(troubles)

    def _restore_from(self, store: Store, manifest: Manifest, agent: Any) -> None:
        """Continue from one checkpoint; the checkpoint before overwrites what was restored before an error."""
        values = manifest.values
        fixed = set(self._options) - set(self._changeable)
        changed = sorted(name for name in fixed if values["configuration"].get(name) != self._options[name])
        if changed:
            raise CheckpointError(
                f"the stored training had another {', '.join(changed)}: resume with the same configuration"
            )
        parts: Parts = {}
        for full_name, array in store.read(manifest, f"state-{manifest.epoch:06d}.safetensors").items():
            part, _, name = full_name.partition(".")
            parts.setdefault(part, {})[name] = array
        if "agent" in parts and not hasattr(agent, "load_state"):
            raise CheckpointError(f"the stored agent has a state, {type(agent).__name__} has no load_state")
        self.history = [dict(line) for line in values["history"]]
        if len(self.history) != manifest.epoch:
            raise CorruptCheckpoint(f"a history of {len(self.history)} lines is not that of {manifest.epoch} steps")
        self._load_state(parts, values)
        self.summary()  # refuse a history now that it could not be made of later
        if hasattr(agent, "state") and hasattr(agent, "load_state"):
            try:
                agent.load_state(parts.get("agent", {}))
            except ParallelAgentsError:
                raise
            except Exception as error:  # raised by the user's own load_state: older checkpoints are no better
                name = type(agent).__name__
                raise CheckpointError(f"{name} did not take its state: {type(error).__name__}: {error}") from error


def mean_figures(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean of every figure over the lines that know it; NaN where none does."""
    columns: dict[str, list[float]] = {}
    for line in lines:
        for name, value in line.items():
            if value is None or isinstance(value, int | float):
                columns.setdefault(name, []).extend([] if value is None or math.isnan(value) else [value])
    return {name: float(np.mean(known)) if known else math.nan for name, known in columns.items()}


def known_means(lines: Sequence[Mapping[str, Any]], *left_out: str) -> dict[str, float]:
    """Return the means of the figures that any line knows, without some of them."""
    return {n: mean for n, mean in mean_figures(lines).items() if n not in left_out and not math.isnan(mean)}
