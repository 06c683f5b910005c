"""Rounds computed by learner threads. A thread sleeps until it gets a round; it never polls."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

from parallel_agents.algorithms.learner import LearnerState
from parallel_agents.core.errors import DeadlineError, LearnerError
from parallel_agents.core.system import BackgroundThread
from parallel_agents.execution import backend
from parallel_agents.execution.backend import GetSnapshot, Monitored, Share, Trained
from parallel_agents.execution.resources import Needs, require
from parallel_agents.nn import numerics
from parallel_agents.tracking.logs import bind
from parallel_agents.tracking.timeline import Timeline


class _Worker(BackgroundThread):
    """A thread that trains its share of every round."""

    def __init__(self, index: int, share: Share, states: Sequence[LearnerState], timeline: Timeline) -> None:
        self.learner = backend.Learner(share, states, timeline)
        self.rounds: dict[int, Future[list[Trained]]] = {}
        super().__init__(f"learner-{index}")
        self.submit(partial(bind, role="learner"))

    def train(self, round_: int, snapshots: Sequence[GetSnapshot]) -> list[Trained]:
        """Train a round, in the thread."""
        numerics.require()
        trained = self.learner.train(round_, snapshots)
        backend.log_round(round_)
        return trained

    def result(self, round_: int, until: float, limit: float) -> list[Trained]:
        """Wait for a round and return what it gave, or raise why it failed.

        until: when to stop waiting, on the monotonic clock. limit: seconds that a round may take once it has begun.
        """
        timeout = min(until - time.monotonic(), self.learner.heartbeat.remaining(round_, limit))
        future = self.rounds.pop(round_)
        if wait([future], max(0.0, timeout)).not_done:
            activity = self.learner.heartbeat.busy()
            doing = "" if activity is None else f": it is at {self.learner.share.describe(activity)}"
            raise DeadlineError(f"round {round_} of {self.thread.name} took longer than {limit:g} s{doing}")
        error = future.exception()
        if error is not None:
            text = "".join(traceback.format_exception(error))
            raise LearnerError(f"round {round_} failed in {self.thread.name}: {error!r}\n{text}") from error
        return future.result()


class ThreadBackend:
    """One thread per worker, each with its own agents."""

    name = "thread"

    def __init__(
        self, stacks: Sequence[Any], states: Sequence[LearnerState], *, workers: int, together: bool, timeline: Timeline
    ) -> None:
        """Start the threads; raise `RunError` or RuntimeError if the system gives too few."""
        self._n_stacks = len(stacks)
        self._workers: list[_Worker] = []
        shares = backend.split(stacks, workers, together=together)
        require(Needs(tasks=len(shares)))
        try:
            for index, share in enumerate(shares):
                self._workers.append(_Worker(index, share, states, timeline))
        except BaseException:
            self.close()
            raise

    def submit(self, round_: int, snapshots: Sequence[GetSnapshot]) -> None:
        for worker in self._workers:
            worker.rounds[round_] = worker.submit(partial(worker.train, round_, snapshots))

    def poll(self, round_: int) -> bool:
        return all(round_ in worker.rounds and worker.rounds[round_].done() for worker in self._workers)

    def result(self, round_: int, timeout: float) -> list[Trained]:
        until = time.monotonic() + timeout
        trained = [part for worker in self._workers for part in worker.result(round_, until, timeout)]
        return backend.join([worker.learner.share for worker in self._workers], trained, self._n_stacks)

    def workers(self) -> list[Monitored]:
        pairs = [(worker.thread.name, worker.learner) for worker in self._workers]
        return [Monitored(name, learner.heartbeat, learner.share.describe) for name, learner in pairs]

    def close(self, patience: float = backend.PATIENCE) -> None:
        """End the threads. A thread that hangs cannot be ended: it is left alone and ends with the process."""
        until = time.monotonic() + patience
        for worker in self._workers:
            worker.close()
        for worker in self._workers:
            worker.thread.join(max(0.0, until - time.monotonic()))
