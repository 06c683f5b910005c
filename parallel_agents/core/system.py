"""The process and its system: quick starts and ends, memory that is left, threads for calls that wait.

A process that starts and ends has much to do, since torch and numba make half a million objects on import.
"""

from __future__ import annotations

import atexit
import contextvars
import ctypes
import gc
import io
import os
import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NoReturn, TypeVar

Answer = TypeVar("Answer")
_WRITERS = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def import_quickly(module: str) -> ModuleType:
    """Import a module while the garbage collector pauses: what is imported stays, and to look through it takes long."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return import_module(module)
    finally:
        if collecting:
            gc.enable()


def leave(code: int) -> NoReturn:
    """End this process as `sys.exit` does, but let the system take its memory back as a whole.

    The interpreter would remove one object after the other, which takes half a second once torch is imported.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    threading._shutdown()  # type: ignore[attr-defined] # waits for threads that are no daemons
    atexit._run_exitfuncs()
    _flush_files()
    ctypes.CDLL(None).fflush(None)  # what C code has printed may still be in its own buffer
    os._exit(code)


def _flush_files() -> None:
    """Write what files that nobody has closed still hold, as the interpreter does when it removes them."""
    gc.unfreeze()  # the collector does not list what is frozen
    for thing in gc.get_objects():
        if issubclass(type(thing), _WRITERS):
            with suppress(OSError, ValueError):  # closed or broken: the interpreter says nothing either
                thing.flush()


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
    if not future.set_running_or_notify_cancel():  # nobody waits for the answer any longer
        return
    try:
        future.set_result(call())
    except BaseException as error:
        future.set_exception(error)
