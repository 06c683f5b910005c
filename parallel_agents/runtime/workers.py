"""Worker processes: spawned once, fed through shared memory, gone when their parent is gone.

A worker has a heart, which says what it is doing; it answers requests in order, and an answer that comes after its
time-out is dropped, never given to the next request. On SIGUSR1 it writes the stacks of all its threads into a pipe
that only its parent reads; when it crashes it does so by itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch.multiprocessing

from parallel_agents.errors import DeadlineError, LearnerError, RunError, WorkerDied
from parallel_agents.runtime.heartbeat import CELLS, Beat, Heart

__all__ = ["Worker", "close_all"]

START_DEADLINE = 60.0
PATIENCE = 2.0
"""Seconds that a worker may take to end by itself."""
_PR_SET_PDEATHSIG = 1
_SAFE_PATH = "PYTHONSAFEPATH"
_LARGEST_TRACE = 2**20


class Worker:
    """A spawned process that answers requests in order.

    serve: called in the process with its heart and `arguments`; gives a function from a request to an answer. Both
    are importable from the library, never from the user's script, which the process does not run again.
    describe: what a heart's job and part mean, for messages. failure: what an exception in the process becomes.
    """

    def __init__(
        self,
        name: str,
        serve: Callable[..., Callable[[Any], Any]],
        *arguments: Any,
        describe: Callable[[Beat], str] = lambda beat: f"request {beat.job}",
        failure: type[RunError] = LearnerError,
    ) -> None:
        context = torch.multiprocessing.get_context("spawn")
        self.name = name
        self._describe, self._failure = describe, failure
        cells = context.RawArray("q", CELLS)
        self.heart = Heart(cells)
        self._connection, theirs = context.Pipe()
        self._trace, their_trace = context.Pipe(duplex=False)
        given = (theirs, their_trace, cells, os.environ.get(_SAFE_PATH), serve, arguments)
        self._process = context.Process(target=_main, args=given, name=name, daemon=True)
        with _without_main(), _without_current_folder():
            self._process.start()
        theirs.close()
        their_trace.close()
        self._started = False
        self._sent = 0
        self._awaited = 0
        """The oldest request that somebody still wants an answer to; 0 is the news that it has started."""

    @property
    def pid(self) -> int:
        return int(self._process.pid or 0)

    def ready(self, timeout: float = START_DEADLINE) -> bool:
        """True once the process has started; False if it has not within `timeout`. May be asked again."""
        if not self._started:
            if not wait([self._connection, self._process.sentinel], timeout=timeout):
                return False
            self.receive(timeout)
            self._started = True
        return True

    def send(self, request: Any) -> None:
        self._sent += 1
        try:
            self._connection.send((self._sent, request))
        except OSError as error:
            raise self._death() from error

    def receive(self, timeout: float, *, limit: float | None = None) -> Any:
        """The next answer; raises what the process raised, or that it died, or that the wait ran out.

        limit: the seconds to name where the wait is only what is left of them.
        """
        number, self._awaited = self._awaited, self._awaited + 1
        until = time.monotonic() + timeout
        while True:
            if not wait([self._connection, self._process.sentinel], timeout=max(0.0, until - time.monotonic())):
                raise DeadlineError(f"{self} did not answer within {limit or timeout:g} s{self._at()}")
            try:
                if not self._connection.poll():
                    raise EOFError
                answers, kind, answer = self._connection.recv()
            except (EOFError, OSError):
                raise self._death() from None
            if kind == "error":
                raise self._failure(f"{self} failed: {answer}")
            if answers == number:
                return answer  # an older one came after its time-out: nobody waits for it any more

    def answered(self, timeout: float = 0.0) -> bool:
        """True if an answer, or the news of a death, is there, or comes within `timeout`."""
        return bool(wait([self._connection, self._process.sentinel], timeout=timeout))

    def close(self) -> None:
        """Ask the process to end, and end it if it does not."""
        close_all([self])

    def ask_to_end(self) -> None:
        """It ends once it is done with what it is at."""
        # The closed pipe also frees a process that is blocked by an answer which nobody reads.
        self._connection.close()

    def end(self, timeout: float) -> None:
        """Wait for the end of the process, and end it if that does not come."""
        self._process.join(max(0.0, timeout))
        if self._process.is_alive():
            self._process.kill()
            self._process.join(2.0)
        self._trace.close()

    # -- for whoever watches over it -------------------------------------------------------------------------

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"

    def describe(self) -> str:
        """What it is doing now; empty while it waits for work."""
        beat = self.heart.busy()
        return "" if beat is None else self._describe(beat)

    def ended(self) -> str | None:
        """How the process ended; None while it lives."""
        code = self._process.exitcode
        if code is None:
            return None
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def stacks(self, timeout: float = 1.0) -> str:
        """Where every thread of the process is now, or why it cannot say."""
        if not self._started or self.ended() is not None:
            return "(not running)\n"
        os.kill(self.pid, signal.SIGUSR1)
        written = self._read_trace(timeout)
        return written or f"(it does not answer; the system says: {_state(self.pid)})\n"

    def _read_trace(self, timeout: float) -> str:
        """What the process has written about itself, until it falls silent."""
        text, more = b"", b"-"
        with contextlib.suppress(OSError):  # it may end while it writes
            while more and len(text) < _LARGEST_TRACE and self._trace.poll(timeout):
                more = os.read(self._trace.fileno(), 2**16)
                text, timeout = text + more, 0.1
        return text.decode(errors="replace")

    def _at(self) -> str:
        doing = self.describe()
        return f": it is at {doing}" if doing else ""

    def _death(self) -> RunError:
        self._process.join(1.0)
        trace = self._read_trace(0.0)
        return WorkerDied(f"{self} ended by {self.ended()}{self._at()}" + (f"\n{trace}" if trace else ""))


def close_all(workers: list[Worker], patience: float = PATIENCE) -> None:
    """Ask processes to end, all at once, and end those that do not."""
    until = time.monotonic() + patience
    for worker in workers:
        worker.ask_to_end()
    for worker in workers:
        worker.end(until - time.monotonic())


def _main(
    connection: Connection,
    trace: Connection,
    cells: Any,
    safe_path: str | None,
    serve: Callable[..., Callable[[Any], Any]],
    arguments: tuple[Any, ...],
) -> None:
    """The process's life: start, answer, end with its parent."""
    _set_environment(_SAFE_PATH, safe_path)  # as in the parent: programs that a world starts get nothing of ours
    _end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    os.set_blocking(trace.fileno(), False)  # a trace that nobody reads must not keep a crashed process alive
    faulthandler.enable(file=trace.fileno())
    faulthandler.register(signal.SIGUSR1, file=trace.fileno())
    heart = Heart(cells)
    number = 0
    try:
        answer = serve(heart, *arguments)
        connection.send((number, "ready", None))
        while True:
            number, request = connection.recv()
            heart.beat(number)
            given = answer(request)
            heart.rest()
            connection.send((number, "done", given))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except BaseException:
        with contextlib.suppress(OSError):  # the parent may be gone, then nobody is left to tell
            connection.send((number, "error", traceback.format_exc()))


def _end_with_parent() -> None:
    """Ask Linux to end this process when its parent ends, also when that was killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _state(pid: int) -> str:
    """What the system knows of a process: running, sleeping, stopped, …"""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError as error:
        return str(error.strerror)
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("State")), "nothing")


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Hide the user's script while a process is spawned, which would otherwise run it again."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


@contextlib.contextmanager
def _without_current_folder() -> Iterator[None]:
    """Spawn a process that does not look for modules in the current folder before it gets its parent's `sys.path`.

    `multiprocessing` starts it, and its own helper, with `python -c`, which looks there first: a `pickle.py` in a run
    folder would be run.
    """
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        _set_environment(_SAFE_PATH, before)


def _set_environment(name: str, value: str | None) -> None:
    """Set an environment variable, or remove it where there was none."""
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
