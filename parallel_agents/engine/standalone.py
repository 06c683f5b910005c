"""Agents outside of stacks: those that override `get_action` or `add_memory`, or whose model is the user's own object.

What such an agent learns and remembers is read from three places: the agent's `state()`, the model's `state_dict()` (or
`state()`), and the `state()` of the model's memory. Where one of them is missing, the run has no digest and cannot be
checkpointed, and `missing_state` says why.
"""

from __future__ import annotations

import inspect
import random
import types
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch

from parallel_agents.algorithms.base import Model
from parallel_agents.core.errors import (
    ActionError,
    ContractError,
    CorruptCheckpoint,
    DeadlineError,
    NonFiniteError,
    ParallelAgentsError,
    RunError,
)
from parallel_agents.core.system import in_background
from parallel_agents.core.types import AgentId, Array, Masks, Step, Transitions
from parallel_agents.engine.events import event_columns
from parallel_agents.engine.stacks import load_states_of_copies, states_of_copies


def fits_a_stack(agent: Any) -> bool:
    """Return True for agents that act and store in the standard way; raise ContractError for unusable models."""
    if not isinstance(agent.model, Model):
        if not hasattr(agent.model, "take_action"):
            raise ContractError(f"the model of {agent.name} has no take_action(state): give it one")
        return False
    if agent.is_standalone and agent.model.spec.hidden_size:
        raise ContractError(
            f"{agent.name} overrides get_action() or add_memory(), but its model is recurrent: its hidden states are "
            "carried and stored in a stack only; leave these hooks as they are, or set model.recurrent = false"
        )
    if agent.is_standalone and agent.model.spec.on_policy:
        raise ContractError(
            f"{agent.name} overrides get_action() or add_memory(), but {type(agent.model).__name__} learns from the "
            "log-probabilities and values of its own choices, which only a stack stores: leave these hooks as they "
            "are, or use a learner from a replay buffer"
        )
    return not agent.is_standalone


class StandaloneAgent:
    """One agent outside of stacks within a run: one kind of `engine.agents.Agents`."""

    def __init__(self, agent_id: AgentId, env: Any, *, deadline: float, event_ids: Array | None) -> None:
        """deadline: seconds that a slow model may take for one action.

        event_ids: the agent's class id of each of its environment's event types; None: uniform sampling.
        """
        self.ids = [agent_id]
        self._id, self._env, self._deadline = agent_id, env, deadline
        self._event_ids = None if event_ids is None else [event_ids]
        agent = self._agent
        self._buffer = agent.model.memory if isinstance(agent.model, Model) and not agent.overrides_add_memory else None
        """The buffer of a model of this library whose agent stores in the standard way."""
        self._constants = _constants(agent), _constants(agent.model)
        self._context = [] if self._buffer is not None else _context_keywords(agent)
        """What is given to `add_memory` beside state, action, reward and done."""
        self._incomplete: list[tuple[int, Callable[..., None]]] = []
        """World, and the call that stores its transition once the next state is known."""
        self._watched_turns = 0
        self.global_draws = ""
        """Where the model drew from a global random generator; empty: nowhere."""
        self._observation: Array | None = None
        """(W, *obs) of this turn; None before the agent was asked."""
        self._answer: Array | Future[Array] = np.empty(0)

    @property
    def _agent(self) -> Any:
        return self._env.agents[self._id.agent]

    def _copies(self) -> list[Any]:
        """Return the agent in every world; one for all where worlds are vectorised."""
        return list(self._env.copies_of(self._id.agent))

    def start_epoch(self, epoch: int) -> None:
        """Call the model's `start_epoch_action`, where it has one."""
        self._call_hook("start_epoch_action", epoch)

    def end_epoch(self, epoch: int) -> None:
        """Call the model's `end_epoch_action`, where it has one."""
        self._call_hook("end_epoch_action", epoch)

    def _call_hook(self, name: str, epoch: int) -> None:
        hook = getattr(self._agent.model, name, None)
        if hook is not None:
            hook(epoch=epoch)

    # -- acting ----------------------------------------------------------------------------------------------

    def act(self, step: Step) -> int:
        """Ask the agent for its actions; in sequential turn order wait for its turn. Return 0: nothing is batched."""
        self._observation = None
        if not step.sequential:
            k, i = self._id
            masks = step.masks[k]
            self._ask(step.observations[k][i], None if masks is None else masks[i])
        return 0

    def act_in_turn(self, agent_id: AgentId, observation: Array, mask: Array | None, epoch: int, turn: int) -> bool:
        """Ask the agent for its actions at its place in the order. Return False: nothing was computed before."""
        self._ask(observation, mask)
        return False

    def _ask(self, observation: Array, mask: Array | None) -> None:
        """Ask for actions (W, …); a slow model is asked in the background."""
        self._observation = self._finite_copy(observation)
        self._complete(self._observation)
        ask = partial(self._choose, self._observation, mask)
        if getattr(self._agent.model, "slow", False):
            self._answer = in_background(ask, f"slow-model-{self._agent.name}")
        elif self._watched_turns < _WATCHED_TURNS:
            self._watched_turns += 1
            self._answer = self._watch(ask, "take_action()")
        else:
            self._answer = ask()

    def _watch(self, call: Callable[[], Any], name: str) -> Any:
        """Return what a call returns, and note if it moved a global random generator."""
        before = _global_generators()
        result = call()
        moved = [kind for kind, state in _global_generators().items() if state != before[kind]]
        if moved and not isinstance(self._agent.model, Model):
            self.global_draws = f"{name} drew from the global random generator of {' and '.join(moved)}"
        return result

    def _choose(self, observation: Array, mask: Array | None) -> Array:
        """Return checked actions (W, …) for observations (W, *obs) and, where there is one, a mask (W, A)."""
        copies = self._copies()
        worlds = self._env.n_worlds
        agents = [copies[w if len(copies) > 1 else 0] for w in range(worlds)]
        name = agents[0].name
        takes_masks = not agents[0].overrides_get_action and getattr(agents[0].model, "takes_masks", False)
        try:
            if mask is not None and takes_masks:
                chosen = [agent.model.take_action(observation[w], mask=mask[w]) for w, agent in enumerate(agents)]
            else:
                chosen = [agent.get_action(observation[w]) for w, agent in enumerate(agents)]
            actions = np.asarray(chosen)
        except ParallelAgentsError:
            raise
        except (Exception, SystemExit) as error:
            raise RunError(f"{name} could not choose an action: {type(error).__name__}: {error}") from error
        limit = agents[0].n_actions
        if limit is not None and not ((actions >= 0) & (actions < limit)).all():
            raise ActionError(
                f"{name} chose action {actions.tolist()}, but its actions are 0 to {limit - 1}: "
                "check its model's take_action() or its get_action()"
            )
        if mask is not None and actions.ndim == 1 and not mask[np.arange(worlds), actions].all():
            world = int(np.flatnonzero(~mask[np.arange(worlds), actions])[0])
            raise ActionError(
                f"{name} chose action {actions[world]} in world {world}, which its mask forbids: choose one "
                f"of {np.flatnonzero(mask[world]).tolist()}, or set takes_masks on its model"
            )
        return actions

    def _finite_copy(self, observation: Any) -> Array:
        """Return a copy (W, *obs), since the world may write into its own later; raise if it is not finite."""
        copied = np.array(observation)
        if copied.dtype.kind == "f" and not np.isfinite(copied).all():
            world = np.argwhere(~np.isfinite(copied))[0][0]
            raise NonFiniteError(
                f"the observation of {self._agent.name} in world {world} holds NaN or infinity "
                f"(epoch {self._env.epoch}, turn {self._env.turn}): check the environment"
            )
        return copied

    def actions_of(self, agent_id: AgentId) -> Array:
        """Return the actions (W, …) of this turn; wait for a slow model, at most its deadline."""
        if isinstance(self._answer, Future):
            try:
                self._answer = self._answer.result(self._deadline)
            except FutureTimeout:
                if isinstance(self._answer, Future) and self._answer.done():  # the model's own time-out, not ours
                    raise
                raise DeadlineError(
                    f"the model of {self._agent.name} did not act within {self._deadline:g} s (world_deadline)"
                ) from None
        return self._answer

    # -- storing ---------------------------------------------------------------------------------------------

    def store(self, step: Step) -> None:
        """Store the transition of this turn: in the model's buffer, or by the agent's own `add_memory`."""
        if self._observation is None:
            return
        k, i = self._id
        actions = self.actions_of(self._id)
        if self._buffer is not None:
            self._buffer.add_turn(self._transitions(self._observation, actions, step))
            return
        copies = self._copies()
        for w in np.flatnonzero(step.acted[k][i]):
            agent = copies[w if len(copies) > 1 else 0]
            truncated = bool(step.truncated[k][i, w])
            done = bool(step.terminated[k][i, w]) or truncated
            known = {"world": int(w), "truncated": truncated}
            context = {name: known[name] for name in self._context if name in known}
            reward = float(step.rewards[k][i, w])
            add = partial(agent.add_memory, self._observation[w], actions[w], reward, done, **context)
            if "next_state" in self._context:
                self._incomplete.append((int(w), add))
            else:
                add()

    def _complete(self, observation: Array) -> None:
        """Store the transitions of the turn before, now that the states (W, *obs) after it are known."""
        for world, add in self._incomplete:
            add(next_state=observation[world])
        self._incomplete = []

    def _transitions(self, observation: Array, actions: Array, step: Step) -> Transitions:
        """Return this agent's turn, with the agent as the first axis."""
        k, i = self._id
        columns = (step.rewards, step.terminated, step.truncated, step.acted, step.first)
        rewards, terminated, truncated, acted, first = (column[k][i][None] for column in columns)
        extras: dict[str, Array] = {}
        if self._event_ids is not None:
            extras = event_columns(self.ids, self._event_ids, step.events, self._env.n_worlds)
        return Transitions(
            observations=np.asarray(observation, np.float32)[None],
            actions=np.asarray(actions)[None],
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            valid=acted,
            first=first,
            present=np.array([k in step.environments]),
            version=0,
            extras=extras,
        )

    def close_epoch(self, observations: Sequence[Any], masks: Sequence[Masks], *, ended: bool) -> None:
        """Store the observation after the last turn; ended: the episodes stop here."""
        memory: Any = getattr(self._agent.model, "memory", None)
        last = self._finite_copy(observations[self._id.environment][self._id.agent])
        self._complete(last)
        if self._buffer is not None:
            self._buffer.close_turn(np.asarray(last, np.float32)[None], ended=ended)
        elif ended and hasattr(memory, "add_empty"):
            memory.add_empty()  # the next observation starts another episode

    # -- learning --------------------------------------------------------------------------------------------

    @property
    def training_priority(self) -> int:
        return int(getattr(self._agent.model, "training_priority", 0))

    def train(self) -> dict[str, float]:
        """Train the model at the boundary, inline, where it can learn and is not frozen; return its metrics.

        `train_step` may return a loss, or a mapping of metrics; its `updates` says how many updates it made, else one.
        """
        model = self._agent.model
        if not hasattr(model, "train_step") or getattr(model, "frozen", False):
            return {"updates": 0}
        before = int(model.state["updates"][0]) if isinstance(model, Model) else 0
        found = self._watch(model.train_step, "train_step()")
        metrics = found if isinstance(found, Mapping) else {} if found is None else {"loss": found}
        try:
            numbers = {str(name): float(value) for name, value in metrics.items()}
        except (TypeError, ValueError) as error:
            raise ContractError(
                f"train_step() of {type(model).__name__} returned {found!r}: return None, a loss, or a dict of numbers"
            ) from error
        if isinstance(model, Model):
            numbers["updates"] = int(model.state["updates"][0]) - before
        return {"updates": 1, **numbers}

    # -- digest and checkpoint -------------------------------------------------------------------------------

    def missing_state(self) -> str | None:
        """Return why the agent's state cannot be read; None: it can."""
        agent = self._copies()[0]
        model, memory = agent.model, getattr(agent.model, "memory", None)
        before, before_of_model = self._constants
        replaced, replaced_in_model = (
            _replaced(before, _constants(agent)),
            _replaced(before_of_model, _constants(model)),
        )
        if unsaved := agent.unsaved_attributes(replaced):
            return (
                f"{agent.name} ({type(agent).__name__}) overrides get_action() or add_memory() and has attributes of "
                f"its own ({', '.join(unsaved)}): write state() and load_state() for it, with {{}} if "
                "it carries nothing from epoch to epoch"
            )
        if forgotten := _outside_of_state_dict(model, replaced_in_model):
            return (
                f"the model of {agent.name} ({type(model).__name__}) is a torch Module whose state_dict() leaves out "
                f"{', '.join(forgotten)}: override state_dict() and load_state_dict(state) so that they hold it too"
            )
        if state_accessors(model) is None and (replaced_in_model or not _is_constant_model(model)):
            return (
                f"the model of {agent.name} ({type(model).__name__}) can learn or remember, but has no state_dict() "
                "and load_state_dict(state): write them, with everything that it carries from epoch to epoch"
            )
        if memory is not None and not isinstance(model, Model) and state_accessors(memory) is None:
            return (
                f"the memory of {agent.name} ({type(memory).__name__}) has no state() and load_state(state): write "
                "them, or use parallel_agents.Buffer"
            )
        return None

    def state(self, agent_id: AgentId) -> dict[str, Any]:
        """Return everything that the agent knows."""
        parts = _stateful_parts(self._agent.model)
        return {"agent": states_of_copies(self._copies()), **{name: read() for name, (read, _) in parts.items()}}

    def load_state(self, agent_id: AgentId, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        parts = _stateful_parts(self._agent.model)
        if sorted(state) != sorted(["agent", *parts]):
            raise CorruptCheckpoint(f"the state of {self._agent.name} in the checkpoint is of another kind of agent")
        load_states_of_copies(self._copies(), state["agent"])
        for name, (_, write) in parts.items():
            try:
                write(state[name])
            except (KeyError, ValueError, TypeError, IndexError, AttributeError, OverflowError) as error:
                if not isinstance(self._agent.model, Model):
                    raise  # by the user's own code
                found = f"{type(error).__name__}: {error}"
                raise CorruptCheckpoint(f"the model of {self._agent.name} cannot be restored: {found}") from error


# -- reading the state of unknown objects ----------------------------------------------------------------------------

Accessors = tuple[Callable[[], Any], Callable[[Any], Any]]
"""Functions that read an object's state and write it back."""


def _stateful_parts(model: Any) -> dict[str, Accessors]:
    """Return accessors of a model's state: its own, and its memory's where that is a separate object."""
    parts = {"model": model} if isinstance(model, Model) else {"model": model, "memory": getattr(model, "memory", None)}
    return {name: found for name, part in parts.items() if (found := state_accessors(part)) is not None}


def state_accessors(part: Any) -> Accessors | None:
    """Return the methods by which an object's state is read and written; None if it has none."""
    for read, write in (("state_dict", "load_state_dict"), ("state", "load_state")):
        if callable(getattr(part, read, None)) and callable(getattr(part, write, None)):
            return getattr(part, read), getattr(part, write)
    return None


def _outside_of_state_dict(model: Any, replaced: Sequence[str]) -> list[str]:
    """Return the attributes in which a torch Module may remember what torch's own `state_dict` does not hold.

    replaced: constants of the module, or of one in it, that have other values than before.
    """
    if not isinstance(model, torch.nn.Module) or type(model).state_dict is not torch.nn.Module.state_dict:
        return []
    mutable = [name for name, value in vars(model).items() if name not in _OF_MODULES and not _is_constant(value)]
    lasting = {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
    return sorted({*mutable, *replaced, *(name for name, own in model.named_buffers() if id(own) not in lasting)})


def _context_keywords(agent: Any) -> list[str]:
    """Return the keywords that an agent's way of storing takes: its own `add_memory`, or its memory's `add`."""
    hook = (
        agent.add_memory if agent.overrides_add_memory else getattr(getattr(agent.model, "memory", None), "add", None)
    )
    if hook is None:
        return []
    named = inspect.signature(hook).parameters
    return [name for name in ("world", "truncated", "next_state") if name in named]


_WATCHED_TURNS = 64
"""First turns of a process in which draws from global generators are noticed; reading their state takes a while."""


def _global_generators() -> dict[str, Any]:
    """Return the state of every global random generator."""
    numpy_state = np.random.get_state(legacy=False)
    return {
        "Python": random.getstate(),
        "numpy": (numpy_state["state"]["key"].tobytes(), numpy_state["state"]["pos"]),
        "torch": torch.get_rng_state().numpy().tobytes(),
    }


def _is_constant_model(model: Any) -> bool:
    """Return True for a model that can neither learn nor remember, unless one of its constants is replaced.

    Such a model has no `train_step`, no `memory`, and only attributes that cannot be changed in place.
    """
    if hasattr(model, "train_step") or hasattr(model, "memory") or not hasattr(model, "__dict__"):
        return False
    return all(map(_is_constant, vars(model).values())) and not mutable_class_attributes(type(model), object)


_OF_MODULES = frozenset(dir(torch.nn.Module()))
"""Attributes of every torch Module."""


def _constants(thing: Any) -> dict[str, Any]:
    """Return all that an object, its classes and its functions hold and that cannot be changed in place, by name.

    That one of these was replaced is seen by comparing again. Of a torch Module, the modules in it are looked at too.
    """
    if not isinstance(thing, torch.nn.Module):
        return _own_constants(thing)
    return {
        f"{path}.{name}".lstrip("."): value
        for path, module in thing.named_modules()
        for name, value in _own_constants(module).items()
        if name.partition(" ")[0] not in _OF_MODULES
    }


def _own_constants(thing: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for owner in (*reversed(type(thing).__mro__), thing):
        for name, value in getattr(owner, "__dict__", {}).items():
            if not name.startswith("__"):
                found[name] = value
                found |= {f"{name} ({inner})": own for inner, own in _enclosed(value).items()}
    return {name: value for name, value in found.items() if _is_constant(value)}


def _enclosed(function: Any) -> dict[str, Any]:
    """Return the values that a function closes over; none for anything else."""
    if not isinstance(function, types.FunctionType):
        return {}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    found: dict[str, Any] = {}
    for name, cell in cells:
        with suppress(ValueError):  # nothing was assigned to it so far
            found[name] = cell.cell_contents
    return found


def _replaced(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the names of constants that are not what they were."""
    same = {name for name, value in now.items() if name in before and (before[name] is value or before[name] == value)}
    return sorted(now.keys() - same)


def mutable_class_attributes(kind: type, base: type) -> list[str]:
    """Return the names of class attributes, of `kind` up to `base`, that can be changed in place."""
    between = kind.__mro__[: kind.__mro__.index(base)]
    attributes = {name: value for cls in between for name, value in vars(cls).items() if not name.startswith("__")}
    return [
        name
        for name, value in attributes.items()
        if not (callable(value) or hasattr(value, "__get__") or _is_constant(value))
    ]


def _is_constant(value: Any) -> bool:
    """Return True for values that cannot be changed in place."""
    if isinstance(value, tuple | frozenset):
        return all(map(_is_constant, value))
    if isinstance(value, types.FunctionType):
        return all(map(_is_constant, [*_enclosed(value).values(), *(value.__defaults__ or ())]))
    return value is None or isinstance(value, bool | int | float | complex | str | bytes | type | types.ModuleType)
