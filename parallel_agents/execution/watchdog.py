"""Monitors a run: reports workers that exceed their deadline, and memory that keeps growing.

The watchdog is a thread that reads every heartbeat four times a second. It never touches what is computed: whoever
waits for the result of a hung worker replaces it. Only what runs in the thread of the loop itself, a world or a learner
inline, has nobody who waits for it; there a signal interrupts it with a `DeadlineError`. Code that does not return even
then (it never comes back to Python) is passed to `give_up`, if that is set.
"""

from __future__ import annotations

import contextlib
import contextvars
import faulthandler
import itertools
import os
import signal
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import structlog

from parallel_agents.core.errors import DeadlineError
from parallel_agents.core.files import write_atomically
from parallel_agents.execution.backend import Activity, Monitored

INTERVAL = 0.25
"""Seconds between two checks of all heartbeats."""
LAST_GRACE = 10.0
"""Seconds after which something that was interrupted and did not return is given up."""
MOST_FILES = 20
"""Traceback files that a run folder keeps at most."""
INTERRUPT = signal.SIGURG
"""Ignored by every process that has not asked for it, and hardly used."""

WARM_UP = 4
"""Epochs after which everything has been imported and compiled."""
PERIOD, PERIODS = 4, 3
"""Epochs of one period, and how many periods in a row must have grown."""
LEAST_GROWTH = 4 * 2**20
"""Bytes by which each period must have grown."""
FACTOR, SPARE = 1.5, 256 * 2**20
"""A size that is never reported by itself: half as much again as after the start, and a quarter of a GiB."""


class Watchdog:
    """Monitors workers while a `with` block lasts."""

    def __init__(self, workers: Callable[[], Sequence[Monitored]], *, limit: float) -> None:
        """workers: called at each check, since workers come and go. limit: seconds that a round may take."""
        self._workers, self._limit = workers, limit
        self.folder: Path | None = None
        """Where tracebacks are written; None: into the log."""
        self.give_up: Callable[[str], None] | None = None
        """Called with a message if code in the thread of the loop cannot be interrupted."""
        self.on_check: Callable[[], None] = lambda: None
        """Called at each check, for whoever watches this process from outside."""
        self.on_exit: Callable[[], None] = lambda: None
        """Called at the end of the `with` block."""
        self._reported: dict[str, int] = {}
        """Start of the activity that was reported last, per worker; -1: its end was."""
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop_thread = 0
        self._previous_handler: Any = None

    def __enter__(self) -> Watchdog:
        self._stopped.clear()
        self.on_check()
        self._loop_thread = threading.get_ident()
        if threading.current_thread() is threading.main_thread():
            self._previous_handler = signal.signal(INTERRUPT, self._on_signal)
        context = contextvars.copy_context()  # so that its log records carry the run's context
        self._thread = threading.Thread(target=context.run, args=(self._watch,), name="watchdog", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # the system gives no more threads: the run can do without this one
            self._thread = None
            _log("not_supervised", cause=str(error), advice="nobody will notice what hangs: raise ulimit -u")
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(2.0)
        self.on_exit()
        if self._previous_handler is not None:
            signal.signal(INTERRUPT, self._previous_handler)
            self._previous_handler = None

    def overdue(self, worker: Monitored) -> Activity | None:
        """Return what a worker has been doing for longer than it may; None if it is in time."""
        activity = worker.heartbeat.busy()
        return activity if activity is not None and activity.seconds > self._limit_of(worker) else None

    def _limit_of(self, worker: Monitored) -> float:
        return self._limit if worker.limit is None else worker.limit

    # -- in the thread of the watchdog -------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._stopped.wait(INTERVAL):
            self.on_check()
            for worker in self._workers():
                self._check(worker)

    def _check(self, worker: Monitored) -> None:
        """Report a worker that has ended or hangs, once, and interrupt it if it runs in the thread of the loop."""
        cause = worker.ended()
        if cause is not None and self._reported.get(worker.name) != -1:
            self._reported[worker.name] = -1
            _log("worker_died", worker=worker.name, cause=cause)
        activity = self.overdue(worker)
        if activity is None or cause is not None:
            return
        if self._reported.get(worker.name) != activity.since:
            self._reported[worker.name] = activity.since
            self._report(worker, activity)
            if worker.in_loop_thread and self._previous_handler is not None:
                signal.pthread_kill(self._loop_thread, INTERRUPT)
        elif worker.in_loop_thread and self.give_up and activity.seconds > self._limit_of(worker) + LAST_GRACE:
            self.give_up(f"{worker.name} hangs at {worker.describe(activity)} and cannot be interrupted")

    def _report(self, worker: Monitored, activity: Activity) -> None:
        """Log the worker that hangs, with the tracebacks of all threads and processes."""
        doing = worker.describe(activity)
        text = f"{worker.name} has been at {doing} for {activity.seconds:.1f} s\n\n{self._tracebacks()}"
        path = self._write(text)
        _log("hung", worker=worker.name, at=doing, seconds=round(activity.seconds, 1), stacks=path or text)

    def _tracebacks(self) -> str:
        parts = [f"--- this process (pid {os.getpid()})\n{_own_tracebacks()}"]
        for worker in self._workers():
            if worker.tracebacks is not None:
                parts.append(f"--- {worker.name}\n{worker.tracebacks()}")
        return "\n".join(parts)

    def _write(self, text: str) -> str | None:
        """Write tracebacks into the folder and return the path; None if there is no folder or no room."""
        if self.folder is None:
            return None
        count = len(list(self.folder.glob("stacks-*.txt")))
        if count >= MOST_FILES:
            return None
        path = self.folder / f"stacks-{count + 1:02d}.txt"
        try:
            write_atomically(path, [text.encode()])
        except OSError as error:
            _log("stacks_not_written", path=str(path), cause=str(error))
            return None
        return str(path)

    # -- in the thread of the loop -----------------------------------------------------------------------------

    def _on_signal(self, _: int, frame: FrameType | None) -> None:
        """Raise `DeadlineError` in what hangs; do nothing if it has returned in the meantime."""
        for worker in self._workers():
            activity = self.overdue(worker) if worker.in_loop_thread else None
            if activity is not None:
                limit = self._limit_of(worker)
                raise DeadlineError(f"{worker.name} has been at {worker.describe(activity)} for more than {limit:g} s")


class MemoryMonitor:
    """Reports once, and again at each doubling, that a run takes more and more memory.

    It reports if memory beside the buffers, which fill up over time, has grown in each of the last periods, in most of
    their epochs, and not ever less: memory that is allocated once, now and then, or in the first rounds of a learner,
    or given back, is no leak. It also reports a run that takes far more than after its start.

    >>> sizes = iter(range(2**30, 2**31, 5 * 2**20))
    >>> monitor = MemoryMonitor(buffers=0, measure=sizes.__next__)
    >>> [epoch for epoch in range(1, 30) if monitor.after(epoch) is not None]
    [16]
    """

    def __init__(self, buffers: int, measure: Callable[[], int]) -> None:
        """buffers: bytes of all buffers once they are full. measure: returns the bytes that are in use now."""
        self._buffers, self._measure = buffers, measure
        self._bound = 0.0
        self._beside_buffers: list[tuple[int, int]] = []
        """Epochs, and bytes beside the buffers after them."""
        self._phase: Hashable = None
        self._reported = False

    def after(self, epochs: int, *, written: int = 0, phase: Hashable = None) -> dict[str, Any] | None:
        """Return what to report after so many epochs of this process; None if all is well.

        written: bytes of the buffers that have been written so far. phase: changes when the engine itself starts
        something new, such as the first updates or another backend.
        """
        if epochs < WARM_UP:
            return None
        now = self._measure()
        self._bound = self._bound or FACTOR * now + self._buffers + SPARE
        if phase != self._phase:
            self._phase, self._beside_buffers = phase, []
        self._beside_buffers = [*self._beside_buffers, (epochs, now - written)][-PERIOD * PERIODS - 1 :]
        growing = not self._reported and self._grows_steadily()
        if not growing and now <= self._bound:
            return None
        self._reported, self._bound = True, 2.0 * now
        return {
            "resident_bytes": now,
            "bytes_per_epoch": self._growth(),
            "advice": "look for what keeps growing in the environment or in models of its own; buffers of their own "
            "that are still filling up look the same",
        }

    def _growth(self) -> int:
        """Return bytes per epoch in the median period: what was allocated once, a library say, is no part of it."""
        ends = self._beside_buffers[:: min(PERIOD, max(1, len(self._beside_buffers) - 1))]
        rates = [(after - before) // (last - first) for (first, before), (last, after) in itertools.pairwise(ends)]
        return statistics.median_low(rates) if rates else 0

    def _grows_steadily(self) -> bool:
        sizes = [size for _, size in self._beside_buffers]
        if len(sizes) <= PERIOD * PERIODS:
            return False
        by_epoch, by_period = (
            [after - before for before, after in itertools.pairwise(some)] for some in (sizes, sizes[::PERIOD])
        )
        slows_down = by_period[-1] < by_period[0] / 2
        return min(by_period) >= LEAST_GROWTH and statistics.median_low(by_epoch) > 0 and not slows_down


def resident_bytes(pids: Iterable[int | str] = ("self",)) -> int:
    """Return the bytes of memory that some processes hold; 0 if the system does not say.

    Pages of files, such as the code of libraries, are left out: the system drops them and reads them again as it likes.
    """
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/status", "rb", buffering=0) as file:
            words = file.read().split()  # no file or number: the process has just ended
            total += sum(1024 * int(words[words.index(kind) + 1]) for kind in (b"RssAnon:", b"RssShmem:"))
    return total


def _own_tracebacks() -> str:
    names = "".join(f"thread {thread.ident or 0:#018x} is {thread.name}\n" for thread in threading.enumerate())
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return names + file.read().decode(errors="replace")


def _log(event: str, **fields: Any) -> None:
    """Write an error to the run's log, or to stderr if logging is not configured."""
    if structlog.is_configured():
        structlog.get_logger().error(event, **fields)
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr is closed or None
        sys.stderr.write(f"{event}: " + ", ".join(f"{name} {value}" for name, value in fields.items()) + "\n")
