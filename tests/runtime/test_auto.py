"""The backend that moves by measured cost, with a clock that the test turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from parallel_agents.errors import LearnerError, WorkerDied
from parallel_agents.runtime.backends import AutoBackend, InlineBackend, ThreadBackend
from parallel_agents.runtime.backends.auto import LONG_UPDATE, START_COST, TRIAL
from parallel_agents.tracking.timeline import Timeline
from parallel_agents.types import Snapshot, State
from tests.runtime.stub_stacks import MarkLearner, MarkStack, expected, same


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Inline(InlineBackend):
    """Inline, with a price on its rounds."""

    def __init__(self, stack: MarkStack, states: Sequence[State], clock: Clock, price: float) -> None:
        super().__init__([stack], states, together=True, timeline=Timeline(enabled=False))
        self._clock, self._price = clock, price
        self.closed = 0

    def submit(self, round_: int, takes: Any) -> None:
        super().submit(round_, takes)
        self._clock.now += self._price
        self.learn_seconds = self._price

    def close(self, patience: float = 0.0) -> None:
        super().close(patience)
        self.closed += 1


class Process:
    """As much of a process backend as the move needs; its rounds are computed when they are asked for."""

    name = "process"

    def __init__(self, stack: MarkStack, states: Sequence[State], first_round: int) -> None:
        self.stack, self.made_for = stack, first_round
        self.load(states, first_round)
        self.waits_before_ready = 0
        self.dies = False
        self.closed = 0
        self.jobs: dict[int, Snapshot] = {}

    def load(self, states: Sequence[State], first_round: int) -> None:
        self.state, self.first_round = states[0], first_round

    def ready(self, timeout: float) -> bool:
        assert timeout == 0.0, "the collector must not wait for a process to start"
        if self.dies:
            raise WorkerDied("learner-0 (pid 1) ended by signal SIGKILL")
        self.waits_before_ready -= 1
        return self.waits_before_ready < 0

    def submit(self, round_: int, takes: Sequence[Callable[[], Snapshot]]) -> None:
        self.jobs[round_] = takes[0]()

    def poll(self, round_: int) -> bool:
        return round_ in self.jobs

    def result(self, round_: int, timeout: float) -> list[Any]:
        self.state, result = MarkLearner().learn(self.state, self.jobs.pop(round_), self.stack.identity)
        return [(self.state, result)]

    def close(self, patience: float = 0.0) -> None:
        self.closed += 1


class Course:
    """A run of rounds at lag 1 under a given price of collecting and learning."""

    def __init__(
        self,
        *,
        rounds: int,
        collect: float,
        learn: float,
        learner: MarkLearner | None = None,
        updates: int = 1000,
        **process: Any,
    ) -> None:
        self.clock, self.stack = Clock(), MarkStack(2, learner)
        self.collect, self.rounds = collect, rounds
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.processes: list[Process] = []
        self.inlines: list[Inline] = []
        self.threads: list[ThreadBackend] = []
        self.names: list[str] = []

        def inline(states: Sequence[State]) -> Inline:
            self.inlines.append(Inline(self.stack, states, self.clock, learn))
            return self.inlines[-1]

        def make(states: Sequence[State], first_round: int) -> Any:
            if process.get("cannot_be_made"):
                raise OSError("no more processes")
            made = Process(self.stack, states, first_round)
            made.waits_before_ready = process.get("waits", 0)
            made.dies = process.get("dies", False)
            self.processes.append(made)
            return made

        def thread(states: Sequence[State]) -> Any:
            self.threads.append(
                ThreadBackend([self.stack], states, workers=2, together=True, timeline=Timeline(enabled=False))
            )
            return self.threads[-1]

        self.backend = AutoBackend(
            inline,
            make,
            thread,
            [self.stack.state],
            updates=updates,
            last_round=rounds,
            tell=lambda name, fields: self.told.append((name, fields)),
            clock=self.clock,
        )

    def run(self, *, collect_beside: float | None = None) -> None:
        for round_ in range(1, self.rounds + 1):
            beside = self.backend.name != "inline" and collect_beside is not None
            self.clock.now += collect_beside if beside else self.collect  # type: ignore[operator]
            if round_ > 1:
                self.check(round_ - 1)
            self.backend.submit(round_, [lambda r=round_: self.stack.snapshot(r)])  # type: ignore[misc]
            self.names.append(self.backend.name)
        self.check(self.rounds)
        self.backend.close()

    def check(self, round_: int) -> None:
        """Whatever has moved where: the result is that of the plain loop."""
        ((state, result),) = self.backend.result(round_, 1.0)
        assert result.round == round_
        assert same(state, expected(self.stack, round_))


def test_it_moves_when_the_rounds_that_are_left_pay_for_it() -> None:
    course = Course(rounds=20, collect=1.0, learn=1.0)
    course.run(collect_beside=1.1)
    assert course.names[:2] == ["inline", "inline"]
    assert set(course.names[2:]) == {"process"}
    assert course.told == [("backend_moved", {"to": "process", "round": 3})]
    assert course.processes[0].made_for == 3
    assert course.processes[0].closed == 1


def test_it_stays_inline_while_the_process_starts() -> None:
    course = Course(rounds=20, collect=1.0, learn=1.0, waits=3)
    course.run(collect_beside=1.1)
    assert course.names[:5] == ["inline"] * 5
    assert set(course.names[5:]) == {"process"}
    assert len(course.processes) == 1
    assert course.processes[0].first_round == 6  # it starts from the states of the round before, not from its first


def test_it_moves_back_for_good_where_the_process_is_slower() -> None:
    course = Course(rounds=30, collect=1.0, learn=1.0)
    course.run(collect_beside=2.5)
    moved = course.names.index("process")
    assert course.names[moved : moved + TRIAL] == ["process"] * TRIAL
    assert set(course.names[moved + TRIAL :]) == {"inline"}
    assert [fields["to"] for _, fields in course.told] == ["process", "inline"]
    assert len(course.processes) == 1, "it has tried, and does not try again"
    assert course.processes[0].closed == 1


def test_long_updates_are_left_to_threads_at_once() -> None:
    course = Course(rounds=12, collect=0.05, learn=3 * LONG_UPDATE, updates=2)
    course.run(collect_beside=3 * LONG_UPDATE)
    assert course.names == ["inline"] * 2 + ["thread"] * 10
    assert course.told == [("backend_moved", {"to": "thread", "round": 3})]
    assert course.processes == []


def test_threads_that_turn_out_slower_are_left_for_good() -> None:
    course = Course(rounds=20, collect=1.0, learn=1.0, updates=1)
    course.run(collect_beside=2.5)
    assert course.names == ["inline"] * 2 + ["thread"] * TRIAL + ["inline"] * (18 - TRIAL)
    assert course.processes == []
    assert not any(worker.thread.is_alive() for worker in course.threads[0]._workers)


def test_for_the_last_few_rounds_no_thread_is_started() -> None:
    course = Course(rounds=2 + TRIAL, collect=1.0, learn=1.0, updates=1)
    course.run()
    assert set(course.names) == {"inline"}


@pytest.mark.parametrize(
    ("rounds", "collect", "learn"),
    [
        (6, 1.0, 1.0),  # too few rounds are left
        (1000, 0.001, 5.0),  # hardly anything to collect meanwhile
        (1000, 5.0, 0.001),  # hardly anything to learn
    ],
)
def test_it_stays_where_a_move_would_not_pay(rounds: int, collect: float, learn: float) -> None:
    assert min(collect, learn) * (rounds - 2) <= START_COST
    course = Course(rounds=min(rounds, 12), collect=collect, learn=learn)
    course.backend._last_round = rounds
    course.run()
    assert course.processes == []
    assert course.told == []
    assert course.inlines[0].closed == 1


@pytest.mark.parametrize(
    ("fate", "cause"),
    [({"dies": True}, "learner-0 (pid 1) ended by signal SIGKILL"), ({"cannot_be_made": True}, "no more processes")],
)
def test_a_process_that_cannot_be_had_leaves_the_rounds_inline(fate: dict[str, bool], cause: str) -> None:
    course = Course(rounds=20, collect=1.0, learn=1.0, **fate)
    course.run()
    assert set(course.names) == {"inline"}
    assert course.told == [("backend_kept", {"backend": "inline", "cause": cause})]
    assert [process.closed for process in course.processes] == ([1] if "dies" in fate else [])


def test_closing_ends_a_process_that_has_not_taken_over_yet() -> None:
    course = Course(rounds=20, collect=1.0, learn=1.0, waits=100)
    course.run()
    assert course.processes[0].closed == 1
    assert course.inlines[0].closed == 1


def test_a_round_that_failed_is_told_when_it_is_asked_for_and_nothing_moves() -> None:
    course = Course(rounds=20, collect=1.0, learn=1.0, learner=MarkLearner("raise", at_round=2))
    for round_ in (1, 2, 3):
        course.clock.now += 1.0
        course.backend.submit(round_, [lambda r=round_: course.stack.snapshot(r)])  # type: ignore[misc]
    course.check(1)
    with pytest.raises(LearnerError, match=r"round 2 of agents 0, 1 failed.*the weights exploded"):
        course.backend.result(2, 1.0)
    assert course.processes == []
    assert course.backend.name == "inline"
