"""What learners from a replay buffer have in common: options, blueprint, and what a round will read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_agents.acting import EPSILON_SLOTS, asked, epsilon_greedy
from parallel_agents.config import build_section
from parallel_agents.errors import ConfigError
from parallel_agents.learning import SHAPES, scheduled
from parallel_agents.memory import (
    EVENT_COLUMNS,
    PRIORITY_COLUMNS,
    EventWeighting,
    Ring,
    RingShape,
    draw_by_priority,
    draw_rows,
)
from parallel_agents.models.base import DIRECT
from parallel_agents.models.options import LearnerOptions, Schedule
from parallel_agents.seeding import Purpose, generator
from parallel_agents.types import Array, Identity, Snapshot

__all__ = ["ReplayBlueprint", "ReplayOptions", "replay", "replay_hyper"]


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(LearnerOptions):
    """What all learners from a replay buffer have in common in the `model` section."""

    double: bool = True
    """Let the online network choose the action whose value the target network gives."""
    gamma: float = 0.95
    n_step: int = 1
    n_frames: int = 1
    batch_size: int = 32
    updates_per_round: int = 32
    learning_starts: int = 200
    """Transitions an agent keeps before it is trained."""
    buffer_size: int = 10_000
    tau: float = 0.01
    """How far the target network follows each update (soft)."""
    target_interval: int = 0
    """Updates between two whole copies to the target network (hard); 0: soft."""
    epsilon: float = 1.0
    epsilon_final: float = 0.05
    epsilon_epochs: int = 40
    """ε goes from `epsilon` to `epsilon_final` over so many epochs."""
    epsilon_schedule: Schedule = "linear"
    """How it goes there."""
    priority_alpha: float = 0.0
    """How much more often rows are drawn that surprised the learner more; 0: all alike (Schaul et al. 2016)."""
    priority_beta: float = 0.4
    """How far that is corrected at first; it rises to 1 over `priority_updates` updates."""
    priority_updates: int = 10_000
    batch_growth: int = 1
    """How many batches a step may join, at most, by the noise of the agent's own gradient; 1: one always."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("n_step", "n_frames", "batch_size", "updates_per_round", "buffer_size", "batch_growth"):
            if getattr(self, name) < 1:
                raise ConfigError(f"model.{name} is {getattr(self, name)}: give a whole number of at least 1")
        for name in ("learning_starts", "target_interval", "epsilon_epochs", "priority_updates"):
            if getattr(self, name) < 0:
                raise ConfigError(f"model.{name} is {getattr(self, name)}: give a whole number of at least 0")
        for name in ("gamma", "tau", "epsilon", "epsilon_final", "priority_alpha", "priority_beta"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"model.{name} is {getattr(self, name)}: give a number from 0 to 1")
        if self.importance is not None and self.priority_alpha > 0:
            raise ConfigError(
                "model.importance and model.priority_alpha are both given: draw by event class or by surprise, not both"
            )
        if self.epsilon_schedule == "exponential" and not (self.epsilon > 0.0 and self.epsilon_final > 0.0):
            raise ConfigError("model.epsilon_schedule is 'exponential': epsilon and epsilon_final must be above 0")


@dataclass(frozen=True, kw_only=True)
class ReplayBlueprint:
    """A learner from a replay buffer at a shape; see `Blueprint`."""

    observation: tuple[int, ...]
    actions: int
    worlds: int
    double: bool
    n_step: int
    n_frames: int
    batch: int
    updates: int
    learning_starts: int
    capacity: int
    normalise: tuple[bool, bool] = (False, False)
    """Observations, rewards."""
    masked: bool = False
    importance: bool = False
    """Rows are drawn by event class; how is each agent's own matter."""
    prioritised: bool = False
    """Rows are drawn by how much they surprised the learner."""
    training_priority: int = 0
    slots: int = EPSILON_SLOTS
    on_policy: bool = False

    @property
    def choices(self) -> int:
        return self.actions

    @property
    def window(self) -> tuple[int, ...]:
        """Shape of what a network sees: the frames one after the other, oldest first, along the first axis."""
        return (self.observation[0] * self.n_frames, *self.observation[1:]) if self.observation else (self.n_frames,)

    @property
    def inputs(self) -> int:
        return math.prod(self.window)

    @property
    def ring(self) -> RingShape:
        choices = self.choices if self.masked else 0
        extras = EVENT_COLUMNS if self.importance else PRIORITY_COLUMNS if self.prioritised else {}
        shape = (self.capacity, self.observation, self.worlds, self.n_frames)
        return RingShape(*shape, extras=extras, choices=choices)

    @property
    def state(self) -> int:
        return 0

    def choose(
        self, outputs: Array, draws: Array, exploration: Array, masks: Array | None
    ) -> tuple[Array, dict[str, Array]]:
        return epsilon_greedy(outputs, draws, exploration, masks), {}

    def asked(self, draws: Array, exploration: Array) -> Array | None:
        return None if self.state else asked(draws, exploration)  # a state moves on, whoever explores

    def closing(self, outputs: Array) -> dict[str, Array]:
        return {}

    def explore(self, hyper: Mapping[str, Any], epoch: int) -> float:
        ends = (hyper["epsilon"], hyper["epsilon_final"])
        return scheduled(int(hyper["epsilon_shape"]), *ends, max(0, epoch - 1), max(1.0, hyper["epsilon_epochs"]))

    def snapshot(
        self,
        ring: Ring,
        identity: Identity,
        hyper: Sequence[Mapping[str, Any]],
        round_: int,
        updates: int,
        world: int = 0,
    ) -> Snapshot:
        """Samples of each agent's own buffer, uniform or by class; an agent with too little is not `ready`."""
        kinds = 2 if self.importance else 1  # of numbers a sample needs: for its place, and for its class
        draws = np.empty((len(identity), kinds, updates * self.batch))
        for row, seed, agent in zip(draws, identity.seeds, identity.agents, strict=True):
            generator(seed, Purpose.SAMPLE, agent=agent, world=world, epoch=round_).random(out=row)
        gammas = np.array([own["gamma"] for own in hyper])
        serials, weights = ring.serials(draws[:, 0]), {}
        if self.importance:
            done = self._done(round_, world)
            drawn = [
                draw_rows(ring, row, own["importance"], draws[row], batch=self.batch, done=done)
                for row, own in enumerate(hyper)
            ]
            serials = np.stack([own.rows for own in drawn])
            weights = {name: np.stack([getattr(own, name) for own in drawn]) for name in ("weights", "rare")}
        if self.prioritised:
            serials, weights = self._by_priority(ring, hyper, draws[:, 0], round_, world)
        columns = self._gather(ring, serials, gammas)
        return Snapshot(round_, {**columns, **weights, "ready": ring.sizes() >= max(1, self.learning_starts)})

    def _done(self, round_: int, world: int) -> int:
        """Updates before this round, or before this direct call of `train_step`."""
        return world - DIRECT if world else max(0, round_ - 1) * self.updates

    def _by_priority(
        self, ring: Ring, hyper: Sequence[Mapping[str, Any]], draws: Array, round_: int, world: int
    ) -> tuple[Array, dict[str, Array]]:
        """Serials (N, S), and beside them corrections and the places that new priorities will go to."""
        done = self._done(round_, world)
        drawn = []
        for row, own in enumerate(hyper):
            risen = min(1.0, done / max(1.0, own["priority_updates"]))
            beta = own["priority_beta"] + (1.0 - own["priority_beta"]) * risen
            drawn.append(draw_by_priority(ring, row, draws[row], alpha=own["priority_alpha"], beta=beta))
        beside = {name: np.stack([getattr(own, name) for own in drawn]) for name in ("weights", "places")}
        return np.stack([own.serials for own in drawn]), beside

    def _gather(self, ring: Ring, serials: Array, gammas: Array) -> dict[str, Array]:
        """What the learner reads of the drawn transitions."""
        return ring.gather(serials, n_step=self.n_step, gammas=gammas)

    def rehearsal(self, agents: int, *, updates: int) -> Snapshot:
        draws = generator(0, Purpose.SAMPLE, world=1)
        block = (agents, updates * self.batch)
        size = self.inputs
        columns: dict[str, Array] = {
            "states": draws.standard_normal((*block, size), np.float32),
            "next_states": draws.standard_normal((*block, size), np.float32),
            "actions": draws.integers(0, self.actions, block),
            "returns": draws.standard_normal(block, np.float32),
            "discounts": draws.random(block, np.float32),
            "ready": np.ones(agents, np.bool_),
        }
        if self.masked:
            columns["next_masks"] = draws.random((*block, self.actions)) < 0.8
            columns["next_masks"][..., 0] = True
        if self.importance:
            columns |= {"weights": draws.random(block, np.float32), "rare": draws.random(block) < 0.5}
        if self.prioritised:
            columns |= {"weights": draws.random(block, np.float32), "places": np.zeros(block)}
        return Snapshot(0, columns)

    def rehearsal_hyper(self) -> dict[str, Any]:
        return replay_hyper(ReplayOptions(clip=1e-3, batch_growth=2))  # so small that clipping takes part, and joining


def replay(options: Any, obs_shape: int | tuple[int, ...], n_actions: int, worlds: int) -> dict[str, Any]:
    """The part of a blueprint that all learners from a replay buffer have in common."""
    if n_actions < 1:
        raise ConfigError(f"n_actions is {n_actions}: an agent needs at least one action")
    return {
        "observation": (obs_shape,) if isinstance(obs_shape, int) else tuple(obs_shape),
        "actions": n_actions,
        "worlds": worlds,
        "double": options.double,
        "n_step": options.n_step,
        "n_frames": options.n_frames,
        "batch": options.batch_size,
        "updates": options.updates_per_round,
        "learning_starts": options.learning_starts,
        "capacity": options.buffer_size,
        "normalise": options.units,
        "importance": options.importance is not None,
        "prioritised": options.priority_alpha > 0,
        "training_priority": options.training_priority,
    }


def replay_hyper(options: ReplayOptions) -> dict[str, Any]:
    """The values that may differ between the rows of a stack."""
    names = (
        "gamma", "clip", "tau", "target_interval", "epsilon", "epsilon_final", "epsilon_epochs",
        "priority_alpha", "priority_beta", "priority_updates", "batch_growth",
    )  # fmt: skip
    own: dict[str, Any] = {name: float(getattr(options, name)) for name in names}
    if options.importance is not None:
        own["importance"] = build_section(EventWeighting, options.importance, "model.importance")
    return {**own, **options.rates, "epsilon_shape": float(SHAPES.index(options.epsilon_schedule))}
