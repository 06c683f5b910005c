"""Starts inline, measures, and moves to processes where that pays; all backends give the same bytes.

Starting a process costs seconds of a core and a learner in the background gains at most the shorter of
collecting and learning, so the move is made only when the rounds that are left will pay for it, and taken back
when they do not.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from parallel_agents.runtime.backends.inline import InlineBackend
from parallel_agents.runtime.backends.process import ProcessBackend
from parallel_agents.runtime.backends.work import Done
from parallel_agents.types import Snapshot, State

__all__ = ["AutoBackend"]

Take = Callable[[], Snapshot]
START_COST = 4.0
"""Seconds that a move must promise to save."""
TRIAL = 4
"""Intervals after which the move is judged by what it really gave."""


class _Backend(Protocol):
    name: str

    def submit(self, round_: int, takes: Sequence[Take]) -> None: ...
    def poll(self, round_: int) -> bool: ...
    def result(self, round_: int, timeout: float) -> list[Done]: ...
    def close(self) -> None: ...


class AutoBackend:
    """A backend that chooses another by measured cost."""

    def __init__(
        self,
        inline: Callable[[Sequence[State]], InlineBackend],
        process: Callable[[Sequence[State], Sequence[Snapshot], int], ProcessBackend],
        states: Sequence[State],
        *,
        last_round: int,
        tell: Callable[[str, dict[str, Any]], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._make_inline, self._make_process = inline, process
        self._current: _Backend = inline(states)
        self._states = list(states)
        self._last_round, self._tell, self._clock = last_round, tell, clock
        self._candidate: ProcessBackend | None = None
        self._settled = False
        self._held: dict[int, list[Done]] = {}
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
            self._measure(round_, collect, self._current.learn_seconds, takes)
        self._ended = self._clock()

    def poll(self, round_: int) -> bool:
        return round_ in self._held or self._current.poll(round_)

    def result(self, round_: int, timeout: float) -> list[Done]:
        return self._held.pop(round_) if round_ in self._held else self._claim(round_, timeout)

    def close(self) -> None:
        self._current.close()
        if self._candidate is not None:
            self._candidate.close()

    def _claim(self, round_: int, timeout: float) -> list[Done]:
        done = self._current.result(round_, timeout)
        self._outstanding.remove(round_)
        self._states = [state for state, _ in done]
        return done

    def _measure(self, round_: int, collect: float, learn: float, takes: Sequence[Take]) -> None:
        """Start a process in the background once the rounds that are left would pay for it."""
        self._inline_interval = collect + learn
        saved = min(collect, learn) * (self._last_round - round_)
        if self._candidate is None and not self._settled and round_ > 1 and saved > START_COST:
            self._drain()
            self._candidate = self._make_process(self._states, [take() for take in takes], round_ + 1)

    def _maybe_move(self, round_: int) -> None:
        if self._candidate is not None and self._candidate.ready(0.0):
            self._drain()
            self._candidate.load(self._states, round_)
            self._current, self._candidate = self._candidate, None
            self._intervals = []
            self._tell("backend_moved", {"to": self.name, "round": round_})

    def _judge(self, round_: int, interval: float) -> None:
        """Go back inline where the process turned out slower."""
        self._intervals.append(interval)
        if len(self._intervals) == TRIAL and statistics.median(self._intervals[1:]) > self._inline_interval:
            self._drain()
            self._current.close()
            self._current, self._settled = self._make_inline(self._states), True
            self._tell("backend_moved", {"to": self.name, "round": round_})

    def _drain(self, timeout: float = 600.0) -> None:
        for round_ in list(self._outstanding):
            self._held[round_] = self._claim(round_, timeout)
