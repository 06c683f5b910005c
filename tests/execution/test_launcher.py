"""The launcher starts the wanted backend or the next lower one; the autoscaler follows load and memory."""

from __future__ import annotations

from typing import Any

import pytest

from parallel_agents.execution.backend import Backend, InlineBackend
from parallel_agents.execution.launcher import WINDOW, Autoscaler, BackendLauncher
from parallel_agents.tracking.timeline import Timeline
from tests.execution.stub_stacks import MarkStack, expected, same

Events = list[tuple[str, dict[str, Any]]]


def launcher(stack: MarkStack, wanted: Any, *, lag: int = 1) -> tuple[BackendLauncher, Events]:
    events: Events = []
    made = BackendLauncher(
        [stack],
        wanted,
        together=True,
        lag=lag,
        most_workers=2,
        emit=lambda name, fields: events.append((name, fields)),
        timeline=Timeline(enabled=False),
    )
    return made, events


def train(backend: Backend, stack: MarkStack, rounds: range) -> None:
    for round_ in rounds:
        backend.submit(round_, [lambda r=round_: stack.snapshot(r)])  # type: ignore[misc]
        ((stack.state, _),) = backend.result(round_, 60.0)
    backend.close()


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr("parallel_agents.execution.process.Worker", fail)


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("parallel_agents.execution.thread._Worker", fail)


@pytest.mark.parametrize("wanted", ["inline", "thread", "process"])
def test_the_wanted_backend_is_started_without_an_event(wanted: str, nothing_left: None) -> None:
    stack = MarkStack(2)
    made, events = launcher(stack, wanted)
    backend = made.launch([stack.state], 1, last_round=3, workers=2)
    assert backend.name == wanted
    train(backend, stack, range(1, 4))
    assert same(stack.state, expected(MarkStack(2), 3))
    assert events == []


def test_without_processes_threads_are_started_and_remembered_with_one_event(
    no_processes: None, nothing_left: None
) -> None:
    stack = MarkStack(2)
    made, events = launcher(stack, "process")
    for first in (1, 3):  # the second launch goes on from the newest states, and asks for threads at once
        backend = made.launch([stack.state], first, last_round=4, workers=2)
        assert backend.name == "thread"
        train(backend, stack, range(first, first + 2))
    assert same(stack.state, expected(MarkStack(2), 4))
    degraded = {"wanted": "process", "used": "thread", "cause": "process: no more processes"}
    assert events == [("backend_degraded", degraded)]


def test_without_processes_and_threads_rounds_are_computed_inline_with_one_event(
    no_processes: None, no_threads: None
) -> None:
    made, events = launcher(MarkStack(2), "process")
    assert made.launch([MarkStack(2).state], 1, last_round=3, workers=2).name == "inline"
    cause = "process: no more processes; thread: can't start new thread"
    assert events == [("backend_degraded", {"wanted": "process", "used": "inline", "cause": cause})]


@pytest.mark.parametrize(("lag", "kind"), [(0, "InlineBackend"), (1, "AutoBackend")])
def test_rounds_that_are_awaited_at_once_are_never_moved_to_the_background(lag: int, kind: str) -> None:
    made, _ = launcher(MarkStack(2), "auto", lag=lag)
    backend = made.launch([MarkStack(2).state], 1, last_round=1000, workers=1)
    assert type(backend).__name__ == kind
    assert backend.name == InlineBackend.name


@pytest.mark.parametrize(
    ("workers", "waited", "busy", "memory", "wanted"),
    [
        (1, 0.5, 1.0, 0.5, 2),  # the collector waits
        (1, 0.5, 1.0, 0.01, 1),  # but memory is short
        (1, 0.1, 1.0, 0.5, 1),
        (3, 0.5, 1.0, 0.5, 3),  # there are no more to be had
        (2, 0.0, 0.1, 0.5, 1),  # one alone would be idle most of the time
        (2, 0.0, 0.9, 0.5, 2),
        (2, 0.5, 0.9, 0.01, 1),
    ],
)
def test_the_number_of_workers_follows_load_and_memory(
    workers: int, waited: float, busy: float, memory: float, wanted: int
) -> None:
    autoscaler = Autoscaler(workers, most=3, memory=lambda: memory)
    for _ in range(WINDOW):
        assert autoscaler.wanted(100) == workers  # not before there is something to judge by
        autoscaler.record(interval=1.0, waited=waited, busy=busy)
    assert autoscaler.wanted(100) == wanted
    assert autoscaler.wanted(100) == wanted


def test_no_worker_is_added_for_the_last_rounds() -> None:
    autoscaler = Autoscaler(1, most=3, memory=lambda: 0.5)
    for _ in range(WINDOW):
        autoscaler.record(interval=1.0, waited=0.5, busy=1.0)
    assert autoscaler.wanted(3) == 1
