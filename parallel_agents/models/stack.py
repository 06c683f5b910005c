"""Models of one blueprint as the rows of one stack: where acting, memory and learning of a group meet."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from parallel_agents.acting import Draws, Frames, Inference, Recall
from parallel_agents.errors import ContractError
from parallel_agents.memory import PRIORITY, Buffer, Ring, ThreadSafeBuffer, write_priorities
from parallel_agents.models.base import Blueprint, Model
from parallel_agents.networks import Invariance, probe
from parallel_agents.networks.numerics import tile_rows
from parallel_agents.seeding import Purpose, generator
from parallel_agents.types import Array, Identity, RoundResult, Snapshot, State, Transitions, Weights

__all__ = ["Stack", "group", "rehearse", "shares"]

_FREE: AbstractContextManager[Any] = nullcontext()


def group(models: Sequence[Model]) -> list[list[int]]:
    """Positions of models that can be rows of one stack, in order of first appearance."""
    stacks: dict[Any, list[int]] = {}
    for position, model in enumerate(models):
        stacks.setdefault((type(model), model.blueprint), []).append(position)
    return list(stacks.values())


def shares(agents: int, workers: int) -> list[slice]:
    """Return which of a stack's agents each worker trains: shares as even as can be, some empty if there are too few.

    >>> shares(5, 2)
    [slice(0, 2, None), slice(2, 5, None)]
    """
    cuts = [agents * worker // workers for worker in range(workers + 1)]
    return [slice(first, end) for first, end in itertools.pairwise(cuts)]


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
    ) -> None:
        """workers: how many will share the training of these models, at most; the probe tries their shares."""
        self.models = list(models)
        self.device = device
        self.blueprint: Blueprint = self.models[0].blueprint
        shape = self.blueprint.ring
        self.identity = Identity(
            tuple(model.identity.seeds[0] for model in self.models),
            tuple(model.identity.agents[0] for model in self.models),
        )
        self.ring = Ring(shape, len(self.models))
        for row, model in enumerate(self.models):
            if locked and not isinstance(model.memory, ThreadSafeBuffer):
                model.memory = ThreadSafeBuffer.taking_over(model.memory)
            model.memory.move_to(self.ring, row)
            model.seated = True
        self._locked = [model.memory for model in self.models if type(model.memory) is not Buffer]
        self.learner = self.blueprint.learner(device=device)
        self.state = State.join([model.state for model in self.models])
        self.invariance: Invariance = rehearse(
            self.blueprint,  # type: ignore[arg-type]
            len(self.models),
            device,
            workers,
        )
        if not self.invariance.holds:
            warnings.warn(
                f"{len(self.models)} agents of {self.blueprint} are computed one at a time: {self.invariance.detail}",
                RuntimeWarning,
                stacklevel=2,
            )
        self.inference = Inference(
            self.learner.network,
            len(self.models),
            shape.worlds,
            together=together and self.invariance.holds,
            device=device,
        )
        self.inference.publish(Weights(0, self.learner.policy(self.state)))
        size = int(np.prod(shape.observation, dtype=np.int64))
        self.frames = Frames(len(self.models), shape.worlds, size, shape.frames)
        self.recall = Recall(len(self.models), shape.worlds, self.blueprint.state)
        self.draws = Draws(self.identity, range(shape.worlds), self.blueprint.slots)
        self.exploration = np.zeros(len(self.models))
        self.lag: int | None = None
        """How many rounds behind the acting weights may be; None: nobody says."""

    def __len__(self) -> int:
        return len(self.models)

    # -- acting ----------------------------------------------------------------------------------------------

    def start_epoch(self, epoch: int) -> None:
        """Take each model's exploration for the epoch."""
        for row, model in enumerate(self.models):
            model.start_epoch_action(epoch=epoch)
            self.exploration[row] = model.epsilon

    def act(
        self, observations: Array, first: Array, epoch: int, turn: int, masks: Array | None = None
    ) -> tuple[Array, dict[str, Array]]:
        """(N, W, D) observations -> (N, W) actions and the columns to keep beside them."""
        inputs = self.recall.inputs(self.frames.push(observations, first), first)
        draws = self.draws.at(epoch, turn)
        outputs = self.recall.outputs(self._forward(inputs, draws))
        actions, extras = self.blueprint.choose(outputs, draws, self.exploration, masks)
        kept = {**extras, **self.recall.columns()}
        return actions, kept if masks is None else {**kept, "masks": masks}

    def _forward(self, inputs: Array, draws: Array) -> Array:
        """(N, W, in) -> (N, W, out), of large networks only for those whose choice needs it."""
        asked = self._asked(draws, self.exploration)
        if asked is None:
            return self.inference.forward(inputs)
        return self.inference.forward_some(inputs, asked, self.blueprint.choices)

    def _asked(self, draws: Array, exploration: Array) -> Array | None:
        """(N,) whose networks must be computed; None: everyone's, also where leaving some out would save nothing."""
        return self.blueprint.asked(draws, exploration) if self.inference.spares else None

    def act_again(
        self, row: int, observations: Array, epoch: int, turn: int, masks: Array | None = None
    ) -> tuple[Array, dict[str, Array]]:
        """(W, D) newer observations of one agent in the same turn -> its (W,) actions and columns."""
        part = slice(row, row + 1)
        draws = self.draws.at(epoch, turn)[part]
        inputs = self.recall.inputs_again(row, self.frames.replace(row, observations))
        asked = self._asked(draws, self.exploration[part])
        if asked is None or asked[0]:
            outputs = self.recall.outputs_again(row, self.inference.forward_agent(row, inputs))
        else:
            outputs = np.zeros((len(inputs), self.blueprint.choices), np.float32)
        own = None if masks is None else masks[None]
        actions, extras = self.blueprint.choose(outputs[None], draws, self.exploration[part], own)
        kept = {name: column[0] for name, column in extras.items()}
        return actions[0], kept if masks is None else {**kept, "masks": masks}

    def publish(self, version: int, state: State, result: RoundResult | None = None) -> None:
        """Make a learner's weights the acting weights, and give rows the priorities that its round found."""
        self.inference.publish(Weights(version, self.learner.policy(state)))
        if result is not None and result.priorities:
            with self._locks():
                write_priorities(self.ring, result.priorities["places"], result.priorities["errors"])

    @property
    def waits_for_priorities(self) -> bool:
        """True where what a round reads depends on the rounds published before it."""
        return PRIORITY in self.ring.extras

    # -- memory ----------------------------------------------------------------------------------------------

    def add(self, turn: Transitions) -> None:
        """Keep one turn in every agent's own buffer."""
        with self._locks():
            self.ring.add(turn)

    def close(self, observations: Array, *, ended: bool, masks: Array | None = None) -> None:
        """Keep what the last turn led to."""
        extras: dict[str, Array] = {}
        if self.blueprint.on_policy:
            outputs = self.inference.forward(self.recall.inputs_ahead(observations))
            extras = self.blueprint.closing(self.recall.outputs_ahead(outputs))
        if masks is not None:
            extras["masks"] = masks
        with self._locks():
            self.ring.close(observations, ended=ended, extras=extras)

    def snapshot(self, round_: int) -> Snapshot:
        """What a round will read: copied, or for on-policy learners handed over, with a fresh ring in its place."""
        with self._locks():
            taken = self.example(round_)
            if self.blueprint.on_policy:
                self._refuse_stale(round_)
                self.ring.renew()
                for row, model in enumerate(self.models):
                    model.memory.ring = self.ring.agent(row)
        return taken

    def _refuse_stale(self, round_: int) -> None:
        """On-policy data may be as old as the lag makes them, and no older."""
        if self.lag is None:
            return
        oldest = round_ - 1 - self.lag
        stale = self.ring.valid.any(axis=2) & (self.ring.version < oldest)
        if stale.any():
            raise ContractError(
                f"round {round_} was to learn on policy from steps of version {self.ring.version[stale].min()}, with a "
                f"lag of {self.lag} they may be of version {oldest} or newer: collect anew with the weights of now"
            )

    def example(self, round_: int = 0) -> Snapshot:
        """What a round would read now; nothing is handed over."""
        hyper = [model.hyper for model in self.models]
        taken = self.blueprint.snapshot(self.ring, self.identity, hyper, round_, self.learner.updates)
        ready = taken["ready"] & ~np.array([model.frozen for model in self.models])
        return Snapshot(round_, {**taken.columns, "ready": ready})

    def _locks(self) -> AbstractContextManager[Any]:
        """All buffers for this stack alone, where they have locks."""
        if not self._locked:
            return _FREE
        held = ExitStack()
        for buffer in self._locked:
            held.enter_context(buffer.locked())
        return held

    # -- what users get back ---------------------------------------------------------------------------------

    @property
    def acting_rows(self) -> torch.Tensor:
        """(N, P) the weights that act now."""
        weights = self.inference.weights
        assert weights is not None
        return weights.rows

    def show_acting(self) -> None:
        """Give every model the weights it acts with now, for an evaluation in the middle of a run."""
        for row, model in enumerate(self.models):
            model.state = self.learner.acting_as(model.state, self.acting_rows[row : row + 1].clone())

    def settle(self, state: State) -> None:
        """Give every model the learner's newest row, as a value of its own."""
        for row, model in enumerate(self.models):
            model.state = state.rows(slice(row, row + 1)).clone()


@lru_cache(maxsize=64)
def rehearse(blueprint: Any, agents: int, device: str, workers: int) -> Invariance:
    """Probe the stack's real forward, backward and step at its real shapes, on made-up data.

    Learners cut what they are given into blocks that fit the cache, so each group is cut here as it will be in a round.
    """
    if agents == 1:
        return Invariance(True, "one agent")
    learner = blueprint.learner(device=device, updates=2)
    identity = Identity((0,) * agents, tuple(range(agents)))
    state = learner.init(identity, [blueprint.rehearsal_hyper()] * agents)
    snapshot = blueprint.rehearsal(agents, updates=2)
    shape = (agents, tile_rows(blueprint.worlds), blueprint.network.inputs)
    inputs = torch.from_numpy(generator(0, Purpose.SAMPLE, world=2).standard_normal(shape, np.float32))

    def compute(part: slice) -> list[torch.Tensor]:
        trained, _ = learner.learn(state.rows(part), snapshot.rows(part), identity.rows(part))
        with torch.inference_mode():
            outputs = learner.network.acting(learner.policy(trained))(inputs[part].to(device))
        return [outputs.clone(), *trained.tensors.values()]

    return probe(compute, agents, _groups(agents, workers))


def _groups(agents: int, workers: int) -> list[slice]:
    """Return the first and the last group of every size that up to `workers` workers make of the agents."""
    parts = [share for count in range(2, workers + 1) for share in shares(agents, count)]
    sizes = {part.stop - part.start for part in parts} - {0, 1}
    ends = [[part for part in parts if part.stop - part.start == size] for size in sorted(sizes)]
    return [part for own in ends for part in (own[0], own[-1])]
