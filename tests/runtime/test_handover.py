"""Hand-overs between threads: no torn read of weights, no half-written transition, in any interleaving."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import frontrun
import numpy as np
import pytest
import torch
from frontrun._cooperative import patch_locks, unpatch_locks

from parallel_agents.acting import Inference
from parallel_agents.networks import MLP
from parallel_agents.runtime.backends import Reading, ThreadBackend
from parallel_agents.tracking.timeline import Timeline
from parallel_agents.types import Identity, RoundResult, Snapshot, State, Weights
from tests.runtime.stub_stacks import MarkStack

SIZE = 1_000


@pytest.fixture
def explored_locks() -> Iterator[None]:
    """Locks that the exploration can schedule; by default it has them only under its own command."""
    patch_locks()
    yield
    unpatch_locks()


class Filling:
    """Writes its round's number into the weights, of a copy or (wrongly) in place, and stops half way to be looked at."""

    device = "cpu"

    def __init__(self, *, in_place: bool) -> None:
        self.in_place = in_place
        self.half_written, self.looked_at = threading.Event(), threading.Event()

    def learn(self, state: State, snapshot: Snapshot, identity: Identity) -> tuple[State, RoundResult]:
        new = state if self.in_place else state.clone()
        first, second = new["weights"][0].chunk(2)
        first.fill_(snapshot.round)
        self.half_written.set()
        assert self.looked_at.wait(20.0)
        self.looked_at.clear()
        second.fill_(snapshot.round)
        nothing = np.zeros(1, np.int64)
        return new, RoundResult(snapshot.round, nothing, nothing, {})


def torn_reads(learner: Filling, rounds: int = 20) -> int:
    """How often a reader of the published weights sees two versions at once, looking while the next are half written."""
    stack = MarkStack(1, learner)
    stack.state = State({"weights": torch.zeros(1, SIZE)})
    backend = ThreadBackend([stack], [stack.state], workers=1, together=True, timeline=Timeline(enabled=False))
    published, torn = stack.state["weights"], 0
    for round_ in range(1, rounds + 1):
        backend.submit(round_, [lambda r=round_: Snapshot(r, {})])  # type: ignore[misc]
        assert learner.half_written.wait(20.0)
        learner.half_written.clear()
        torn += int(published.min() != published.max())
        learner.looked_at.set()
        ((state, _),) = backend.result(round_, 20.0)
        published = state["weights"]
        assert published.unique().tolist() == [round_]
    backend.close()
    return torn


def test_weights_that_are_acted_with_are_never_torn() -> None:
    assert torn_reads(Filling(in_place=False)) == 0


def test_the_reader_notices_a_learner_that_writes_in_place() -> None:
    assert torn_reads(Filling(in_place=True)) == 20


NETWORK = MLP(2, (2,), 2, False)
INPUTS = np.ones((1, 1, 2), np.float32)


def _weights(version: int) -> Weights:
    return Weights(version, torch.full((1, NETWORK.size), float(version)))


def _outputs(version: int) -> list[float]:
    inference = Inference(NETWORK, 1, 1, together=True)
    inference.publish(_weights(version))
    return list(inference.forward(INPUTS).ravel())


def test_publishing_is_one_swap_in_every_interleaving(explored_locks: None) -> None:
    whole = [_outputs(1), _outputs(2)]

    def setup() -> Any:
        inference = Inference(NETWORK, 1, 1, together=True)
        inference.publish(_weights(1))
        return SimpleNamespace(inference=inference, seen=[])

    def act(state: Any) -> None:
        state.seen.append(list(state.inference.forward(INPUTS).ravel()))

    def publish(state: Any) -> None:
        state.inference.publish(_weights(2))

    found = frontrun.explore(
        setup,
        [act, publish],
        lambda state: state.seen[0] in whole and list(state.inference.forward(INPUTS).ravel()) == whole[1],
        max_executions=200,
        trace_packages=["parallel_agents.*"],
    )
    found.assert_holds()
    assert found.num_explored >= 2


def _explore_reading(*, waits: bool) -> Any:
    """A collector that writes two columns of a row, and a learner that reads them."""

    def setup() -> Any:
        columns = {"observation": 1, "reward": 1}
        return SimpleNamespace(columns=columns, reading=Reading(lambda: dict(columns)))  # type: ignore[arg-type, return-value]

    def learner(state: Any) -> None:
        state.read = state.reading()

    def collector(state: Any) -> None:
        if waits:
            assert state.reading.wait(5.0)
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


def test_a_learner_that_reads_by_itself_never_sees_a_later_turn(explored_locks: None) -> None:
    _explore_reading(waits=True).assert_holds()


def test_the_exploration_notices_a_collector_that_does_not_wait(explored_locks: None) -> None:
    assert not _explore_reading(waits=False).property_holds


def test_a_snapshot_is_taken_once_whoever_asks_first() -> None:
    taken: list[int] = []
    reading = Reading(lambda: taken.append(1) or Snapshot(1, {}))  # type: ignore[func-returns-value]
    threads = [threading.Thread(target=reading) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert taken == [1]
    assert reading() is reading()
    assert reading.wait(0.0)
