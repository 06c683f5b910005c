"""Foreign models trained in the background, by their own `train_step`.

Each model has a *student*: a copy that learns, from a frozen copy of the model's memory, while the model itself acts
with weights that stand still. When the next training is due, the student's weights are published to the model; so
acting is exactly one training behind, and no weight is read while it is written.
"""

from __future__ import annotations

import copy
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

import numpy as np
import torch

from parallel_agents.adapters.sorrel.networks import networks
from parallel_agents.errors import DeadlineError, LearnerError

__all__ = ["Tutor", "can_study"]


def can_study(model: Any) -> bool:
    """True for models that learn from a replay buffer by networks, and can be copied."""
    memory = getattr(model, "memory", None)
    if memory is None or not networks(model) or not hasattr(model, "train_step"):
        return False
    on_policy = "rollout" in type(memory).__name__.lower() or hasattr(model, "eps_clip")
    if on_policy:
        return False
    try:
        student_of(model)
    except TypeError:  # a lock or a handle, which cannot be copied
        return False
    return True


def frozen(memory: Any) -> Any:
    """A copy of a memory whose arrays are its own."""
    twin = copy.copy(memory)
    for name, value in vars(memory).items():
        vars(twin)[name] = _own(value)
    return twin


def _own(value: Any) -> Any:
    match value:
        case np.ndarray():
            return value.copy()
        case torch.Tensor():
            return value.clone()
        case dict():
            return {key: _own(inner) for key, inner in value.items()}
        case list():
            return list(value)
    return value


def student_of(model: Any) -> Any:
    """A copy of a model with networks and optimizers of its own, and a frozen memory."""
    return copy.deepcopy(model, {id(model.memory): frozen(model.memory)})


class Tutor:
    """One thread that trains the students of some models, in the order in which that is asked."""

    def __init__(self, models: dict[str, Any], deadline: float) -> None:
        self._models, self._deadline = models, deadline
        self._students = {name: student_of(model) for name, model in models.items()}
        self._begun = {name: _numbers(student) for name, student in self._students.items()}
        self._pending: dict[str, Future[float]] = {}
        self._losses = dict.fromkeys(models, 0.0)
        self._epochs: dict[str, int] = {}
        self.steps = 0
        """Trainings that are done."""
        self._tasks: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._work, name="learner-sorrel", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:  # `close` always sends the None
            task()

    def note_epoch(self, name: str, epoch: int) -> None:
        """The model's `start_epoch_action` was called; its student's is, before it learns again."""
        self._epochs[name] = epoch

    def train(self, name: str) -> float:
        """Publish what the student has learnt, and let it go on with what the model remembers now; its last loss."""
        self._collect(name)
        student, memory, epoch = self._students[name], frozen(self._models[name].memory), self._epochs.pop(name, None)

        def learn() -> float:
            if epoch is not None:
                student.start_epoch_action(epoch=epoch)
            student.memory = memory
            return float(np.asarray(student.train_step()).mean())

        self._pending[name] = self._submit(learn)
        return self._losses[name]

    def finish(self) -> None:
        """Wait for every training, and give the models all that their students know."""
        for name in list(self._pending):
            self._collect(name)
        for name, model in self._models.items():
            _graduate(model, self._students[name], self._begun[name])

    def close(self) -> None:
        """End the thread; what it is at is awaited for a moment, no longer."""
        self._tasks.put(None)
        self._thread.join(2.0)

    def _submit(self, call: Callable[[], float]) -> Future[float]:
        future: Future[float] = Future()

        def task() -> None:
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

        self._tasks.put(task)
        return future

    def _collect(self, name: str) -> None:
        future = self._pending.pop(name, None)
        if future is None:
            return
        try:
            self._losses[name] = future.result(self._deadline)
        except FutureTimeout:
            raise DeadlineError(
                f"the training of {name} did not end within {self._deadline:g} s (parallel.round_deadline)"
            ) from None
        except (Exception, SystemExit) as error:
            raise LearnerError(f"train_step() of {name} raised {type(error).__name__}: {error}") from error
        self.steps += 1
        student = networks(self._students[name])
        for own, network in networks(self._models[name]).items():
            network.load_state_dict(student[own].state_dict())


def _numbers(model: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(model).items() if isinstance(value, int | float)}


def _graduate(model: Any, student: Any, begun: dict[str, Any]) -> None:
    """Hand over optimizers, and the counters that only the student has moved."""
    for name, value in vars(student).items():
        if isinstance(value, torch.optim.Optimizer):
            getattr(model, name).load_state_dict(value.state_dict())
        elif name in begun and value != begun[name] and getattr(model, name) == begun[name]:
            setattr(model, name, value)
