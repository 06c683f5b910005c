"""What a user holds as `agent.model`, and what models must share to be computed as one stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from parallel_agents.acting import Frames, Inference
from parallel_agents.errors import RunError, ShapeError, SharingError
from parallel_agents.memory import Buffer, Ring, RingShape
from parallel_agents.seeding import Purpose, generator
from parallel_agents.types import Array, Identity, Snapshot, State, Weights

if TYPE_CHECKING:
    from parallel_agents.networks import MLP

__all__ = ["Blueprint", "Model"]

DIRECT = 2**32
"""World address of draws made by direct calls, so that they never meet those of a run."""


class Blueprint(Protocol):
    """An algorithm at a shape. Models with equal blueprints are rows of one stack; values may differ."""

    @property
    def observation(self) -> tuple[int, ...]: ...

    @property
    def actions(self) -> int: ...

    @property
    def worlds(self) -> int: ...

    @property
    def slots(self) -> int:
        """Draws of one choice."""

    @property
    def network(self) -> MLP: ...

    @property
    def ring(self) -> RingShape: ...

    def learner(self, *, device: str = "cpu", updates: int | None = None) -> Any:
        """The learner of a round, or of `updates` updates."""

    def choose(
        self, outputs: Array, draws: Array, exploration: Array, masks: Array | None
    ) -> tuple[Array, dict[str, Array]]:
        """Network outputs (N, W, out) -> actions (N, W) and further columns to keep."""

    def explore(self, hyper: Mapping[str, float], epoch: int) -> float:
        """How much one agent explores in an epoch."""

    def snapshot(
        self,
        ring: Ring,
        identity: Identity,
        hyper: Sequence[Mapping[str, float]],
        round_: int,
        updates: int,
        world: int = 0,
    ) -> Snapshot:
        """What `updates` updates of a round will read."""

    def rehearsal(self, agents: int, *, updates: int) -> Snapshot:
        """A made-up snapshot at the real shapes, for the probe."""

    def rehearsal_hyper(self) -> dict[str, float]:
        """Hyper-parameters for the probe."""


class Model:
    """A learner with its own network, optimizer, buffer and draws; nothing of it is shared.

    Within a run it is a row of a stack. By itself it is a stack of one, computed by the same kernels.
    """

    slow = False
    """True for models whose `take_action` waits for something outside (a service, an LLM)."""

    def __init__(self, blueprint: Blueprint, hyper: Mapping[str, float]) -> None:
        self.blueprint = blueprint
        self.hyper = dict(hyper)
        self.frozen = False
        self.busy: str | None = None
        self._identity: Identity | None = None
        self._state: State | None = None
        self._memory: Buffer | None = None
        self._exploration: float | None = None
        self._epoch = 0
        self._calls = 0
        self._frames: Frames | None = None

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
        self._identity = identity

    @property
    def identity(self) -> Identity:
        if self._identity is None:
            self._identity = Identity((0,), (0,))
        return self._identity

    @property
    def state(self) -> State:
        """The learner's newest state, one row."""
        if self._state is None:
            self._state = self.blueprint.learner().init(self.identity, [self.hyper])
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._state = state

    @property
    def memory(self) -> Buffer:
        """This agent's own buffer."""
        if self._memory is None:
            self._memory = Buffer.of(self.blueprint.ring, seed=self.identity.seeds[0], agent=self.identity.agents[0])
        return self._memory

    @memory.setter
    def memory(self, memory: Buffer) -> None:
        self._memory = memory

    # -- the calls users make --------------------------------------------------------------------------------

    @property
    def epsilon(self) -> float:
        """How much the agent explores now."""
        return self._exploration if self._exploration is not None else self.blueprint.explore(self.hyper, self._epoch)

    def set_epsilon(self, epsilon: float) -> None:
        """Fix the exploration, whatever the schedule says."""
        self._exploration = epsilon

    def take_action(self, state: Any) -> Any:
        """Choose an action for one observation, exploring as in training."""
        observation = np.asarray(state, np.float32).reshape(1, 1, -1)
        inference = Inference(self.blueprint.network, 1, 1, together=True)
        inference.publish(Weights(0, self.blueprint.learner().policy(self.state)))
        seed, agent = self.identity.seeds[0], self.identity.agents[0]
        draws = generator(seed, Purpose.ACT, agent=agent, world=DIRECT, epoch=self._epoch, turn=self._calls)
        self._calls += 1
        actions, _ = self.blueprint.choose(
            inference.forward(observation), draws.random((1, 1, self.blueprint.slots)), np.array([self.epsilon]), None
        )
        return actions[0, 0].item() if actions.ndim == 2 else actions[0, 0]

    def train_step(self) -> float:
        """One update of this agent alone, by the same kernel as in a run; its loss."""
        if self.busy is not None:
            raise RunError(
                f"train_step() was called while {self.busy}: the scheduled rounds train this agent. "
                "Leave the training to run_experiment, or call train_step() outside of it"
            )
        ring = self.memory.ring
        world = DIRECT + int(self.state["updates"][0])
        snapshot = self.blueprint.snapshot(ring, self.identity, [self.hyper], 0, updates=1, world=world)
        self.state, result = self.blueprint.learner(updates=1).learn(self.state, snapshot, self.identity)
        return float(result.metrics["loss"][0])

    def start_epoch_action(self, epoch: int = 0, **_: Any) -> None:
        """Called before each epoch."""
        self._epoch = epoch
        self._calls = 0

    def end_epoch_action(self, epoch: int = 0, **_: Any) -> None:
        """Called after each epoch."""

    def reset(self) -> None:
        """Forget what was kept; the network stays."""
        self.memory.clear()
