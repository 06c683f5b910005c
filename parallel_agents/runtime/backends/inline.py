"""Rounds computed at once, by the thread that asks: the debug mode, and the measure of all others."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from parallel_agents.runtime.backends.work import Done, learn, split, whole
from parallel_agents.types import Snapshot, State

__all__ = ["InlineBackend"]

Take = Callable[[], Snapshot]


class InlineBackend:
    """A backend without workers."""

    name = "inline"

    def __init__(self, stacks: Sequence[object], states: Sequence[State], *, together: bool) -> None:
        self._stacks = len(stacks)
        self._tasks = [task for share in split(stacks, 1, together=together) for task in share]
        self._states = [states[task.stack].rows(task.part) for task in self._tasks]
        self._results: dict[int, list[Done]] = {}
        self.learn_seconds = 0.0

    def submit(self, round_: int, takes: Sequence[Take]) -> None:
        snapshots = [take() for take in takes]
        began = time.perf_counter()
        done = [learn(t, state, snapshots[t.stack]) for t, state in zip(self._tasks, self._states, strict=True)]
        self._states = [state for state, _ in done]
        self.learn_seconds = time.perf_counter() - began
        self._results[round_] = whole(self._tasks, done, self._stacks)

    def result(self, round_: int, timeout: float) -> list[Done]:
        return self._results.pop(round_)

    def poll(self, round_: int) -> bool:
        """True if the round's result is there."""
        return round_ in self._results

    def close(self) -> None:
        self._results.clear()
