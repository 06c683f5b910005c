"""Stacks and learners for tests, whose weights show which rounds have written them."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from parallel_agents.algorithms.learner import LearnerState, RoundResult, Snapshot
from parallel_agents.core.seeding import Identity
from parallel_agents.nn import Invariance

WIDTH = 64
RELEASE = threading.Event()
"""Set it to release hung learners of this process."""


class Unpicklable(Exception):
    """An error that cannot be sent to another process as it is."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


@dataclass(frozen=True)
class MarkLearner:
    """Adds what it reads to every weight, and fails in a given way in a given round."""

    misbehave: str = ""
    at_round: int = 0
    device: str = "cpu"
    updates: int = 1

    def learn(self, state: LearnerState, snapshot: Snapshot, identity: Identity) -> tuple[LearnerState, RoundResult]:
        count = int(state["round"][0])
        if snapshot.round != count + 1:
            raise AssertionError(f"round {snapshot.round} came after round {count}")
        if snapshot.round == self.at_round:
            self._misbehave()
        agents = torch.tensor(identity.agents, dtype=torch.float64)[:, None]
        read = torch.from_numpy(snapshot["numbers"]).sum(1, keepdim=True)
        new = LearnerState({"weights": state["weights"] * 0.5 + read + agents, "round": state["round"] + 1})
        ones = np.ones(len(identity), np.int64)
        return new, RoundResult(snapshot.round, ones, 0 * ones, {"sum": read[:, 0].numpy().copy()}, seconds=0.25)

    def policy(self, state: LearnerState) -> torch.Tensor:
        return state["weights"]

    def _misbehave(self) -> None:
        if self.misbehave == "raise":
            raise ValueError("the weights exploded")
        if self.misbehave == "raise unpicklable":
            raise Unpicklable("the weights exploded")
        if self.misbehave == "hang":
            RELEASE.wait(60.0)
        if self.misbehave == "die":
            os.kill(os.getpid(), signal.SIGKILL)


class MarkStack:
    """As much of a stack as rounds need. It records what was asked of it."""

    waits_for_priorities = False
    native = portable = False
    device = "cpu"

    def __init__(self, agents: int, learner: Any = None, *, holds: bool = True, first_agent: int = 0) -> None:
        self.learner = learner or MarkLearner()
        self.identity = Identity((0,) * agents, tuple(range(first_agent, first_agent + agents)))
        self.invariance = Invariance(holds, "said so")
        weights = torch.zeros(agents, WIDTH, dtype=torch.float64)
        self.state = LearnerState({"weights": weights, "round": torch.zeros(agents, dtype=torch.int64)})
        self.snapshots: list[int] = []
        self.published: list[tuple[int, LearnerState]] = []
        self.settled: list[LearnerState] = []
        self.inference = SimpleNamespace(version=0)

    def __len__(self) -> int:
        return len(self.identity)

    def snapshot(self, round_: int) -> Snapshot:
        self.snapshots.append(round_)
        numbers = np.arange(len(self) * 3, dtype=np.float64).reshape(len(self), 3) + round_
        return Snapshot(round_, {"numbers": numbers})

    def example(self) -> Snapshot:
        numbers = np.zeros((len(self), 3))
        return Snapshot(0, {"numbers": numbers})

    def publish(self, version: int, state: LearnerState, result: RoundResult | None = None) -> None:
        self.published.append((version, state))

    def copy_state(self, state: LearnerState) -> None:
        self.settled.append(state)


def expected(stack: MarkStack, rounds: int) -> LearnerState:
    """Return the state after so many rounds, computed by a plain loop."""
    state, fresh = stack.state, MarkStack(len(stack), first_agent=stack.identity.agents[0])
    for round_ in range(1, rounds + 1):
        state, _ = MarkLearner().learn(state, fresh.snapshot(round_), stack.identity)
    return state


def same(one: LearnerState, other: LearnerState) -> bool:
    """Return whether names, types, shapes and bytes are equal."""
    return one.tensors.keys() == other.tensors.keys() and all(
        tensor.dtype == other[name].dtype and torch.equal(tensor, other[name]) for name, tensor in one.tensors.items()
    )
