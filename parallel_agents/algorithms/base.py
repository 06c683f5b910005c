"""What an algorithm defines (`AlgorithmSpec`), and what a user holds as `agent.model` (`Model`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from parallel_agents.algorithms.acting import Inference, RecurrentState, Weights
from parallel_agents.algorithms.export import COPIES, load_module, read_weights, to_module, write_module, write_weights
from parallel_agents.algorithms.learner import RANGES, Learner, LearnerState, Snapshot, is_native
from parallel_agents.core.errors import (
    CheckpointError,
    ConfigError,
    CorruptCheckpoint,
    NonFiniteError,
    RunError,
    ShapeError,
    SharingError,
)
from parallel_agents.core.observations import flatten_observation
from parallel_agents.core.seeding import Identity, Purpose, generator
from parallel_agents.core.serialization import restored
from parallel_agents.core.types import Array
from parallel_agents.nn import Network
from parallel_agents.replay import UNLABELLED, Buffer, Ring, RingShape, write_priorities
from parallel_agents.replay.event_classes import EVENT_TYPE

DIRECT = 2**32
"""World address of draws made by direct calls, so that they never coincide with those of a run."""


class AlgorithmSpec(Protocol):
    """An algorithm at given shapes. Models with equal specs are rows of one stack; hyper-parameters may differ.

    A spec is a frozen dataclass: hashable, comparable, and with no state of its own.
    """

    @property
    def observation(self) -> tuple[int, ...]:
        """Shape of one observation."""

    @property
    def actions(self) -> int | None:
        """Number of actions; None where actions are not a single whole number."""

    @property
    def worlds(self) -> int: ...

    @property
    def slots(self) -> int:
        """Random draws of one choice."""

    @property
    def choices(self) -> int:
        """Length of an action mask; 0 where actions cannot be masked."""

    @property
    def masked(self) -> bool:
        """True where the environment gives action masks."""

    @property
    def importance(self) -> bool:
        """True where rows are drawn by event class; then the buffer stores event types and values."""

    @property
    def training_priority(self) -> int:
        """Stacks with a higher priority are trained and published first."""

    @property
    def on_policy(self) -> bool:
        """True where a round learns from everything since the last round and then drops it."""

    @property
    def hidden_size(self) -> int:
        """Length of the hidden state that the network carries from turn to turn; 0: none."""

    # what is stored

    @property
    def ring(self) -> RingShape:
        """The buffer of one agent."""

    # how it acts

    @property
    def network(self) -> Network:
        """The network, whose parameters are rows."""

    def explore(self, hyper: Mapping[str, Any], epoch: int) -> float:
        """Return how much an agent explores in an epoch."""

    def needs_forward(self, draws: Array, exploration: Array) -> Array | None:
        """Return (N,) whose network outputs `choose` will read; None: everyone's."""

    def choose(
        self, outputs: Array, draws: Array, exploration: Array, masks: Array | None
    ) -> tuple[Array, dict[str, Array]]:
        """Return actions (N, W) and further columns to store, from network outputs (N, W, out)."""

    def closing_columns(self, outputs: Array) -> dict[str, Array]:
        """Return the columns to store with the observation after the last turn, from the network's outputs for it."""

    # how it learns

    def ready(self, ring: Ring) -> Array:
        """Return (N,) bool, True where an agent has enough rows to learn from."""

    def snapshot(
        self,
        ring: Ring,
        identity: Identity,
        hyper: Sequence[Mapping[str, Any]],
        round_: int,
        updates: int,
        world: int = 0,
    ) -> Snapshot:
        """Return what `updates` updates of a round will read. world: 0 in a run, else the address of a direct call."""

    def learner(self, *, device: str = "cpu", updates: int | None = None) -> Learner:
        """Return the learner of a round, or of `updates` updates."""

    def probe_hyper(self) -> dict[str, Any]:
        """Return hyper-parameters with which the probe exercises every step of an update."""


class Model:
    """A learner with its own network, optimizer, buffer and random draws; nothing of it is shared.

    Within a run it is a row of a stack. By itself it is a stack of one, computed by the same kernels.
    """

    takes_masks = True
    """`take_action` accepts an action mask."""
    slow = False
    """True for models whose `take_action` waits for something outside (a service, an LLM)."""

    def __init__(self, spec: AlgorithmSpec, hyper: Mapping[str, Any], options: Any = None) -> None:
        """options: the `model` section with every default, a dataclass; shown, recorded, and read by nothing else."""
        self.spec, self.options = spec, options
        self.hyper = dict(hyper)
        self.frozen = False
        self.busy: str | None = None
        """Why direct training is refused now; None: it is not."""
        self.in_stack = False
        """True once the model is a row of a stack: from then on the stack holds its newest state."""
        self._identity: Identity | None = None
        self._state: LearnerState | None = None
        self._trained = False
        self._memory: Buffer | None = None
        self._exploration: float | None = None
        self._epoch = 0
        self._calls = 0
        self._recurrent: RecurrentState | None = None

    def __repr__(self) -> str:
        """Return the shapes and the options that differ from their defaults."""
        given = [] if self.options is None else changed_fields(self.options)
        return f"{type(self).__name__}({', '.join([f'obs_shape={self.spec.observation}', *given])})"

    # -- set-up by the environment -------------------------------------------------------------------------------

    def place(self, *, seed: int, agent: int, worlds: int) -> None:
        """Become agent `agent` of a run with this seed and so many worlds."""
        identity = Identity((seed,), (agent,))
        if self._identity is not None and self._identity != identity:
            raise SharingError(
                f"this model already is agent {self._identity.agents[0]} (seed {self._identity.seeds[0]}) and cannot "
                f"become agent {agent} (seed {seed}) as well: give every agent a model of its own"
            )
        if worlds != self.spec.worlds:
            if self._memory is not None and len(self._memory):
                raise ShapeError(f"this model's buffer holds {self.spec.worlds} worlds and cannot take {worlds}")
            self.spec = replace(self.spec, worlds=worlds)  # type: ignore[type-var]
            self._memory = None
        if self._identity is None:
            if not self._trained:
                self._state = None  # weights made before the identity was known are drawn again
            if self._memory is not None:
                self._memory.seed, self._memory.agent = seed, agent
        self._identity = identity

    def use_masks(self) -> None:
        """Expect action masks from the environment, and store them."""
        if self.spec.masked:
            return
        if not self.spec.choices:
            raise ConfigError(
                "the environment gives action masks, but this model's actions are continuous: masks need choices"
            )
        if self._memory is not None and len(self._memory):
            raise ShapeError("this model's buffer holds turns without action masks and cannot take turns with them")
        self.spec = replace(self.spec, masked=True)  # type: ignore[type-var]
        self._memory = None

    def shrink_memory(self) -> None:
        """Replace the buffer by the smallest possible one: for acting without learning."""
        self.spec = replace(self.spec, capacity=self.spec.worlds)  # type: ignore[type-var]
        self._memory = None

    @property
    def identity(self) -> Identity:
        """Whose draws it uses; agent 0 with seed 0 before `place` is called."""
        return self._identity or Identity((0,), (0,))

    # -- what it holds -------------------------------------------------------------------------------------------

    @property
    def state(self) -> LearnerState:
        """The learner's newest state, one row."""
        if self._state is None:
            self._state = self.spec.learner().init(self.identity, [self.hyper])
        return self._state

    @state.setter
    def state(self, state: LearnerState) -> None:
        self._state, self._trained = state, True

    @property
    def memory(self) -> Buffer:
        """This agent's own buffer."""
        if self._memory is None:
            self._memory = Buffer.of(self.spec.ring, seed=self.identity.seeds[0], agent=self.identity.agents[0])
        return self._memory

    @memory.setter
    def memory(self, memory: Buffer) -> None:
        self._memory = memory

    @property
    def event_types(self) -> tuple[str, ...]:
        """The event types this agent tells apart, in the order of their ids; empty where it draws uniformly."""
        weighting = self.hyper.get("importance")
        return () if weighting is None else weighting.event_types

    # -- acting --------------------------------------------------------------------------------------------------

    @property
    def epsilon(self) -> float:
        """How much the agent explores now."""
        return self._exploration if self._exploration is not None else self.spec.explore(self.hyper, self._epoch)

    def set_epsilon(self, epsilon: float | None) -> None:
        """Fix the exploration regardless of the schedule; None: follow the schedule again."""
        self._exploration = None if epsilon is None else float(epsilon)

    def take_action(self, state: Any, mask: Any = None) -> Any:
        """Choose an action for one observation, exploring as in training; of those that a mask (A,) allows.

        With several frames, `state` is the newest observation, after those in memory, or a whole window. A recurrent
        network remembers the calls since `start_episode`.
        """
        actions, _ = self._choose(state, mask)
        return actions[0, 0].item() if actions.ndim == 2 else actions[0, 0]

    def _choose(self, state: Any, mask: Any) -> tuple[Array, dict[str, Array]]:
        """Return the action (1, 1, …), and the columns that a run would store beside it."""
        first = np.array([[self._recurrent is None]])
        self._recurrent = self._recurrent or RecurrentState(1, 1, self.spec.hidden_size)
        inputs = self._recurrent.inputs(self._window(state), first)
        learner = self.spec.learner()
        inference = Inference(learner.network, 1, 1, together=True, compiled=is_native(learner))
        inference.weights = Weights(0, learner.policy(self.state))
        seed, agent = self.identity.seeds[0], self.identity.agents[0]
        draws = generator(seed, Purpose.ACT, agent=agent, world=DIRECT, epoch=self._epoch, turn=self._calls)
        self._calls += 1
        allowed = None if mask is None else np.asarray(mask, np.bool_).reshape(1, 1, -1)
        outputs = self._recurrent.outputs(inference.forward(inputs))
        return self.spec.choose(outputs, draws.random((1, 1, self.spec.slots)), np.array([self.epsilon]), allowed)

    def _window(self, state: Any) -> Array:
        """Return (1, 1, F·D): the frames that the network reads."""
        shape = self.spec.ring
        numbers = np.asarray(flatten_observation(state), np.float32).reshape(-1)
        one = math.prod(shape.observation)
        if numbers.size == one and shape.frames > 1:
            numbers = np.concatenate([self.memory.current_state().reshape(-1), numbers])
        if numbers.size != one * shape.frames:
            raise ShapeError(
                f"take_action() was given {numbers.size} numbers, an observation has {one} (shape {shape.observation})"
            )
        if not np.isfinite(numbers).all():
            raise NonFiniteError("take_action() was given an observation with NaN or infinity")
        return numbers.reshape(1, 1, -1)

    def start_epoch_action(self, epoch: int = 0, **_: Any) -> None:
        """Prepare for an epoch; called before each one."""
        self._epoch = epoch
        self._calls = 0
        self.start_episode()

    def start_episode(self) -> None:
        """Reset the hidden state that `take_action` carries; only recurrent networks have one."""
        self._recurrent = None

    def end_epoch_action(self, epoch: int = 0, **_: Any) -> None:
        """Do nothing; called after each epoch."""

    # -- learning ------------------------------------------------------------------------------------------------

    def train_step(self) -> float:
        """Train this agent alone for one update and return the loss; return 0 while it has too few rows."""
        self.require_free("train_step()")
        world = DIRECT + int(self.state["updates"][0])
        with self.memory.locked():
            ring = self.memory.ring
            snapshot = self.spec.snapshot(ring, self.identity, [self.hyper], 0, updates=1, world=world)
        if not snapshot["ready"].all():
            return 0.0
        self.state, result = self.spec.learner(updates=1).learn(self.state, snapshot, self.identity)
        if result.priorities:
            with self.memory.locked():
                write_priorities(ring, result.priorities["places"], result.priorities["errors"])
        return float(result.metrics["loss"][0])

    def require_free(self, call: str) -> None:
        """Raise RunError if a run is training this model."""
        if self.busy is not None:
            raise RunError(
                f"{call} was called while {self.busy}: the scheduled rounds train this agent. "
                f"Leave the training to run_experiment, or call {call} outside of it"
            )

    def reset(self) -> None:
        """Clear the buffer; the network stays."""
        self.memory.clear()

    # -- files and checkpoints -----------------------------------------------------------------------------------

    def save_weights(self, path: str | Path) -> None:
        """Write the weights that this agent acts with, and a description of their network, to one file."""
        write_weights(Path(path), self.spec.network, self.state)

    def load_weights(self, path: str | Path) -> None:
        """Start from the weights of a file, with a fresh optimizer."""
        self._require_outside(f"load_weights({str(path)!r})")
        fresh = self.spec.learner().init(self.identity, [self.hyper])
        self.state = read_weights(Path(path), self.spec.network, fresh)

    def _require_outside(self, call: str) -> None:
        """Raise RunError if the model is part of a run."""
        if self.in_stack:
            raise RunError(
                f"{call} was called on a model that is part of a run already, which would not notice: call it before, "
                "for example in setup_agents()"
            )

    def to_module(self) -> nn.Module:
        """Return the network with this agent's weights as an ordinary `torch.nn.Module`."""
        if getattr(self.spec, "normalize", (False,))[0]:
            raise ConfigError("this agent normalizes observations, which an ordinary module of its network does not")
        return to_module(self.spec.network, self.state["online"])

    def export(self, path: str | Path) -> None:
        """Write that module as ONNX (.onnx) or TorchScript (.pt)."""
        network, shape = self.spec.network, self.spec.observation
        example = shape if math.prod(shape) == network.inputs else (network.inputs,)
        write_module(Path(path), self.to_module(), example)

    def load_module(self, weights: nn.Module | Mapping[str, Tensor]) -> None:
        """Start from the weights of such a module, or of its `state_dict`, with a fresh optimizer."""
        self._require_outside("load_module()")
        fresh = self.spec.learner().init(self.identity, [self.hyper])
        row = load_module(self.spec.network, fresh["online"], weights)
        self.state = LearnerState({**fresh.tensors, **{name: row.clone() for name in COPIES if name in fresh.tensors}})

    def settings(self) -> dict[str, Any]:
        """Return what may be changed on a model after it was made: hyper-parameters, fixed exploration, `frozen`."""
        return {
            "frozen": self.frozen,
            "exploration": self._exploration,
            "hyper": {name: _stored(value) for name, value in self.hyper.items()},
        }

    def load_settings(self, settings: Mapping[str, Any]) -> None:
        """Apply what `settings` returned; raise CheckpointError if it belongs to another model or cannot be right."""
        if unknown := sorted(settings["hyper"].keys() ^ self.hyper.keys()):
            raise CheckpointError(
                f"model.{', model.'.join(unknown)} only in the checkpoint or only in this run: make them equal"
            )
        for name, value in settings["hyper"].items():
            if isinstance(self.hyper[name], int | float):
                least, most = RANGES.get(f"hyper.{name}", (-math.inf, math.inf))
                if not (isinstance(value, int | float) and math.isfinite(value) and least <= value <= most):
                    raise CorruptCheckpoint(f"model.{name} is {value!r}, wanted is a number from {least} to {most}")
                self.hyper[name] = value
            elif value != _stored(self.hyper[name]):
                raise CheckpointError(
                    f"model.{name} is {self.hyper.get(name)!r}, in the checkpoint it is {value}: make them equal"
                )
        if not isinstance(settings["frozen"], bool):
            raise CorruptCheckpoint(f"frozen is {settings['frozen']!r}, wanted is true or false")
        self.frozen = settings["frozen"]
        self.set_epsilon(settings["exploration"])

    def state_dict(self) -> dict[str, Any]:
        """Return everything this model has learned and stored, for the digest and checkpoint of a standalone agent."""
        learner = dict(self.state.tensors)
        return {"learner": learner, "memory": self.memory.state(), "settings": self.settings(), "calls": self._calls}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned. Raise CorruptCheckpoint if no such model can have learned it."""
        rows = state["memory"]["rows"]
        check_actions(self.spec, rows["actions"])
        if self.event_types:
            check_events(self, rows[f"extra.{EVENT_TYPE}"])
        self.load_settings(state["settings"])
        self.state = self.state.replaced(state["learner"])
        self.memory.load_state(state["memory"])
        self._calls = int(state["calls"])


def check_actions(spec: Any, actions: Array) -> None:
    """Raise CorruptCheckpoint if a stored action is none of a spec's: compiled learners take it for an index."""
    distribution = getattr(spec, "distribution", None)
    sizes = (spec.actions,) if distribution is None else distribution.sizes
    if sizes and None not in sizes:
        chosen = actions.reshape(-1, len(sizes))
        if not ((chosen >= 0) & (chosen < np.array(sizes))).all():
            raise CorruptCheckpoint(f"a stored action is none of 0 to {max(sizes) - 1}")


def check_events(model: Model, events: Array) -> None:
    """Raise CorruptCheckpoint if a stored event type is none of those that a model tells apart."""
    restored("event types", events, events, least=UNLABELLED, most=len(model.event_types) - 1)


def changed_fields(record: Any) -> list[str]:
    """Return `name=value` for each field of a dataclass that is not at its default."""
    return [f"{f.name}={getattr(record, f.name)!r}" for f in fields(record) if getattr(record, f.name) != f.default]


def _stored(value: Any) -> int | float | str:
    """Return a hyper-parameter as it is stored: a number, or the values of a group of options without their names."""
    return value if isinstance(value, int | float) else repr(astuple(value))
