"""Worker processes: spawned once, fed through shared memory, gone when their parent is gone."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

import torch.multiprocessing

from parallel_agents.errors import DeadlineError, LearnerError, RunError, WorkerDied

__all__ = ["Worker"]

START_DEADLINE = 60.0
_PR_SET_PDEATHSIG = 1


class Worker:
    """A spawned process that answers requests in order.

    serve: called in the process with `arguments`; gives a function from a request to an answer. Both are
    importable from the library, never from the user's script, which the process does not run again.
    """

    def __init__(self, name: str, serve: Callable[..., Callable[[Any], Any]], *arguments: Any) -> None:
        context = torch.multiprocessing.get_context("spawn")
        self.name = name
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_main, args=(theirs, serve, arguments), name=name, daemon=True)
        with _without_main():
            self._process.start()
        theirs.close()
        self._started = False

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
        try:
            self._connection.send(request)
        except OSError as error:
            raise self._death() from error

    def receive(self, timeout: float) -> Any:
        """The next answer; raises what the process raised, or that it died, or that the wait ran out."""
        if not wait([self._connection, self._process.sentinel], timeout=timeout):
            raise DeadlineError(f"{self.name} (pid {self.pid}) did not answer within {timeout:g} s")
        try:
            if not self._connection.poll():
                raise EOFError
            kind, answer = self._connection.recv()
        except (EOFError, OSError):
            raise self._death() from None
        if kind == "error":
            raise LearnerError(f"{self.name} (pid {self.pid}) failed: {answer}")
        return answer

    def answered(self) -> bool:
        """True if an answer, or the news of a death, can be had without waiting."""
        return bool(wait([self._connection, self._process.sentinel], timeout=0))

    def close(self, timeout: float = 2.0) -> None:
        """Ask the process to end, and end it if it does not."""
        with contextlib.suppress(OSError):
            self._connection.send(None)
        self._process.join(timeout)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(timeout)
        self._connection.close()

    def _death(self) -> RunError:
        self._process.join(1.0)
        code = self._process.exitcode
        cause = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        return WorkerDied(f"{self.name} (pid {self.pid}) ended by {cause}")


def _main(connection: Connection, serve: Callable[..., Callable[[Any], Any]], arguments: tuple[Any, ...]) -> None:
    """The process's life: start, answer, end with its parent."""
    _end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    try:
        answer = serve(*arguments)
        connection.send(("ready", None))
        while (request := connection.recv()) is not None:
            connection.send(("done", answer(request)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except BaseException:
        with contextlib.suppress(OSError):  # the parent may be gone, then nobody is left to tell
            connection.send(("error", traceback.format_exc()))


def _end_with_parent() -> None:
    """Ask Linux to end this process when its parent ends, also when that was killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Hide the user's script while a process is spawned, which would otherwise run it again."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script
