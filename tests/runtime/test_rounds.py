"""Rounds come in order, none skipped or merged, published `lag` behind, all trained at the end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_agents.config import Parallel
from parallel_agents.errors import DeadlineError, LearnerError
from parallel_agents.runtime.plan import Plan, resolve
from parallel_agents.runtime.rounds import Rounds
from parallel_agents.runtime.schedule import Schedule
from parallel_agents.tracking.timeline import Timeline
from parallel_agents.types import Identity, Snapshot, State
from tests.runtime.stub_stacks import MarkLearner, MarkStack, expected, same


def make(stacks: list[MarkStack], *, lag: int, interval: int = 1, **flags: Any) -> tuple[Rounds, list[Any]]:
    parallel = Parallel(**({"backend": "inline", "round_deadline": 20.0} | flags))
    plan: Plan = resolve(parallel, agents=sum(len(stack) for stack in stacks), available_cores=3)
    told: list[Any] = []
    rounds = Rounds(
        stacks,  # type: ignore[arg-type]
        parallel,
        plan,
        Schedule(interval, lag),
        lambda name, fields: told.append((name, fields)),
        Timeline(enabled=False),
    )
    return rounds, told


def conduct(rounds: Rounds, epochs: range) -> None:
    """What a run does with them."""
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


@settings(max_examples=60, deadline=None)
@given(
    interval=st.integers(1, 5),
    lag=st.integers(0, 4),
    stops=st.lists(st.integers(0, 30), min_size=1, max_size=3).map(sorted),
)
def test_no_round_is_skipped_merged_or_left_untrained(interval: int, lag: int, stops: list[int]) -> None:
    stack = MarkStack(2)
    rounds, _ = make([stack], lag=lag, interval=interval)
    done = 0
    for stop in stops:
        conduct(rounds, range(done + 1, stop + 1))
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
    grown = schedule.rounds_until(epoch) - schedule.rounds_until(epoch - 1)
    assert grown == (round_ is not None)
    if round_ is not None:
        assert round_ * interval == epoch
        assert round_ == schedule.rounds_until(epoch)
        assert schedule.due_at(round_) == round_ - lag


@pytest.mark.parametrize("sync", ["snapshot", "lock"])
@pytest.mark.parametrize("lag", [0, 1, 3])
def test_threads_keep_the_same_schedule(lag: int, sync: str, nothing_left: None) -> None:
    stacks = [MarkStack(3), MarkStack(2, first_agent=3)]
    rounds, _ = make(stacks, lag=lag, backend="thread", num_workers=2, buffer_sync=sync)
    conduct(rounds, range(1, 9))
    assert [version for version, _ in stacks[0].published] == list(range(1, 9 - lag))
    for stack in stacks:
        assert same(stack.settled[-1], expected(stack, 8))


def test_what_a_round_gave_is_told_once_per_stack() -> None:
    stacks = [MarkStack(3), MarkStack(2, first_agent=3)]
    rounds, _ = make(stacks, lag=1)
    rounds.open(3)
    assert rounds.boundary(1) == []
    (published,) = rounds.boundary(2)
    rounds.close()
    assert [(result.round, len(result.updates)) for result in published] == [(1, 3), (1, 2)]


def test_free_running_publishes_what_is_there_and_never_falls_behind_the_bound() -> None:
    stack = MarkStack(2)
    rounds, _ = make([stack], lag=2, publish="asap", policy_lag=2)
    rounds.open(10)
    for round_ in range(1, 6):
        rounds.boundary(round_)
        assert rounds.submitted - rounds.published <= 2
        rounds.publish_ready()
        assert rounds.published == rounds.submitted  # inline rounds are there at once
    rounds.close()


@pytest.mark.parametrize("lag", [1, 2])
def test_a_failed_round_is_told_and_named_even_if_the_learner_reads_by_itself(lag: int, nothing_left: None) -> None:
    stack = MarkStack(2, MarkLearner("raise", at_round=1))
    rounds, told = make([stack], lag=lag, backend="thread", num_workers=1, buffer_sync="lock", max_failures=0)
    rounds.open(9)

    def conduct() -> None:
        for round_ in range(1, 9):
            rounds.boundary(round_)
            rounds.wait_for_readers()  # the rounds behind the failed one must be read too, or this hangs

    with pytest.raises(LearnerError, match=r"(?s)round 1 failed twice.*agents 0, 1.*the weights exploded"):
        conduct()
    rounds.close()
    assert [(name, fields["round"], fields["repeated"]) for name, fields in told] == [
        ("round_failed", 1, True),
        ("round_failed", 1, False),
    ]


def test_a_learner_that_never_reads_is_not_awaited_for_ever() -> None:
    stack = MarkStack(1)
    rounds, _ = make([stack], lag=1, backend="thread", buffer_sync="lock", round_deadline=0.05)
    rounds.open(1)
    rounds._backend.close()  # the thread has ended, so nobody reads
    rounds.boundary(1)
    with pytest.raises(DeadlineError, match=r"did not read its buffers within 0\.05 s"):
        rounds.wait_for_readers()


@pytest.mark.parametrize("threads", [True, False])
def test_where_processes_cannot_be_had_threads_are_taken_and_then_none(
    threads: bool, monkeypatch: pytest.MonkeyPatch, nothing_left: None
) -> None:
    def no_worker(*_: Any, **__: Any) -> None:
        raise OSError("no more processes")

    def no_thread(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("parallel_agents.runtime.backends.process.Worker", no_worker)
    if not threads:
        monkeypatch.setattr("parallel_agents.runtime.backends.thread._Worker", no_thread)
    stack = MarkStack(2)
    rounds, told = make([stack], lag=1, backend="process")
    conduct(rounds, range(1, 4))
    assert same(stack.settled[-1], expected(stack, 3))
    steps = [(fields["wanted"], fields["used"], fields["cause"]) for _, fields in told]
    if threads:
        assert steps == [("process", "thread", "process: no more processes")]
    else:  # one warning, whatever was tried
        assert steps == [("process", "inline", "process: no more processes; thread: can't start new thread")]


def test_nothing_is_moved_to_the_background_where_each_round_is_awaited_at_once() -> None:
    rounds, _ = make([MarkStack(2)], lag=0, backend=None, use_threads=None)
    rounds.open(1000)
    assert rounds.plan.backend == "auto"
    assert rounds.backend == "inline"
    assert type(rounds._backend).__name__ == "InlineBackend"
    rounds.close()


@pytest.mark.parametrize("backend", ["inline", "thread"])
@pytest.mark.parametrize("lag", [0, 1, 2])
def test_a_round_that_fails_twice_is_skipped_and_the_others_are_not(lag: int, backend: str, nothing_left: None) -> None:
    """Where it is computed makes no difference to what is repeated, skipped and told."""

    class Stumbling(MarkLearner):
        def learn(self, state: State, snapshot: Snapshot, identity: Identity) -> Any:
            if snapshot.round == 2:
                raise ValueError("the weights exploded")
            counted = State({**state.tensors, "round": state["round"] * 0 + snapshot.round - 1})
            return super().learn(counted, snapshot, identity)

    stack = MarkStack(2, Stumbling())
    rounds, told = make([stack], lag=lag, backend=backend, num_workers=1)
    conduct(rounds, range(1, 6))
    assert [(name, fields["round"]) for name, fields in told] == [
        ("round_failed", 2), ("round_failed", 2), ("round_skipped", 2),
    ]  # fmt: skip
    assert rounds.skipped == [2]
    assert [version for version, _ in stack.published] == list(range(1, 6 - lag))
    assert rounds.updates == 4 * 2
    assert int(stack.settled[-1]["round"][0]) == 5
