"""What a user holds as `agent.model`, and what models must share to be computed as one stack."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from parallel_agents.acting import Inference, Recall, flattened
from parallel_agents.errors import CheckpointError, ConfigError, NonFiniteError, RunError, ShapeError, SharingError
from parallel_agents.memory import Buffer, Ring, RingShape, write_priorities
from parallel_agents.models.weights import read_weights, write_weights
from parallel_agents.seeding import Purpose, generator
from parallel_agents.types import Array, Identity, Snapshot, State, Weights

__all__ = ["Blueprint", "Model"]

DIRECT = 2**32
"""World address of draws made by direct calls, so that they never meet those of a run."""


class Blueprint(Protocol):
    """An algorithm at a shape. Models with equal blueprints are rows of one stack; values may differ."""

    @property
    def observation(self) -> tuple[int, ...]: ...

    @property
    def actions(self) -> int | None:
        """How many actions there are; None where they are not a plain number."""

    @property
    def worlds(self) -> int: ...

    @property
    def slots(self) -> int:
        """Draws of one choice."""

    @property
    def choices(self) -> int:
        """Length of a mask that says which actions are allowed; 0 where actions cannot be masked."""

    @property
    def masked(self) -> bool:
        """True where the environment gives such masks."""

    @property
    def importance(self) -> bool:
        """True where rows are drawn by event class; then the ring keeps event types and values."""

    @property
    def training_priority(self) -> int:
        """Higher ones are trained, and published, before the others."""

    @property
    def on_policy(self) -> bool:
        """True where a round learns from everything since the last one, and then it is gone."""

    def closing(self, outputs: Array) -> dict[str, Array]:
        """Columns to keep with the observation after the last turn, from the network's outputs for it."""

    @property
    def network(self) -> Any: ...

    @property
    def state(self) -> int:
        """Numbers that the network carries from turn to turn; 0: none."""

    @property
    def ring(self) -> RingShape: ...

    def learner(self, *, device: str = "cpu", updates: int | None = None) -> Any:
        """The learner of a round, or of `updates` updates."""

    def choose(
        self, outputs: Array, draws: Array, exploration: Array, masks: Array | None
    ) -> tuple[Array, dict[str, Array]]:
        """Network outputs (N, W, out) -> actions (N, W) and further columns to keep."""

    def asked(self, draws: Array, exploration: Array) -> Array | None:
        """(N,) whose network's outputs `choose` will read; None: everyone's."""

    def explore(self, hyper: Mapping[str, Any], epoch: int) -> float:
        """How much one agent explores in an epoch."""

    def snapshot(
        self,
        ring: Ring,
        identity: Identity,
        hyper: Sequence[Mapping[str, Any]],
        round_: int,
        updates: int,
        world: int = 0,
    ) -> Snapshot:
        """What `updates` updates of a round will read."""

    def rehearsal(self, agents: int, *, updates: int) -> Snapshot:
        """A made-up snapshot at the real shapes, for the probe."""

    def rehearsal_hyper(self) -> dict[str, Any]:
        """Hyper-parameters for the probe."""


class Model:
    """A learner with its own network, optimizer, buffer and draws; nothing of it is shared.

    Within a run it is a row of a stack. By itself it is a stack of one, computed by the same kernels.
    """

    takes_masks = True
    """`take_action` may be told which actions are allowed."""
    slow = False
    """True for models whose `take_action` waits for something outside (a service, an LLM)."""

    def __init__(self, blueprint: Blueprint, hyper: Mapping[str, Any]) -> None:
        self.blueprint = blueprint
        self.hyper = dict(hyper)
        self.frozen = False
        self.busy: str | None = None
        self.seated = False
        """True once the model is a row of a stack: from then on the stack holds its newest state."""
        self._identity: Identity | None = None
        self._state: State | None = None
        self._trained = False
        self._memory: Buffer | None = None
        self._exploration: float | None = None
        self._epoch = 0
        self._calls = 0
        self._recall: Recall | None = None

    # -- identity --------------------------------------------------------------------------------------------

    def place(self, *, seed: int, agent: int, worlds: int) -> None:
        """Become agent `agent` of a run with this seed and so many worlds; done once, by the environment."""
        identity = Identity((seed,), (agent,))
        if self._identity is not None and self._identity != identity:
            raise SharingError(
                f"this model already is agent {self._identity.agents[0]} (seed {self._identity.seeds[0]}) and cannot "
                f"become agent {agent} (seed {seed}) as well: give every agent a model of its own"
            )
        if worlds != self.blueprint.worlds:
            if self._memory is not None and len(self._memory):
                raise ShapeError(
                    f"this model remembers {self.blueprint.worlds} worlds and cannot take part in {worlds}"
                )
            self.blueprint = replace(self.blueprint, worlds=worlds)  # type: ignore[type-var]
            self._memory = None
        if self._identity is None:
            if not self._trained:
                self._state = None  # looked at before it was placed: its weights are drawn for whom it is now
            if self._memory is not None:
                self._memory.seed, self._memory.agent = seed, agent
        self._identity = identity

    def use_masks(self) -> None:
        """Expect masks that say which actions are allowed, and keep them; done by the environment."""
        if self.blueprint.masked:
            return
        if not self.blueprint.choices:
            raise ConfigError(
                "the environment gives action masks, but this model's actions are continuous: masks need choices"
            )
        if self._memory is not None and len(self._memory):
            raise ShapeError(
                "this model remembers turns without action masks and cannot take part where there are some"
            )
        self.blueprint = replace(self.blueprint, masked=True)  # type: ignore[type-var]
        self._memory = None

    @property
    def identity(self) -> Identity:
        """Whose draws it uses; until it is placed, those of agent 0 with seed 0."""
        return self._identity or Identity((0,), (0,))

    @property
    def state(self) -> State:
        """The learner's newest state, one row."""
        if self._state is None:
            self._state = self.blueprint.learner().init(self.identity, [self.hyper])
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._state, self._trained = state, True

    @property
    def memory(self) -> Buffer:
        """This agent's own buffer."""
        if self._memory is None:
            self._memory = Buffer.of(self.blueprint.ring, seed=self.identity.seeds[0], agent=self.identity.agents[0])
        return self._memory

    @memory.setter
    def memory(self, memory: Buffer) -> None:
        self._memory = memory

    @property
    def event_types(self) -> tuple[str, ...]:
        """The event types this agent tells apart, in the order of their ids; none where it draws uniformly."""
        weighting = self.hyper.get("importance")
        return () if weighting is None else weighting.event_types

    # -- the calls users make --------------------------------------------------------------------------------

    @property
    def epsilon(self) -> float:
        """How much the agent explores now."""
        return self._exploration if self._exploration is not None else self.blueprint.explore(self.hyper, self._epoch)

    def set_epsilon(self, epsilon: float | None) -> None:
        """Fix the exploration, whatever the schedule says; None: follow the schedule again."""
        self._exploration = None if epsilon is None else float(epsilon)

    def take_action(self, state: Any, mask: Any = None) -> Any:
        """Choose an action for one observation, exploring as in training; of those that a mask (A,) allows.

        With several frames: after the observations that the memory knows of this episode, or from a whole window.
        A recurrent network remembers the calls since `start_episode`.
        """
        actions, _ = self._chosen(state, mask)
        return actions[0, 0].item() if actions.ndim == 2 else actions[0, 0]

    def _chosen(self, state: Any, mask: Any) -> tuple[Array, dict[str, Array]]:
        """(1, 1, …) the action, and what a run would keep beside it."""
        first = np.array([[self._recall is None]])
        self._recall = self._recall or Recall(1, 1, self.blueprint.state)
        inputs = self._recall.inputs(self._window(state), first)
        learner = self.blueprint.learner()
        inference = Inference(learner.network, 1, 1, together=True)
        inference.publish(Weights(0, learner.policy(self.state)))
        seed, agent = self.identity.seeds[0], self.identity.agents[0]
        draws = generator(seed, Purpose.ACT, agent=agent, world=DIRECT, epoch=self._epoch, turn=self._calls)
        self._calls += 1
        allowed = None if mask is None else np.asarray(mask, np.bool_).reshape(1, 1, -1)
        outputs = self._recall.outputs(inference.forward(inputs))
        return self.blueprint.choose(
            outputs, draws.random((1, 1, self.blueprint.slots)), np.array([self.epsilon]), allowed
        )

    def _window(self, state: Any) -> Array:
        """(1, 1, F·D): what the network reads."""
        shape = self.blueprint.ring
        seen = np.asarray(flattened(state), np.float32).reshape(-1)
        one = math.prod(shape.observation)
        if seen.size == one and shape.frames > 1:
            seen = np.concatenate([self.memory.current_state().reshape(-1), seen])
        if seen.size != one * shape.frames:
            raise ShapeError(
                f"take_action() was given {seen.size} numbers, an observation has {one} (shape {shape.observation})"
            )
        if not np.isfinite(seen).all():
            raise NonFiniteError("take_action() was given an observation with NaN or infinity")
        return seen.reshape(1, 1, -1)

    def train_step(self) -> float:
        """One update of this agent alone, by the same kernel as in a run; its loss, 0 while it keeps too little."""
        if self.busy is not None:
            raise RunError(
                f"train_step() was called while {self.busy}: the scheduled rounds train this agent. "
                "Leave the training to run_experiment, or call train_step() outside of it"
            )
        world = DIRECT + int(self.state["updates"][0])
        with self.memory.locked():
            ring = self.memory.ring
            snapshot = self.blueprint.snapshot(ring, self.identity, [self.hyper], 0, updates=1, world=world)
        if not snapshot["ready"].all():
            return 0.0
        self.state, result = self.blueprint.learner(updates=1).learn(self.state, snapshot, self.identity)
        if result.priorities:
            with self.memory.locked():
                write_priorities(ring, result.priorities["places"], result.priorities["errors"])
        return float(result.metrics["loss"][0])

    def save_weights(self, path: str | Path) -> None:
        """Write the weights that this agent would act with, and what network they belong to, as one file."""
        write_weights(Path(path), self.blueprint.network, self.state)

    def load_weights(self, path: str | Path) -> None:
        """Start from the weights of a file: a fresh learner, with a fresh optimizer, that knows what they know."""
        if self.seated:
            raise RunError(
                f"load_weights({str(path)!r}) was called on a model that is part of a run already, which would not "
                "notice: call it before, for example in setup_agents()"
            )
        fresh = self.blueprint.learner().init(self.identity, [self.hyper])
        self.state = read_weights(Path(path), self.blueprint.network, fresh)

    def settings(self) -> dict[str, Any]:
        """Return what may be set on a model after it was made: hyper-parameters, fixed exploration, `frozen`."""
        return {
            "frozen": self.frozen,
            "exploration": self._exploration,
            "hyper": {name: _stored(own) for name, own in self.hyper.items()},
        }

    def load_settings(self, settings: Mapping[str, Any]) -> None:
        """Set again what `settings` returned."""
        if unknown := sorted(settings["hyper"].keys() ^ self.hyper.keys()):
            raise CheckpointError(
                f"model.{', model.'.join(unknown)} only in the checkpoint or only in this run: make them equal"
            )
        for name, own in settings["hyper"].items():
            if isinstance(own, int | float):
                self.hyper[name] = own
            elif own != _stored(self.hyper[name]):
                raise CheckpointError(
                    f"model.{name} is {self.hyper.get(name)!r}, in the checkpoint it is {own}: make them equal"
                )
        self.frozen, self._exploration = bool(settings["frozen"]), settings["exploration"]

    def state_dict(self) -> dict[str, Any]:
        """Return all that this model knows and keeps, for digest and checkpoint of a model outside of stacks."""
        learner = dict(self.state.tensors)
        return {"learner": learner, "memory": self.memory.state(), "settings": self.settings(), "calls": self._calls}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what `state_dict` returned."""
        self.load_settings(state["settings"])
        self.state = self.state.replaced(state["learner"])
        self.memory.load_state(state["memory"])
        self._calls = int(state["calls"])

    def start_epoch_action(self, epoch: int = 0, **_: Any) -> None:
        """Called before each epoch."""
        self._epoch = epoch
        self._calls = 0
        self.start_episode()

    def start_episode(self) -> None:
        """Forget what `take_action` was shown so far; only recurrent networks remember it."""
        self._recall = None

    def end_epoch_action(self, epoch: int = 0, **_: Any) -> None:
        """Called after each epoch."""

    def remember_little(self) -> None:
        """Keep the smallest possible buffer: for acting without learning."""
        self.blueprint = replace(self.blueprint, capacity=self.blueprint.worlds)  # type: ignore[type-var]
        self._memory = None

    def reset(self) -> None:
        """Forget what was kept; the network stays."""
        self.memory.clear()


def _stored(value: Any) -> int | float | str:
    """Return a hyper-parameter as it is stored: a number, or the values of a group of options without their names."""
    return value if isinstance(value, int | float) else repr(astuple(value))
