"""Rounds come in order, none skipped or merged, published `lag` rounds behind, all trained at the end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_agents.algorithms.learner import LearnerState, RoundResult, Snapshot
from parallel_agents.core.config import Parallel
from parallel_agents.core.errors import DeadlineError, LearnerError
from parallel_agents.core.seeding import Identity
from parallel_agents.engine.loop import Rounds, Schedule
from parallel_agents.engine.plan import resolve
from parallel_agents.execution.launcher import Autoscaler
from parallel_agents.tracking.timeline import Timeline
from tests.equivalence.worlds import Odd
from tests.execution.stub_stacks import MarkLearner, MarkStack, expected, same


class RecordingStack(MarkStack):
    """A stub stack that records the states that its models are given."""

    def copy_state(self, state: LearnerState) -> None:
        self.settled.append(state)


class OrderStack(RecordingStack):
    """A stub stack that records in which order rounds are snapshotted and published."""

    def __init__(self, agents: int, *, waits_for_priorities: bool) -> None:
        super().__init__(agents)
        self.waits_for_priorities = waits_for_priorities
        self.calls: list[tuple[str, int]] = []

    def snapshot(self, round_: int) -> Snapshot:
        self.calls.append(("snapshot", round_))
        return super().snapshot(round_)

    def publish(self, version: int, state: LearnerState, result: RoundResult | None = None) -> None:
        self.calls.append(("publish", version))


def make_rounds(stacks: list[Any], *, lag: int, interval: int = 1, **flags: Any) -> tuple[Rounds, list[Any]]:
    """Return rounds of stub stacks, and the list of the events that they emit."""
    parallel = Parallel(**({"backend": "inline", "round_deadline": 20.0} | flags))
    plan = resolve(parallel, agents=sum(len(stack) for stack in stacks), available_cores=3)
    events: list[Any] = []

    def emit(name: str, fields: dict[str, Any]) -> None:
        events.append((name, fields))

    return Rounds(stacks, parallel, plan, Schedule(interval, lag), emit, Timeline(enabled=False)), events


def run_epochs(rounds: Rounds, epochs: range) -> None:
    """Do with the rounds what a run does."""
    rounds.open(rounds.schedule.rounds_until(epochs.stop - 1))
    try:
        for epoch in epochs:
            round_ = rounds.schedule.round_after(epoch)
            if round_ is not None:
                rounds.boundary(round_)
                assert rounds.published == max(0, rounds.submitted - rounds.schedule.lag)
        rounds.drain()
    finally:
        rounds.close()


# -- the schedule ---------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    interval=st.integers(1, 5),
    lag=st.integers(0, 4),
    stops=st.lists(st.integers(0, 30), min_size=1, max_size=3).map(sorted),
)
def test_no_round_is_skipped_merged_or_left_untrained(interval: int, lag: int, stops: list[int]) -> None:
    stack = RecordingStack(2)
    rounds, _ = make_rounds([stack], lag=lag, interval=interval)
    done = 0
    for stop in stops:
        run_epochs(rounds, range(done + 1, stop + 1))
        done = max(done, stop)
        last = done // interval
        assert rounds.submitted == last
        assert rounds.published == max(0, last - lag)
        assert sorted(rounds.waiting) == list(range(rounds.published + 1, last + 1))
        assert same(rounds.newest[0], expected(stack, last))
        assert same(stack.settled[-1], rounds.newest[0])
    assert stack.snapshots == list(range(1, rounds.submitted + 1))
    assert [version for version, _ in stack.published] == list(range(1, rounds.published + 1))
    assert all(same(state, expected(stack, version)) for version, state in stack.published)
    assert rounds.updates == rounds.submitted * len(stack)


@settings(max_examples=100, deadline=None)
@given(interval=st.integers(1, 50), lag=st.integers(0, 9), epoch=st.integers(1, 10_000))
def test_a_round_belongs_to_each_multiple_of_the_interval_and_to_no_other_epoch(
    interval: int, lag: int, epoch: int
) -> None:
    schedule = Schedule(interval, lag)
    round_ = schedule.round_after(epoch)
    assert schedule.rounds_until(epoch) - schedule.rounds_until(epoch - 1) == (round_ is not None)
    if round_ is not None:
        assert round_ * interval == epoch
        assert round_ == schedule.rounds_until(epoch)
        assert schedule.due_at(round_) == round_ - lag


@pytest.mark.parametrize("sync", ["snapshot", "lock"])
@pytest.mark.parametrize("lag", [0, 1, 3])
def test_learner_threads_keep_the_same_schedule(lag: int, sync: str, nothing_left: None) -> None:
    stacks = [RecordingStack(3), RecordingStack(2, first_agent=3)]
    rounds, _ = make_rounds(stacks, lag=lag, backend="thread", num_workers=2, buffer_sync=sync)
    run_epochs(rounds, range(1, 9))
    assert [version for version, _ in stacks[0].published] == list(range(1, 9 - lag))
    for stack in stacks:
        assert same(stack.settled[-1], expected(stack, 8))


@pytest.mark.parametrize("lag", [1, 2])
def test_a_round_that_reads_priorities_is_snapshotted_after_those_that_are_due_were_published(lag: int) -> None:
    """Every mode would learn from older priorities alike, so that no comparison of modes could tell."""
    prioritised, plain = (OrderStack(2, waits_for_priorities=waits) for waits in (True, False))
    for stack in (prioritised, plain):
        rounds, _ = make_rounds([stack], lag=lag)
        run_epochs(rounds, range(1, 5))
    for due in range(1, 5 - lag):
        assert prioritised.calls.index(("publish", due)) < prioritised.calls.index(("snapshot", due + lag))
        assert plain.calls.index(("publish", due)) > plain.calls.index(("snapshot", due + lag))


def test_a_boundary_returns_each_published_round_with_one_result_per_stack() -> None:
    rounds, _ = make_rounds([RecordingStack(3), RecordingStack(2, first_agent=3)], lag=1)
    rounds.open(3)
    assert rounds.boundary(1) == []
    (published,) = rounds.boundary(2)
    rounds.close()
    assert [(result.round, len(result.updates)) for result in published] == [(1, 3), (1, 2)]


def test_asap_publishes_every_finished_round_and_stays_within_the_lag() -> None:
    rounds, _ = make_rounds([RecordingStack(2)], lag=2, publish="asap", policy_lag=2)
    rounds.open(10)
    for round_ in range(1, 6):
        rounds.boundary(round_)
        assert rounds.submitted - rounds.published <= 2
        rounds.publish_ready()
        assert rounds.published == rounds.submitted  # inline rounds are finished at once
    rounds.close()


# -- failures -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lag", [1, 2])
def test_a_round_that_fails_twice_raises_where_no_failure_is_allowed(lag: int, nothing_left: None) -> None:
    """Also where learner threads take their snapshots themselves."""
    stack = RecordingStack(2, MarkLearner("raise", at_round=1))
    flags = {"backend": "thread", "num_workers": 1, "buffer_sync": "lock", "max_failures": 0}
    rounds, events = make_rounds([stack], lag=lag, **flags)
    rounds.open(9)

    def run() -> None:
        for round_ in range(1, 9):
            rounds.boundary(round_)
            rounds.wait_for_readers()  # the rounds after the failed one must be read too, or this hangs

    with pytest.raises(LearnerError, match=r"(?s)round 1 failed twice.*agents 0, 1.*the weights exploded"):
        run()
    rounds.close()
    assert [(name, fields["round"], fields["repeated"]) for name, fields in events] == [
        ("round_failed", 1, True),
        ("round_failed", 1, False),
    ]


def test_a_learner_that_never_takes_its_snapshot_raises_at_the_deadline() -> None:
    rounds, _ = make_rounds([RecordingStack(1)], lag=1, backend="thread", buffer_sync="lock", round_deadline=0.05)
    rounds.open(1)
    rounds._running.close()  # the thread has ended, so nobody takes the snapshot
    rounds.boundary(1)
    with pytest.raises(DeadlineError, match=r"did not read its buffers within 0\.05 s"):
        rounds.wait_for_readers()


@pytest.mark.parametrize("backend", ["inline", "thread"])
@pytest.mark.parametrize("lag", [0, 1, 2])
def test_a_round_that_fails_twice_is_skipped_and_the_others_are_not(lag: int, backend: str, nothing_left: None) -> None:
    class FailsInRound2(MarkLearner):
        def learn(self, state: LearnerState, snapshot: Snapshot, identity: Identity) -> Any:
            if snapshot.round == 2:
                raise ValueError("the weights exploded")
            counted = LearnerState({**state.tensors, "round": state["round"] * 0 + snapshot.round - 1})
            return super().learn(counted, snapshot, identity)

    stack = RecordingStack(2, FailsInRound2())
    rounds, events = make_rounds([stack], lag=lag, backend=backend, num_workers=1)
    run_epochs(rounds, range(1, 6))
    names = ("round_failed", "round_failed", "round_skipped")
    assert [(name, fields["round"]) for name, fields in events] == [(name, 2) for name in names]
    assert rounds.skipped == [2]
    assert [version for version, _ in stack.published] == list(range(1, 6 - lag))
    assert rounds.updates == 4 * 2
    assert int(stack.settled[-1]["round"][0]) == 5


# -- rejected updates -----------------------------------------------------------------------------------------


def test_an_agent_whose_every_update_was_rejected_for_several_rounds_ends_the_run() -> None:
    updates = {1: [3, 0, 2], 2: [3, 1, 0], 3: [3, 0, 3], 4: [3, 0, 3]}
    rejected = {1: [0, 3, 1], 2: [0, 2, 0], 3: [0, 3, 0], 4: [0, 3, 0]}  # in round 2, agent 6 has nothing to learn

    class RejectsUpdates(MarkLearner):
        def learn(self, state: LearnerState, snapshot: Snapshot, identity: Identity) -> Any:
            new, result = super().learn(state, snapshot, identity)
            counts = (np.array(own[snapshot.round]) for own in (updates, rejected))
            return new, replace(result, **dict(zip(("updates", "rejected"), counts, strict=True)))

    stack = RecordingStack(3, RejectsUpdates(), first_agent=4)
    rounds, events = make_rounds([stack], lag=0, max_failures=2)
    run_epochs(rounds, range(1, 4))
    assert [(name, fields["round"], fields["agent"], fields["rejected"]) for name, fields in events] == [
        ("updates_rejected", *fields) for fields in ((1, 5, 3), (1, 6, 1), (2, 5, 2), (3, 5, 3))
    ]
    with pytest.raises(LearnerError, match=r"agent 5 \(seed 0\): every update of 2 rounds in a row up to round 4"):
        run_epochs(rounds, range(4, 5))
    assert (rounds.updates, rounds.rejected) == (5 + 4 + 6 + 6, 4 + 2 + 3 + 3)


def test_an_agent_whose_weights_explode_ends_the_run_with_its_number() -> None:
    class Exploding(Odd):
        def setup_agents(self) -> None:
            super().setup_agents()
            self.agents[1].model.hyper.update(lr=1e38, lr_final=1e38)

    game = Exploding(config={"experiment": {"epochs": 40}, "parallel": {"backend": "inline", "max_failures": 2}})
    with pytest.raises(LearnerError, match=r"agent 1 \(seed 0\).*lower model\.lr"):
        game.run_experiment()


# -- workers --------------------------------------------------------------------------------------------------


class ChangingAutoscaler(Autoscaler):
    """Wants another number of workers at every boundary."""

    def wanted(self, rounds_left: int) -> int:
        return (2, 3, 1)[rounds_left % 3]


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_results_do_not_depend_on_a_changing_number_of_workers(lag: int, nothing_left: None) -> None:
    stacks = [RecordingStack(4), RecordingStack(2, first_agent=4)]
    rounds, events = make_rounds(stacks, lag=lag, backend="thread")
    rounds._autoscaler = ChangingAutoscaler(1, most=3)
    run_epochs(rounds, range(1, 9))
    assert len([name for name, _ in events if name == "workers_changed"]) >= 6
    for stack in stacks:
        assert same(stack.settled[-1], expected(stack, 8))
    assert [version for version, _ in stacks[0].published] == list(range(1, 9 - lag))


@pytest.mark.parametrize(
    ("flags", "scales"),
    [
        ({"backend": "thread"}, True),
        ({"backend": "process"}, True),
        ({"backend": "thread", "num_workers": 2}, False),
        ({"backend": "inline"}, False),
    ],
    ids=str,
)
def test_workers_are_scaled_only_where_the_configuration_leaves_their_number_open(
    flags: dict[str, Any], scales: bool
) -> None:
    rounds, _ = make_rounds([RecordingStack(4)], lag=1, **flags)
    assert (rounds._autoscaler is not None) == scales
