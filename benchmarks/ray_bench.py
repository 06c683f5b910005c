"""What handing over a round costs on Ray beside processes, on one machine: learners that only copy.

Both sides hand over the same snapshots and states, wait for the round, and get the same bytes back. N agents of 5,000
weights read 4 batches of 64 samples of 52 numbers; one agent in W worlds reads a rollout of 48 turns of 24 numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.measure import Done, Effort, Row, Side, compare
from benchmarks.run import Bench
from parallel_agents.algorithms.learner import LearnerState, RoundResult, Snapshot
from parallel_agents.core.seeding import Identity
from parallel_agents.execution.process import ProcessBackend
from parallel_agents.execution.ray import RayBackend, RayCluster
from parallel_agents.tracking.timeline import Timeline

WEIGHTS, SAMPLES, NUMBERS, TURNS, FEATURES = 5_000, 4 * 64, 2 * 52 + 4, 48, 24
AGENTS, WORLDS = (8, 64, 256), (100, 1_000, 10_000)
WORKERS = 2


@dataclass(frozen=True)
class CopyingLearner:
    """Copies the states, and reads every number of its snapshot once."""

    device: str = "cpu"
    updates: int = 1

    def learn(self, state: LearnerState, snapshot: Snapshot, identity: Identity) -> tuple[LearnerState, RoundResult]:
        ones = np.ones(len(identity), np.int64)
        return state.clone(), RoundResult(snapshot.round, ones, 0 * ones, {"sum": snapshot["rows"].sum((1, 2))})


def stack_of(agents: int, rows: int, numbers: int) -> Any:
    """Return as much of a stack as a backend needs."""
    rows_ = np.ones((agents, rows, numbers), np.float32)
    names = ("online", "target", "first", "second")
    return SimpleStack(
        learner=CopyingLearner(),
        identity=Identity((0,) * agents, tuple(range(agents))),
        invariance=SimpleNamespace(holds=True),
        native=True,
        device="cpu",
        state=LearnerState({name: torch.zeros(agents, WEIGHTS) for name in names}),
        columns={"rows": rows_},
    )


class SimpleStack(SimpleNamespace):
    """The values above, with a length and an example."""

    def __len__(self) -> int:
        return len(self.identity)

    def example(self) -> Snapshot:
        return Snapshot(0, self.columns)

    def bytes_per_round(self) -> int:
        """Return how many bytes travel in a round: what it reads, and the states that come back."""
        states = sum(tensor.nbytes for tensor in self.state.tensors.values())
        return int(sum(column.nbytes for column in self.columns.values()) + states)


def cases() -> Iterator[tuple[str, Any]]:
    """Return the name and the stack of every row."""
    for agents in AGENTS:
        yield f"{agents} agents", stack_of(agents, SAMPLES, NUMBERS)
    for worlds in WORLDS:
        yield f"1 agent, {worlds:,} worlds", stack_of(1, worlds * TURNS, FEATURES)


def benches(effort: Effort) -> Iterator[tuple[str, Bench]]:
    yield "a round on Ray", partial(_rounds, effort)


def _rounds(effort: Effort) -> Iterator[Row]:
    """Compare the seconds of a round on a local Ray and in processes."""
    cluster = RayCluster(None, workers=WORKERS)
    try:
        yield from compare_rounds(cluster, effort, 7)
    finally:
        cluster.close()


def compare_rounds(cluster: RayCluster, effort: Effort, repeats: int) -> Iterator[Row]:
    """Compare the seconds of a round on Ray and in processes, for every number of agents and of worlds."""
    for name, stack in cases():
        workers = min(WORKERS, len(stack))
        options: dict[str, Any] = {"workers": workers, "together": True, "first_round": 1}
        ray = RayBackend(cluster, [stack], [stack.state], resources={"CPU": 1.0}, deadline=300.0, **options)
        process = ProcessBackend([stack], [stack.state], lag=1, timeline=Timeline(enabled=False), **options)
        try:
            process.started()
            baseline, ours = (Side(own.name, f"a round of {name}", hand_over(own, stack)) for own in (process, ray))
            yield compare(
                f"a round on Ray beside processes, {name}",
                baseline,
                ours,
                goal=None,
                repeats=effort.repeats(repeats),
                bytes_per_round=stack.bytes_per_round(),
                workers=workers,
            )
        finally:
            ray.close()
            process.close()


def hand_over(backend: Any, stack: Any) -> Any:
    """Return a function that hands over the next round and waits for it."""
    rounds = iter(range(1, 10**9))

    def do() -> Done:
        round_ = next(rounds)
        backend.submit(round_, [lambda: Snapshot(round_, stack.columns)])
        [(_, result)] = backend.result(round_, 300.0)
        return Done({"bytes": stack.bytes_per_round(), "updates": int(result.updates.sum())}, backend.name)

    return do
