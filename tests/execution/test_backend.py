"""Inline, thread and process backends give the same states, and report failures with their cause."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from parallel_agents.core.errors import DeadlineError, LearnerError, WorkerDied
from parallel_agents.execution.backend import InlineBackend, LazySnapshot, Share, ever_smaller, join, split
from parallel_agents.execution.process import ProcessBackend
from parallel_agents.execution.thread import ThreadBackend
from parallel_agents.execution.watchdog import Watchdog
from parallel_agents.tracking.timeline import Timeline
from tests.execution.stub_stacks import RELEASE, MarkLearner, MarkStack, expected, same

DEADLINE = 60.0


def make(kind: str, stacks: list[MarkStack], *, workers: int = 1, together: bool = True, lag: int = 1) -> Any:
    states, timeline = [stack.state for stack in stacks], Timeline(enabled=False)
    if kind == "inline":
        return InlineBackend(stacks, states, together=together, timeline=timeline)
    if kind == "thread":
        return ThreadBackend(stacks, states, workers=workers, together=together, timeline=timeline)
    sizes: dict[str, Any] = {"workers": workers, "together": together, "lag": lag, "first_round": 1}
    return ProcessBackend(stacks, states, **sizes, timeline=timeline).started()


def snapshots(stacks: list[MarkStack], round_: int) -> list[LazySnapshot]:
    return [LazySnapshot(lambda stack=stack: stack.snapshot(round_)) for stack in stacks]  # type: ignore[misc]


def learn(backend: Any, stacks: list[MarkStack], round_: int) -> Any:
    backend.submit(round_, snapshots(stacks, round_))
    return backend.result(round_, DEADLINE)


def two_stacks(learner: Any = None) -> list[MarkStack]:
    return [MarkStack(5, learner), MarkStack(2, learner, first_agent=5, holds=False)]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("agents", [1, 2, 3, 7])
@pytest.mark.parametrize("workers", [1, 2, 3, 9])
def test_split_puts_every_agent_into_exactly_one_task(agents: int, workers: int, together: bool) -> None:
    stacks = [MarkStack(agents), MarkStack(4, holds=False)]
    shares = split(stacks, workers, together=together)
    assert 1 <= len(shares) <= workers
    assert all(shares)
    for index, stack in enumerate(stacks):
        tasks = [task for share in shares for task in share if task.stack == index]
        rows = [row for task in tasks for row in range(len(stack))[task.rows]]
        assert sorted(rows) == list(range(len(stack)))
        assert [agent for task in tasks for agent in task.identity.agents] == [stack.identity.agents[r] for r in rows]
        if not (together and stack.invariance.holds):
            assert len(tasks) == len(stack)


@pytest.mark.parametrize("agents", [1, 2, 3, 8, 127])
@pytest.mark.parametrize("workers", [1, 2, 3, 9])
def test_parts_that_grow_smaller_hold_every_agent_once(agents: int, workers: int) -> None:
    parts = ever_smaller(agents, workers)
    assert [row for part in parts for row in range(agents)[part]] == list(range(agents))
    sizes = [part.stop - part.start for part in parts]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 1 or workers == 1
    assert len(parts) >= min(agents, workers)


def test_join_gives_canonical_order_whatever_the_order_of_tasks() -> None:
    stacks = two_stacks()
    tasks = Share([task for share in split(stacks, 3, together=False) for task in share][::-1])
    done = [
        task.learner.learn(
            stacks[task.stack].state.rows(task.rows), stacks[task.stack].snapshot(1).rows(task.rows), task.identity
        )
        for task in tasks
    ]
    for stack, (state, result) in zip(stacks, join([tasks], done, 2), strict=True):
        assert same(state, expected(stack, 1))
        assert len(result.updates) == len(stack)


@pytest.mark.parametrize(
    ("kind", "workers", "together"),
    [
        ("inline", 1, True),
        ("inline", 1, False),
        *(("thread", workers, together) for workers in (1, 2, 3) for together in (True, False)),
        ("process", 2, True),
    ],
)
def test_all_backends_give_the_same_states(kind: str, workers: int, together: bool, nothing_left: None) -> None:
    stacks = two_stacks()
    backend = make(kind, stacks, workers=workers, together=together, lag=2)
    try:
        for round_ in (1, 2):  # lag 2: two rounds are submitted before the first result is asked for
            backend.submit(round_, snapshots(stacks, round_))
        for round_ in range(1, 8):
            done = backend.result(round_, DEADLINE)
            for stack, (state, result) in zip(stacks, done, strict=True):
                assert same(state, expected(stack, round_)), round_
                assert result.round == round_
                assert result.updates.tolist() == [1] * len(stack)
            if round_ < 6:
                backend.submit(round_ + 2, snapshots(stacks, round_ + 2))
    finally:
        backend.close()
    backend.close()  # may be called twice


@pytest.mark.parametrize("kind", ["inline", "thread"])
def test_poll_returns_whether_a_result_is_there(kind: str, nothing_left: None) -> None:
    stacks = two_stacks()
    backend = make(kind, stacks)
    assert not backend.poll(1)
    backend.submit(1, snapshots(stacks, 1))
    until = time.monotonic() + 20.0
    while not backend.poll(1) and time.monotonic() < until:
        time.sleep(0.005)
    assert backend.poll(1)
    backend.result(1, 0.0 if kind == "inline" else DEADLINE)
    assert not backend.poll(2)
    backend.close()


@pytest.mark.parametrize("how", ["raise", "raise unpicklable"])
@pytest.mark.parametrize("kind", ["inline", "thread", pytest.param("process", marks=pytest.mark.slow)])
def test_a_learner_that_raises_is_named_with_round_agents_and_cause(kind: str, how: str, nothing_left: None) -> None:
    stacks = [MarkStack(2, MarkLearner(how, at_round=2))]
    backend = make(kind, stacks)
    try:
        learn(backend, stacks, 1)
        with pytest.raises(LearnerError, match=r"(?s)round 2.*agents 0, 1.*the weights exploded"):
            learn(backend, stacks, 2)
    finally:
        backend.close()


def test_an_error_in_a_process_names_round_cause_and_process(nothing_left: None) -> None:
    stacks = [MarkStack(2, MarkLearner("raise unpicklable", at_round=1))]
    backend = make("process", stacks)
    pid = backend._workers[0].pid
    backend.submit(1, snapshots(stacks, 1))
    with pytest.raises(LearnerError, match=rf"(?s)^round 1: learner-0 \(pid {pid}\) failed.*the weights exploded"):
        backend.result(1, DEADLINE)
    backend.close()


def test_a_killed_process_is_reported_at_once_with_its_signal(nothing_left: None) -> None:
    stacks = [MarkStack(2, MarkLearner("die", at_round=1))]
    backend = make("process", stacks)
    began = time.monotonic()
    backend.submit(1, snapshots(stacks, 1))
    with pytest.raises(WorkerDied, match=r"round 1: learner-0 \(pid \d+\) ended by signal SIGKILL"):
        backend.result(1, DEADLINE)
    assert time.monotonic() - began < 2.0
    with pytest.raises(WorkerDied, match="ended by signal SIGKILL"):
        learn(backend, stacks, 2)  # nor can it be given more
    backend.close()


def test_a_hung_process_runs_into_its_deadline_and_is_ended(nothing_left: None) -> None:
    stacks = [MarkStack(2, MarkLearner("hang", at_round=1))]
    backend = make("process", stacks)
    pid = backend._workers[0].pid
    backend.submit(1, snapshots(stacks, 1))
    with pytest.raises(DeadlineError, match=r"round 1: learner-0 \(pid \d+\) did not answer within 0\.2 s"):
        backend.result(1, 0.2)
    backend.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_hung_thread_runs_into_its_deadline(nothing_left: None) -> None:
    stacks = [MarkStack(1, MarkLearner("hang", at_round=1))]
    backend = make("thread", stacks)
    backend.submit(1, snapshots(stacks, 1))
    with pytest.raises(DeadlineError, match=r"round 1 of learner-0 took longer than 0\.1 s"):
        backend.result(1, 0.1)
    RELEASE.set()
    backend.close()
    RELEASE.clear()


def test_processes_that_do_not_start_are_reported_and_not_left_behind(
    monkeypatch: pytest.MonkeyPatch, nothing_left: None
) -> None:
    ended: list[Any] = []

    class Sleeper:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def ready(self, timeout: float) -> bool:
            return False

        def ask_to_end(self) -> None: ...

        def end(self, timeout: float) -> None:
            ended.append(self)

    monkeypatch.setattr("parallel_agents.execution.process.Worker", Sleeper)
    with pytest.raises(DeadlineError, match="the learner processes did not start within 60 s"):
        make("process", two_stacks(), workers=2)
    assert len(ended) == 2


# -- the thread of the loop helps --------------------------------------------------------------------------------------


class Watched(MarkLearner):
    """Records which thread trained which agents in which round, and calls `before` first."""

    def __init__(self, before: Callable[[int], None]) -> None:
        super().__init__()
        self.__dict__.update(before=before, trained=[])

    def learn(self, state: Any, snapshot: Any, identity: Any) -> Any:
        self.__dict__["before"](snapshot.round)
        self.__dict__["trained"].append((snapshot.round, threading.current_thread().name, identity.agents))
        return super().learn(state, snapshot, identity)


def native(agents: int, before: Callable[[int], None]) -> tuple[MarkStack, list[tuple[int, str, tuple[int, ...]]]]:
    """Return a stack that counts as computed by kernels, and what is recorded of its training."""
    learner = Watched(before)
    stack = MarkStack(agents, learner)
    stack.native = True
    return stack, learner.__dict__["trained"]


def in_loop() -> bool:
    return threading.current_thread() is threading.main_thread()


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_the_thread_of_the_loop_is_one_of_the_workers(workers: int, nothing_left: None) -> None:
    stack, trained = native(9, lambda _: time.sleep(0.03))
    before = threading.active_count()
    backend = make("thread", [stack], workers=workers)
    assert threading.active_count() == before + workers - 1
    for round_ in range(1, 5):
        ((state, result),) = learn(backend, [stack], round_)
        assert same(state, expected(stack, round_))
        assert result.updates.tolist() == [1] * 9
    backend.close()
    names = {name for _, name, _ in trained}
    assert names == {"MainThread", *(f"learner-{index}" for index in range(workers - 1))}


def test_the_loop_does_not_help_where_its_thread_might_be_lost_or_one_worker_is_wanted(nothing_left: None) -> None:
    for workers, kernels in ((2, False), (1, True)):
        stack, trained = native(4, lambda _: None)
        stack.native = kernels
        backend = make("thread", [stack], workers=workers)
        learn(backend, [stack], 1)
        backend.close()
        assert len(trained) == workers
        assert {name for _, name, _ in trained} <= {f"learner-{index}" for index in range(workers)}


def test_the_loop_helps_with_the_round_it_waits_for_and_not_with_later_ones(nothing_left: None) -> None:
    release = threading.Event()

    def before(round_: int) -> None:
        if not in_loop():
            began.set()
            release.wait(20.0)

    began = threading.Event()
    stack, trained = native(8, before)
    backend = make("thread", [stack], workers=2, lag=2)
    backend.submit(1, snapshots([stack], 1))
    assert began.wait(20.0)  # the learner thread holds the first task of round 1
    backend.submit(2, snapshots([stack], 2))
    with pytest.raises(
        DeadlineError, match=r"round 1 of learner-0 took longer than 0\.2 s: it is at round 1 of agents 0"
    ):
        backend.result(1, 0.2)
    assert [agents for round_, _, agents in trained if round_ == 1] == [(4, 5), (6,), (7,)]
    assert {round_ for round_, _, _ in trained} == {1}
    release.set()
    for round_ in (1, 2):
        ((state, _),) = backend.result(round_, DEADLINE)
        assert same(state, expected(stack, round_))
    backend.close()


def test_a_failure_in_the_thread_of_the_loop_is_reported_as_such(nothing_left: None) -> None:
    def before(_: int) -> None:
        if in_loop():
            raise ValueError("the weights exploded")
        time.sleep(0.1)

    stack, _ = native(4, before)
    backend = make("thread", [stack], workers=2)
    backend.submit(1, snapshots([stack], 1))
    with pytest.raises(LearnerError, match=r"(?s)round 1 failed in learner in the thread of the loop.*exploded"):
        backend.result(1, DEADLINE)
    assert backend.poll(1)
    backend.close()


def test_what_hangs_in_the_thread_of_the_loop_is_reported_with_its_round_and_interrupted(
    nothing_left: None, capsys: pytest.CaptureFixture[str]
) -> None:
    def before(_: int) -> None:
        time.sleep(30.0 if in_loop() else 0.2)

    stack, _ = native(4, before)
    backend = make("thread", [stack], workers=2)
    began = time.monotonic()
    with Watchdog(backend.workers, limit=0.5):
        backend.submit(1, snapshots([stack], 1))
        with pytest.raises(
            LearnerError, match=r"(?s)round 1 failed in .*the loop.*DeadlineError.*round 1 of agents [02]"
        ):
            backend.result(1, DEADLINE)
    assert time.monotonic() - began < 10.0
    backend.close()
    assert "hung: worker learner in the thread of the loop, at round 1 of agents" in capsys.readouterr().err


def test_a_user_who_interrupts_the_loop_is_not_kept_by_a_task(nothing_left: None) -> None:
    def before(_: int) -> None:
        if in_loop():
            raise KeyboardInterrupt
        time.sleep(0.1)

    stack, _ = native(4, before)
    backend = make("thread", [stack], workers=2)
    backend.submit(1, snapshots([stack], 1))
    with pytest.raises(KeyboardInterrupt):
        backend.result(1, DEADLINE)
    backend.close()
