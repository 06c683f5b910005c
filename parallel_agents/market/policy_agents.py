"""How simulators and trainers call an agent: how it acts in many worlds at once, and how it learns.

Acting, in this order of preference:

    a model of this library     one batched forward; its random numbers are addressed by world, lap and step
    act_many(states)            one call for (W, F) states; in the calling thread if the agent has `instant = True`
    act, take_action, …         one call per world; coroutine functions are awaited together

Other agents than models are called in a thread of their own, so that one that never returns exceeds its deadline and
blocks nothing. Their results do not depend on which worlds are simulated together if their actions depend on the state
alone.

Learning is an external update: `update_policy(batch) -> metrics`, one update from a batch that the trainer has drawn.
Models of this library have it; `ExternalUpdateAgent` adds a state that a trainer can store.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from parallel_agents.algorithms import DQN, IQN, Model
from parallel_agents.algorithms.acting import Inference, Weights
from parallel_agents.algorithms.learner import LearnerState
from parallel_agents.core.errors import CheckpointError, ContractError, ShapeError
from parallel_agents.core.seeding import Purpose, uniforms
from parallel_agents.core.types import Array

ACTION_METHODS = ("take_action", "select_action", "get_action", "act")
"""Names of the method by which an agent acts; the first one that it has is used."""
_TILE = 32
"""Rows of a forward, whatever the number of worlds: the last bits of a row depend on the number of rows."""


class PolicyAgent(Protocol):
    """An agent that a trainer can train: it also has one of `ACTION_METHODS`."""

    def update_policy(self, batch: Mapping[str, Array]) -> Mapping[str, Any]:
        """Learn from B rows (states, actions, rewards, next_states, dones, weights) and return metrics."""


class Actor(Protocol):
    """An agent that acts in W worlds, which are stepped together."""

    def begin_episode(self, worlds: Sequence[int], lap: int, steps: int) -> None:
        """Prepare for an episode in these worlds."""

    async def act(self, states: NDArray[np.float32], step: int) -> Array:
        """Return actions (W, …) for states (W, F)."""


class ActorWrapper(Protocol):
    """Something that acts instead of the agent in some worlds."""

    def wrap(self, actor: Actor) -> Actor:
        """Return an actor that asks the given one, or acts itself."""


def action_function(agent: Any) -> Callable[[Any], Any]:
    """Return the agent's function from a state to an action."""
    for name in ACTION_METHODS:
        method: Callable[[Any], Any] | None = getattr(agent, name, None)
        if callable(method):
            return method
    raise ContractError(f"{type(agent).__name__} does not act: give it one of {', '.join(ACTION_METHODS)}")


def make_actor(agent: Any) -> Actor:
    """Return an actor that calls the agent in the fastest way that it offers."""
    model = agent if isinstance(agent, Model) else getattr(agent, "model", None)
    if isinstance(model, Model):
        return ModelActor(model)
    if callable(getattr(agent, "act_many", None)):
        return _BatchActor(agent.act_many, instant=bool(getattr(agent, "instant", False)))
    act = action_function(agent)
    return _CoroutineActor(act) if inspect.iscoroutinefunction(act) else _SingleActor(act)


class ModelActor:
    """A model of this library; it explores as in training, unless another exploration is given."""

    def __init__(self, model: Model, exploration: float | None = None) -> None:
        self.spec, self.identity = model.spec, model.identity  # not the model: its buffer would travel with it
        self._exploration = model.epsilon if exploration is None else exploration
        learner = model.spec.learner()
        self._inference = Inference(learner.network, 1, _TILE, together=True)
        self._inference.weights = Weights(0, learner.policy(model.state))
        self._draws: NDArray[np.float64] = np.empty((0, 0, 0, 0))

    def begin_episode(self, worlds: Sequence[int], lap: int, steps: int) -> None:
        who, slots = self.identity, self.spec.slots
        self._draws = uniforms(who.seeds, Purpose.ACT, who.agents, worlds, epoch=lap, turns=steps, slots=slots)

    def choose(self, states: NDArray[np.float32], step: int) -> Array:
        """Return actions (W, …) for states (W, F)."""
        inputs = self.spec.network.inputs
        if states.shape[1] != inputs:
            raise ShapeError(
                f"the model takes {inputs} features, the worlds have {states.shape[1]}: make a model for these worlds"
            )
        count = len(states)
        padded = np.zeros((-(-count // _TILE) * _TILE, inputs), np.float32)
        padded[:count] = states
        parts = [self._inference.forward(padded[None, i : i + _TILE]) for i in range(0, len(padded), _TILE)]
        outputs = np.concatenate(parts, axis=1)[:, :count]
        actions, _ = self.spec.choose(outputs, self._draws[step], np.array([self._exploration]), None)
        return np.asarray(actions[0])

    async def act(self, states: NDArray[np.float32], step: int) -> Array:
        return self.choose(states, step)


class _CalledActor:
    """An agent that is not a model of this library; nothing has to be prepared for an episode."""

    def __init__(self, act: Callable[[Any], Any]) -> None:
        self._act = act

    def begin_episode(self, worlds: Sequence[int], lap: int, steps: int) -> None:
        """Do nothing."""


class _BatchActor(_CalledActor):
    """Calls `act_many` once for all worlds."""

    def __init__(self, act_many: Callable[[Array], Any], *, instant: bool) -> None:
        super().__init__(act_many)
        self._instant = instant

    async def act(self, states: NDArray[np.float32], step: int) -> Array:
        result = self._act(states) if self._instant else await _in_thread(lambda: self._act(states))
        actions = np.asarray(result)
        if actions.shape[:1] != states.shape[:1]:
            raise ShapeError(f"act_many gave actions of shape {actions.shape} for {len(states)} states: give one each")
        return actions


class _SingleActor(_CalledActor):
    """Calls a function for one world after the other."""

    async def act(self, states: NDArray[np.float32], step: int) -> Array:
        return np.asarray(await _in_thread(lambda: [self._act(state) for state in states]))


class _CoroutineActor(_CalledActor):
    """Awaits a coroutine function for all worlds together."""

    async def act(self, states: NDArray[np.float32], step: int) -> Array:
        return np.asarray(await asyncio.gather(*(self._act(state) for state in states)))


async def _in_thread(work: Callable[[], Any]) -> Any:
    """Return the result of `work`, called in a daemon thread that is abandoned if nobody waits any longer."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:  # raised again where the result is awaited
            failure = error
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="market-agent", daemon=True).start()
    return await future


class ExternalUpdateAgent:
    """A DQN or IQN that learns from batches of single rows, and whose state a trainer can store.

    >>> agent = ExternalUpdateAgent(DQN(obs_shape=(2,), n_actions=2, hidden=(8,)))
    >>> batch = {"states": np.ones((4, 2)), "actions": [0, 1, 0, 1], "rewards": np.ones(4),
    ...          "next_states": np.ones((4, 2)), "dones": np.ones(4, bool), "weights": np.ones(4)}
    >>> sorted(agent.update_policy(batch))
    ['gradient_norm', 'loss', 'td_errors', 'updates']
    """

    def __init__(self, model: Model) -> None:
        if not isinstance(model, DQN | IQN) or model.spec.ring.frames != 1:
            raise ContractError(
                f"{type(model).__name__} cannot learn from single rows: give a DQN or IQN with n_frames=1"
            )
        self.model: DQN | IQN = model

    def take_action(self, state: Any) -> Any:
        """Choose an action, exploring as in training."""
        return self.model.take_action(state)

    def start_epoch_action(self, epoch: int = 0, **_: Any) -> None:
        """Set exploration and random numbers to those of an episode; trainers call it before each episode."""
        self.model.start_epoch_action(epoch=epoch)

    def update_policy(self, batch: Mapping[str, ArrayLike]) -> dict[str, Any]:
        """Make one update with the model's own `update_policy`."""
        return self.model.update_policy(batch)

    def state(self) -> dict[str, Array]:
        """Return the learner's state as arrays."""
        return {name: tensor.cpu().numpy() for name, tensor in self.model.state.tensors.items()}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Replace the learner's state by a stored one, after checking that it is of the same model."""
        current = self.model.state.tensors
        shapes = {name: np.shape(array) for name, array in state.items()}
        if shapes != {name: tuple(tensor.shape) for name, tensor in current.items()}:
            raise CheckpointError(
                f"the stored agent has arrays {shapes}: it is another kind of model or has another shape"
            )
        self.model.state = LearnerState(
            {name: torch.tensor(array, dtype=current[name].dtype) for name, array in state.items()}
        )
