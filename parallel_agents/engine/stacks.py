"""Stacks: models of one algorithm and shape as rows that act, store and learn together.

`Stack` computes with arrays whose first axis is the model. `StackedAgents` fills those arrays from the environments of
a run and is one kind of agents in an `AgentGroup`. Shapes: N agents, W worlds, D numbers of an observation, A actions.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from parallel_agents.algorithms.acting import (
    ActionDraws,
    FrameStack,
    Inference,
    RecurrentState,
    TurnRoom,
    Weights,
    choice_of,
)
from parallel_agents.algorithms.acting_kernels import Scratch, act
from parallel_agents.algorithms.base import AlgorithmSpec, Model
from parallel_agents.algorithms.learner import LearnerState, RoundResult, Snapshot, is_native
from parallel_agents.core.errors import ActionError, ContractError, NonFiniteError, ShapeError
from parallel_agents.core.observations import flatten_observation
from parallel_agents.core.seeding import Identity, Purpose, generator
from parallel_agents.core.types import AgentId, Array, Masks, Step, Transitions
from parallel_agents.engine.collect import CompiledWorld, Progress, Room, Store, collector
from parallel_agents.engine.events import event_columns
from parallel_agents.execution.backend import shares
from parallel_agents.nn import Invariance, probe
from parallel_agents.nn.layers import tile_rows
from parallel_agents.replay import PRIORITY, Buffer, Ring, ThreadSafeBuffer, write_priorities
from parallel_agents.replay.ring import all_finite

ALL = slice(None)
_NO_LOCK: AbstractContextManager[Any] = nullcontext()


def group_models(models: Sequence[Model]) -> list[list[int]]:
    """Return the positions of models that can be rows of one stack, in order of first appearance."""
    stacks: dict[Any, list[int]] = {}
    for position, model in enumerate(models):
        stacks.setdefault((type(model), model.spec), []).append(position)
    return list(stacks.values())


class Stack:
    """N models computed together, each with its own weights, optimizer, buffer and draws."""

    def __init__(
        self,
        models: Sequence[Model],
        *,
        together: bool,
        locked: bool = False,
        device: str = "cpu",
        workers: int = 1,
        worlds: range | None = None,
        all_worlds: int | None = None,
    ) -> None:
        """Take over the models' states and buffers.

        together: act in one forward pass instead of one per model. locked: put a lock on every buffer. workers: how
        many workers will share the training of these models, at most; the probe tries their shares. worlds: the numbers
        of the worlds, where these are a shard of `all_worlds`.
        """
        self.models = list(models)
        self.device = device
        self.spec: AlgorithmSpec = self.models[0].spec
        shape = self.spec.ring
        self.identity = Identity(
            tuple(model.identity.seeds[0] for model in self.models),
            tuple(model.identity.agents[0] for model in self.models),
        )
        self.ring = Ring(shape, len(self.models))
        for row, model in enumerate(self.models):
            if locked and not isinstance(model.memory, ThreadSafeBuffer):
                model.memory = ThreadSafeBuffer.taking_over(model.memory)
            model.memory.move_to(self.ring, row)
            model.in_stack = True
        self._locked = [model.memory for model in self.models if type(model.memory) is not Buffer]
        self.learner = self.spec.learner(device=device)
        self.state = self.states_of_models()
        self.invariance = (
            Invariance(True, "compiled kernels compute one agent at a time: it holds by construction")
            if self.native
            else probe_stack(self.spec, len(self.models), device, workers)  # type: ignore[arg-type]
        )
        if not self.invariance.holds:
            warnings.warn(
                f"{len(self.models)} agents of {self.spec} are computed one at a time: {self.invariance.detail}",
                RuntimeWarning,
                stacklevel=2,
            )
        together = together and self.invariance.holds
        self.inference = Inference(
            self.learner.network,
            len(self.models),
            shape.worlds,
            together=together,
            device=device,
            compiled=self.native,
            first_world=0 if worlds is None else worlds.start,
            all_worlds=all_worlds,
        )
        self.inference.weights = Weights(0, self.learner.policy(self.state))
        self.frames = FrameStack(len(self.models), shape.worlds, math.prod(shape.observation), shape.frames)
        self.recurrent = RecurrentState(len(self.models), shape.worlds, self.spec.hidden_size)
        room = None if self.inference.compiled is None else self.inference.compiled.room
        self._scratch = None if room is None else Scratch(self.frames.window[..., :0], *room)
        """Room for compiled acting; several frames take a window of their own."""
        self.choice = choice_of(self.spec)
        self.not_compiled = _not_compiled(self.spec, self.learner, self.choice)
        """Why acting takes several calls; None: all agents act in one compiled call."""
        self.draws = ActionDraws(self.identity, worlds or range(shape.worlds), self.spec.slots)
        self.exploration = np.zeros(len(self.models))
        self.lag: int | None = None
        """How many rounds the acting weights may be behind; None: not checked."""

    def __len__(self) -> int:
        return len(self.models)

    @property
    def native(self) -> bool:
        """True where compiled kernels compute the rounds: an agent's bytes do not depend on the others."""
        return is_native(self.learner)

    # -- acting ----------------------------------------------------------------------------------------------

    def start_epoch(self, epoch: int) -> None:
        """Read each model's exploration for the epoch."""
        for row, model in enumerate(self.models):
            model.start_epoch_action(epoch=epoch)
            self.exploration[row] = model.epsilon

    def act(
        self,
        observations: Array,
        first: Array,
        epoch: int,
        turn: int,
        masks: Array | None = None,
        room: TurnRoom | None = None,
    ) -> tuple[Array, dict[str, Array]]:
        """Return actions (N, W) for observations (N, W, D), and the columns to store beside them.

        first: (N, W) bool, True where an episode starts. room: arrays to use again, of these observations and masks.
        """
        draws = self.draws.at(epoch, turn)
        if self.not_compiled is None:
            room = room or self.room(observations, masks)
            act(room.acting(self.inference), draws, first)
            return room.actions, room.columns
        inputs = self.recurrent.inputs(self.frames.push(observations, first), first)
        needed = self._needs_forward(draws, self.exploration)
        if needed is None:
            outputs = self.inference.forward(inputs)
        else:
            outputs = self.inference.forward_some(inputs, needed, self.spec.choices)
        actions, extras = self.spec.choose(self.recurrent.outputs(outputs), draws, self.exploration, masks)
        columns = {**extras, **self.recurrent.columns()}
        return actions, columns if masks is None else {**columns, "masks": masks}

    def act_again(
        self, row: int, observations: Array, epoch: int, turn: int, masks: Array | None = None
    ) -> tuple[Array, dict[str, Array]]:
        """Return one agent's actions (W,) and columns for newer observations (W, D) in the same turn."""
        part = slice(row, row + 1)
        stacked_masks = None if masks is None else masks[None]
        draws = self.draws.at(epoch, turn)[part]
        inputs = self.recurrent.inputs_again(row, self.frames.replace(row, observations))
        needed = self._needs_forward(draws, self.exploration[part])
        if needed is None or needed[0]:
            outputs = self.recurrent.outputs_again(row, self.inference.forward_agent(row, inputs))
        else:
            outputs = np.zeros((len(inputs), self.spec.choices), np.float32)
        actions, extras = self.spec.choose(outputs[None], draws, self.exploration[part], stacked_masks)
        columns = {name: column[0] for name, column in extras.items()}
        return actions[0], columns if masks is None else {**columns, "masks": masks}

    def room(self, observations: Array, masks: Array | None = None, part: slice = ALL) -> TurnRoom:
        """Return room for compiled turns of some agents, who choose from what stands in these arrays."""
        assert self.choice is not None
        assert self._scratch is not None
        scratch = self._scratch
        if self.frames.count > 1:
            scratch = scratch._replace(window=self.frames.window[part])
        return TurnRoom(self.choice, part, observations, masks, scratch, self.exploration[part])

    def compiled_store(self, part: slice, *, active: bool) -> Store:
        """Return what compiled epochs of some agents store beside the columns of every ring."""
        ring = self.ring
        none = np.empty((*ring.valid.shape, 0), np.float32)
        columns = [ring.extras.get(name, none) for name in ("log_prob", "value", "raw", PRIORITY)]
        if ring.extras:
            columns = [column.reshape(*ring.valid.shape, -1) if column.size else none for column in columns]
        log_prob, value, raw, priority = (column[part] for column in columns)
        return Store(ring.shape.turns, (log_prob, value, raw, priority), self.inference.version, active)

    def _needs_forward(self, draws: Array, exploration: Array) -> Array | None:
        """Return (N,) whose networks must be computed; None: everyone's, also where skipping some saves no time."""
        return self.spec.needs_forward(draws, exploration) if self.inference.skips_agents else None

    # -- storing ---------------------------------------------------------------------------------------------

    def add(self, turn: Transitions) -> None:
        """Store one turn in every agent's own buffer."""
        with self.locks():
            self.ring.add(turn)

    def close(self, observations: Array, *, ended: bool, masks: Array | None = None) -> None:
        """Store the observations (N, W, D) after the last turn; ended: the episodes stop here."""
        extras: dict[str, Array] = {}
        if self.spec.on_policy:
            outputs = self.inference.forward(self.recurrent.inputs_ahead(observations))
            extras = self.spec.closing_columns(self.recurrent.outputs_ahead(outputs))
        if masks is not None:
            extras["masks"] = masks
        with self.locks():
            self.ring.close(observations, ended=ended, extras=extras)

    def locks(self) -> AbstractContextManager[Any]:
        """Return a context that holds the locks of all buffers that have one."""
        if not self._locked:
            return _NO_LOCK
        locks = ExitStack()
        for buffer in self._locked:
            locks.enter_context(buffer.locked())
        return locks

    # -- rounds ----------------------------------------------------------------------------------------------

    def snapshot(self, round_: int) -> Snapshot:
        """Return what a round will read: a copy, or for on-policy learners the buffers, which new ones replace.

        While no agent can learn, nothing is drawn from the buffers: the snapshot holds nothing but `ready`.
        """
        with self.locks():
            ready = self._ready()
            if not ready.any() and not self.spec.on_policy:
                return Snapshot(round_, {"ready": ready})
            taken = self.example(round_)
            if self.spec.on_policy:
                self._refuse_stale(round_)
                self.ring.renew()
                for row, model in enumerate(self.models):
                    model.memory.ring = self.ring.agent(row)
        return taken

    def example(self, round_: int = 0) -> Snapshot:
        """Return what a round would read now; nothing is handed over."""
        hyper = [model.hyper for model in self.models]
        taken = self.spec.snapshot(self.ring, self.identity, hyper, round_, self.learner.updates)
        return Snapshot(round_, {**taken.columns, "ready": self._ready()})

    def _ready(self) -> Array:
        """Return (N,) bool, True where an agent learns in a round of now."""
        return np.asarray(self.spec.ready(self.ring) & ~np.array([model.frozen for model in self.models]))

    def _refuse_stale(self, round_: int) -> None:
        """Raise ContractError if on-policy data are older than the lag allows."""
        if self.lag is None:
            return
        oldest = round_ - 1 - self.lag
        stale = self.ring.valid.any(axis=2) & (self.ring.version < oldest)
        if stale.any():
            raise ContractError(
                f"round {round_} was to learn on policy from steps of version {self.ring.version[stale].min()}, with a "
                f"lag of {self.lag} they may be of version {oldest} or newer: collect anew with the weights of now"
            )

    @property
    def waits_for_priorities(self) -> bool:
        """True where what a round reads depends on the priorities that earlier rounds publish."""
        return PRIORITY in self.ring.extras

    def publish(self, version: int, state: LearnerState, result: RoundResult | None = None) -> None:
        """Make a learner's weights the acting weights, and store the priorities that its round found."""
        self.inference.weights = Weights(version, self.learner.policy(state))
        if result is not None and result.priorities:
            with self.locks():
                write_priorities(self.ring, result.priorities["places"], result.priorities["errors"])

    @property
    def acting_rows(self) -> torch.Tensor:
        """(N, P) the weights that act now."""
        return self.inference.weights.rows

    def copy_acting_weights(self) -> None:
        """Give every model the weights it acts with now, for an evaluation in the middle of a run."""
        for row, model in enumerate(self.models):
            model.state = self.learner.acting_as(model.state, self.acting_rows[row : row + 1].clone())

    def states_of_models(self) -> LearnerState:
        """Return the states that the models hold now, joined."""
        return LearnerState.join([model.state for model in self.models])

    def copy_state(self, state: LearnerState) -> None:
        """Give every model its row of the learner's newest state, as a copy of its own."""
        for row, model in enumerate(self.models):
            model.state = state.rows(slice(row, row + 1)).clone()


class StackedAgents:
    """The agents of a stack within a run: one kind of `engine.agents.Agents`."""

    def __init__(
        self, ids: Sequence[AgentId], environments: Sequence[Any], stack: Stack, event_ids: Sequence[Array] | None
    ) -> None:
        """event_ids: per agent, its own class id of each of its environment's event types; None: uniform sampling."""
        self.ids = list(ids)
        self.stack = stack
        self._environments = environments
        self._event_ids = event_ids
        self._worlds = stack.spec.worlds
        self._rows = {agent_id: row for row, agent_id in enumerate(self.ids)}
        self._all_present = np.ones(len(self.ids), np.bool_)
        ends = np.cumsum([0, *(len(env.agents) for env in environments)]).tolist()
        self._parts = [slice(*pair) for pair in pairwise(ends)] if len(self.ids) == ends[-1] else []
        """The rows of every environment, if these are all agents of the run; else empty."""
        self._wanted = (self._worlds, *stack.spec.observation)
        agents, flat = len(self.ids), (self._worlds, math.prod(stack.spec.observation))
        self._observations = np.empty((agents, *flat), np.float32)
        """(N, W, D) copies of what the agents observe in this turn."""
        self._fitting = (self._wanted, flat)  # flat observations fit too
        self._places: list[dict[tuple[int, ...], Array]] = [{} for _ in environments]
        """The same of every environment, by the shapes that an array of its observations may have."""
        for places, part in zip(self._places, self._parts, strict=False):
            own = self._observations[part]
            places |= {(len(own), *shape): own.reshape(len(own), *shape) for shape in self._fitting}
        self._masks = np.empty((agents, self._worlds, stack.spec.choices), np.bool_) if stack.spec.masked else None
        """(N, W, A) what they may do; None: everything."""
        self._room = None if stack.not_compiled else stack.room(self._observations, self._masks)
        self._actions: Array = np.empty(0)
        self._extras: dict[str, Array] = {}
        self._compiled: dict[int, tuple[TurnRoom, Room]] = {}
        """Room for the turns of each environment in compiled epochs."""

    def start_epoch(self, epoch: int) -> None:
        """Prepare every model for an epoch, and what its turns take by reference."""
        self.stack.start_epoch(epoch)
        self.stack.ring.reference()
        if self._room is not None and not self._compiled:  # compiled epochs have rooms of their own
            self._room.acting(self.stack.inference)

    def end_epoch(self, epoch: int) -> None:
        """Call every model's `end_epoch_action`."""
        for model in self.stack.models:
            model.end_epoch_action(epoch=epoch)

    # -- acting ----------------------------------------------------------------------------------------------

    def act(self, step: Step) -> int:
        """Choose actions for all agents from one observation array per environment; return how many were chosen."""
        self._collate(step.observations)
        self._collate_masks(step.masks)
        self._actions, self._extras = self.stack.act(
            self._observations, self._gather(step.first), step.epoch, step.turn, self._masks, self._room
        )
        return len(self.ids) * self._worlds

    def act_in_turn(self, agent_id: AgentId, observation: Array, mask: Array | None, epoch: int, turn: int) -> bool:
        """Choose one agent's actions again if its observation or mask has changed since `act`; return whether so."""
        row, spec = self._rows[agent_id], self.stack.spec
        numbers, before = np.asarray(observation, np.float32), self._observations[row]
        allowed = self._checked_mask(mask, agent_id) if spec.masked else None
        same_mask = allowed is None or np.array_equal(allowed, self._extras["masks"][row])
        bits, bits_before = (own.reshape(-1).view(np.uint32) for own in (numbers, before))  # 0 and -0 differ
        if same_mask and np.array_equal(bits, bits_before):
            return False
        before[:] = self._checked(numbers, agent_id)
        self._refuse_unusual(before[None], [agent_id])
        self._actions[row], columns = self.stack.act_again(row, before, epoch, turn, allowed)
        for name, column in columns.items():
            self._extras[name][row] = column
        return True

    def actions_of(self, agent_id: AgentId) -> Array:
        """Return the actions (W, …) of one agent in this turn."""
        return np.asarray(self._actions[self._rows[agent_id]])

    def actions_in(self, environment: int) -> Array:
        """Return the actions (N, W, …) of one environment in this turn, if these are all agents of the run."""
        actions: Array = self._actions[self._parts[environment]]
        return actions

    # -- compiled epochs -------------------------------------------------------------------------------------

    def collect(
        self,
        environment: int,
        world: CompiledWorld,
        progress: Progress,
        epoch: int,
        start: int,
        end: int,
        *,
        autoreset: bool,
        stores: bool,
        one_by_one: bool,
    ) -> int:
        """Play turns of one environment in compiled code, at most up to `end`; return the turn to go on with.

        one_by_one: each agent observes after the earlier ones have acted.
        """
        stack, part = self.stack, self._parts[environment]
        end = min(end, start + stack.draws.turns)
        draws = stack.draws.between(epoch, start, end, part)
        if environment not in self._compiled:
            turn = stack.room(np.zeros_like(self._observations[part]), part=part)
            self._compiled[environment] = turn, Room.of(draws.shape[1], self._worlds)
        (turn, room), kernel = self._compiled[environment], collector(*world[1:], one_by_one=one_by_one)
        with stack.locks():
            kernel(
                world.arrays,
                turn.acting(stack.inference),
                stack.ring.reference(part),
                stack.compiled_store(part, active=stores),
                progress,
                room,
                draws,
                autoreset,
                epoch,
                start,
                end,
            )
        return end

    # -- storing ---------------------------------------------------------------------------------------------

    def store(self, step: Step) -> None:
        """Store the transitions of this turn."""
        extras = self._extras
        if self._event_ids is not None:
            extras = extras | event_columns(self.ids, self._event_ids, step.events, self._worlds)
        self.stack.add(
            Transitions(  # by position, since names take twice as long
                self._observations,
                self._actions,
                self._gather(step.rewards),
                self._gather(step.terminated),
                self._gather(step.truncated),
                self._gather(step.acted),
                self._gather(step.first),
                self._present(step),
                self.stack.inference.version,
                extras,
            )
        )

    def close_epoch(self, observations: Sequence[Any], masks: Sequence[Masks], *, ended: bool) -> None:
        """Store the observations after the last turn; ended: the episodes stop here."""
        self._collate(observations)
        self._collate_masks(masks)
        self.stack.close(self._observations, ended=ended, masks=self._masks)

    def _present(self, step: Step) -> Array:
        """Return (N,) bool, True where an agent's environment took part in the turn."""
        if len(step.environments) == len(self._environments):
            return self._all_present
        return np.array([agent_id.environment in step.environments for agent_id in self.ids])

    def _gather(self, arrays: Sequence[Array]) -> Array:
        """Return the rows of these agents from one (N, W) array per environment."""
        if self._parts:
            return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        return np.stack([arrays[k][i] for k, i in self.ids])

    # -- digest and checkpoint -------------------------------------------------------------------------------

    def state(self, agent_id: AgentId) -> list[Any]:
        """Return what an agent stores beside its row of the stack."""
        return states_of_copies(self._environments[agent_id.environment].copies_of(agent_id.agent))

    def load_state(self, agent_id: AgentId, state: Any) -> None:
        """Restore what `state` returned."""
        load_states_of_copies(self._environments[agent_id.environment].copies_of(agent_id.agent), state)

    # -- checking what environments give ---------------------------------------------------------------------

    def _collate(self, observations: Sequence[Any]) -> None:
        """Copy these agents' observations from one array or list per environment to theirs, checked."""
        if not self._copy_arrays(observations):
            for env, own in zip(self._environments, observations, strict=True):
                if len(own) != len(env.agents):
                    raise ShapeError(
                        f"{type(env).__name__} has {len(env.agents)} agents, but observe() gave what {len(own)} see"
                    )
            rows = [np.asarray(flatten_observation(observations[k][i], 1)) for k, i in self.ids]
            fitting = [self._checked(own, agent_id) for own, agent_id in zip(rows, self.ids, strict=True)]
            np.copyto(self._observations, _float32_copy(fitting))
        self._refuse_unusual(self._observations, self.ids)

    def _copy_arrays(self, observations: Sequence[Any]) -> bool:
        """Copy the array of every environment; return False where an environment gives no array that fits."""
        for own, places in zip(observations, self._places, strict=True):
            if not isinstance(own, np.ndarray) or own.shape not in places:
                return False
            np.copyto(places[own.shape], own if own.dtype == np.float32 else _float32_copy(own))
        return True

    def _checked(self, observation: Array, agent_id: AgentId) -> Array:
        """Return the observation (W, *obs) of an agent as (W, D); raise if it does not fit."""
        if observation.shape not in self._fitting:
            raise ShapeError(
                f"the observation of {self._name(agent_id)} has shape {observation.shape}, wanted is "
                f"(worlds, *obs) = {self._wanted}: check observe() or pov(), and the model's obs_shape"
            )
        return observation.reshape(self._worlds, -1)

    def _refuse_unusual(self, observations: Array, ids: Sequence[AgentId]) -> None:
        """Raise NonFiniteError if the observations (N, W, D) of some agents hold NaN or infinity."""
        if not all_finite(observations):
            row, world = np.argwhere(~np.isfinite(observations).all(axis=-1))[0]
            env = self._environments[ids[row].environment]
            raise NonFiniteError(
                f"the observation of {self._name(ids[row])} in world {world} holds NaN or infinity "
                f"(epoch {env.epoch}, turn {env.turn}): check the environment"
            )

    def _collate_masks(self, masks: Sequence[Masks]) -> None:
        """Copy the action masks of these agents to theirs, checked, where their algorithm stores some."""
        if self._masks is not None:
            np.stack([self._checked_mask(_mask_of(masks, own), own) for own in self.ids], out=self._masks)

    def _checked_mask(self, mask: Array | None, agent_id: AgentId) -> Array:
        """Return one agent's mask (W, A); all True where there is none. Raise if it does not fit."""
        wanted = (self._worlds, self.stack.spec.choices)
        if mask is None:
            return np.ones(wanted, np.bool_)
        if mask.shape != wanted:
            raise ShapeError(
                f"the action mask of {self._name(agent_id)} has shape {mask.shape}, wanted is (worlds, actions) = "
                f"{wanted}: check action_masks() or action_mask()"
            )
        if not mask.any(axis=1).all():
            world = int(np.flatnonzero(~mask.any(axis=1))[0])
            raise ActionError(
                f"the action mask of {self._name(agent_id)} in world {world} forbids every action: allow at least one"
            )
        return mask

    def _name(self, agent_id: AgentId) -> str:
        return str(self._environments[agent_id.environment].agents[agent_id.agent].name)


def states_of_copies(copies: Sequence[Any]) -> list[Any]:
    """Return what an agent itself, in every world, carries from epoch to epoch; empty where it defines no `state`."""
    return [agent.state() for agent in copies if agent.has_state]


def load_states_of_copies(copies: Sequence[Any], states: Sequence[Any]) -> None:
    """Restore what `states_of_copies` returned."""
    for agent, state in zip([agent for agent in copies if agent.has_state], states, strict=True):
        agent.load_state(state)


def _not_compiled(spec: Any, learner: Any, choice: Any) -> str | None:
    """Return why agents of an algorithm cannot act in one compiled call; None: they can."""
    if choice is None:
        return f"{type(spec).__name__} has a choose() of its own"
    if is_native(learner):
        return None
    if learner.device != "cpu":
        return f"the device is {learner.device}"
    if not getattr(spec.network, "native", False):
        return f"torch computes the network, a {type(spec.network).__name__}"
    return 'model.kernels is "torch"'


def _mask_of(masks: Sequence[Masks], agent_id: AgentId) -> Array | None:
    own = masks[agent_id.environment]
    return None if own is None else own[agent_id.agent]


def _float32_copy(observations: Any) -> Array:
    """Return a copy; numbers too large for float32 become infinite, and are refused as such."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.array(observations, np.float32)


# -- the probe -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def probe_stack(spec: Any, agents: int, device: str, workers: int) -> Invariance:
    """Compare acting and training of a whole stack with those of single agents and of workers' shares, byte for byte.

    The computation is the real one at its real shapes, on random data. Learners cut what they are given into blocks
    that fit the cache, so each share is cut here as it will be in a round.
    """
    if agents == 1:
        return Invariance(True, "one agent")
    learner = spec.learner(device=device, updates=2)
    identity = Identity((0,) * agents, tuple(range(agents)))
    state = learner.init(identity, [spec.probe_hyper()] * agents)
    snapshot = random_snapshot(spec, agents, updates=2)
    shape = (agents, tile_rows(spec.worlds), spec.network.inputs)
    inputs = torch.from_numpy(generator(0, Purpose.SAMPLE, world=2).standard_normal(shape, np.float32))

    def compute(part: slice) -> list[torch.Tensor]:
        trained, _ = learner.learn(state.rows(part), snapshot.rows(part), identity.rows(part))
        with torch.inference_mode():
            outputs = learner.network.bound_forward(learner.policy(trained))(inputs[part].to(device))
        return [outputs.clone(), *trained.tensors.values()]

    return probe(compute, agents, _worker_shares(agents, workers))


def random_snapshot(spec: Any, agents: int, *, updates: int) -> Snapshot:
    """Return the snapshot of a round over random transitions, at the shapes that a run will have."""
    identity, hyper = Identity((0,) * agents, tuple(range(agents))), [spec.probe_hyper()] * agents
    snapshot = spec.snapshot(_random_ring(spec, agents), identity, hyper, 1, updates)
    return Snapshot(1, {**snapshot.columns, "ready": np.ones(agents, np.bool_)})


def _random_ring(spec: Any, agents: int) -> Ring:
    """Return buffers filled with random transitions, of the size of a round's data."""
    if not spec.on_policy:  # samples are drawn from it, so a few rows suffice
        spec = replace(spec, capacity=max(64, 2 * spec.n_step) * spec.worlds)
    draws = generator(0, Purpose.SAMPLE, world=1)
    ring = Ring(spec.ring, agents)
    rows = ring.valid.shape[1]
    used = rows - getattr(spec, "epochs", 1)  # every epoch leaves one row that is no sample
    ring.observations[:] = draws.standard_normal(ring.observations.shape, np.float32)
    ring.actions[:] = draws.integers(0, 2, ring.actions.shape) if (spec.actions or 2) > 1 else 0
    ring.rewards[:] = draws.standard_normal(ring.rewards.shape, np.float32)
    ring.terminated[:] = draws.random(ring.terminated.shape) < 0.05
    ring.valid[:, :used] = True
    ring.follow[:, :used] = 1
    ring.age[:] = np.arange(rows)[:, None]
    for name, column in ring.extras.items():
        if name == "masks":
            column[:] = draws.random(column.shape) < 0.8
            column[..., :2] = True
        elif name == "event_type":
            column[:] = -1.0
        elif name != PRIORITY:
            column[:] = -np.abs(draws.standard_normal(column.shape, np.float32))
    ring.pos[:] = rows
    ring.head[:] = used * spec.worlds
    for row in range(agents):
        ring.list_starts(row)
    return ring


def _worker_shares(agents: int, workers: int) -> list[slice]:
    """Return the first and the last share of every size that up to `workers` workers get."""
    parts = [share for count in range(2, workers + 1) for share in shares(agents, count)]
    sizes = {part.stop - part.start for part in parts} - {0, 1}
    ends = [[part for part in parts if part.stop - part.start == size] for size in sorted(sizes)]
    return [part for own in ends for part in (own[0], own[-1])]
