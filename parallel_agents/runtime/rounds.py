"""Rounds at their boundaries: one is snapshotted and submitted, the one that is due is awaited and published."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from parallel_agents.config import Parallel
from parallel_agents.errors import DeadlineError, LearnerError, RunError, WorkerDied
from parallel_agents.models import Stack
from parallel_agents.runtime.backends import AutoBackend, InlineBackend, ProcessBackend, Reading, ThreadBackend
from parallel_agents.runtime.backends.auto import LACKING
from parallel_agents.runtime.needs import Needs, needs_of_processes, needs_of_threads, shortage
from parallel_agents.runtime.plan import Plan
from parallel_agents.runtime.rejections import Rejections
from parallel_agents.runtime.schedule import Schedule
from parallel_agents.runtime.staffing import Staffing
from parallel_agents.runtime.supervision import Watched, left
from parallel_agents.runtime.workers import PATIENCE
from parallel_agents.tracking.timeline import Timeline
from parallel_agents.types import RoundResult, State

__all__ = ["Rounds"]

Done = tuple[State, RoundResult]
Tell = Callable[[str, dict[str, Any]], None]
LADDER = ("process", "thread", "inline")
"""Each needs less of the system than the one before; all give the same bytes."""


class Rounds:
    """Every scheduled round of every stack: submitted in order, published when due, none skipped or merged."""

    def __init__(
        self, stacks: Sequence[Stack], flags: Parallel, plan: Plan, schedule: Schedule, tell: Tell, timeline: Timeline
    ) -> None:
        self.stacks, self.flags, self.plan, self.schedule = list(stacks), flags, plan, schedule
        for stack in self.stacks:
            stack.lag = schedule.lag
        self._tell, self._timeline = tell, timeline
        self._backend: Any = None
        self.submitted = 0
        self.published = 0
        self.updates = 0
        self.rejected = 0
        self.newest = [stack.state for stack in self.stacks]
        """The learner's newest states; acting may still use older ones."""
        self.waiting: dict[int, list[Done]] = {}
        """Results that are there but not yet due."""
        self._readings: list[Reading] = []
        self._takes: dict[int, list[Reading]] = {}
        """What the rounds in flight read, kept so that a failed one can be repeated."""
        self._failed_once: set[int] = set()
        self.skipped: list[int] = []
        """Rounds given up after failing twice."""
        self._consecutive = 0
        self._rejections = Rejections(self.stacks, flags.max_failures, tell)
        self._last_round = 0
        self._staff: Staffing | None = None
        if flags.num_workers is None and plan.backend in ("thread", "process"):
            self._staff = Staffing(plan.workers, plan.most_workers)
        self._workers = plan.workers
        self._wanted: str = plan.backend
        """Where rounds are to be computed: as planned, or lower on the ladder since the system lacked something."""
        self._boundary_at, self._waited, self._busy = 0.0, 0.0, 0.0
        """When the last boundary was, seconds waited for results since, and seconds that the last round took."""

    # -- life ------------------------------------------------------------------------------------------------

    def open(self, last_round: int) -> None:
        """Start what will compute the rounds up to `last_round`."""
        self._last_round = last_round
        self._backend = self._make(self.newest, self.submitted + 1)

    def close(self, patience: float = PATIENCE) -> None:
        """End every worker, those that are busy after so many seconds."""
        if self._backend is not None:
            self._backend.close(patience)
            self._backend = None

    @property
    def backend(self) -> str:
        return self._backend.name if self._backend is not None else self.plan.backend

    def members(self) -> list[Watched]:
        """Whom to watch over."""
        backend = self._backend
        return [] if backend is None else backend.members()

    # -- the boundary ----------------------------------------------------------------------------------------

    def boundary(self, round_: int) -> list[list[RoundResult]]:
        """The boundary of round `round_`; what was published at it, one result per stack for each round."""
        self._restaff(round_)
        # Unless rows are drawn by priority, what a round reads does not depend on the result that is still awaited.
        # So it is submitted first: the same bytes, and a worker that is behind finds its next round waiting.
        due = self.schedule.due_at(round_)
        first = []
        if any(stack.waits_for_priorities for stack in self.stacks):
            first = [self._publish(r) for r in range(self.published + 1, min(due, round_ - 1) + 1)]
        self._submit(round_)
        return first + [self._publish(r) for r in range(self.published + 1, due + 1)]

    def publish_ready(self) -> list[list[RoundResult]]:
        """Free-running: publish whatever is there."""
        results: list[list[RoundResult]] = []
        self.watch()
        while self.published + 1 in self.waiting:
            results.append(self._publish(self.published + 1))
        return results

    def watch(self) -> None:
        """Take in what is there. A round that failed is repeated at once, while collection goes on."""
        while (round_ := self._next()) <= self.submitted and (self._backend.poll(round_) or self._hangs(round_)):
            self._receive(round_)

    def await_all(self) -> None:
        """Wait for everything submitted; what is not due yet stays waiting."""
        while (round_ := self._next()) <= self.submitted:
            self._receive(round_)

    def drain(self) -> None:
        """Wait for everything submitted, and give the models the newest weights."""
        self.await_all()
        self.newest = [state.clone() for state in self.newest]
        for stack, state in zip(self.stacks, self.newest, strict=True):
            stack.settle(state)

    def wait_for_readers(self) -> None:
        """Where learners read the buffers themselves: do not write before they have."""
        for reading in self._readings:
            if not reading.wait(self.flags.round_deadline):
                raise DeadlineError(f"a learner did not read its buffers within {self.flags.round_deadline:g} s")
        self._readings = []

    # -- steps -----------------------------------------------------------------------------------------------

    def _submit(self, round_: int) -> None:
        takes: list[Any] = [Reading(partial(stack.snapshot, round_)) for stack in self.stacks]
        if self.plan.read_in_learner:
            self._readings = takes
        else:
            for take in takes:
                take()
        self._takes[round_] = takes
        self.submitted = round_
        try:
            self._backend.submit(round_, takes)
        except WorkerDied as error:  # while it had nothing to do: no round has failed
            self._tell("worker_replaced", {"round": round_, "backend": self.backend, "cause": str(error)})
            self._start_afresh()

    def _hangs(self, round_: int) -> bool:
        """True if a worker has been at this round for longer than it may take."""
        limit = self.flags.round_deadline
        return any(left(member.heart, round_, limit) < 0.0 for member in self._backend.members())

    def _restaff(self, round_: int) -> None:
        """Change the number of workers, where the machine's load or memory says so; results do not depend on it."""
        now = time.perf_counter()
        if self._staff is not None:
            if self._boundary_at:
                self._staff.note(interval=now - self._boundary_at, waited=self._waited, busy=self._busy)
            wanted = self._staff.wanted(self._last_round - round_)
            if wanted != self._workers:
                self.await_all()
                self._tell("workers_changed", {"from": self._workers, "to": wanted, "round": round_, "level": "info"})
                self._workers = wanted
                self._start_afresh()
        self._boundary_at, self._waited = now, 0.0

    def _next(self) -> int:
        """The oldest round whose result has not been taken in."""
        return self.published + len(self.waiting) + 1

    def _receive(self, round_: int) -> None:
        """Wait for one round; after a failure it is repeated once on fresh workers, then skipped."""
        began = time.perf_counter()
        try:
            done: list[Done] = self._backend.result(round_, self.flags.round_deadline)
        except (LearnerError, WorkerDied, DeadlineError) as error:
            self._recover(round_, error)
            return
        finally:
            self._waited += time.perf_counter() - began
        self._busy = max((result.seconds for _, result in done), default=0.0)
        self._accept(round_, done)
        self._consecutive = 0

    def _accept(self, round_: int, done: list[Done]) -> None:
        self.waiting[round_] = done
        self.newest = [state for state, _ in done]
        self.updates += sum(int(result.updates.sum()) for _, result in done)
        self.rejected += sum(int(result.rejected.sum()) for _, result in done)
        del self._takes[round_]
        self._rejections.note(round_, [result for _, result in done])

    def _recover(self, round_: int, error: RunError) -> None:
        again = round_ not in self._failed_once
        self._tell("round_failed", {"round": round_, "backend": self.backend, "cause": str(error), "repeated": again})
        if again:
            self._failed_once.add(round_)
        else:
            self._skip(round_, error)
        self._start_afresh()

    def _start_afresh(self) -> None:
        """Fresh workers, from the newest states, with every round that is on its way."""
        self._backend.close()
        first = self._next()
        self._backend = self._make(self.newest, first)
        for later in range(first, self.submitted + 1):
            self._backend.submit(later, self._takes[later])

    def _skip(self, round_: int, error: RunError) -> None:
        """The last good weights stay."""
        self.skipped.append(round_)
        self._consecutive += 1
        if self._consecutive >= max(1, self.flags.max_failures):
            raise LearnerError(
                f"round {round_} failed twice, and {self._consecutive} rounds in a row have failed "
                f"(parallel.max_failures is {self.flags.max_failures}): {error}"
            ) from error
        self._tell("round_skipped", {"round": round_, "consecutive": self._consecutive})
        self._accept(round_, [(state, RoundResult.nothing(round_, len(state))) for state in self.newest])

    def _publish(self, round_: int) -> list[RoundResult]:
        while round_ not in self.waiting:
            self._receive(round_)
        done = self.waiting.pop(round_)
        for stack, (state, result) in zip(self.stacks, done, strict=True):
            stack.publish(round_, state, result)
        self.published = round_
        return [result for _, result in done]

    def _make(self, states: list[State], first_round: int) -> Any:
        if self._wanted != "auto":
            return self._had(states, first_round)
        if self.schedule.lag == 0:
            return self._inline(states)  # a round that is awaited at once gains nothing in the background
        # as many threads as cores: the collector waits for them, and leaves them its own meanwhile
        return AutoBackend(
            self._inline,
            self._processes,
            partial(self._threads, workers=self.plan.most_workers),
            states,
            updates=max(1, sum(stack.learner.updates for stack in self.stacks)),
            last_round=self._last_round,
            tell=self._tell,
        )

    def _had(self, states: list[State], first_round: int) -> Any:
        """The wanted backend, or the nearest below it that the system can give; that is told once, and stays."""
        causes = []
        for name in LADDER[LADDER.index(self._wanted) :]:
            try:
                match name:
                    case "process":
                        backend: Any = self._processes(states, first_round).started()
                    case "thread":
                        backend = self._threads(states)
                    case _:
                        backend = self._inline(states)
            except LACKING as error:
                causes.append(f"{name}: {error}")
                continue
            if causes:
                self._tell("backend_degraded", {"wanted": self._wanted, "used": name, "cause": "; ".join(causes)})
                self._wanted = name
            return backend
        raise LearnerError("; ".join(causes))

    def _inline(self, states: Sequence[State]) -> InlineBackend:
        return InlineBackend(self.stacks, states, together=self.plan.train_together, timeline=self._timeline)

    def _threads(self, states: Sequence[State], workers: int | None = None) -> ThreadBackend:
        count = workers or self._workers
        _see_that_there_is(needs_of_threads(count))
        together = self.plan.train_together
        return ThreadBackend(self.stacks, states, workers=count, together=together, timeline=self._timeline)

    def _processes(self, states: Sequence[State], first_round: int) -> ProcessBackend:
        examples = [stack.example() for stack in self.stacks]
        workers, together, lag = self._workers, self.plan.train_together, self.schedule.lag
        _see_that_there_is(
            needs_of_processes(self.stacks, states, examples, workers=workers, together=together, lag=lag)
        )
        return ProcessBackend(
            self.stacks,
            states,
            examples,
            workers=workers,
            together=together,
            lag=lag,
            first_round=first_round,
            timeline=self._timeline,
        )


def _see_that_there_is(needs: Needs) -> None:
    lacking = shortage(needs)
    if lacking is not None:
        raise RunError(lacking)
