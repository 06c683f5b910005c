"""A backend that starts inline, measures, and moves to threads or processes if that pays. All give the same bytes.

If compiled kernels compute the rounds, or a single update takes long, the learner is hardly ever in the interpreter.
Threads then do not slow down the collector, cost nothing to start and copy nothing. Otherwise it takes a process.
Starting the first one costs seconds of a core, and learning in the background saves at most the shorter of collecting
and learning. So it is started only if the rounds that are left will pay for it. Either move is undone if it turns out
slower.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from parallel_agents.algorithms.learner import LearnerState
from parallel_agents.core.errors import RunError
from parallel_agents.execution.backend import PATIENCE, Backend, GetSnapshot, InlineBackend, Monitored, Trained
from parallel_agents.execution.process import ProcessBackend

START_COST = 4.0
"""Seconds that a move must promise to save."""
TRIAL = 4
"""Rounds after which a move is judged by what it really gave."""
LACKING = (RunError, OSError, RuntimeError, MemoryError)
"""Raised if the system cannot give workers: torch and threading raise plain RuntimeErrors."""
LONG_UPDATE = 0.1
"""Seconds of one update from which on threads are used."""
THREAD_COST = 0.05
"""Seconds that a move to threads must promise to save."""


class AutoBackend:
    """Computes rounds with the backend that measured cost says."""

    def __init__(
        self,
        inline: Callable[[Sequence[LearnerState]], InlineBackend],
        process: Callable[[Sequence[LearnerState], int], ProcessBackend],
        thread: Callable[[Sequence[LearnerState]], Backend],
        states: Sequence[LearnerState],
        *,
        updates: int,
        last_round: int,
        emit: Callable[[str, dict[str, Any]], None],
        native: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """inline, process, thread: start such a backend from learner states. updates: in one round.

        native: compiled kernels compute the rounds, without the lock of the interpreter.
        """
        self._start_inline, self._start_process, self._start_thread = inline, process, thread
        self._current: Backend = inline(states)
        self._states = list(states)
        self._updates, self._last_round, self._emit, self._clock = updates, last_round, emit, clock
        self._native = native
        self._candidate: ProcessBackend | None = None
        """Processes that are starting and will take over."""
        self._threads_pay = False
        self._settled = False
        """True if no further move is tried."""
        self._received: dict[int, list[Trained] | RunError] = {}
        """Results taken from a backend that was left, for whoever asks for them later."""
        self._outstanding: list[int] = []
        self._submitted_at = clock()
        self._inline_interval = 0.0
        """Seconds from round to round when computed inline."""
        self._intervals: list[float] = []
        """Seconds from round to round since the move."""

    @property
    def name(self) -> str:
        """Where rounds are computed now."""
        return self._current.name

    def submit(self, round_: int, snapshots: Sequence[GetSnapshot]) -> None:
        """Move if that pays, then submit the round, and measure it if it is computed inline."""
        collecting = self._clock() - self._submitted_at
        if isinstance(self._current, InlineBackend):
            self._move_if_possible(round_)
        else:
            self._judge_move(round_, collecting)
        self._current.submit(round_, snapshots)
        self._outstanding.append(round_)
        if isinstance(self._current, InlineBackend):
            self._measure(round_, collecting, self._current.learn_seconds)
        self._submitted_at = self._clock()

    def poll(self, round_: int) -> bool:
        return round_ in self._received or self._current.poll(round_)

    def result(self, round_: int, timeout: float) -> list[Trained]:
        result = self._received.pop(round_) if round_ in self._received else self._receive(round_, timeout)
        if isinstance(result, RunError):
            raise result
        return result

    def workers(self) -> list[Monitored]:
        return self._current.workers()

    def close(self, patience: float = PATIENCE) -> None:
        """End all workers, also those that are still starting."""
        self._current.close(patience)
        if self._candidate is not None:
            self._candidate.close(patience)

    def _receive(self, round_: int, timeout: float) -> list[Trained]:
        self._outstanding.remove(round_)
        trained = self._current.result(round_, timeout)
        self._states = [state for state, _ in trained]
        return trained

    def _measure(self, round_: int, collecting: float, learning: float) -> None:
        """Decide whether threads pay; otherwise start a process if the rounds that are left would pay for it."""
        self._inline_interval = collecting + learning
        if self._settled or round_ <= 1:
            return
        left = self._last_round - round_
        saved = min(collecting, learning) * left
        lock_free = self._native or learning / self._updates >= LONG_UPDATE
        self._threads_pay = lock_free and left > TRIAL and saved > THREAD_COST
        if self._candidate is None and not lock_free and saved > START_COST and self._drained():
            try:
                self._candidate = self._start_process(self._states, round_ + 1)
            except LACKING as error:
                self._stay(error)

    def _move_if_possible(self, round_: int) -> None:
        """Move to processes once they have started, or to threads if they pay."""
        if self._candidate is not None:
            if self._has_started(self._candidate) and self._drained():
                self._candidate.load(self._states, round_)
                self._move(self._candidate, round_)
                self._candidate = None
        elif self._threads_pay and self._drained():
            self._threads_pay, self._settled = False, True
            try:
                self._move(self._start_thread(self._states), round_)
            except LACKING as error:
                self._stay(error)

    def _move(self, backend: Backend, round_: int) -> None:
        self._current, self._intervals = backend, []
        self._emit("backend_moved", {"to": self.name, "round": round_, "level": "info"})

    def _has_started(self, candidate: ProcessBackend) -> bool:
        """Return whether the processes can take over. If they failed to start, give them up and stay inline."""
        try:
            return candidate.ready(0.0)
        except RunError as error:
            candidate.close()
            self._stay(error)
            return False

    def _stay(self, error: Exception) -> None:
        self._candidate, self._settled = None, True
        self._emit("backend_kept", {"backend": self.name, "cause": str(error)})

    def _judge_move(self, round_: int, interval: float) -> None:
        """Go back inline for good if the move turned out slower."""
        self._intervals.append(interval)
        slower = len(self._intervals) == TRIAL and statistics.median(self._intervals[1:]) > self._inline_interval
        if slower and self._drained():
            self._current.close()
            self._settled = True
            self._move(self._start_inline(self._states), round_)

    def _drained(self) -> bool:
        """Wait for all outstanding rounds; return False, so that nothing moves, if one of them failed."""
        for round_ in list(self._outstanding):
            try:
                self._received[round_] = self._receive(round_, 600.0)
            except RunError as error:
                self._received[round_] = error
        return not any(isinstance(result, RunError) for result in self._received.values())
