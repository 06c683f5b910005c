"""Watching over a run: whoever is at something for longer than it may take is named, with the stacks of everybody.

A thread looks at every heart four times a second. It never touches what is computed: a hung worker is replaced by
whoever waits for it (`Rounds`), once its deadline is over. Only what runs in the conducting thread itself, a world
or a learner inline, has nobody who waits for it; there a signal interrupts it with a `DeadlineError`. What does not
return even then (code that never comes back to Python) is given up where somebody said how.
"""

from __future__ import annotations

import contextlib
import contextvars
import faulthandler
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import structlog

from parallel_agents.errors import DeadlineError
from parallel_agents.runtime.heartbeat import Beat, Heart
from parallel_agents.tracking.files import write_atomically

if TYPE_CHECKING:
    from parallel_agents.runtime.workers import Worker

__all__ = ["Supervisor", "Watched", "left"]

EVERY = 0.25
"""Seconds between two looks."""
LAST_GRACE = 10.0
"""Seconds after which something that was interrupted and did not return is given up."""
MOST_FILES = 20
"""Files of stacks that a run folder keeps at most."""
INTERRUPT = signal.SIGURG
"""Ignored by every process that has not asked for it, and hardly used."""


@dataclass(frozen=True)
class Watched:
    """Somebody with a heart."""

    name: str
    heart: Heart
    at: Callable[[Beat], str]
    """What a beat means."""
    stacks: Callable[[], str] | None = None
    """Where its threads are; None where they are threads of this process."""
    ended: Callable[[], str | None] = lambda: None
    """How it ended; None while it lives."""
    conducts: bool = False
    """True where it runs in the conducting thread, so that nobody waits for it."""
    limit: float | None = None
    """Seconds that one thing may take; None: the limit of a round."""
    pid: int = 0
    """Of the process that it is; 0 where it is a thread of this one."""

    @classmethod
    def process(cls, worker: Worker, *, limit: float | None = None) -> Watched:
        """A worker process."""

        def at(_: Beat) -> str:
            return worker.describe()

        return cls(str(worker), worker.heart, at, worker.stacks, worker.ended, limit=limit, pid=worker.pid)


def left(heart: Heart, job: int, limit: float) -> float:
    """Seconds that a worker still has for a job: counted from its beginning, if that is what it is at."""
    beat = heart.busy()
    return limit - beat.seconds if beat is not None and beat.job == job else limit


class Supervisor:
    """Watches over everybody while a `with` block lasts."""

    def __init__(self, everybody: Callable[[], Sequence[Watched]], *, limit: float) -> None:
        """everybody: asked at each look, since workers come and go. limit: seconds that a round may take."""
        self._everybody, self._limit = everybody, limit
        self.folder: Path | None = None
        """Where stacks are written; None: into the log."""
        self.give_up: Callable[[str], None] | None = None
        """What to do about code in the conducting thread that cannot be interrupted."""
        self.on_look: Callable[[], None] = lambda: None
        self.on_exit: Callable[[], None] = lambda: None
        """Called at each look and at the end, for whoever watches this process from outside."""
        self._told: dict[str, int] = {}
        """Whose beat (since when) has been reported."""
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._conductor = 0
        self._before: Any = None

    def __enter__(self) -> Supervisor:
        self._over.clear()
        self.on_look()
        self._conductor = threading.get_ident()
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(INTERRUPT, self._on_signal)
        context = contextvars.copy_context()  # so that its records carry the run's context
        self._thread = threading.Thread(target=context.run, args=(self._watch,), name="supervisor", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # the system gives no more threads: the run can do without this one
            self._thread = None
            _log("not_supervised", cause=str(error), advice="nobody will notice what hangs: raise ulimit -u")
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(2.0)
        self.on_exit()
        if self._before is not None:
            signal.signal(INTERRUPT, self._before)
            self._before = None

    def overdue(self, watched: Watched) -> Beat | None:
        """What somebody has been at for longer than it may take."""
        beat = watched.heart.busy()
        return beat if beat is not None and beat.seconds > self._limit_of(watched) else None

    # -- in the thread ---------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._over.wait(EVERY):
            self.on_look()
            for watched in self._everybody():
                self._look(watched)

    def _look(self, watched: Watched) -> None:
        cause = watched.ended()
        if cause is not None and self._told.get(watched.name) != -1:
            self._told[watched.name] = -1
            _log("worker_died", worker=watched.name, cause=cause)
        beat = self.overdue(watched)
        if beat is None or cause is not None:
            return
        if self._told.get(watched.name) != beat.since:
            self._told[watched.name] = beat.since
            self._report(watched, beat)
            if watched.conducts and self._before is not None:
                signal.pthread_kill(self._conductor, INTERRUPT)
        elif watched.conducts and self.give_up is not None and beat.seconds > self._limit_of(watched) + LAST_GRACE:
            self.give_up(f"{watched.name} hangs at {watched.at(beat)} and cannot be interrupted")

    def _limit_of(self, watched: Watched) -> float:
        return self._limit if watched.limit is None else watched.limit

    def _report(self, watched: Watched, beat: Beat) -> None:
        """Name it, and say where everybody is."""
        text = f"{watched.name} has been at {watched.at(beat)} for {beat.seconds:.1f} s\n\n{self._all_stacks()}"
        where = self._write(text)
        _log("hung", worker=watched.name, at=watched.at(beat), seconds=round(beat.seconds, 1), stacks=where or text)

    def _all_stacks(self) -> str:
        parts = [f"--- this process (pid {os.getpid()})\n{_own_stacks()}"]
        for watched in self._everybody():
            if watched.stacks is not None:
                parts.append(f"--- {watched.name}\n{watched.stacks()}")
        return "\n".join(parts)

    def _write(self, text: str) -> str | None:
        if self.folder is None:
            return None
        taken = len(list(self.folder.glob("stacks-*.txt")))
        if taken >= MOST_FILES:
            return None
        path = self.folder / f"stacks-{taken + 1:02d}.txt"
        try:
            write_atomically(path, [text.encode()])
        except OSError as error:
            _log("stacks_not_written", path=str(path), cause=str(error))
            return None
        return str(path)

    # -- in the conducting thread ----------------------------------------------------------------------------

    def _on_signal(self, _: int, frame: FrameType | None) -> None:
        """Interrupt what hangs; whoever has gone on in the meantime is left alone."""
        for watched in self._everybody():
            beat = self.overdue(watched) if watched.conducts else None
            if beat is not None:
                limit = self._limit_of(watched)
                raise DeadlineError(f"{watched.name} has been at {watched.at(beat)} for more than {limit:g} s")


def _own_stacks() -> str:
    names = "".join(f"thread {thread.ident or 0:#018x} is {thread.name}\n" for thread in threading.enumerate())
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return names + file.read().decode(errors="replace")


def _log(event: str, **fields: Any) -> None:
    """An error in the run's log, or on stderr where nobody has configured one."""
    if structlog.is_configured():
        structlog.get_logger().error(event, **fields)
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr is closed or None: nobody can be told
        sys.stderr.write(f"{event}: " + ", ".join(f"{name} {value}" for name, value in fields.items()) + "\n")
