"""Where rounds are computed: the contract of a backend, the split of its work, and the backend without workers.

A backend receives round r with `submit`, trains every stack from the learner states of round r - 1, and returns the
new states and metrics with `result`. Stacks are cut into tasks, and the results are joined again in canonical order, so
that all backends return the same bytes.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, MutableSequence, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import structlog

from parallel_agents.algorithms.learner import LearnerState, RoundResult, Snapshot
from parallel_agents.core.errors import LearnerError
from parallel_agents.core.seeding import Identity
from parallel_agents.tracking.timeline import Timeline

PATIENCE = 2.0
"""Seconds that a worker may take to end by itself."""
GetSnapshot = Callable[[], Snapshot]
Trained = tuple[LearnerState, RoundResult]
"""The learner state after a round, and what the round reports."""


# -- heartbeats --------------------------------------------------------------------------------------------------------


class Activity(NamedTuple):
    """What a worker is doing."""

    job: int
    part: int
    since: int
    """Start in nanoseconds of the monotonic clock, which all processes of a machine share."""

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return (time.monotonic_ns() - self.since) / 1e9


class Heartbeat:
    """What a worker is doing and since when. Only the worker writes it, and anybody may read it.

    >>> heartbeat = Heartbeat()
    >>> heartbeat.busy() is None
    True
    >>> heartbeat.beat(3, part=1)
    >>> heartbeat.busy().job, heartbeat.busy().part
    (3, 1)
    """

    __slots__ = ("cells",)
    CELLS = 3
    """Job, part of the job, and when that part began in nanoseconds (0: the worker is idle)."""

    def __init__(self, cells: MutableSequence[int] | None = None) -> None:
        """cells: the three numbers, where they lie in memory that is shared with another process."""
        self.cells = [0] * self.CELLS if cells is None else cells

    def beat(self, job: int, part: int = 0) -> None:
        """Record that a part of a job begins now. The loop calls this in every turn."""
        cells = self.cells
        cells[0], cells[1], cells[2] = job, part, time.monotonic_ns()

    def rest(self) -> None:
        """Record that the worker is idle."""
        self.cells[2] = 0

    def busy(self) -> Activity | None:
        """Return what the worker is doing; None while it is idle."""
        job, part, since = self.cells
        return Activity(job, part, since) if since else None

    def remaining(self, job: int, limit: float) -> float:
        """Return the seconds left of `limit` for a job; all of them if the worker has not begun it."""
        activity = self.busy()
        return limit - activity.seconds if activity is not None and activity.job == job else limit


@dataclass(frozen=True)
class Monitored:
    """A worker that the watchdog monitors: a thread, a process, or work in the thread of the loop."""

    name: str
    heartbeat: Heartbeat
    describe: Callable[[Activity], str]
    """Say what an activity means, for messages."""
    tracebacks: Callable[[], str] | None = None
    """Return where its threads are now; None for threads of this process."""
    ended: Callable[[], str | None] = lambda: None
    """Return how it ended; None while it lives."""
    in_loop_thread: bool = False
    """True if it runs in the thread of the loop. Nobody waits for it there, so only a signal can interrupt it."""
    limit: float | None = None
    """Seconds that one activity may take; None: the deadline of a round."""
    pid: int = 0
    """Its process; 0 for threads of this process."""


# -- tasks -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """Some agents of one stack, trained together."""

    stack: int
    rows: slice
    learner: Any
    identity: Identity

    def train(self, state: LearnerState, snapshot: Snapshot) -> Trained:
        """Train these agents for one round. Raise `LearnerError` with round, agents and cause if the learner fails."""
        try:
            trained: Trained = self.learner.learn(state, snapshot, self.identity)
        except (Exception, SystemExit) as error:
            agents = ", ".join(map(str, self.identity.agents))
            raise LearnerError(f"round {snapshot.round} of agents {agents} failed: {error!r}") from error
        return trained


class Share(tuple[Task, ...]):
    """The tasks of one worker: its share of every stack."""

    def states(self, states: Sequence[LearnerState]) -> list[LearnerState]:
        """Return the state of each task, from one state per stack."""
        return [states[task.stack].rows(task.rows) for task in self]

    def snapshots(self, snapshots: Sequence[Snapshot]) -> list[Snapshot]:
        """Return what each task reads, from one snapshot per stack."""
        return [snapshots[task.stack].rows(task.rows) for task in self]

    def train(
        self, round_: int, states: Sequence[LearnerState], snapshots: Sequence[Snapshot], heartbeat: Heartbeat
    ) -> list[Trained]:
        """Train one task after the other. States, snapshots and what is returned: one per task."""
        trained = []
        try:
            for part, (task, state, snapshot) in enumerate(zip(self, states, snapshots, strict=True)):
                heartbeat.beat(round_, part)
                trained.append(task.train(state, snapshot))
        finally:
            heartbeat.rest()
        return trained

    def describe(self, activity: Activity) -> str:
        """Say what a learner is doing: its job is a round, and the part is the number of a task."""
        agents = ", ".join(map(str, self[activity.part].identity.agents))
        return f"round {activity.job} of agents {agents}, from weights of version {activity.job - 1}"


def shares(agents: int, workers: int) -> list[slice]:
    """Return which agents of a stack each worker trains: even shares, some empty if there are too few agents.

    >>> shares(5, 2)
    [slice(0, 2, None), slice(2, 5, None)]
    """
    cuts = [agents * worker // workers for worker in range(workers + 1)]
    return [slice(first, end) for first, end in itertools.pairwise(cuts)]


def ever_smaller(agents: int, workers: int) -> list[slice]:
    """Return parts of a stack for workers that take one after the other: an even share of what is left each time.

    So there are few parts, and all workers end at about the same time, whenever each of them began.

    >>> [part.stop - part.start for part in ever_smaller(32, 2)]
    [16, 8, 4, 2, 1, 1]
    """
    parts, first = [], 0
    while first < agents:
        end = first + -(-(agents - first) // workers)
        parts.append(slice(first, end))
        first = end
    return parts


def cut(index: int, stack: Any, parts: Sequence[slice], *, together: bool) -> list[Task]:
    """Return the tasks of some parts of a stack; index: the number of the stack.

    together: one task for each part that is not empty; otherwise, and if the network's probe failed, one per agent.
    """
    if not (together and stack.invariance.holds):
        parts = [slice(n, n + 1) for part in parts for n in range(part.start, part.stop)]
    return [Task(index, rows, stack.learner, stack.identity.rows(rows)) for rows in parts if rows.start < rows.stop]


def split(stacks: Sequence[Any], workers: int, *, together: bool) -> list[Share]:
    """Return the share of each worker: its tasks, as `cut` makes them. Workers without a task are left out."""
    tasks_of: list[list[Task]] = [[] for _ in range(workers)]
    for index, stack in enumerate(stacks):
        for tasks, share in zip(tasks_of, shares(len(stack), workers), strict=True):
            tasks += cut(index, stack, [share], together=together)
    return [Share(tasks) for tasks in tasks_of if tasks]


def join(shares: Sequence[Share], trained: Sequence[Trained], stacks: int) -> list[Trained]:
    """Return one (state, result) per stack from those of all tasks, agents in canonical order."""
    joined = []
    for index in range(stacks):
        pairs = zip((task for share in shares for task in share), trained, strict=True)
        parts = sorted(((task.rows.start, *part) for task, part in pairs if task.stack == index), key=lambda p: p[0])
        joined.append((LearnerState.join([p[1] for p in parts]), RoundResult.join([p[2] for p in parts])))
    return joined


def log_round(round_: int) -> None:
    """Write to the run's log that a worker has trained a round; do nothing if logging is not configured."""
    if structlog.is_configured():
        structlog.get_logger().debug("round_learnt", round=round_, role="learner")


class LazySnapshot:
    """A snapshot that is taken by the first caller. Before it writes to the buffers, the collector waits for that."""

    def __init__(self, take: GetSnapshot) -> None:
        self._take = take
        self._lock = threading.Lock()
        self._taken = threading.Event()
        self._snapshot: Snapshot | None = None

    def __call__(self) -> Snapshot:
        """Return the snapshot, taken at the first call."""
        with self._lock:
            if self._snapshot is None:
                try:
                    self._snapshot = self._take()
                finally:
                    self._taken.set()
            return self._snapshot

    def wait(self, timeout: float) -> bool:
        """Return True once the buffers may be written again; False after `timeout` seconds."""
        return self._taken.wait(timeout)


# -- backends ----------------------------------------------------------------------------------------------------------


class Backend(Protocol):
    """Computes rounds in order: round r starts from the states of round r - 1, and fails if that one failed.

    A backend that cannot get what it needs of the system raises in `__init__`; the launcher then starts another one.
    Every thread or process that trains calls `nn.numerics.require()` first.
    """

    @property
    def name(self) -> str:
        """The name in `parallel.backend`."""

    def submit(self, round_: int, snapshots: Sequence[GetSnapshot]) -> None:
        """Start a round, also while the rounds before it are still running. snapshots: one per stack."""

    def poll(self, round_: int) -> bool:
        """Return whether `result` would return, or raise, at once."""

    def result(self, round_: int, timeout: float) -> list[Trained]:
        """Wait for a round and return one (state, result) per stack.

        Raise LearnerError, WorkerDied or DeadlineError if it failed; the engine then repeats it on fresh workers.
        timeout: seconds to wait, and seconds that the round may take from when a worker began it.
        """

    def workers(self) -> list[Monitored]:
        """Return the workers that the watchdog monitors."""

    def close(self, patience: float = PATIENCE) -> None:
        """End all workers. After `patience` seconds, kill processes and leave threads. May be called twice."""


class Learner:
    """Trains a share of every round, from its states of the round before.

    The rounds after a failed one fail with it.
    """

    def __init__(self, share: Share, states: Sequence[LearnerState], timeline: Timeline) -> None:
        self.share, self._states, self._timeline = share, share.states(states), timeline
        self.seconds = 0.0
        """Seconds that the last round took."""
        self._failure: BaseException | None = None

    def train(self, round_: int, snapshots: Sequence[GetSnapshot], heartbeat: Heartbeat) -> list[Trained]:
        """Train a round and return one (state, result) per task. heartbeat: of the worker that trains it."""
        try:
            taken = [take() for take in snapshots]  # after a failure too, since the collector may wait for it
            if self._failure is not None:
                raise self._failure
            began = time.perf_counter()
            with self._timeline.span("learn", "learner", round=round_) if self._timeline.enabled else nullcontext():
                trained = self.share.train(round_, self._states, self.share.snapshots(taken), heartbeat)
        except BaseException as error:
            self._failure = error
            raise
        self.seconds = time.perf_counter() - began
        self._states = [state for state, _ in trained]
        return trained


class InlineBackend:
    """Computes each round at once, in the thread of the loop: the debug mode, and the reference for all others."""

    name = "inline"

    def __init__(
        self, stacks: Sequence[Any], states: Sequence[LearnerState], *, together: bool, timeline: Timeline
    ) -> None:
        self._n_stacks = len(stacks)
        share = next(iter(split(stacks, 1, together=together)), Share())  # empty if no agent is in a stack
        self._learner, self._heartbeat = Learner(share, states, timeline), Heartbeat()
        self._results: dict[int, list[Trained] | LearnerError] = {}
        self.learn_seconds = 0.0
        """Seconds that the last round took."""

    def submit(self, round_: int, snapshots: Sequence[GetSnapshot]) -> None:
        """Train the round now; `result` raises its failure."""
        try:
            trained = self._learner.train(round_, snapshots, self._heartbeat)
            self._results[round_] = join([self._learner.share], trained, self._n_stacks)
        except LearnerError as error:
            self._results[round_] = error
        self.learn_seconds = self._learner.seconds

    def poll(self, round_: int) -> bool:
        return round_ in self._results

    def result(self, round_: int, timeout: float) -> list[Trained]:
        """Return what the round gave, or raise why it failed; there is never anything to wait for."""
        result = self._results.pop(round_)
        if isinstance(result, LearnerError):
            raise result
        return result

    def workers(self) -> list[Monitored]:
        return [Monitored("learner", self._heartbeat, self._learner.share.describe, in_loop_thread=True)]

    def close(self, patience: float = PATIENCE) -> None:
        """Drop results that nobody has asked for."""
        self._results.clear()
