"""Trains sorrel's models in the background, by their own `train_step`.

Each model has a *learner copy*, which learns from a frozen copy of the model's memory while the model itself acts with
constant weights. When the next training is due, the copy's weights are published to the model. So acting is exactly
one training behind, and no weight is read while it is written.
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

from parallel_agents.core.errors import DeadlineError, LearnerError
from parallel_agents.env.adapters.batched_networks import networks_of

CLOSE_SECONDS = 2.0
"""How long `close` waits for a training that is still running."""


def can_train_in_background(model: Any) -> bool:
    """Return True for models that learn off-policy, from a replay buffer, with networks, and that can be copied."""
    memory = getattr(model, "memory", None)
    if memory is None or not networks_of(model) or not hasattr(model, "train_step"):
        return False
    if "rollout" in type(memory).__name__.lower() or hasattr(model, "eps_clip"):  # on-policy
        return False
    try:
        _learner_copy(model)
    except TypeError:  # it holds a lock or a handle, which cannot be copied
        return False
    return True


def _learner_copy(model: Any) -> Any:
    """Return a copy of a model with networks and optimizers of its own, and a frozen memory."""
    return copy.deepcopy(model, {id(model.memory): _frozen(model.memory)})


def _frozen(memory: Any) -> Any:
    """Return a copy of a memory with arrays of its own."""
    frozen = copy.copy(memory)
    for name, value in vars(memory).items():
        vars(frozen)[name] = _copied(value)
    return frozen


def _copied(value: Any) -> Any:
    match value:
        case np.ndarray():
            return value.copy()
        case torch.Tensor():
            return value.clone()
        case dict():
            return {key: _copied(inner) for key, inner in value.items()}
        case list():
            return list(value)
    return value


class BackgroundTrainer:
    """A thread that trains the learner copies of some models, in the order of the calls of `train`."""

    def __init__(self, models: dict[str, Any], deadline: float) -> None:
        self._models, self._deadline = models, deadline
        self._copies = {name: _learner_copy(model) for name, model in models.items()}
        self._first_counters = {name: _counters(learner) for name, learner in self._copies.items()}
        self._pending: dict[str, Future[float]] = {}
        self._losses = dict.fromkeys(models, 0.0)
        self._epochs: dict[str, int] = {}
        self.steps = 0
        """How many trainings are done."""
        self._tasks: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._work, name="learner-sorrel", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:  # `close` sends None
            task()

    def start_epoch(self, name: str, epoch: int) -> None:
        """Call `start_epoch_action` of the learner copy before its next training, as was done with the model."""
        self._epochs[name] = epoch

    def train(self, name: str) -> float:
        """Publish the last training, start the next one from the model's memory of now, and return the last loss."""
        self._publish(name)
        learner, memory, epoch = self._copies[name], _frozen(self._models[name].memory), self._epochs.pop(name, None)
        future: Future[float] = Future()

        def task() -> None:
            try:
                if epoch is not None:
                    learner.start_epoch_action(epoch=epoch)
                learner.memory = memory
                future.set_result(float(np.asarray(learner.train_step()).mean()))
            except BaseException as error:
                future.set_exception(error)

        self._tasks.put(task)
        self._pending[name] = future
        return self._losses[name]

    def finish(self) -> None:
        """Wait for every training, and copy weights, optimizers and counters to the models."""
        for name in list(self._pending):
            self._publish(name)
        for name, model in self._models.items():
            _copy_optimizers_and_counters(self._copies[name], model, self._first_counters[name])

    def close(self) -> None:
        """End the thread; wait only briefly for what it is doing."""
        self._tasks.put(None)
        self._thread.join(CLOSE_SECONDS)

    def _publish(self, name: str) -> None:
        """Wait for the pending training of a model, if there is one, and copy its weights to the model."""
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
        learned = networks_of(self._copies[name])
        for attribute, network in networks_of(self._models[name]).items():
            network.load_state_dict(learned[attribute].state_dict())


def _counters(model: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(model).items() if isinstance(value, int | float)}


def _copy_optimizers_and_counters(learner: Any, model: Any, first_counters: dict[str, Any]) -> None:
    """Copy the optimizers, and the counters that training has changed and the model itself has not."""
    for name, value in vars(learner).items():
        if isinstance(value, torch.optim.Optimizer):
            getattr(model, name).load_state_dict(value.state_dict())
        elif name in first_counters and value != first_counters[name] and getattr(model, name) == first_counters[name]:
            setattr(model, name, value)
