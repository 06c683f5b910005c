"""Rounds at their boundaries: wait, apply, publish, snapshot, submit. Decision 4 of the design, word for word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from parallel_agents.config import Parallel
from parallel_agents.errors import DeadlineError, LearnerError, WorkerDied
from parallel_agents.models import Stack
from parallel_agents.runtime.backends import AutoBackend, InlineBackend, ProcessBackend, Reading, ThreadBackend
from parallel_agents.runtime.plan import Plan
from parallel_agents.runtime.schedule import Schedule
from parallel_agents.types import RoundResult, State

__all__ = ["Rounds"]

Done = tuple[State, RoundResult]
Tell = Callable[[str, dict[str, Any]], None]


class Rounds:
    """Every scheduled round of every stack: submitted in order, published when due, none skipped or merged."""

    def __init__(self, stacks: Sequence[Stack], flags: Parallel, plan: Plan, schedule: Schedule, tell: Tell) -> None:
        self.stacks, self.flags, self.plan, self.schedule = list(stacks), flags, plan, schedule
        self._tell = tell
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

    # -- life ------------------------------------------------------------------------------------------------

    def open(self, last_round: int) -> None:
        """Start what will compute the rounds up to `last_round`."""
        self._backend = self._make(self.newest, last_round)

    def close(self) -> None:
        """End every worker."""
        if self._backend is not None:
            self._backend.close()
            self._backend = None

    @property
    def backend(self) -> str:
        return self._backend.name if self._backend is not None else self.plan.backend

    @property
    def in_flight(self) -> bool:
        return self.submitted > self.published + len(self.waiting)

    # -- the boundary ----------------------------------------------------------------------------------------

    def boundary(self, round_: int) -> list[RoundResult]:
        """The boundary of round `round_`; what was published at it."""
        if self.schedule.lag == 0:
            self._submit(round_)
        due = self.schedule.due_at(round_)
        results = [self._publish(r) for r in range(self.published + 1, due + 1)]
        if self.schedule.lag > 0:
            self._submit(round_)
        return [result for stacks in results for result in stacks]

    def publish_ready(self) -> list[RoundResult]:
        """Free-running: publish whatever is there."""
        results: list[RoundResult] = []
        while self.published < self.submitted and self._backend.poll(self.published + 1):
            results += self._publish(self.published + 1)
        return results

    def drain(self) -> None:
        """Wait for everything submitted; what is not due yet stays waiting. The models get the newest weights."""
        for round_ in range(self.published + 1, self.submitted + 1):
            if round_ not in self.waiting:
                self.waiting[round_] = self._claim(round_)
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
        self._backend.submit(round_, takes)
        self.submitted = round_

    def _claim(self, round_: int) -> list[Done]:
        try:
            done: list[Done] = self._backend.result(round_, self.flags.round_deadline)
        except (LearnerError, WorkerDied, DeadlineError):
            self._tell("round_failed", {"round": round_, "backend": self.backend})
            raise
        self.newest = [state for state, _ in done]
        self.updates += sum(int(result.updates.sum()) for _, result in done)
        self.rejected += sum(int(result.rejected.sum()) for _, result in done)
        return done

    def _publish(self, round_: int) -> list[RoundResult]:
        done = self.waiting.pop(round_) if round_ in self.waiting else self._claim(round_)
        for stack, (state, _) in zip(self.stacks, done, strict=True):
            stack.publish(round_, state)
        self.published = round_
        return [result for _, result in done]

    def _make(self, states: list[State], last_round: int) -> Any:
        together, workers = self.plan.train_together, self.plan.workers

        def inline(now: Sequence[State]) -> InlineBackend:
            return InlineBackend(self.stacks, now, together=together)

        def process(now: Sequence[State], examples: Sequence[Any], first_round: int) -> ProcessBackend:
            return ProcessBackend(
                self.stacks,
                now,
                examples,
                workers=workers,
                together=together,
                lag=self.schedule.lag,
                first_round=first_round,
            )

        match self.plan.backend:
            case "inline":
                return inline(states)
            case "thread":
                return ThreadBackend(self.stacks, states, workers=workers, together=together)
            case "process":
                examples = [stack.snapshot(0) for stack in self.stacks]
                backend = process(states, examples, self.submitted + 1)
                backend.ready()
                return backend
            case _:
                return AutoBackend(inline, process, states, last_round=last_round, tell=self._tell)
