"""Rounds computed at once, by the thread that asks: the debug mode, and the measure of all others."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from parallel_agents.errors import LearnerError
from parallel_agents.runtime.backends.work import Done, at_task, learn, split, whole
from parallel_agents.runtime.heartbeat import Beat, Heart
from parallel_agents.runtime.supervision import Watched
from parallel_agents.tracking.timeline import Timeline
from parallel_agents.types import Snapshot, State

__all__ = ["InlineBackend"]

Take = Callable[[], Snapshot]


class InlineBackend:
    """A backend without workers."""

    name = "inline"

    def __init__(
        self, stacks: Sequence[object], states: Sequence[State], *, together: bool, timeline: Timeline
    ) -> None:
        self._timeline = timeline
        self._stacks = len(stacks)
        self._tasks = [task for share in split(stacks, 1, together=together) for task in share]
        self._states = [states[task.stack].rows(task.part) for task in self._tasks]
        self._results: dict[int, list[Done] | LearnerError] = {}
        self._failure: LearnerError | None = None
        self.learn_seconds = 0.0
        self.heart = Heart()

    def members(self) -> list[Watched]:
        """Whom to watch over."""
        return [Watched("learner", self.heart, self._at, conducts=True)]

    def _at(self, beat: Beat) -> str:
        return at_task(self._tasks, beat)

    def submit(self, round_: int, takes: Sequence[Take]) -> None:
        snapshots = [take() for take in takes]
        began = time.perf_counter()
        with self._timeline.span("learn", "learner", round=round_):
            self._results[round_] = self._failure or self._learn(round_, snapshots)
        self.learn_seconds = time.perf_counter() - began

    def _learn(self, round_: int, snapshots: Sequence[Snapshot]) -> list[Done] | LearnerError:
        """A round; one that fails is told by `result`, as everywhere, and the rounds behind it fail with it."""
        try:
            done = []
            for part, (task, state) in enumerate(zip(self._tasks, self._states, strict=True)):
                self.heart.beat(round_, part)
                done.append(learn(task, state, snapshots[task.stack].rows(task.part)))
        except LearnerError as error:
            self._failure = error
            return error
        finally:
            self.heart.rest()
        self._states = [state for state, _ in done]
        return whole(self._tasks, done, self._stacks)

    def result(self, round_: int, timeout: float) -> list[Done]:
        done = self._results.pop(round_)
        if isinstance(done, LearnerError):
            raise done
        return done

    def poll(self, round_: int) -> bool:
        """True if the round's result is there."""
        return round_ in self._results

    def close(self, patience: float = 0.0) -> None:
        self._results.clear()
