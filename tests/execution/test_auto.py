"""The auto backend moves by measured cost, here with a clock that the test sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from parallel_agents.algorithms.learner import LearnerState, Snapshot
from parallel_agents.core.errors import LearnerError, WorkerDied
from parallel_agents.execution.auto import LONG_UPDATE, START_COST, TRIAL, AutoBackend
from parallel_agents.execution.backend import InlineBackend
from parallel_agents.execution.thread import ThreadBackend
from parallel_agents.tracking.timeline import Timeline
from tests.execution.stub_stacks import MarkLearner, MarkStack, expected, same


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Inline(InlineBackend):
    """An inline backend whose rounds take a given time."""

    def __init__(self, stack: MarkStack, states: Sequence[LearnerState], clock: Clock, seconds: float) -> None:
        super().__init__([stack], states, together=True, timeline=Timeline(enabled=False))
        self._clock, self._seconds = clock, seconds
        self.closed = 0

    def submit(self, round_: int, snapshots: Any) -> None:
        super().submit(round_, snapshots)
        self._clock.now += self._seconds
        self.learn_seconds = self._seconds

    def close(self, patience: float = 0.0) -> None:
        super().close(patience)
        self.closed += 1


class Process:
    """As much of a process backend as a move needs. It computes a round when its result is asked for."""

    name = "process"

    def __init__(self, stack: MarkStack, states: Sequence[LearnerState], first_round: int) -> None:
        self.stack, self.made_for = stack, first_round
        self.load(states, first_round)
        self.polls_before_ready = 0
        self.dies = False
        self.closed = 0
        self.jobs: dict[int, Snapshot] = {}

    def load(self, states: Sequence[LearnerState], first_round: int) -> None:
        self.state, self.first_round = states[0], first_round

    def ready(self, timeout: float) -> bool:
        assert timeout == 0.0, "the collector must not wait for a process to start"
        if self.dies:
            raise WorkerDied("learner-0 (pid 1) ended by signal SIGKILL")
        self.polls_before_ready -= 1
        return self.polls_before_ready < 0

    def submit(self, round_: int, snapshots: Sequence[Callable[[], Snapshot]]) -> None:
        self.jobs[round_] = snapshots[0]()

    def poll(self, round_: int) -> bool:
        return round_ in self.jobs

    def result(self, round_: int, timeout: float) -> list[Any]:
        self.state, result = MarkLearner().learn(self.state, self.jobs.pop(round_), self.stack.identity)
        return [(self.state, result)]

    def close(self, patience: float = 0.0) -> None:
        self.closed += 1


class Case:
    """Rounds at lag 1 with given seconds of collecting and learning."""

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
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.processes: list[Process] = []
        self.inlines: list[Inline] = []
        self.threads: list[ThreadBackend] = []
        self.names: list[str] = []

        def inline(states: Sequence[LearnerState]) -> Inline:
            self.inlines.append(Inline(self.stack, states, self.clock, learn))
            return self.inlines[-1]

        def make(states: Sequence[LearnerState], first_round: int) -> Any:
            if process.get("cannot_be_made"):
                raise OSError("no more processes")
            made = Process(self.stack, states, first_round)
            made.polls_before_ready = process.get("waits", 0)
            made.dies = process.get("dies", False)
            self.processes.append(made)
            return made

        def thread(states: Sequence[LearnerState]) -> Any:
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
            emit=lambda name, fields: self.events.append((name, fields)),
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
        """Fail unless the result is that of the plain loop, wherever it was computed."""
        ((state, result),) = self.backend.result(round_, 1.0)
        assert result.round == round_
        assert same(state, expected(self.stack, round_))


def test_it_moves_to_a_process_if_the_rounds_that_are_left_pay_for_it() -> None:
    case = Case(rounds=20, collect=1.0, learn=1.0)
    case.run(collect_beside=1.1)
    assert case.names[:2] == ["inline", "inline"]
    assert set(case.names[2:]) == {"process"}
    assert case.events == [("backend_moved", {"to": "process", "round": 3, "level": "info"})]
    assert case.processes[0].made_for == 3
    assert case.processes[0].closed == 1


def test_it_stays_inline_while_the_process_starts() -> None:
    case = Case(rounds=20, collect=1.0, learn=1.0, waits=3)
    case.run(collect_beside=1.1)
    assert case.names[:5] == ["inline"] * 5
    assert set(case.names[5:]) == {"process"}
    assert len(case.processes) == 1
    assert case.processes[0].first_round == 6  # it starts from the states of the round before, not from its first


def test_it_moves_back_for_good_if_the_process_is_slower() -> None:
    case = Case(rounds=30, collect=1.0, learn=1.0)
    case.run(collect_beside=2.5)
    moved = case.names.index("process")
    assert case.names[moved : moved + TRIAL] == ["process"] * TRIAL
    assert set(case.names[moved + TRIAL :]) == {"inline"}
    assert [fields["to"] for _, fields in case.events] == ["process", "inline"]
    assert len(case.processes) == 1, "it has tried, and does not try again"
    assert case.processes[0].closed == 1


def test_it_moves_to_threads_if_updates_are_long() -> None:
    case = Case(rounds=12, collect=0.05, learn=3 * LONG_UPDATE, updates=2)
    case.run(collect_beside=3 * LONG_UPDATE)
    assert case.names == ["inline"] * 2 + ["thread"] * 10
    assert case.events == [("backend_moved", {"to": "thread", "round": 3, "level": "info"})]
    assert case.processes == []


def test_it_moves_back_for_good_if_threads_are_slower() -> None:
    case = Case(rounds=20, collect=1.0, learn=1.0, updates=1)
    case.run(collect_beside=2.5)
    assert case.names == ["inline"] * 2 + ["thread"] * TRIAL + ["inline"] * (18 - TRIAL)
    assert case.processes == []
    assert not any(thread.is_alive() for thread in case.threads[0]._threads.values())


def test_no_thread_is_started_for_the_last_few_rounds() -> None:
    case = Case(rounds=2 + TRIAL, collect=1.0, learn=1.0, updates=1)
    case.run()
    assert set(case.names) == {"inline"}


@pytest.mark.parametrize(
    ("rounds", "collect", "learn"),
    [
        (6, 1.0, 1.0),  # too few rounds are left
        (1000, 0.001, 5.0),  # hardly anything to collect meanwhile
        (1000, 5.0, 0.001),  # hardly anything to learn
    ],
)
def test_it_stays_inline_if_a_move_would_not_pay(rounds: int, collect: float, learn: float) -> None:
    assert min(collect, learn) * (rounds - 2) <= START_COST
    case = Case(rounds=min(rounds, 12), collect=collect, learn=learn)
    case.backend._last_round = rounds
    case.run()
    assert case.processes == []
    assert case.events == []
    assert case.inlines[0].closed == 1


@pytest.mark.parametrize(
    ("fate", "cause"),
    [({"dies": True}, "learner-0 (pid 1) ended by signal SIGKILL"), ({"cannot_be_made": True}, "no more processes")],
)
def test_it_stays_inline_if_a_process_cannot_be_started(fate: dict[str, bool], cause: str) -> None:
    case = Case(rounds=20, collect=1.0, learn=1.0, **fate)
    case.run()
    assert set(case.names) == {"inline"}
    assert case.events == [("backend_kept", {"backend": "inline", "cause": cause})]
    assert [process.closed for process in case.processes] == ([1] if "dies" in fate else [])


def test_closing_ends_a_process_that_has_not_taken_over_yet() -> None:
    case = Case(rounds=20, collect=1.0, learn=1.0, waits=100)
    case.run()
    assert case.processes[0].closed == 1
    assert case.inlines[0].closed == 1


def test_a_failed_round_is_raised_when_its_result_is_asked_for_and_nothing_moves() -> None:
    case = Case(rounds=20, collect=1.0, learn=1.0, learner=MarkLearner("raise", at_round=2))
    for round_ in (1, 2, 3):
        case.clock.now += 1.0
        case.backend.submit(round_, [lambda r=round_: case.stack.snapshot(r)])  # type: ignore[misc]
    case.check(1)
    with pytest.raises(LearnerError, match=r"round 2 of agents 0, 1 failed.*the weights exploded"):
        case.backend.result(2, 1.0)
    assert case.processes == []
    assert case.backend.name == "inline"
