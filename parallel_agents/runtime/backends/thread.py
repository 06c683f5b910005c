"""Rounds computed by learner threads. A thread is woken by a job; it never polls."""

from __future__ import annotations

import contextvars
import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from parallel_agents.errors import DeadlineError, LearnerError
from parallel_agents.networks.numerics import require
from parallel_agents.runtime.backends.work import Done, Task, at_task, learn, note, split, whole
from parallel_agents.runtime.heartbeat import Beat, Heart
from parallel_agents.runtime.supervision import Watched, left
from parallel_agents.runtime.workers import PATIENCE
from parallel_agents.tracking.logs import bind
from parallel_agents.tracking.timeline import Timeline
from parallel_agents.types import Snapshot, State

__all__ = ["ThreadBackend"]

Take = Callable[[], Snapshot]


class _Worker:
    """A thread, its jobs and its answers. The rounds behind one that failed fail with it."""

    def __init__(self, index: int, tasks: Sequence[Task], states: Sequence[State], timeline: Timeline) -> None:
        self._timeline = timeline
        self.tasks = list(tasks)
        self.states = list(states)
        self.heart = Heart()
        self.jobs: queue.SimpleQueue[tuple[int, Sequence[Take]] | None] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[tuple[int, list[Done] | BaseException]] = queue.SimpleQueue()
        context = contextvars.copy_context()  # so that log records of this thread carry the run's context
        self.thread = threading.Thread(target=context.run, args=(self._serve,), name=f"learner-{index}", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        failure: BaseException | None = None
        bind(role="learner")
        while (job := self.jobs.get()) is not None:
            round_, takes = job
            answer: list[Done] | BaseException
            try:
                snapshots = [take() for take in takes]  # after a failure too, since the collector waits for it
                answer = failure or self._learn(round_, snapshots)
            except BaseException as error:
                answer = failure = error
            self.heart.rest()
            self.answers.put((round_, answer))

    def _learn(self, round_: int, snapshots: Sequence[Snapshot]) -> list[Done]:
        require()
        with self._timeline.span("learn", "learner", round=round_):
            done = []
            for part, (task, state) in enumerate(zip(self.tasks, self.states, strict=True)):
                self.heart.beat(round_, part)
                done.append(learn(task, state, snapshots[task.stack].rows(task.part)))
        self.states = [state for state, _ in done]
        note("round_learnt", round=round_)
        return done

    def at(self, beat: Beat) -> str:
        return at_task(self.tasks, beat)

    def answer(self, round_: int, until: float, limit: float) -> list[Done]:
        """until: when the wait is over. limit: seconds that a round may take once it has begun."""
        timeout = min(until - time.monotonic(), left(self.heart, round_, limit))
        try:
            found, done = self.answers.get(timeout=max(0.0, timeout))
        except queue.Empty:
            beat = self.heart.busy()
            doing = "" if beat is None else f": it is at {self.at(beat)}"
            raise DeadlineError(f"round {round_} of {self.thread.name} took longer than {limit:g} s{doing}") from None
        if isinstance(done, BaseException):
            text = "".join(traceback.format_exception(done))
            raise LearnerError(f"round {found} failed in {self.thread.name}: {done!r}\n{text}") from done
        return done


class ThreadBackend:
    """One thread per worker, each with its own agents."""

    name = "thread"

    def __init__(
        self, stacks: Sequence[Any], states: Sequence[State], *, workers: int, together: bool, timeline: Timeline
    ) -> None:
        self._stacks = len(stacks)
        shares = split(stacks, workers, together=together)
        self._workers: list[_Worker] = []
        try:
            for index, share in enumerate(shares):
                own = [states[task.stack].rows(task.part) for task in share]
                self._workers.append(_Worker(index, share, own, timeline))
        except BaseException:  # the system may give no more threads
            self.close()
            raise

    def members(self) -> list[Watched]:
        """Whom to watch over."""
        return [Watched(worker.thread.name, worker.heart, worker.at) for worker in self._workers]

    def submit(self, round_: int, takes: Sequence[Take]) -> None:
        for worker in self._workers:
            worker.jobs.put((round_, takes))

    def result(self, round_: int, timeout: float) -> list[Done]:
        until = time.monotonic() + timeout
        done: list[Done] = []
        for worker in self._workers:
            done += worker.answer(round_, until, timeout)
        return whole([task for worker in self._workers for task in worker.tasks], done, self._stacks)

    def poll(self, round_: int) -> bool:
        """True if the round's result is there."""
        return not any(worker.answers.empty() for worker in self._workers)

    def close(self, patience: float = PATIENCE) -> None:
        """End the threads. One that hangs cannot be ended: it is left alone, and ends with the process."""
        until = time.monotonic() + patience
        for worker in self._workers:
            worker.jobs.put(None)
        for worker in self._workers:
            worker.thread.join(max(0.0, until - time.monotonic()))
