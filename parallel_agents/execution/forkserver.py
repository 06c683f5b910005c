"""A server process that has imported the package and forks worker processes from it.

Starting a worker this way takes hundredths of a second instead of the seconds that its imports take, which only the
first one pays. `multiprocessing` has a forkserver too, but that one ends when a fork fails, keeps workers alive whose
parent was killed, and blocks its caller until it has started.

The parent sends one byte for each worker, together with the descriptors that the worker gets: its status pipe, a file
with the pickled job, stdout, stderr, and whatever is shared with it. The server writes the worker's pid into the status
pipe, or the error of a failed fork, and later the exit code. Linux kills it when its parent ends, and workers with it.
"""

from __future__ import annotations

import ctypes
import gc
import io
import os
import pickle
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from multiprocessing import context, reduction, spawn, util
from multiprocessing.connection import wait
from typing import Any

from parallel_agents.core.errors import RunError
from parallel_agents.core.system import import_quickly, leave

MOST_DESCRIPTORS = 248
"""That a worker may share with its parent; Linux passes 253 at once."""
_PACKAGE = __name__.partition(".")[0]
_PR_SET_PDEATHSIG = 1
_VOLATILE = {"PYTEST_CURRENT_TEST"}
"""Environment variables that change all the time and that no library reads when it is imported."""
_NUMBER = struct.Struct("q")


class _InheritedDescriptor:
    """A descriptor in a pickled job: its place in the list of those that the worker gets."""

    received: list[int] = []
    """In the worker: its descriptors."""

    def __init__(self, place: int) -> None:
        self._place = place

    def detach(self) -> int:
        """Return the descriptor, in the worker."""
        return self.received[self._place]


class _Pickling:
    """Collects the descriptors that `multiprocessing` meets while it pickles something for a new process."""

    DupFd = _InheritedDescriptor

    def __init__(self) -> None:
        self.descriptors: list[int] = []

    def duplicate_for_child(self, descriptor: int) -> int:
        self.descriptors.append(descriptor)
        return len(self.descriptors) - 1


class ForkedProcess:
    """A worker process, as its parent sees it."""

    def __init__(self, status: int, server: _Server) -> None:
        self.sentinel = status
        """A descriptor that is readable when `poll` has news."""
        self.pid = 0
        """0 until the server has reported it."""
        self.end: str | None = None
        """How the process ended; None while it lives, or has not been started yet."""
        self._server = server  # which lives for as long as one of its workers
        self._lock = threading.Lock()  # the watchdog polls too
        os.set_blocking(status, False)
        weakref.finalize(self, os.close, status)

    def poll(self, timeout: float = 0.0) -> bool:
        """Wait at most `timeout` seconds for the process to end, and return whether it has ended."""
        return self._wait_until(lambda: self.end is not None, timeout)

    def known(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds until the pid is known; a quick worker may have answered before."""
        return self._wait_until(lambda: self.pid > 0 or self.end is not None, timeout) and self.pid > 0

    def _wait_until(self, done: Callable[[], bool], timeout: float) -> bool:
        """Read what the server reports until `done` holds, at most for `timeout` seconds; return whether it holds."""
        until = time.monotonic() + timeout
        while not done() and wait([self.sentinel], max(0.0, until - time.monotonic())):
            with self._lock, suppress(BlockingIOError):  # another thread has read it
                self._receive(os.read(self.sentinel, _NUMBER.size))
        return done()

    def _receive(self, data: bytes) -> None:
        number = _NUMBER.unpack(data)[0] if data else 0
        if not data:
            self.end = self.end or "the end of the server that starts workers"
        elif self.pid:
            self.end = f"signal {signal.Signals(-number).name}" if number < 0 else f"exit code {number}"
        elif number < 0:
            self.end = f"a failed start: {os.strerror(-number)}"
        else:
            self.pid = number

    def signal(self, number: int) -> None:
        """Send a signal to the process, if it still lives."""
        if not self.poll() and self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class _Server:
    """The server of this process."""

    def __init__(self) -> None:
        """Start it; raise OSError or RuntimeError if the system does not let us."""
        self._surroundings = _surroundings()
        self._channel, theirs = socket.socketpair()
        started: Future[subprocess.Popen[bytes]] = Future()
        # Linux kills it when the thread that started it ends, hence one that ends with this process or with the server.
        self._thread = threading.Thread(
            target=_run_server, args=(theirs.fileno(), started), name="fork server", daemon=True
        )
        try:
            self._thread.start()
            process = started.result()
        except BaseException:
            self._channel.close()
            raise
        finally:
            theirs.close()
        weakref.finalize(self, _stop, self._channel, process, self._thread, os.getpid())

    def usable(self) -> bool:
        """Return whether a worker that is forked now gets what a process of its own would get."""
        return self._thread.is_alive() and self._surroundings == _surroundings()

    def fork(self, descriptors: list[int]) -> None:
        """Ask for a worker with these descriptors; return at once."""
        socket.send_fds(self._channel, [b"."], descriptors)


def _run_server(channel: int, started: Future[subprocess.Popen[bytes]]) -> None:
    """Start a server and wait for its end."""
    try:
        command = interpreter(f"from {__name__} import serve; serve({channel}, {os.getpid()})")
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[channel])
    except BaseException as error:
        started.set_exception(error)
    else:
        started.set_result(process)
        process.wait()


def interpreter(code: str) -> list[str]:
    """Return a command that runs some code in an interpreter with the options and the module path of this one."""
    path = spawn.get_preparation_data("interpreter")["sys_path"]
    flags = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
    # -P: not even the imports of the interpreter itself are looked for in the current folder
    return [os.fsdecode(spawn.get_executable()), *flags, "-P", "-c", f"import sys; sys.path[:] = {path!r}; {code}"]


def _stop(channel: socket.socket, server: subprocess.Popen[bytes], thread: threading.Thread, owner: int) -> None:
    """End a server that no worker needs any more, unless this is a process that was forked from its owner."""
    channel.close()
    if os.getpid() == owner:
        server.kill()
        thread.join(2.0)


_server: _Server | None = None
_lock = threading.Lock()


def start(name: str, main: Callable[..., None], *arguments: Any) -> ForkedProcess:
    """Start a worker process that calls `main`, an importable function; return at once.

    The worker has the environment, limits, current folder and module path of this process, but never runs its script.
    """
    global _server
    with tempfile.TemporaryFile() as job, open(os.devnull, "wb") as null:
        shared = _pickle_job(job, name, main, arguments)
        output = [descriptor if _is_open(descriptor) else null.fileno() for descriptor in (1, 2)]
        status, theirs = os.pipe()
        descriptors = [theirs, job.fileno(), *output, *shared]
        try:
            with _lock:
                if _server is None or not _server.usable():
                    _server = _Server()
                try:
                    _server.fork(descriptors)
                except OSError:  # it has just ended
                    _server = _Server()
                    _server.fork(descriptors)
                return ForkedProcess(status, _server)
        except BaseException:
            os.close(status)
            raise
        finally:
            os.close(theirs)


def _pickle_job(job: Any, name: str, main: Callable[..., None], arguments: tuple[Any, ...]) -> list[int]:
    """Write what a worker does into a file, and return the descriptors that it needs for that."""
    pickling, data = _Pickling(), io.BytesIO()
    context.set_spawning_popen(pickling)  # type: ignore[arg-type]
    try:
        with _without_main():
            modules = [function.__module__ for function in (main, *arguments) if callable(function)]
            ours = [module for module in modules if module.startswith(f"{_PACKAGE}.")]  # imported before the fork
            for value in (ours, dict(os.environ), spawn.get_preparation_data(name), (main, arguments)):
                reduction.dump(value, data)
    finally:
        context.set_spawning_popen(None)
    if len(pickling.descriptors) > MOST_DESCRIPTORS:
        raise RunError(f"{name} would share {len(pickling.descriptors)} descriptors, at most {MOST_DESCRIPTORS} can be")
    job.write(data.getbuffer())
    job.seek(0)
    return pickling.descriptors


def _surroundings() -> tuple[Any, ...]:
    """Return what a process inherits when it starts and cannot take over later from another."""
    limits = [getattr(resource, name) for name in sorted(dir(resource)) if name.startswith("RLIMIT_")]
    return (
        os.getpid(),
        {name: value for name, value in os.environ.items() if name not in _VOLATILE},
        [resource.getrlimit(limit) for limit in limits],
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None,
        os.getpriority(os.PRIO_PROCESS, 0),
        (os.geteuid(), os.getegid()),
    )


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@contextmanager
def _without_main() -> Iterator[None]:
    """Hide the user's script while something is pickled, so that the worker does not run it again."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


# -- in the server -----------------------------------------------------------------------------------------------------


def serve(channel: int, parent: int) -> None:
    """Fork workers for a parent until it ends; in each of them, do its job."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    end_with(parent)
    job = _fork_workers(socket.socket(fileno=channel))
    if job is not None:
        _do(job)
        leave(0)


def _fork_workers(channel: socket.socket) -> Any:
    """Serve the requests of the parent. Return None at their end and, in each worker, the file with its job."""
    import_quickly(f"{_PACKAGE}.execution.process")
    gc.freeze()  # a worker that looked through what it shares with the server would copy it
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    statuses: dict[int, int] = {}
    while True:
        ready = wait([channel, woken])
        if woken in ready:
            os.read(woken, 512)
            _reap(statuses)
        if channel in ready:
            request, descriptors, _, _ = socket.recv_fds(channel, 1, MOST_DESCRIPTORS + 4, socket.MSG_CMSG_CLOEXEC)
            if not request:
                return None
            job = _fork(*descriptors, statuses=statuses)
            if job is not None:
                for descriptor in (channel.detach(), woken, wake):
                    os.close(descriptor)
                return job


def _fork(status: int, job: int, stdout: int, stderr: int, *shared: int, statuses: dict[int, int]) -> Any:
    """Fork a worker. Return None in the server and, in the worker, the file with its job."""
    server = os.getpid()
    file = open(job, "rb")  # noqa: SIM115 - the worker closes it
    with suppress(Exception):  # the worker meets the same error, and reports it
        for module in pickle.load(file):
            import_quickly(module)
    try:
        with warnings.catch_warnings():  # Python warns of threads: those of OpenBLAS are made for being forked
            warnings.simplefilter("ignore")
            pid = os.fork()
    except OSError as error:
        _report(status, -(error.errno or 1))
        os.close(status)
    else:
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            end_with(server)
            os.dup2(stdout, 1)
            os.dup2(stderr, 2)
            for descriptor in (status, stdout, stderr, *statuses.values()):
                os.close(descriptor)
            _InheritedDescriptor.received = list(shared)
            return file
        statuses[pid] = status
        _report(status, pid)
    file.close()
    for descriptor in (stdout, stderr, *shared):
        os.close(descriptor)
    return None


def _reap(statuses: dict[int, int]) -> None:
    """Report the exit codes of all workers that have ended."""
    while statuses:
        pid, code = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        status = statuses.pop(pid)
        _report(status, os.waitstatus_to_exitcode(code))
        os.close(status)


def _report(status: int, number: int) -> None:
    with suppress(BrokenPipeError):  # the parent has closed its end
        os.write(status, _NUMBER.pack(number))


def end_with(parent: int) -> None:
    """Ask Linux to kill this process when its parent ends, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended in the meantime
        os._exit(1)


def _do(job: Any) -> None:
    """Become the process that the parent would have started, and do its job."""
    import numpy as np

    # As in a process that starts afresh: somebody's environment may draw from numpy's global generator, and must not
    # draw the same numbers in every worker. Python reseeds its own generator in a forked process, numpy does not.
    np.random.seed()
    with job:
        environment = pickle.load(job)
        os.environ.clear()
        os.environ.update(environment)
        spawn.prepare(pickle.load(job))
        main, arguments = pickle.load(job)
    main(*arguments)
