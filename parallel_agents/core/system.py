"""What the operating system gives: memory that is left, and threads for calls that wait for something outside."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
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


def in_background(call: Callable[[], Answer], name: str) -> Future[Answer]:
    """Start a call in a thread of its own, and return the future of its answer.

    The thread is a daemon, unlike those of an executor: a call that never returns must not keep the interpreter from
    ending.

    >>> in_background(lambda: 6 * 7, "question").result(timeout=5)
    42
    """
    future: Future[Answer] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    context = contextvars.copy_context()  # so that log records of this thread carry the run's context
    try:
        threading.Thread(target=context.run, args=(work,), name=name, daemon=True).start()
    except RuntimeError:  # the system gives no more threads: make the caller wait
        work()
    return future
