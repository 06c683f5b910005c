"""Rounds computed by learner processes, which are fed through shared memory.

A worker has `lag + 2` slots. Slot r (modulo their number) holds what round r reads and the states that it writes. So
round r starts from the states in slot r - 1, which survive a worker that dies in round r, and the parent copies the
result of a round before a later round writes into the same slot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from parallel_agents.algorithms.learner import LearnerState, RoundResult, Snapshot
from parallel_agents.core.errors import DeadlineError, RunError
from parallel_agents.execution import backend
from parallel_agents.execution.backend import GetSnapshot, Heartbeat, Monitored, Share, Task, Trained
from parallel_agents.execution.resources import Needs, cores, require
from parallel_agents.execution.workers import START_DEADLINE, Layout, SharedBlock, Worker, close_all
from parallel_agents.nn import numerics
from parallel_agents.tracking.logs import bind, configure_worker, worker_context
from parallel_agents.tracking.timeline import Span, Timeline

DESCRIPTORS_PER_WORKER = 11
"""Its shared memory, its heartbeat, and its pipes at both ends while it starts."""
SPARE_DESCRIPTORS = 16
"""Left for everything else: logs, checkpoints, imports."""
Shapes = Mapping[str, tuple[int, ...]]


class _Slots:
    """The slots of one worker, for the tasks that it trains."""

    def __init__(self, layouts: Sequence[tuple[Layout, Layout]], count: int) -> None:
        """layouts: of the states and of the snapshot columns of each task."""
        self._names = [(tuple(states), tuple(columns)) for states, columns in layouts]
        self._count = count
        self._block = SharedBlock(
            {
                f"{slot}.{index}.{kind}.{name}": array
                for slot in range(count)
                for index, layout in enumerate(layouts)
                for kind, arrays in zip(("state", "column"), layout, strict=True)
                for name, array in arrays.items()
            }
        )

    @staticmethod
    def nbytes(layouts: Sequence[tuple[Layout, Layout]], count: int) -> int:
        """Return the bytes of shared memory that such slots take."""
        return count * sum(SharedBlock.nbytes(arrays) for layout in layouts for arrays in layout)

    def states(self, round_: int) -> list[LearnerState]:
        """Return the state of each task after a round."""
        slot = round_ % self._count
        return [
            LearnerState({name: self._block[f"{slot}.{index}.state.{name}"] for name in names})
            for index, (names, _) in enumerate(self._names)
        ]

    def put_states(self, round_: int, states: Sequence[LearnerState]) -> None:
        """Write the state of each task after a round."""
        for target, source in zip(self.states(round_), states, strict=True):
            for name, tensor in target.tensors.items():
                tensor.copy_(source[name])

    def put_snapshots(self, snapshots: Sequence[Snapshot]) -> list[Shapes]:
        """Write what each task reads in a round, and return the shapes of it."""
        for index, snapshot in enumerate(snapshots):
            for name, column in snapshot.columns.items():
                self._column(snapshot.round, index, name, column.shape)[...] = column
        return [{name: column.shape for name, column in snapshot.columns.items()} for snapshot in snapshots]

    def snapshots(self, round_: int, shapes: Sequence[Shapes]) -> list[Snapshot]:
        """Return what each task reads in a round, as views of the slot."""
        return [
            Snapshot(round_, {name: self._column(round_, index, name, shape) for name, shape in own.items()})
            for index, own in enumerate(shapes)
        ]

    def _column(self, round_: int, index: int, name: str, shape: tuple[int, ...]) -> Any:
        """Return the first corner of a column, of the given shape: no snapshot is larger than the slot."""
        column = self._block[f"{round_ % self._count}.{index}.column.{name}"].numpy()
        return column[tuple(slice(0, length) for length in shape)]


class ProcessBackend:
    """One process per worker, each with its own agents."""

    name = "process"

    def __init__(
        self,
        stacks: Sequence[Any],
        states: Sequence[LearnerState],
        *,
        workers: int,
        together: bool,
        lag: int,
        first_round: int,
        timeline: Timeline,
    ) -> None:
        """Begin to start the processes; raise `RunError` before that if the system cannot give what they need."""
        self._n_stacks, self._timeline = len(stacks), timeline
        self._shares = backend.split(stacks, workers, together=together)
        self._slots: list[_Slots] = []
        self._workers: list[Worker] = []
        examples = [stack.example() for stack in stacks]  # snapshots of the largest shape that a round can have
        layouts = [[_layouts(task, states, examples) for task in share] for share in self._shares]
        require(
            Needs(
                shared_bytes=sum(_Slots.nbytes(own, lag + 2) for own in layouts),
                descriptors=len(layouts) * DESCRIPTORS_PER_WORKER + SPARE_DESCRIPTORS,
                # numeric libraries start a thread for each core, in the workers and in the server that forks them
                tasks=(len(layouts) + 1) * cores(),
            )
        )
        try:
            for index, (share, layout) in enumerate(zip(self._shares, layouts, strict=True)):
                self._slots.append(_Slots(layout, lag + 2))
                arguments = (share, self._slots[-1], worker_context(), timeline.enabled)
                self._workers.append(Worker(f"learner-{index}", _serve, *arguments, describe=share.describe))
            self.load(states, first_round)
        except BaseException:
            self.close()
            raise

    def load(self, states: Sequence[LearnerState], first_round: int) -> None:
        """Write the states from which round `first_round` starts."""
        for share, slots in zip(self._shares, self._slots, strict=True):
            slots.put_states(first_round - 1, share.states(states))

    def ready(self, timeout: float = START_DEADLINE) -> bool:
        """Return True once all processes have started."""
        return all(worker.ready(timeout) for worker in self._workers)

    def started(self, timeout: float = START_DEADLINE) -> ProcessBackend:
        """Wait until all processes have started and return the backend. If one fails to start, end all and raise."""
        try:
            if not self.ready(timeout):
                raise DeadlineError(f"the learner processes did not start within {timeout:g} s")
        except RunError:
            self.close()
            raise
        return self

    def submit(self, round_: int, snapshots: Sequence[GetSnapshot]) -> None:
        """Write what the round reads into shared memory, and tell the processes."""
        taken = [take() for take in snapshots]
        for share, slots, worker in zip(self._shares, self._slots, self._workers, strict=True):
            worker.send((round_, slots.put_snapshots(share.snapshots(taken))))

    def poll(self, round_: int) -> bool:
        return all(worker.answered() for worker in self._workers)

    def result(self, round_: int, timeout: float) -> list[Trained]:
        until = time.monotonic() + timeout
        trained: list[Trained] = []
        for slots, worker in zip(self._slots, self._workers, strict=True):
            try:
                remaining = min(until - time.monotonic(), worker.heartbeat.remaining(round_, timeout))
                results, spans = worker.receive(remaining, limit=timeout)
            except RunError as error:
                raise type(error)(f"round {round_}: {error}") from error
            self._timeline.merge(spans)
            # copies, since published states must never change and slots are written again
            trained += zip([state.clone() for state in slots.states(round_)], results, strict=True)
        return backend.join(self._shares, trained, self._n_stacks)

    def workers(self) -> list[Monitored]:
        return [worker.monitored() for worker in self._workers]

    def close(self, patience: float = backend.PATIENCE) -> None:
        close_all(self._workers, patience)
        self._workers = []


def _layouts(task: Task, states: Sequence[LearnerState], examples: Sequence[Snapshot]) -> tuple[Layout, Layout]:
    """Return shape and type of a task's state tensors and of the columns that its rounds read at most."""
    state, example = states[task.stack].rows(task.rows), examples[task.stack].rows(task.rows)
    return (
        {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in state.tensors.items()},
        {name: (column.shape, _torch_type(column.dtype)) for name, column in example.columns.items()},
    )


def _torch_type(kind: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, kind)).dtype


def _serve(
    heartbeat: Heartbeat, share: Share, slots: _Slots, logs: Mapping[str, Any], traced: bool
) -> Callable[[tuple[int, Sequence[Shapes]]], tuple[list[RoundResult], list[Span]]]:
    """Prepare a learner process, and return the function that answers a round and the shapes of what it reads."""
    numerics.require()
    configure_worker(logs)
    bind(role="learner")
    timeline = Timeline(enabled=traced)

    def answer(request: tuple[int, Sequence[Shapes]]) -> tuple[list[RoundResult], list[Span]]:
        round_, shapes = request
        with timeline.span("learn", "learner", round=round_):
            before = [
                state.to(task.learner.device) for task, state in zip(share, slots.states(round_ - 1), strict=True)
            ]
            trained = share.train(round_, before, slots.snapshots(round_, shapes), heartbeat)
            slots.put_states(round_, [state for state, _ in trained])
        backend.log_round(round_)
        return [result for _, result in trained], timeline.take()

    return answer
