"""Worker processes and the memory that they share with their parent.

A worker answers requests in order. Its heartbeat says what it is doing. An answer that comes after its time-out is
dropped and never taken for the answer to the next request. On SIGUSR1, and when it crashes, a worker writes the
tracebacks of all its threads into a pipe that its parent reads.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing  # teaches `multiprocessing` how to hand over tensors

from parallel_agents.core.errors import DeadlineError, LearnerError, RunError, WorkerDied
from parallel_agents.execution import forkserver
from parallel_agents.execution.backend import PATIENCE, Activity, Heartbeat, Monitored

START_DEADLINE = 60.0
Layout = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Shape and type of named arrays."""
_LARGEST_TRACE = 2**20


class Worker:
    """A process that answers requests in order."""

    def __init__(
        self,
        name: str,
        serve: Callable[..., Callable[[Any], Any]],
        *arguments: Any,
        describe: Callable[[Activity], str] = lambda activity: f"request {activity.job}",
        failure: type[RunError] = LearnerError,
    ) -> None:
        """Begin to start the process; return at once.

        serve: called in the process with its heartbeat and `arguments`; returns a function from a request to an
        answer. All are importable; the process never runs the user's script.
        describe: says what an activity of the heartbeat means. failure: what is raised for an exception in the process.
        """
        self.name = name
        self._describe, self._failure = describe, failure
        cells = RawArray("q", Heartbeat.CELLS)
        self.heartbeat = Heartbeat(cells)
        self._connection, connection = Pipe()
        self._trace, trace = Pipe(duplex=False)
        with connection, trace:
            self._process = forkserver.start(name, _main, serve, arguments, connection, trace, cells)
        self._started = False
        self._sent = 0
        self._awaited = 0
        """The oldest request that somebody still wants an answer to; 0 stands for the start."""

    @property
    def pid(self) -> int:
        """The process; 0 until it is known."""
        return self._process.pid

    # -- requests and answers ----------------------------------------------------------------------------------

    def ready(self, timeout: float = START_DEADLINE) -> bool:
        """Return True once the process has started, False if it has not within `timeout`. May be called again."""
        if not self._started:
            if not self.answered(timeout):
                return False
            self.receive(timeout)
            self._process.known(timeout)
            self._started = True
        return True

    def send(self, request: Any) -> None:
        """Send a request, or raise `WorkerDied`."""
        self._sent += 1
        try:
            self._connection.send((self._sent, request))
        except OSError as error:
            raise self._death() from error

    def receive(self, timeout: float, *, limit: float | None = None) -> Any:
        """Return the next answer. Raise if the process raised or died, or if no answer came within `timeout`.

        limit: seconds to name in the error if `timeout` is only what is left of them.
        """
        number, self._awaited = self._awaited, self._awaited + 1
        until = time.monotonic() + timeout
        while True:
            if not self.answered(until - time.monotonic()):
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
        """Return whether an answer is there or the process has ended; wait at most `timeout` seconds for that."""
        until = time.monotonic() + timeout
        while ready := wait([self._connection, self._process.sentinel], max(0.0, until - time.monotonic())):
            if self._connection in ready or self._process.poll():
                return True
        return False

    # -- the end -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ask the process to end, and kill it if it does not."""
        close_all([self])

    def ask_to_end(self) -> None:
        """Let the process end once it has done what it is doing."""
        # The closed pipe also frees a process that is blocked by an answer which nobody reads.
        self._connection.close()

    def end(self, timeout: float) -> None:
        """Wait at most `timeout` seconds for the end of the process, then kill it.

        A process that is not there yet ends by itself, since nobody is at the other end of its pipe.
        """
        if not self._process.poll() and self.pid and not self._process.poll(timeout):
            self._process.signal(signal.SIGKILL)
            self._process.poll(2.0)
        self._trace.close()

    def ended(self) -> str | None:
        """Return how the process ended; None while it lives."""
        self._process.poll()
        return self._process.end

    def _death(self) -> RunError:
        """Return an error that says how the process ended, and where it was."""
        self._process.poll(1.0)
        trace = self._read_trace(0.0)
        return WorkerDied(f"{self} ended by {self.ended()}{self._at()}" + (f"\n{trace}" if trace else ""))

    # -- for the watchdog --------------------------------------------------------------------------------------

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"

    def monitored(self, *, limit: float | None = None) -> Monitored:
        """Return what the watchdog needs to know. limit: seconds that one activity may take."""
        return Monitored(
            str(self), self.heartbeat, self._describe, self.tracebacks, self.ended, limit=limit, pid=self.pid
        )

    def tracebacks(self, timeout: float = 1.0) -> str:
        """Return where every thread of the process is now, or why it cannot say."""
        if not self._started or self.ended() is not None:
            return "(not running)\n"
        self._process.signal(signal.SIGUSR1)
        return self._read_trace(timeout) or f"(it does not answer; the system says: {_state(self.pid)})\n"

    def _read_trace(self, timeout: float) -> str:
        """Return what the process has written about itself, until it falls silent."""
        text, more = b"", b"-"
        with contextlib.suppress(OSError):  # it may end while it writes
            while more and len(text) < _LARGEST_TRACE and self._trace.poll(timeout):
                more = os.read(self._trace.fileno(), 2**16)
                text, timeout = text + more, 0.1
        return text.decode(errors="replace")

    def _at(self) -> str:
        activity = self.heartbeat.busy()
        return "" if activity is None else f": it is at {self._describe(activity)}"


def close_all(workers: list[Worker], patience: float = PATIENCE) -> None:
    """Ask processes to end, all at once, and kill those that have not ended after `patience` seconds."""
    until = time.monotonic() + patience
    for worker in workers:
        worker.ask_to_end()
    for worker in workers:
        worker.end(until - time.monotonic())


def _main(
    serve: Callable[..., Callable[[Any], Any]],
    arguments: tuple[Any, ...],
    connection: Connection,
    trace: Connection,
    cells: Any,
) -> None:
    """Answer requests in the worker process until the parent closes its end of the connection."""
    os.set_blocking(trace.fileno(), False)  # a trace that nobody reads must not keep a crashed process alive
    faulthandler.enable(file=trace.fileno())
    faulthandler.register(signal.SIGUSR1, file=trace.fileno())
    heartbeat = Heartbeat(cells)
    number = 0
    try:
        answer = serve(heartbeat, *arguments)
        connection.send((number, "ready", None))
        while True:
            number, request = connection.recv()
            heartbeat.beat(number)
            result = answer(request)
            heartbeat.rest()
            connection.send((number, "done", result))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except BaseException:
        with contextlib.suppress(OSError):  # the parent may have ended
            connection.send((number, "error", traceback.format_exc()))


def _state(pid: int) -> str:
    """Return what the system says of a process: running, sleeping, stopped, …"""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError as error:
        return str(error.strerror)
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("State")), "nothing")


class SharedBlock:
    """Named arrays in one block of shared memory: one mapping and one descriptor, however many arrays there are.

    >>> block = SharedBlock({"mask": ((3,), torch.bool), "weights": ((2, 2), torch.float64)})
    >>> block["weights"][:] = 1.5
    >>> float(block["weights"].sum()), block["mask"].dtype
    (6.0, torch.bool)
    """

    ALIGNMENT = 64
    """Bytes: a cache line, and the widest vector."""

    def __init__(self, layout: Layout, memory: torch.Tensor | None = None, *, shared: bool = True) -> None:
        """memory: the bytes, if they exist already; otherwise they are allocated. shared: with other processes."""
        self._layout = layout
        if memory is None:
            memory = torch.zeros(self.nbytes(layout), dtype=torch.uint8)
            memory = _share(memory) if shared else memory
        self._memory = memory
        self._arrays: dict[str, torch.Tensor] = {}
        start = 0
        for name, (shape, kind) in layout.items():
            size = math.prod(shape) * kind.itemsize
            self._arrays[name] = self._memory[start : start + size].view(kind).view(shape)
            start += self._aligned(size)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._arrays[name]

    def __reduce__(self) -> tuple[Any, ...]:
        """Hand the memory itself to a worker process, which makes the arrays again."""
        return SharedBlock, (self._layout, self._memory)

    @classmethod
    def nbytes(cls, layout: Layout) -> int:
        """Return the bytes that such a block takes."""
        return sum(cls._aligned(math.prod(shape) * kind.itemsize) for shape, kind in layout.values())

    @classmethod
    def _aligned(cls, size: int) -> int:
        return -(-size // cls.ALIGNMENT) * cls.ALIGNMENT


def _share(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.share_memory_()  # type: ignore[no-any-return, no-untyped-call]
