"""What the operating system reports, and calls in threads of their own."""

from __future__ import annotations

import threading

import pytest

from parallel_agents.core import system
from parallel_agents.core.system import BackgroundThread, available_bytes, free_memory, in_background


def test_free_memory_is_a_share_and_available_memory_is_bytes() -> None:
    assert 0.0 < free_memory() <= 1.0
    assert available_bytes() > 2**20


def test_a_background_thread_makes_calls_in_order_and_ends_when_closed() -> None:
    made: list[int] = []
    thread = BackgroundThread("worker of a test")
    futures = [thread.submit(lambda n=n: made.append(n) or threading.current_thread().name) for n in range(20)]  # type: ignore[func-returns-value, misc]
    assert {future.result(5.0) for future in futures} == {"worker of a test"}
    assert made == list(range(20))
    assert thread.thread.daemon
    thread.close()
    thread.thread.join(5.0)
    assert not thread.thread.is_alive()


def test_a_call_that_raises_gives_its_error_and_the_next_call_is_made() -> None:
    thread = BackgroundThread("worker of a test")
    failed, fine = thread.submit(lambda: 1 / 0), thread.submit(lambda: 2)
    with pytest.raises(ZeroDivisionError):
        failed.result(5.0)
    assert fine.result(5.0) == 2
    thread.close()


def test_without_a_thread_the_call_is_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(system, "BackgroundThread", fail)
    assert in_background(threading.current_thread, "nobody").result(0.0) is threading.current_thread()
