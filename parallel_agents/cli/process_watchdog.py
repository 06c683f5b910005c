"""Run a command in a child process that the parent watches, so that the command always ends with an error message.

Worlds are code of users. It may end its process with `os._exit(0)`, crash it, or hang in C while it holds the
interpreter's lock, so that no thread of that process can react. Therefore a command forks before it imports anything
large. The child does the work. The parent only waits, passes signals on and reads memory that both share. The child
writes its epoch and turn there, and a counter that increases while the interpreter's lock is available. On Linux the
child ends with its parent, as workers end with the child.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import mmap
import os
import select
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from parallel_agents.cli.signals import DIRECT, GRACE, LAST_SIGNAL, PASSED_ON, STOP_SIGNALS, WAKE_SIGNAL
from parallel_agents.core.errors import Interrupted
from parallel_agents.core.files import open_regular, write_atomically
from parallel_agents.core.system import leave

POLL = 0.25
"""Seconds between two checks of the shared memory."""
KILL_AFTER = 2.0
"""Seconds after a second signal until the child is killed."""
REAP_TIMEOUT = 0.5
"""Seconds to wait for processes that were killed."""
DUMP_SIGNAL = signal.SIGUSR1
"""Makes the child write the stacks of its threads, also while one of them holds the interpreter's lock."""
EXIT_CODE, TICKS, TURN_LIMIT, ROUND_LIMIT, LENGTH, HEARTBEAT = range(3, 9)
"""Cells after those of the signals; from the last one on there are the three cells of a heartbeat."""
CELLS = HEARTBEAT + 3
SIZE = 16384
"""Bytes of shared memory; those after the cells hold a text."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class SharedStatus:
    """The status of a command, in memory that the child writes and its parent reads."""

    current: SharedStatus | None = None
    """In the child: the status that its parent reads."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, SIZE)
        self.cells: Any = memoryview(self._memory)[: 8 * CELLS].cast("q")
        self.heartbeat: Any = self.cells[HEARTBEAT:]
        """Epoch, turn and start time: the cells of the run's heartbeat."""

    # -- written by the child --------------------------------------------------------------------------------

    def tick(self, turn_limit: float, round_limit: float) -> None:
        """Record that the interpreter's lock is available now, and for how many seconds it may be held."""
        self.cells[TURN_LIMIT], self.cells[ROUND_LIMIT] = int(1e3 * turn_limit), int(1e3 * round_limit)
        self.cells[TICKS] += 1

    def stop_ticking(self) -> None:
        """Record that there is nothing to watch for now."""
        self.cells[TICKS] = 0

    def set_messages(self, **messages: str) -> None:
        """Store messages for the parent: `folder` of the run, `name` of the environment, `cause` of a failure."""
        text = json.dumps({**self.messages, **messages}).encode()[: SIZE - 8 * CELLS]
        self._memory[8 * CELLS : 8 * CELLS + len(text)] = text
        self.cells[LENGTH] = len(text)

    # -- read by the parent ----------------------------------------------------------------------------------

    @property
    def messages(self) -> dict[str, str]:
        """The messages that the child has stored."""
        try:
            messages: dict[str, str] = json.loads(self._memory[8 * CELLS : 8 * CELLS + self.cells[LENGTH]] or b"{}")
        except ValueError:  # the child died while it wrote, or the messages were too long
            return {}
        return messages

    @property
    def stop_requests(self) -> int:
        """Number of stop signals that either process got."""
        return int(max(self.cells[PASSED_ON], self.cells[DIRECT]))

    @property
    def limit(self) -> float:
        """Seconds that the interpreter's lock may be held at the moment."""
        return float(self.cells[TURN_LIMIT if self.heartbeat[2] else ROUND_LIMIT] / 1e3)

    def position(self) -> str:
        """Return the epoch and turn of the run, as words of a message."""
        epoch, turn, busy = self.heartbeat
        if not epoch:
            return "before the first epoch"
        return f"at turn {turn} of epoch {epoch}" if busy else f"after turn {turn} of epoch {epoch}"


def can_fork() -> bool:
    """Return whether this process may fork: it has one thread, no torch, and no debugger or profiler."""
    unused = threading.active_count() == 1 and "torch" not in sys.modules
    return hasattr(os, "fork") and unused and sys.gettrace() is None and sys.getprofile() is None


def run_in_child(command: Callable[[], int], *, as_json: bool) -> int:
    """Run a command in a child process and return its exit code; the child itself ends here."""
    status, parent = SharedStatus(), os.getpid()
    with tempfile.TemporaryFile() as stacks:
        wake_reader, wake_writer = os.pipe()
        os.set_blocking(wake_writer, False)
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        for number in (*STOP_SIGNALS, WAKE_SIGNAL, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)  # the pipe wakes the parent up
        try:
            child = os.fork()
        except OSError as error:
            sys.stderr.write(f"not watched from outside: {error}\n")
            signal.set_wakeup_fd(-1)
            return command()
        if child:
            if sys.platform == "linux":  # processes that the child leaves behind become children of this one
                ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
            return _Watchdog(child, status, wake_reader, stacks, as_json).wait()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(wake_reader)
        os.close(wake_writer)
        _end_with(parent)
        faulthandler.enable()
        faulthandler.register(DUMP_SIGNAL, file=stacks)
        SharedStatus.current = status
        try:
            code = command()
        except Interrupted as error:  # raised while the command reported another error
            code = error.exit_code
        status.cells[EXIT_CODE] = code + 1
        if as_json:  # the result is complete: what other code prints while the process ends goes elsewhere
            sys.stdout.flush()
            os.dup2(2, 1)
        return leave(code)


def _end_with(parent: int) -> None:
    """Make Linux kill this process when its parent ends, even if the parent is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent has ended already
            os._exit(1)


class _Watchdog:
    """Wait for a child in its parent process."""

    def __init__(self, child: int, status: SharedStatus, wake_reader: int, stacks: BinaryIO, as_json: bool) -> None:
        self._child, self._status, self._wake_reader = child, status, wake_reader
        self._stacks, self._as_json = stacks, as_json
        self._requested_at: dict[int, float] = {}
        """The time of the first, second, … stop signal."""
        self._ticks, self._stalled = 0, 0.0
        self._failure: tuple[str, str, int] | None = None
        """Why the child was killed: kind, message and exit code."""
        self._killed_at = 0.0

    def wait(self) -> int:
        """Wait for the child and return the exit code of the command."""
        last = time.monotonic()
        while (code := self._child_code()) is None:
            if (
                self._killed_at and last - self._killed_at > REAP_TIMEOUT
            ):  # it waits for a disk, and ends when that answers
                code = -signal.SIGKILL
                break
            if select.select([self._wake_reader], [], [], POLL)[0]:
                for number in os.read(self._wake_reader, 1024):
                    if number in STOP_SIGNALS:
                        self._pass_on(self._status.cells[PASSED_ON] + 1, number)
            now = time.monotonic()
            self._enforce_stop(now)
            self._check_lock(min(now - last, 2 * POLL))  # time during which this process was stopped does not count
            last = now
        return self._report(code)

    def _child_code(self) -> int | None:
        pid, status = os.waitpid(self._child, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    # -- signals ---------------------------------------------------------------------------------------------

    def _pass_on(self, count: int, number: int) -> None:
        self._status.cells[PASSED_ON], self._status.cells[LAST_SIGNAL] = count, number
        os.kill(self._child, WAKE_SIGNAL)

    def _enforce_stop(self, now: float) -> None:
        requests, number = self._status.stop_requests, self._status.cells[LAST_SIGNAL]
        if requests:
            for count in range(1, requests + 1):
                self._requested_at.setdefault(count, now)
            if requests == 1 and now - self._requested_at[1] > GRACE:
                self._pass_on(2, number)
            if requests > 2 or (requests == 2 and now - self._requested_at[2] > KILL_AFTER):
                self._kill("Interrupted", "ended at once", 128 + number)

    # -- hanging ---------------------------------------------------------------------------------------------

    def _check_lock(self, seconds: float) -> None:
        """Kill the child if the interpreter's lock has been held for too long."""
        ticks = self._status.cells[TICKS]
        self._stalled = self._stalled + seconds if ticks and ticks == self._ticks else 0.0
        self._ticks = ticks
        if self._stalled > self._status.limit and self._is_stopped():
            self._stalled = 0.0
        elif self._stalled > self._status.limit:
            name, limit = self._status.messages.get("name", "the run"), self._status.limit
            cause = f"{name} has held the interpreter's lock for more than {limit:g} s {self._status.position()}"
            os.kill(self._child, DUMP_SIGNAL)
            time.sleep(0.5)  # the child writes its stacks, which does not need the lock
            self._kill("DeadlineError", f"{cause}: the run was ended", 1)

    def _is_stopped(self) -> bool:
        """Return whether the child is stopped, by Ctrl-Z or a debugger."""
        with contextlib.suppress(OSError, IndexError):
            return Path(f"/proc/{self._child}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
        return False

    def _kill(self, kind: str, message: str, code: int) -> None:
        """Kill the child; `_report` kills the descendants that do not end with it."""
        if self._failure is None:
            self._failure, self._killed_at = (kind, message, code), time.monotonic()
            _send(signal.SIGKILL, [self._child])

    # -- the end ---------------------------------------------------------------------------------------------

    def _report(self, child_code: int) -> int:
        """Write the error that the child could not write itself; return the exit code of the command."""
        messages, status = self._status.messages, self._status
        if status.stop_requests or not status.cells[EXIT_CODE]:  # a worker that was just starting may be left over
            _kill_descendants(until=(self._killed_at or time.monotonic()) + REAP_TIMEOUT)
        if status.cells[EXIT_CODE]:
            return int(status.cells[EXIT_CODE] - 1)
        if self._failure is not None:
            kind, message, code = self._failure
        elif "cause" in messages:
            kind, message, code = "DeadlineError", messages["cause"], 1
        elif status.stop_requests and child_code == 128 + status.cells[LAST_SIGNAL]:
            kind, message, code = "Interrupted", "ended at once", child_code
        else:
            exited = child_code >= 0
            how = f"exit code {child_code}" if exited else f"signal {signal.Signals(-child_code).name}"
            hint = "os._exit(), or exit() in C, was called" if exited else "a crash in C, or too little memory"
            kind, code = "WorldError", 1
            message = f"the process of the run ended by {how} {status.position()}, before the run was over: {hint}"
        advice = "the last checkpoint stands, and `resume` goes on from it"
        sys.stderr.write(f"error: {message}; {advice}\n")
        if self._as_json:
            sys.stdout.write(json.dumps({"error": kind, "message": message}) + "\n")
        if "folder" in messages:
            self._log(Path(messages["folder"]), {"error": kind, "cause": message, "advice": advice})
        return code

    def _log(self, folder: Path, fields: dict[str, Any]) -> None:
        """Append why the run ended to the log of its folder, and write the stacks, if any, beside it."""
        self._stacks.seek(0)
        stacks = self._stacks.read()
        try:
            if stacks:
                path = folder / f"stacks-{len(list(folder.glob('stacks-*.txt'))) + 1:02d}.txt"
                write_atomically(path, [f"{fields['cause']}\n\n".encode(), stacks], root=folder)
                fields["stacks"] = str(path)
            level, event = ("info", "run_stopped") if fields["error"] == "Interrupted" else ("error", "run_failed")
            head = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "level": level, "event": event}
            line = json.dumps({**head, "role": "watchdog", "process": os.getpid(), **fields})
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            with os.fdopen(open_regular(folder / "log.jsonl", flags, root=folder), "ab") as log:
                log.write(line.encode() + b"\n")
        except OSError as error:
            sys.stderr.write(f"not written: {error}\n")


def _send(number: int, pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _kill_descendants(until: float) -> None:
    """Kill all descendants of this process and wait until none is left, or until this time.

    A process to which SIGKILL was sent starts no new ones. What it had started becomes a child of this process, which
    finds it the next time.
    """
    with contextlib.suppress(ChildProcessError):  # none is left
        while True:
            _send(signal.SIGKILL, _descendants(os.getpid()))
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            if time.monotonic() > until:
                return
            time.sleep(0.002)


def _descendants(pid: int) -> list[int]:
    """Return the children of a process and their descendants; none if the system does not list them."""
    pids = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the process has just ended
            for child in map(int, path.read_text().split()):
                pids += [child, *_descendants(child)]
    return pids
