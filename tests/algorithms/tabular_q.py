"""Tabular Q-learning as an algorithm from outside the package: options, what is stored, how it acts, the update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parallel_agents import register_algorithm
from parallel_agents.algorithms import Model
from parallel_agents.algorithms.dqn import QLearningOptions, QLearningSpec
from parallel_agents.algorithms.learner import LearnerState, RoundResult, Snapshot
from parallel_agents.core.config import build_section
from parallel_agents.core.seeding import Identity
from parallel_agents.core.types import Array
from parallel_agents.nn import Layout


@dataclass(frozen=True, kw_only=True)
class TabularOptions(QLearningOptions):
    """The `model` section for `algorithm = "tabular_q"`; buffer, samples and exploration are those of DQN."""

    states: int = 16
    lr: float = 0.1


@dataclass(frozen=True)
class Table:
    """A value for each state and action. An observation is the number of a state."""

    states: int
    actions: int
    inputs: int = 1

    @property
    def layout(self) -> Layout:
        return Layout.of({"table": (self.states, self.actions)})

    def init(self, identity: Identity) -> Tensor:
        """Return fresh rows (N, size): zeros."""
        return torch.zeros(len(identity), self.layout.length)

    def bound_forward(self, rows: Tensor) -> Callable[[Tensor], Tensor]:
        """Return a function from observations (N, R, 1) to values (N, R, A)."""
        return lambda observations: self.values(rows, observations)

    def values(self, rows: Tensor, observations: Tensor) -> Tensor:
        """Return the values (N, R, A) of observed states (N, R, 1)."""
        (table,) = self.layout.views(rows)
        return table.gather(1, self.places(observations).expand(-1, -1, self.actions))

    def places(self, observations: Tensor) -> Tensor:
        """Return the states (N, R, 1) as whole numbers."""
        return observations.long().clamp(0, self.states - 1)


@dataclass(frozen=True, kw_only=True)
class TabularSpec(QLearningSpec):
    """Tabular Q-learning at given shapes."""

    states: int

    @cached_property
    def network(self) -> Table:
        return Table(self.states, self.actions)

    def learner(self, *, device: str = "cpu", updates: int | None = None) -> TabularLearner:
        return TabularLearner(self.network, updates or self.updates, self.batch, device)


@dataclass(frozen=True)
class TabularLearner:
    """Q(s, a) += lr · (target - Q(s, a)), sample by sample (Watkins 1989)."""

    network: Table
    updates: int
    batch: int
    device: str = "cpu"

    def init(self, identity: Identity, hyper: Sequence[Mapping[str, Any]]) -> LearnerState:
        """Return fresh learners, one mapping of hyper-parameters per agent."""
        rates = torch.tensor([own["lr"] for own in hyper], dtype=torch.float32)
        counts = torch.zeros(len(identity), dtype=torch.int64)
        return LearnerState({"online": self.network.init(identity), "updates": counts, "hyper.lr": rates})

    def policy(self, state: LearnerState) -> Tensor:
        """Return the rows that acting needs."""
        return state["online"]

    def acting_as(self, state: LearnerState, rows: Tensor) -> LearnerState:
        """Return the same learners, acting with these rows."""
        return LearnerState({**state.tensors, "online": rows})

    def learn(self, state: LearnerState, snapshot: Snapshot, identity: Identity) -> tuple[LearnerState, RoundResult]:
        """Return the state after one round of every agent, and the round's result."""
        new, ready = state.clone(), torch.from_numpy(snapshot["ready"])
        (table,) = self.network.layout.views(new["online"])
        rates = new["hyper.lr"] * ready
        losses = []
        for k in range(self.updates * self.batch):
            columns = {name: torch.from_numpy(snapshot[name][:, k : k + 1]) for name in ("states", "next_states")}
            after = self.network.values(new["online"], columns["next_states"]).amax(-1)
            target = self._column(snapshot, "returns", k) + self._column(snapshot, "discounts", k) * after[:, 0]
            row = torch.arange(len(identity))
            place = row, self.network.places(columns["states"])[:, 0, 0], torch.from_numpy(snapshot["actions"][:, k])
            error = target - table[place]
            table[place] += rates * error
            losses.append(error.square())
        updates = np.where(snapshot["ready"], self.updates, 0)
        new["updates"].add_(torch.from_numpy(updates))
        metrics: dict[str, Array] = {"loss": torch.stack(losses).mean(0).numpy()}
        return new, RoundResult(snapshot.round, updates, np.zeros_like(updates), metrics)

    def _column(self, snapshot: Snapshot, name: str, k: int) -> Tensor:
        return torch.from_numpy(snapshot[name][:, k])


class TabularQ(Model):
    """A tabular Q-learner."""

    def __init__(self, obs_shape: int | tuple[int, ...], n_actions: int, *, worlds: int = 1, **options: Any) -> None:
        chosen = build_section(TabularOptions, options, "model")
        spec = TabularSpec(**chosen.spec(obs_shape, n_actions, worlds), states=chosen.states)
        super().__init__(spec, chosen.hyper())


register_algorithm("tabular_q", TabularQ)
