"""Rounds computed by learner processes, fed through shared memory.

Each worker has `lag + 2` slots for the states of its agents and as many for what rounds read. Round r reads
state slot r - 1 and writes slot r (modulo their number), so the state before a round survives a worker that
dies in it, and the parent copies a result out of its slot before a later round writes there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from parallel_agents.errors import DeadlineError, RunError
from parallel_agents.networks.numerics import require
from parallel_agents.runtime.backends.work import Done, Task, at_task, learn, note, split, whole
from parallel_agents.runtime.heartbeat import Heart
from parallel_agents.runtime.supervision import Watched, left
from parallel_agents.runtime.workers import PATIENCE, START_DEADLINE, Worker, close_all
from parallel_agents.tracking.logs import bind, configure_worker, worker_context
from parallel_agents.tracking.timeline import Span, Timeline
from parallel_agents.types import RoundResult, Snapshot, State

__all__ = ["ProcessBackend"]

Take = Callable[[], Snapshot]
Columns = Mapping[str, torch.Tensor]


class ProcessBackend:
    """One process per worker, each with its own agents."""

    name = "process"

    def __init__(
        self,
        stacks: Sequence[Any],
        states: Sequence[State],
        examples: Sequence[Snapshot],
        *,
        workers: int,
        together: bool,
        lag: int,
        first_round: int,
        timeline: Timeline,
    ) -> None:
        """examples: one snapshot per stack of the largest shape that a round will have."""
        self._stacks = len(stacks)
        self._timeline = timeline
        self._shares = split(stacks, workers, together=together)
        self._slots: list[list[list[State]]] = []
        self._reads: list[list[list[Columns]]] = []
        self._workers: list[Worker] = []
        try:
            for index, share in enumerate(self._shares):
                slots = [[_shared(states[task.stack].rows(task.part)) for task in share] for _ in range(lag + 2)]
                reads = [[_columns(examples[task.stack].rows(task.part)) for task in share] for _ in range(lag + 2)]
                self._slots.append(slots)
                self._reads.append(reads)
                given = (share, slots, reads, worker_context(), timeline.enabled)
                self._workers.append(Worker(f"learner-{index}", _serve, *given, describe=partial(at_task, share)))
            self.load(states, first_round)
        except BaseException:
            self.close()
            raise

    def load(self, states: Sequence[State], first_round: int) -> None:
        """Put the states in place from which round `first_round` starts."""
        for share, slots in zip(self._shares, self._slots, strict=True):
            for task, slot in zip(share, slots[(first_round - 1) % len(slots)], strict=True):
                _copy(slot, states[task.stack].rows(task.part))

    def ready(self, timeout: float = START_DEADLINE) -> bool:
        """True once all workers have started."""
        return all(worker.ready(timeout) for worker in self._workers)

    def started(self, timeout: float = START_DEADLINE) -> ProcessBackend:
        """Itself, once all workers have started; where they cannot be had, none is left behind."""
        try:
            if not self.ready(timeout):
                raise DeadlineError(f"the learner processes did not start within {timeout:g} s")
        except RunError:
            self.close()
            raise
        return self

    def submit(self, round_: int, takes: Sequence[Take]) -> None:
        snapshots = [take() for take in takes]
        for share, reads, worker in zip(self._shares, self._reads, self._workers, strict=True):
            sizes = []
            for task, columns in zip(share, reads[round_ % len(reads)], strict=True):
                part = snapshots[task.stack].rows(task.part)
                for name, column in part.columns.items():
                    view = columns[name].numpy()
                    view[_corner(column.shape)] = column
                sizes.append({name: column.shape for name, column in part.columns.items()})
            worker.send((round_, sizes))

    def result(self, round_: int, timeout: float) -> list[Done]:
        until = time.monotonic() + timeout
        tasks: list[Task] = []
        done: list[Done] = []
        for share, slots, worker in zip(self._shares, self._slots, self._workers, strict=True):
            try:
                remaining = min(until - time.monotonic(), left(worker.heart, round_, timeout))
                results, spans = worker.receive(remaining, limit=timeout)
            except RunError as error:
                raise type(error)(f"round {round_}: {error}") from error
            self._timeline.merge(spans)
            # copies, since what was published must never change and slots are written again
            done += zip([slot.clone() for slot in slots[round_ % len(slots)]], results, strict=True)
            tasks += share
        return whole(tasks, done, self._stacks)

    def poll(self, round_: int) -> bool:
        """True if the round's result is there."""
        return all(worker.answered() for worker in self._workers)

    def members(self) -> list[Watched]:
        """Whom to watch over."""
        return [Watched.process(worker) for worker in self._workers]

    def close(self, patience: float = PATIENCE) -> None:
        close_all(self._workers, patience)
        self._workers = []


def _serve(
    heart: Heart,
    share: Sequence[Task],
    slots: Sequence[Sequence[State]],
    reads: Sequence[Sequence[Columns]],
    logs: Mapping[str, Any],
    traced: bool,
) -> Callable[[tuple[int, Sequence[Mapping[str, tuple[int, ...]]]]], tuple[list[RoundResult], list[Span]]]:
    """In the process: answer (round, sizes of what it reads) with the results of the round."""
    require()
    configure_worker(logs)
    bind(role="learner")
    timeline = Timeline(enabled=traced)

    def answer(request: tuple[int, Sequence[Mapping[str, tuple[int, ...]]]]) -> tuple[list[RoundResult], list[Span]]:
        round_, sizes = request
        with timeline.span("learn", "learner", round=round_):
            results = [_learn(index, task, round_, sizes[index]) for index, task in enumerate(share)]
        note("round_learnt", round=round_)
        return results, timeline.take()

    def _learn(index: int, task: Task, round_: int, sizes: Mapping[str, tuple[int, ...]]) -> RoundResult:
        heart.beat(round_, index)
        given = reads[round_ % len(reads)][index]
        columns = {name: given[name].numpy()[_corner(shape)] for name, shape in sizes.items()}
        before = slots[(round_ - 1) % len(slots)][index].to(task.learner.device)
        new, result = learn(task, before, Snapshot(round_, columns))
        _copy(slots[round_ % len(slots)][index], new)
        return result

    return answer


def _corner(shape: tuple[int, ...]) -> tuple[slice, ...]:
    """The part of a larger array that holds one of this shape."""
    return tuple(slice(0, length) for length in shape)


def _shared(state: State) -> State:
    return State({name: _share(torch.empty_like(tensor, device="cpu")) for name, tensor in state.tensors.items()})


def _columns(example: Snapshot) -> Columns:
    return {name: _share(torch.from_numpy(np.empty_like(column))) for name, column in example.columns.items()}


def _share(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.share_memory_()  # type: ignore[no-any-return, no-untyped-call]


def _copy(target: State, source: State) -> None:
    for name, tensor in target.tensors.items():
        tensor.copy_(source[name])
