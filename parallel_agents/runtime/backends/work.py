"""The learning work of a run, split into tasks for workers and joined again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from parallel_agents.errors import LearnerError
from parallel_agents.models import shares
from parallel_agents.runtime.heartbeat import Beat
from parallel_agents.types import Identity, RoundResult, Snapshot, State

__all__ = ["Reading", "Task", "at_task", "learn", "note", "split", "whole"]

Done = tuple[State, RoundResult]


@dataclass(frozen=True)
class Task:
    """Some agents of one stack, always trained by the same worker."""

    stack: int
    part: slice
    learner: Any
    identity: Identity


def split(stacks: Sequence[Any], workers: int, *, together: bool) -> list[list[Task]]:
    """Tasks for each worker: a share of every stack, whole or one agent at a time. No worker is left empty."""
    every: list[list[Task]] = [[] for _ in range(workers)]
    for index, stack in enumerate(stacks):
        alone = not (together and stack.invariance.holds)
        for tasks, share in zip(every, shares(len(stack), workers), strict=True):
            each = [slice(n, n + 1) for n in range(share.start, share.stop)]
            for part in each if alone else [share] * (len(each) > 0):
                tasks.append(Task(index, part, stack.learner, stack.identity.rows(part)))
    return [tasks for tasks in every if tasks]


def whole(tasks: Sequence[Task], done: Sequence[Done], stacks: int) -> list[Done]:
    """One (State, RoundResult) per stack from those of its tasks, rows in canonical order."""
    joined = []
    for index in range(stacks):
        mine = sorted(
            ((task.part.start, result) for task, result in zip(tasks, done, strict=True) if task.stack == index),
            key=lambda pair: pair[0],
        )
        states, results = [state for _, (state, _) in mine], [result for _, (_, result) in mine]
        joined.append((State.join(states), RoundResult.join(results)))
    return joined


def learn(task: Task, state: State, snapshot: Snapshot) -> Done:
    """One round of one task, from what its own agents read; a failure names round, agents and cause."""
    try:
        new, result = task.learner.learn(state, snapshot, task.identity)
    except (Exception, SystemExit) as error:
        agents = ", ".join(map(str, task.identity.agents))
        raise LearnerError(f"round {snapshot.round} of agents {agents} failed: {error!r}") from error
    return new, result


def at_task(tasks: Sequence[Task], beat: Beat) -> str:
    """What a learner's heart says: the job is a round, the part the number of a task."""
    agents = ", ".join(map(str, tasks[beat.part].identity.agents))
    return f"round {beat.job} of agents {agents}, from weights of version {beat.job - 1}"


def note(event: str, **fields: Any) -> None:
    """A record in the run's log; silent where nobody has configured one."""
    if structlog.is_configured():
        structlog.get_logger().debug(event, **fields)


class Reading:
    """A snapshot that is taken when it is first asked for; the collector waits for that before it writes."""

    def __init__(self, take: Callable[[], Snapshot]) -> None:
        self._take: Callable[[], Snapshot] | None = take
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._snapshot: Snapshot | None = None

    def __call__(self) -> Snapshot:
        with self._lock:
            if self._snapshot is None:
                assert self._take is not None
                try:
                    self._snapshot = self._take()
                finally:
                    self._over.set()
            return self._snapshot

    def wait(self, timeout: float) -> bool:
        """True once the buffers may be written again."""
        return self._over.wait(timeout)
