"""Rounds computed by learner threads, and by the thread of the loop while it waits for them.

A worker trains one task after the other, the oldest round first, and sleeps while there is none; it never polls. Where
compiled kernels compute every round, the thread of the loop is one of two or more workers: instead of waiting for a
round it trains what is left of it. So there are never more threads than workers, and none waits for a core.
"""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from parallel_agents.algorithms.learner import LearnerState
from parallel_agents.core.errors import DeadlineError, LearnerError
from parallel_agents.core.system import BackgroundThread
from parallel_agents.execution import backend
from parallel_agents.execution.backend import Activity, GetSnapshot, Heartbeat, Learner, Monitored, Share, Trained
from parallel_agents.execution.resources import Needs, require
from parallel_agents.nn import numerics
from parallel_agents.tracking.logs import bind
from parallel_agents.tracking.timeline import Timeline


class _Worker:
    """A thread that trains tasks, one at a time."""

    def __init__(self, name: str) -> None:
        self.name, self.heartbeat = name, Heartbeat()
        self.share = Share()
        """The task that it trains now, or trained last."""

    def describe(self, activity: Activity) -> str:
        """Say what it is doing."""
        return self.share.describe(activity)


class _Rounds:
    """The rounds of one task, which are trained in order."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.waiting: deque[tuple[int, Sequence[GetSnapshot]]] = deque()
        self.busy = False
        """Whether one of them is being trained."""
        self.done: dict[int, Trained] = {}
        self.failed: dict[int, tuple[str, BaseException]] = {}
        """By whom, and why."""


class ThreadBackend:
    """Workers that share the tasks of every round; one of them may be the thread that calls `result`."""

    name = "thread"

    def __init__(
        self, stacks: Sequence[Any], states: Sequence[LearnerState], *, workers: int, together: bool, timeline: Timeline
    ) -> None:
        """Start the threads; raise `RunError` or RuntimeError if the system gives too few."""
        self._n_stacks = len(stacks)
        numerics.require()
        # What torch computes may be the user's code, and may hang for good: that takes a thread which can be left.
        helps = workers > 1 and all(stack.native for stack in stacks)
        parts = backend.ever_smaller if helps else backend.shares
        cuts = [backend.cut(k, own, parts(len(own), workers), together=together) for k, own in enumerate(stacks)]
        self._tasks = Share(task for tasks in cuts for task in tasks)
        self._rounds = [_Rounds(Learner(Share([task]), states, timeline)) for task in self._tasks]
        self._changed = threading.Condition()
        """Held while tasks are taken and results stored; notified of both."""
        self._closed = False
        self._loop = _Worker("learner in the thread of the loop") if helps else None
        self._threads: dict[_Worker, threading.Thread] = {}
        count = min(len(self._tasks), workers - helps)
        require(Needs(tasks=count))
        try:
            for index in range(count):
                worker = _Worker(f"learner-{index}")
                thread = BackgroundThread(worker.name)
                self._threads[worker] = thread.thread
                thread.submit(partial(self._serve, worker))
                thread.close()
        except BaseException:
            self.close()
            raise

    def submit(self, round_: int, snapshots: Sequence[GetSnapshot]) -> None:
        with self._changed:
            for own in self._rounds:
                own.waiting.append((round_, snapshots))
            self._changed.notify_all()

    def poll(self, round_: int) -> bool:
        return all(round_ in own.done for own in self._rounds) or any(round_ in own.failed for own in self._rounds)

    def result(self, round_: int, timeout: float) -> list[Trained]:
        """Wait for a round, and train tasks of it meanwhile where that is the plan: never those of later rounds.

        The other workers go on with later rounds, which keeps them busy while the loop collects.
        """
        until = time.monotonic() + timeout
        while not self.poll(round_):
            if self._loop is None or not self._train_next(self._loop, round_):
                self._wait(round_, until, timeout)
        for own in self._rounds:
            if round_ in own.failed:
                name, error = own.failed[round_]
                text = "".join(traceback.format_exception(error))
                raise LearnerError(f"round {round_} failed in {name}: {error!r}\n{text}") from error
        trained = [own.done.pop(round_) for own in self._rounds]
        joined = backend.join([self._tasks], trained, self._n_stacks)
        seconds = [0.0] * self._n_stacks
        for task, (_, result) in zip(self._tasks, trained, strict=True):
            seconds[task.stack] += result.seconds / len(self._workers())
        return [(state, replace(result, seconds=own)) for (state, result), own in zip(joined, seconds, strict=True)]

    def workers(self) -> list[Monitored]:
        return [
            Monitored(own.name, own.heartbeat, own.describe, in_loop_thread=own is self._loop)
            for own in self._workers()
        ]

    def close(self, patience: float = backend.PATIENCE) -> None:
        """End the threads. A thread that hangs cannot be ended: it is left alone and ends with the process."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        until = time.monotonic() + patience
        for thread in self._threads.values():
            thread.join(max(0.0, until - time.monotonic()))

    def _workers(self) -> list[_Worker]:
        return [*self._threads, *([] if self._loop is None else [self._loop])]

    def _wait(self, round_: int, until: float, limit: float) -> None:
        """Sleep until something has changed; raise DeadlineError if this round should have ended by now."""
        with self._changed:
            if self.poll(round_) or (self._loop is not None and self._next(round_) is not None):
                return
            slowest = min(self._workers(), key=lambda own: own.heartbeat.remaining(round_, limit))
            left = min(until - time.monotonic(), slowest.heartbeat.remaining(round_, limit))
            if left > 0.0:
                self._changed.wait(left)
                return
        activity = slowest.heartbeat.busy()
        doing = "" if activity is None else f": it is at {slowest.describe(activity)}"
        raise DeadlineError(f"round {round_} of {slowest.name} took longer than {limit:g} s{doing}")

    # -- in every worker -----------------------------------------------------------------------------------------------

    def _serve(self, worker: _Worker) -> None:
        """Train tasks until the backend is closed."""
        bind(role="learner")
        numerics.require()
        while not self._closed:
            if not self._train_next(worker):
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or self._next() is not None)

    def _next(self, last: float = math.inf) -> _Rounds | None:
        """Return the task to train next: the first one of the oldest round up to `last`; None: there is none."""
        ready = (own for own in self._rounds if own.waiting and not own.busy and own.waiting[0][0] <= last)
        return min(ready, key=lambda own: own.waiting[0][0], default=None)

    def _train_next(self, worker: _Worker, last: float = math.inf) -> bool:
        """Train one round of one task, a round up to `last`; return False if there is nothing to train."""
        with self._changed:
            own = None if self._closed else self._next(last)
            if own is None:
                return False
            own.busy = True
            round_, snapshots = own.waiting.popleft()
        worker.share = own.learner.share
        trained: list[Trained] = []
        try:
            trained = own.learner.train(round_, snapshots, worker.heartbeat)
        except BaseException as error:
            own.failed[round_] = worker.name, error
            if worker is self._loop and not isinstance(error, Exception):
                raise  # the user interrupts the run
        finally:
            with self._changed:
                own.busy = False
                if trained:
                    (own.done[round_],) = trained
                ended = all(round_ in each.done for each in self._rounds)
                self._changed.notify_all()
        if ended:
            backend.log_round(round_)
        return True
