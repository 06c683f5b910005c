"""Threads and processes hand over weights and snapshots without torn reads, in any interleaving."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import frontrun
import numpy as np
import pytest
import torch
import torch.multiprocessing
from frontrun._cooperative import patch_locks, unpatch_locks

from parallel_agents.algorithms.acting import Inference, Weights
from parallel_agents.algorithms.learner import LearnerState, RoundResult, Snapshot
from parallel_agents.core.seeding import Identity
from parallel_agents.execution.backend import InlineBackend, LazySnapshot
from parallel_agents.execution.process import ProcessBackend
from parallel_agents.execution.thread import ThreadBackend
from parallel_agents.nn import MLP
from parallel_agents.tracking.timeline import Timeline
from tests.env.line_worlds import Line, tiny
from tests.execution.stub_stacks import MarkStack

SIZE = 1_000
SPAWN = torch.multiprocessing.get_context("spawn")


@pytest.fixture
def explored_locks() -> Iterator[None]:
    """Let the exploration schedule locks; by default it does so only under its own command."""
    patch_locks()
    yield
    unpatch_locks()


class Filling:
    """Writes its round's number into the weights, in a copy or (wrongly) in place, and stops half way for the reader."""

    device = "cpu"
    updates = 1

    def __init__(self, meet: Meeting, *, in_place: bool) -> None:
        self.in_place, self.meet = in_place, meet

    def learn(self, state: LearnerState, snapshot: Snapshot, identity: Identity) -> tuple[LearnerState, RoundResult]:
        new = state if self.in_place else state.clone()
        first, second = new["weights"][0].chunk(2)
        first.fill_(snapshot.round)
        self.meet.half_written.set()
        assert self.meet.looked_at.wait(20.0)
        self.meet.looked_at.clear()
        second.fill_(snapshot.round)
        nothing = np.zeros(1, np.int64)
        return new, RoundResult(snapshot.round, nothing, nothing, {})


class Meeting:
    """Lets a reader look at the weights while a learner has written half of the next ones."""

    def __init__(self, event: Any) -> None:
        self.half_written, self.looked_at = event(), event()

    def looks(self, published: torch.Tensor) -> bool:
        """Return whether published weights are torn while the next are half written."""
        assert self.half_written.wait(20.0)
        self.half_written.clear()
        torn = bool(published.min() != published.max())
        self.looked_at.set()
        return torn


class Alone:
    """The same in one thread, which looks while it writes."""

    def __init__(self) -> None:
        self.published, self.torn = torch.zeros(1), False
        self.half_written = SimpleNamespace(set=self._look)
        self.looked_at = SimpleNamespace(wait=lambda timeout: True, clear=lambda: None)

    def _look(self) -> None:
        self.torn = bool(self.published.min() != self.published.max())

    def looks(self, published: torch.Tensor) -> bool:
        return self.torn


def made(backend: str, meet: Any, *, in_place: bool) -> Any:
    stack = MarkStack(1, Filling(meet, in_place=in_place))
    stack.state = LearnerState({"weights": torch.zeros(1, SIZE)})
    silent, one = Timeline(enabled=False), [stack]
    if backend == "inline":
        return InlineBackend(one, [stack.state], together=True, timeline=silent)
    if backend == "thread":
        return ThreadBackend(one, [stack.state], workers=1, together=True, timeline=silent)
    given = {"workers": 1, "together": True, "lag": 1, "first_round": 1, "timeline": silent}
    return ProcessBackend(one, [stack.state], **given).started()


def torn_reads(backend: str, *, in_place: bool = False, rounds: int = 12) -> tuple[int, int]:
    """Return how many reads saw two versions at once, and how many held versions have changed since."""
    kinds = {"inline": Alone, "thread": lambda: Meeting(threading.Event), "process": lambda: Meeting(SPAWN.Event)}
    meet: Any = kinds[backend]()
    running = made(backend, meet, in_place=in_place)
    held: list[torch.Tensor] = [torch.zeros(1, SIZE)]
    torn = 0
    try:
        for round_ in range(1, rounds + 1):
            if backend == "inline":
                meet.published = held[-1]
            running.submit(round_, [lambda r=round_: Snapshot(r, {})])
            torn += meet.looks(held[-1])
            ((state, _),) = running.result(round_, 20.0)
            held.append(state["weights"])
            assert held[-1].unique().tolist() == [round_]
    finally:
        running.close()
    return torn, sum(own.unique().tolist() != [version] for version, own in enumerate(held))


@pytest.mark.parametrize("backend", ["inline", "thread", "process"])
def test_published_weights_are_never_torn_and_held_versions_never_change(backend: str) -> None:
    assert torn_reads(backend) == (0, 0)


@pytest.mark.parametrize("backend", ["inline", "thread"])
def test_the_reader_of_these_tests_notices_a_learner_that_writes_in_place(backend: str) -> None:
    torn, changed = torn_reads(backend, in_place=True)
    assert torn >= 11
    assert changed >= 11


@pytest.mark.parametrize("backend", ["inline", "thread", "process"])
@pytest.mark.parametrize("workers", [1, 2])
def test_every_version_that_a_run_acted_with_stays_what_it_was(backend: str, workers: int) -> None:
    game = Line(config=tiny(experiment={"epochs": 16}, parallel={"backend": backend, "num_workers": workers}))
    held: list[tuple[Weights, torch.Tensor]] = []

    class Holds:
        def __getattr__(self, name: str) -> Any:
            return lambda *_: None

        def on_epoch(self, stats: Any) -> None:
            weights = game.prepare().group.stacks[0].inference.weights
            held.append((weights, weights.rows.clone()))

    game.run_experiment(callbacks=[Holds()])
    assert len({weights.version for weights, _ in held}) >= 7
    assert all(torch.equal(weights.rows, before) for weights, before in held)


NETWORK = MLP(2, (2,), 2, False)
INPUTS = np.ones((1, 1, 2), np.float32)


def _weights(version: int) -> Weights:
    return Weights(version, torch.full((1, NETWORK.size), float(version)))


def _outputs(version: int) -> list[float]:
    inference = Inference(NETWORK, 1, 1, together=True)
    inference.weights = _weights(version)
    return list(inference.forward(INPUTS).ravel())


def test_publishing_is_one_swap_in_every_interleaving(explored_locks: None) -> None:
    whole = [_outputs(1), _outputs(2)]

    def setup() -> Any:
        inference = Inference(NETWORK, 1, 1, together=True)
        inference.weights = _weights(1)
        return SimpleNamespace(inference=inference, seen=[])

    def act(state: Any) -> None:
        state.seen.append(list(state.inference.forward(INPUTS).ravel()))

    def publish(state: Any) -> None:
        state.inference.weights = _weights(2)

    found = frontrun.explore(
        setup,
        [act, publish],
        lambda state: state.seen[0] in whole and list(state.inference.forward(INPUTS).ravel()) == whole[1],
        max_executions=200,
        trace_packages=["parallel_agents.*"],
    )
    found.assert_holds()
    assert found.num_explored >= 2


def _explore_snapshot(*, waits: bool) -> Any:
    """Explore a collector that writes two columns of a row, and a learner that reads them."""

    def setup() -> Any:
        columns = {"observation": 1, "reward": 1}
        return SimpleNamespace(columns=columns, lazy=LazySnapshot(lambda: dict(columns)))  # type: ignore[arg-type, return-value]

    def learner(state: Any) -> None:
        state.read = state.lazy()

    def collector(state: Any) -> None:
        if waits:
            assert state.lazy.wait(5.0)
        state.columns["observation"] = 2
        state.columns["reward"] = 2

    return frontrun.explore(
        setup,
        [learner, collector],
        lambda state: state.read == {"observation": 1, "reward": 1},
        max_executions=200,
        trace_packages=["parallel_agents.*"],
        reproduce_on_failure=0,
        clock="virtual",
    )


def test_a_learner_that_takes_its_snapshot_itself_never_sees_a_later_turn(explored_locks: None) -> None:
    _explore_snapshot(waits=True).assert_holds()


def test_the_exploration_notices_a_collector_that_does_not_wait(explored_locks: None) -> None:
    assert not _explore_snapshot(waits=False).property_holds


def test_a_lazy_snapshot_is_taken_once_by_the_first_caller() -> None:
    taken: list[int] = []
    lazy = LazySnapshot(lambda: taken.append(1) or Snapshot(1, {}))  # type: ignore[func-returns-value]
    threads = [threading.Thread(target=lazy) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert taken == [1]
    assert lazy() is lazy()
    assert lazy.wait(0.0)
