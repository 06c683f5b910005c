"""Rounds computed by learner threads. A thread sleeps until it gets a job; it never polls."""

from __future__ import annotations

import contextvars
import queue
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Any

from parallel_agents.algorithms.learner import LearnerState, Snapshot
from parallel_agents.core.errors import DeadlineError, LearnerError
from parallel_agents.execution.backend import (
    PATIENCE,
    GetSnapshot,
    Heartbeat,
    Monitored,
    Share,
    Trained,
    join,
    log_round,
    split,
)
from parallel_agents.execution.resources import Needs, require
from parallel_agents.nn import numerics
from parallel_agents.tracking.logs import bind
from parallel_agents.tracking.timeline import Timeline


class _Worker:
    """A thread with a queue of jobs and a queue of answers. The rounds after a failed one fail with it."""

    def __init__(self, index: int, share: Share, states: Sequence[LearnerState], timeline: Timeline) -> None:
        self.share, self._states, self._timeline = share, share.states(states), timeline
        self.heartbeat = Heartbeat()
        self.jobs: queue.SimpleQueue[tuple[int, Sequence[GetSnapshot]] | None] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[tuple[int, list[Trained] | BaseException]] = queue.SimpleQueue()
        context = contextvars.copy_context()  # so that log records of this thread carry the run's context
        self.thread = threading.Thread(target=context.run, args=(self._serve,), name=f"learner-{index}", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        """Answer jobs until the job None comes."""
        failure: BaseException | None = None
        bind(role="learner")
        while (job := self.jobs.get()) is not None:
            round_, snapshots = job
            answer: list[Trained] | BaseException
            try:
                taken = [take() for take in snapshots]  # after a failure too, since the collector waits for it
                answer = failure or self._train(round_, taken)
            except BaseException as error:
                answer = failure = error
            self.answers.put((round_, answer))

    def _train(self, round_: int, snapshots: Sequence[Snapshot]) -> list[Trained]:
        numerics.require()
        with self._timeline.span("learn", "learner", round=round_):
            trained = self.share.train(round_, self._states, self.share.snapshots(snapshots), self.heartbeat)
        self._states = [state for state, _ in trained]
        log_round(round_)
        return trained

    def answer(self, round_: int, until: float, limit: float) -> list[Trained]:
        """Wait for a round and return what it gave, or raise why it failed.

        until: when to stop waiting, on the monotonic clock. limit: seconds that a round may take once it has begun.
        """
        timeout = min(until - time.monotonic(), self.heartbeat.remaining(round_, limit))
        try:
            found, answer = self.answers.get(timeout=max(0.0, timeout))
        except queue.Empty:
            activity = self.heartbeat.busy()
            doing = "" if activity is None else f": it is at {self.share.describe(activity)}"
            raise DeadlineError(f"round {round_} of {self.thread.name} took longer than {limit:g} s{doing}") from None
        if isinstance(answer, BaseException):
            text = "".join(traceback.format_exception(answer))
            raise LearnerError(f"round {found} failed in {self.thread.name}: {answer!r}\n{text}") from answer
        return answer


class ThreadBackend:
    """One thread per worker, each with its own agents."""

    name = "thread"

    def __init__(
        self, stacks: Sequence[Any], states: Sequence[LearnerState], *, workers: int, together: bool, timeline: Timeline
    ) -> None:
        """Start the threads; raise `RunError` or RuntimeError if the system gives too few."""
        self._n_stacks = len(stacks)
        self._workers: list[_Worker] = []
        shares = split(stacks, workers, together=together)
        require(Needs(tasks=len(shares)))
        try:
            for index, share in enumerate(shares):
                self._workers.append(_Worker(index, share, states, timeline))
        except BaseException:
            self.close()
            raise

    def submit(self, round_: int, snapshots: Sequence[GetSnapshot]) -> None:
        """Give every thread the round as its next job."""
        for worker in self._workers:
            worker.jobs.put((round_, snapshots))

    def poll(self, round_: int) -> bool:
        """Return whether all threads have answered."""
        return not any(worker.answers.empty() for worker in self._workers)

    def result(self, round_: int, timeout: float) -> list[Trained]:
        """Wait for a round and return one (state, result) per stack."""
        until = time.monotonic() + timeout
        trained: list[Trained] = []
        for worker in self._workers:
            trained += worker.answer(round_, until, timeout)
        return join([worker.share for worker in self._workers], trained, self._n_stacks)

    def workers(self) -> list[Monitored]:
        """Return the threads."""
        return [Monitored(worker.thread.name, worker.heartbeat, worker.share.describe) for worker in self._workers]

    def close(self, patience: float = PATIENCE) -> None:
        """End the threads. A thread that hangs cannot be ended: it is left alone and ends with the process."""
        until = time.monotonic() + patience
        for worker in self._workers:
            worker.jobs.put(None)
        for worker in self._workers:
            worker.thread.join(max(0.0, until - time.monotonic()))
