"""Rounds computed by learner threads. A thread is woken by a job; it never polls."""

from __future__ import annotations

import contextvars
import queue
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from parallel_agents.errors import DeadlineError, LearnerError
from parallel_agents.networks.numerics import require
from parallel_agents.runtime.backends.work import Done, Task, learn, split, whole
from parallel_agents.types import Snapshot, State

__all__ = ["ThreadBackend"]

Take = Callable[[], Snapshot]


class _Worker:
    """A thread, its jobs and its answers. After a failure it answers no more."""

    def __init__(self, index: int, tasks: Sequence[Task], states: Sequence[State]) -> None:
        self.tasks = list(tasks)
        self.states = list(states)
        self.jobs: queue.SimpleQueue[tuple[int, Sequence[Take]] | None] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[tuple[int, list[Done] | BaseException]] = queue.SimpleQueue()
        context = contextvars.copy_context()  # so that log records of this thread carry the run's context
        self.thread = threading.Thread(target=context.run, args=(self._serve,), name=f"learner-{index}", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        round_ = 0
        try:
            require()
            while (job := self.jobs.get()) is not None:
                round_, takes = job
                snapshots = [take() for take in takes]
                done = [learn(t, s, snapshots[t.stack]) for t, s in zip(self.tasks, self.states, strict=True)]
                self.states = [state for state, _ in done]
                self.answers.put((round_, done))
        except BaseException as error:
            self.answers.put((round_, error))

    def answer(self, round_: int, timeout: float) -> list[Done]:
        try:
            found, done = self.answers.get(timeout=timeout)
        except queue.Empty:
            raise DeadlineError(f"round {round_} of {self.thread.name} took longer than {timeout:g} s") from None
        if isinstance(done, BaseException):
            text = "".join(traceback.format_exception(done))
            raise LearnerError(f"round {found} failed in {self.thread.name}: {done!r}\n{text}") from done
        return done


class ThreadBackend:
    """One thread per worker, each with its own agents."""

    name = "thread"

    def __init__(self, stacks: Sequence[Any], states: Sequence[State], *, workers: int, together: bool) -> None:
        self._stacks = len(stacks)
        shares = split(stacks, workers, together=together)
        self._workers = [
            _Worker(index, share, [states[task.stack].rows(task.part) for task in share])
            for index, share in enumerate(shares)
        ]

    def submit(self, round_: int, takes: Sequence[Take]) -> None:
        for worker in self._workers:
            worker.jobs.put((round_, takes))

    def result(self, round_: int, timeout: float) -> list[Done]:
        done = [answer for worker in self._workers for answer in worker.answer(round_, timeout)]
        return whole([task for worker in self._workers for task in worker.tasks], done, self._stacks)

    def poll(self, round_: int) -> bool:
        """True if the round's result is there."""
        return not any(worker.answers.empty() for worker in self._workers)

    def close(self) -> None:
        for worker in self._workers:
            worker.jobs.put(None)
        for worker in self._workers:
            worker.thread.join(timeout=2.0)
