"""A worker process answers in order, says what went wrong, and ends when asked."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import pytest

from parallel_agents.errors import DeadlineError, LearnerError, WorkerDied
from parallel_agents.runtime.heartbeat import Heart
from parallel_agents.runtime.workers import Worker


def echo(heart: Heart, greeting: str) -> Callable[[object], object]:
    """What the worker of these tests serves; the process imports it from here."""

    def answer(request: object) -> object:
        if request == "main":
            return vars(sys.modules["__main__"]).get("__file__")
        if request == "safe path":
            return os.environ.get("PYTHONSAFEPATH"), sys.flags.safe_path
        if request == "exit":
            os._exit(7)
        if request == "lock":
            return (lambda: None,)  # cannot be pickled
        if isinstance(request, float):
            time.sleep(request)
        return f"{greeting} {request}"

    return answer


def fails_at_start(heart: Heart) -> Callable[[object], object]:
    raise OSError("no such device")


@pytest.mark.parametrize("before", [None, "yes"])
def test_a_worker_starts_without_the_current_folder_and_its_environment_stays_as_it_was(
    before: str | None, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`PYTHONSAFEPATH` is set for the start alone: programs that a world starts find what they found before."""
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    if before is not None:
        monkeypatch.setenv("PYTHONSAFEPATH", before)
    worker = Worker("echo", echo, "hello")
    assert os.environ.get("PYTHONSAFEPATH") == before
    worker.send("safe path")
    assert worker.ready()
    assert worker.receive(20.0) == (before, True)
    worker.close()


def test_the_life_of_a_worker(nothing_left: None) -> None:
    worker = Worker("echo", echo, "hello")
    script = sys.modules["__main__"]
    assert worker.ready()
    assert worker.ready(0.0)  # asking again neither waits nor takes an answer away
    for request in (1, 2):
        worker.send(request)
    assert [worker.receive(20.0) for _ in range(2)] == ["hello 1", "hello 2"]
    assert not worker.answered()
    worker.send("main")
    assert worker.receive(20.0) is None  # it has not run the script that started it
    assert sys.modules["__main__"] is script
    worker.send(0.4)
    with pytest.raises(DeadlineError, match=r"echo \(pid \d+\) did not answer within 0\.05 s: it is at request 4"):
        worker.receive(0.05)
    assert "in answer" in worker.stacks()  # where it hangs
    worker.send(5)
    assert worker.receive(20.0) == "hello 5"  # not the answer that came too late
    assert worker.describe() == ""
    worker.send("lock")
    with pytest.raises(LearnerError, match=r"(?s)echo .*failed.*[Pp]ickle"):
        worker.receive(20.0)
    worker.close()


def test_a_worker_that_ends_by_itself_or_never_starts_is_reported(nothing_left: None) -> None:
    worker = Worker("echo", echo, "hello")
    broken = Worker("broken", fails_at_start)
    assert worker.ready()
    worker.send("exit")
    with pytest.raises(WorkerDied, match=r"echo \(pid \d+\) ended by exit code 7"):
        worker.receive(20.0)
    with pytest.raises(LearnerError, match=r"(?s)broken .* failed.*no such device"):
        broken.ready()
    worker.close()
    broken.close()
