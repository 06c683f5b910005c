"""What the operating system gives: memory that is left, and threads for calls that wait for something outside."""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TypeVar

Answer = TypeVar("Answer")


def free_memory() -> float:
    """Return the share of the machine's memory that is free; 1 if the system does not say."""
    sizes = _memory()
    return sizes.get("MemAvailable", 1.0) / sizes.get("MemTotal", 1.0)


def available_bytes() -> float:
    """Return the bytes of memory that can still be allocated; infinity if the system does not say."""
    return _memory().get("MemAvailable", float("inf")) * 1024.0


def _memory() -> dict[str, float]:
    """Return what Linux reports about its memory, in KiB; nothing on other systems."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    return {name: float(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}


class BackgroundThread:
    """A thread that makes calls one after the other.

    It is a daemon, unlike those of an executor: a call that never returns must not keep the interpreter from ending.
    Its log records carry the context of the thread that made it.
    """

    def __init__(self, name: str) -> None:
        """Start the thread; raise RuntimeError if the system gives none."""
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(
            target=contextvars.copy_context().run, args=(self._work,), name=name, daemon=True
        )
        self.thread.start()

    def submit(self, call: Callable[[], Answer]) -> Future[Answer]:
        """Make a call after those before it, and return the future of its answer."""
        future: Future[Answer] = Future()
        self._calls.put(partial(_complete, future, call))
        return future

    def close(self) -> None:
        """Let the thread end after the calls so far; return at once."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def in_background(call: Callable[[], Answer], name: str) -> Future[Answer]:
    """Make a call in a thread of its own, or at once if the system gives no thread; return the future of its answer.

    >>> in_background(lambda: 6 * 7, "question").result(timeout=5)
    42
    """
    try:
        thread = BackgroundThread(name)
    except RuntimeError:
        future: Future[Answer] = Future()
        _complete(future, call)
        return future
    answer = thread.submit(call)
    thread.close()
    return answer


def _complete(future: Future[Answer], call: Callable[[], Answer]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:
        future.set_exception(error)
