"""Starts inline, measures, and moves to threads or processes where that pays; all backends give the same bytes.

Where a single update takes long, its learner is hardly ever in the interpreter: threads then leave the collector alone,
cost nothing to start and copy nothing. Else it takes a process. Starting one costs seconds of a core and a learner in
the background gains at most the shorter of collecting and learning, so that move is made only when the rounds that are
left will pay for it. Either is taken back where it turns out slower.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from parallel_agents.errors import RunError
from parallel_agents.runtime.backends.inline import InlineBackend
from parallel_agents.runtime.backends.process import ProcessBackend
from parallel_agents.runtime.backends.work import Done
from parallel_agents.runtime.supervision import Watched
from parallel_agents.runtime.workers import PATIENCE
from parallel_agents.types import Snapshot, State

__all__ = ["AutoBackend"]

Take = Callable[[], Snapshot]
START_COST = 4.0
"""Seconds that a move must promise to save."""
TRIAL = 4
"""Intervals after which the move is judged by what it really gave."""
LACKING = (RunError, OSError, RuntimeError, MemoryError)
"""What is raised where workers cannot be had: torch and threading raise plain RuntimeErrors."""
LONG_UPDATE = 0.1
"""Seconds of one update from which on a learner is a matter for threads."""


class _Backend(Protocol):
    name: str

    def submit(self, round_: int, takes: Sequence[Take]) -> None: ...
    def poll(self, round_: int) -> bool: ...
    def result(self, round_: int, timeout: float) -> list[Done]: ...
    def members(self) -> list[Watched]: ...
    def close(self, patience: float = PATIENCE) -> None: ...


class AutoBackend:
    """A backend that chooses another by measured cost."""

    def __init__(
        self,
        inline: Callable[[Sequence[State]], InlineBackend],
        process: Callable[[Sequence[State], int], ProcessBackend],
        thread: Callable[[Sequence[State]], _Backend],
        states: Sequence[State],
        *,
        updates: int,
        last_round: int,
        tell: Callable[[str, dict[str, Any]], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """updates: how many of them a round is made of."""
        self._make_inline, self._make_process, self._make_thread = inline, process, thread
        self._updates = updates
        self._current: _Backend = inline(states)
        self._states = list(states)
        self._last_round, self._tell, self._clock = last_round, tell, clock
        self._candidate: ProcessBackend | None = None
        self._settled = self._threads_do = False
        self._held: dict[int, list[Done] | RunError] = {}
        self._outstanding: list[int] = []
        self._ended = clock()
        self._inline_interval = 0.0
        self._intervals: list[float] = []

    @property
    def name(self) -> str:
        return self._current.name

    def submit(self, round_: int, takes: Sequence[Take]) -> None:
        collect = self._clock() - self._ended
        if isinstance(self._current, InlineBackend):
            self._maybe_move(round_)
        else:
            self._judge(round_, collect)
        self._current.submit(round_, takes)
        self._outstanding.append(round_)
        if isinstance(self._current, InlineBackend):
            self._measure(round_, collect, self._current.learn_seconds)
        self._ended = self._clock()

    def poll(self, round_: int) -> bool:
        return round_ in self._held or self._current.poll(round_)

    def result(self, round_: int, timeout: float) -> list[Done]:
        done = self._held.pop(round_) if round_ in self._held else self._claim(round_, timeout)
        if isinstance(done, RunError):
            raise done
        return done

    def members(self) -> list[Watched]:
        """Whom to watch over."""
        return self._current.members()

    def close(self, patience: float = PATIENCE) -> None:
        self._current.close(patience)
        if self._candidate is not None:
            self._candidate.close(patience)

    def _claim(self, round_: int, timeout: float) -> list[Done]:
        self._outstanding.remove(round_)
        done = self._current.result(round_, timeout)
        self._states = [state for state, _ in done]
        return done

    def _measure(self, round_: int, collect: float, learn: float) -> None:
        """See whether threads would do; else start a process once the rounds that are left would pay for it."""
        self._inline_interval = collect + learn
        if self._settled or round_ <= 1:
            return
        self._threads_do = learn / self._updates >= LONG_UPDATE and self._last_round - round_ > TRIAL
        saved = min(collect, learn) * (self._last_round - round_)
        if self._candidate is None and not self._threads_do and saved > START_COST and self._drained():
            try:
                self._candidate = self._make_process(self._states, round_ + 1)
            except LACKING as error:
                self._give_up(error)

    def _maybe_move(self, round_: int) -> None:
        if self._candidate is not None:
            if self._has_started(self._candidate) and self._drained():
                self._candidate.load(self._states, round_)
                self._move(self._candidate, round_)
                self._candidate = None
        elif self._threads_do and self._drained():
            self._threads_do, self._settled = False, True
            try:
                self._move(self._make_thread(self._states), round_)
            except LACKING as error:
                self._give_up(error)

    def _move(self, backend: _Backend, round_: int) -> None:
        self._current, self._intervals = backend, []
        self._tell("backend_moved", {"to": self.name, "round": round_})

    def _has_started(self, candidate: ProcessBackend) -> bool:
        """True once it can take over; one that cannot be had is given up, and the rounds stay where they are."""
        try:
            return candidate.ready(0.0)
        except RunError as error:
            candidate.close()
            self._give_up(error)
            return False

    def _give_up(self, error: Exception) -> None:
        self._candidate, self._settled = None, True
        self._tell("backend_kept", {"backend": self.name, "cause": str(error)})

    def _judge(self, round_: int, interval: float) -> None:
        """Go back inline where the move turned out slower."""
        self._intervals.append(interval)
        slower = len(self._intervals) == TRIAL and statistics.median(self._intervals[1:]) > self._inline_interval
        if slower and self._drained():
            self._current.close()
            self._settled = True
            self._move(self._make_inline(self._states), round_)

    def _drained(self, timeout: float = 600.0) -> bool:
        """True once all results are here; a failure is kept for whoever asks for its round, and nothing moves."""
        for round_ in list(self._outstanding):
            try:
                self._held[round_] = self._claim(round_, timeout)
            except RunError as error:
                self._held[round_] = error
        return not any(isinstance(done, RunError) for done in self._held.values())
