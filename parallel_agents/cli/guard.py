"""A command in a process of its own, watched from outside: whatever that does to itself, the command still answers.

Worlds are somebody's code. It may end its process with `os._exit(0)`, crash it, or hang in C while it holds the
interpreter's lock, so that no thread there can do anything about it. So a command forks before it has imported
anything large: the child does the work, and its parent does nothing but wait, pass signals on and look at a page of
memory that both share. On that page stand the epoch and turn of now, and a count that moves while the interpreter's
lock can be had. On Linux the child ends with its parent, as workers end with theirs.
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

from parallel_agents.cli.signals import ASK, DIRECT, GRACE, NUMBER, PASSED_ON, STOPS
from parallel_agents.errors import Interrupted

__all__ = ["Page", "can_guard", "guarded"]

EVERY = 0.25
"""Seconds between two looks at the page."""
LEAVE = 2.0
"""Seconds after a second signal before the child is killed."""
REAP = 0.5
"""Seconds that a killed child is waited for."""
STACKS = signal.SIGUSR1
"""Lets the child write where its threads are, also while one of them holds the interpreter's lock."""
CODE, TICKS, TURN_LIMIT, ROUND_LIMIT, LENGTH, HEART = range(3, 9)
"""Further cells behind those of the signals; the last three are a heart's."""
CELLS = HEART + 3
SIZE = 16384
"""Bytes of the page; behind the cells there is room for a text."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class Page:
    """What the two processes tell each other."""

    current: Page | None = None
    """In the child: the page on which its parent looks."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, SIZE)
        self.cells: Any = memoryview(self._memory)[: 8 * CELLS].cast("q")
        self.heart: Any = self.cells[HEART:]
        """Epoch, turn, and since when; for the heart that turns are conducted by."""

    # -- written by the child --------------------------------------------------------------------------------

    def tick(self, turn_limit: float, round_limit: float) -> None:
        """Say that the interpreter's lock could be had just now, and how many seconds it may be held."""
        self.cells[TURN_LIMIT], self.cells[ROUND_LIMIT] = int(1e3 * turn_limit), int(1e3 * round_limit)
        self.cells[TICKS] += 1

    def rest(self) -> None:
        """Say that nothing has to be watched for now."""
        self.cells[TICKS] = 0

    def tell(self, **words: str) -> None:
        """Leave words for the parent: `folder` of the run, `name` of the environment, `cause` of an end."""
        text = json.dumps({**self.told, **words}).encode()[: SIZE - 8 * CELLS]
        self._memory[8 * CELLS : 8 * CELLS + len(text)] = text
        self.cells[LENGTH] = len(text)

    # -- read by the parent ----------------------------------------------------------------------------------

    @property
    def told(self) -> dict[str, str]:
        """The words that the child has left."""
        try:
            found: dict[str, str] = json.loads(self._memory[8 * CELLS : 8 * CELLS + self.cells[LENGTH]] or b"{}")
        except ValueError:  # it died while it wrote, or the words were too long
            return {}
        return found

    @property
    def asked(self) -> int:
        """How often somebody asked for the end."""
        return int(max(self.cells[PASSED_ON], self.cells[DIRECT]))

    @property
    def limit(self) -> float:
        """Seconds that the interpreter's lock may be held by whatever is done now."""
        return float(self.cells[TURN_LIMIT if self.heart[2] else ROUND_LIMIT] / 1e3)

    def place(self) -> str:
        """What is done now, as far as it is known."""
        epoch, turn, busy = self.heart
        if not epoch:
            return "before the first epoch"
        return f"at turn {turn} of epoch {epoch}" if busy else f"after turn {turn} of epoch {epoch}"


def can_guard() -> bool:
    """True where this process may fork: it has one thread, no torch, and no debugger or profiler looks into it."""
    alone = threading.active_count() == 1 and "torch" not in sys.modules
    return hasattr(os, "fork") and alone and sys.gettrace() is None and sys.getprofile() is None


def guarded(command: Callable[[], int], *, as_json: bool) -> int:
    """Do the command in a child process; its exit code. Called in both processes, it returns in both."""
    page, parent = Page(), os.getpid()
    with tempfile.TemporaryFile() as stacks:
        woken, waking = os.pipe()
        os.set_blocking(waking, False)
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        for number in (*STOPS, ASK, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)  # it is enough to wake up
        try:
            child = os.fork()
        except OSError as error:
            sys.stderr.write(f"not watched from outside: {error}\n")
            signal.set_wakeup_fd(-1)
            return command()
        if child:
            if sys.platform == "linux":  # whom the child leaves behind becomes a child of this process
                ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
            return _Watch(child, page, woken, stacks, as_json).until_it_ends()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(woken)
        os.close(waking)
        _end_with(parent)
        faulthandler.enable()
        faulthandler.register(STACKS, file=stacks)
        Page.current = page
        try:
            code = command()
        except Interrupted as leaving:  # while something else was being told
            code = leaving.exit_code
        page.cells[CODE] = code + 1
        return code


def _end_with(parent: int) -> None:
    """Ask Linux to end this process when its parent ends, also when that was killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended meanwhile
            os._exit(1)


class _Watch:
    """The parent's side."""

    def __init__(self, child: int, page: Page, woken: int, stacks: BinaryIO, as_json: bool) -> None:
        self._child, self._page, self._woken, self._stacks, self._as_json = child, page, woken, stacks, as_json
        self._asked_at: dict[int, float] = {}
        """When somebody asked for the end, first, second, …"""
        self._ticks, self._stalled = 0, 0.0
        self._cause: tuple[str, str, int] | None = None
        """Why the child was killed: kind, message and exit code."""
        self._killed_at = 0.0

    def until_it_ends(self) -> int:
        """Wait for the child; the exit code of the command."""
        looked = time.monotonic()
        while (status := self._ended()) is None:
            if self._killed_at and looked - self._killed_at > REAP:  # it waits for a disk, and ends once that answers
                status = -signal.SIGKILL
                break
            if select.select([self._woken], [], [], EVERY)[0]:
                for number in os.read(self._woken, 1024):
                    if number in STOPS:
                        self._pass_on(self._page.cells[PASSED_ON] + 1, number)
            now = time.monotonic()
            self._enforce(now)
            self._look(min(now - looked, 2 * EVERY))  # of the time in which this process was stopped nothing counts
            looked = now
        return self._conclude(status)

    def _ended(self) -> int | None:
        pid, status = os.waitpid(self._child, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    # -- signals ---------------------------------------------------------------------------------------------

    def _pass_on(self, asked: int, number: int) -> None:
        self._page.cells[PASSED_ON], self._page.cells[NUMBER] = asked, number
        os.kill(self._child, ASK)

    def _enforce(self, now: float) -> None:
        asked, number = self._page.asked, self._page.cells[NUMBER]
        if asked:
            for count in range(1, asked + 1):
                self._asked_at.setdefault(count, now)
            if asked == 1 and now - self._asked_at[1] > GRACE:
                self._pass_on(2, number)
            if asked > 2 or (asked == 2 and now - self._asked_at[2] > LEAVE):
                self._kill("Interrupted", "ended at once", 128 + number)

    # -- hanging ---------------------------------------------------------------------------------------------

    def _look(self, seconds: float) -> None:
        """See whether the interpreter's lock has been held for too long."""
        ticks = self._page.cells[TICKS]
        self._stalled = self._stalled + seconds if ticks and ticks == self._ticks else 0.0
        self._ticks = ticks
        if self._stalled > self._page.limit and self._stopped():
            self._stalled = 0.0
        elif self._stalled > self._page.limit:
            name, limit = self._page.told.get("name", "the run"), self._page.limit
            cause = f"{name} has held the interpreter's lock for more than {limit:g} s {self._page.place()}"
            os.kill(self._child, STACKS)
            time.sleep(0.5)  # it writes while the lock is held
            self._kill("DeadlineError", f"{cause}: the run was ended", 1)

    def _stopped(self) -> bool:
        """True while somebody has stopped the child, with Ctrl-Z or a debugger."""
        with contextlib.suppress(OSError, IndexError):
            return Path(f"/proc/{self._child}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
        return False

    def _kill(self, kind: str, message: str, code: int) -> None:
        """End the child and every process that it has started, also those that do not yet end with it."""
        if self._cause is None:
            self._cause, self._killed_at = (kind, message, code), time.monotonic()
            for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped, it starts no more of them
                _send(number, [self._child, *_descendants(self._child)])

    # -- the end ---------------------------------------------------------------------------------------------

    def _conclude(self, status: int) -> int:
        """Say what the child could not say itself."""
        told, page = self._page.told, self._page
        if page.asked or not page.cells[CODE]:  # a worker that was just being started belongs to nobody
            _send(signal.SIGKILL, _descendants(os.getpid()))
        if page.cells[CODE]:
            return int(page.cells[CODE] - 1)
        if self._cause is not None:
            kind, message, code = self._cause
        elif "cause" in told:
            kind, message, code = "DeadlineError", told["cause"], 1
        elif page.asked and status == 128 + page.cells[NUMBER]:
            kind, message, code = "Interrupted", "ended at once", status
        else:
            how = f"exit code {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"
            hint = "os._exit(), or exit() in C, was called" if status >= 0 else "a crash in C, or too little memory"
            kind, code = "WorldError", 1
            message = f"the process of the run ended by {how} {page.place()}, before the run was over: {hint}"
        advice = "the last checkpoint stands, and `resume` goes on from it"
        sys.stderr.write(f"error: {message}; {advice}\n")
        if self._as_json:
            sys.stdout.write(json.dumps({"error": kind, "message": message}) + "\n")
        if "folder" in told:
            self._record(Path(told["folder"]), {"error": kind, "cause": message, "advice": advice})
        return code

    def _record(self, folder: Path, fields: dict[str, Any]) -> None:
        """Leave the end, and the stacks if there are any, in the run folder."""
        from parallel_agents.tracking.files import open_regular, write_atomically  # imports numpy: not before the fork

        self._stacks.seek(0)
        written = self._stacks.read()
        try:
            if written:
                path = folder / f"stacks-{len(list(folder.glob('stacks-*.txt'))) + 1:02d}.txt"
                write_atomically(path, [f"{fields['cause']}\n\n".encode(), written], root=folder)
                fields["stacks"] = str(path)
            head = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "level": "error"}
            line = json.dumps({**head, "event": "run_failed", "role": "guard", "process": os.getpid(), **fields})
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            with os.fdopen(open_regular(folder / "log.jsonl", flags, root=folder), "ab") as log:
                log.write(line.encode() + b"\n")
        except OSError as error:
            sys.stderr.write(f"not written: {error}\n")


def _send(number: int, pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have; none where the system does not say."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it ends just now
            for child in map(int, path.read_text().split()):
                found += [child, *_descendants(child)]
    return found
