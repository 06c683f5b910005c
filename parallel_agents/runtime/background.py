"""A call in a thread of its own, for what waits for something outside."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

__all__ = ["in_background"]

Answer = TypeVar("Answer")


def in_background(call: Callable[[], Answer], name: str) -> Future[Answer]:
    """Start the call; its answer, or what it raises, is in the future.

    The thread is a daemon, which those of an executor are not: one that never returns must not keep the
    interpreter from ending.

    >>> in_background(lambda: 6 * 7, "asking").result(timeout=5)
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
    except RuntimeError:  # the system gives no more threads: then at once, and the caller waits
        work()
    return future
