"""How any agent acts in many worlds at once.

    a model of this library     one batched forward; its draws are addressed by world, lap and step
    act_many(states)            one call for (W, F) states; by itself, if the agent says `instant = True`
    act, take_action, …         one call per world; coroutine functions are awaited together

Foreign agents are called in a thread of their own, so that one that never returns meets its deadline. What a foreign
agent draws at random is its own affair: results do not depend on which worlds are played together as long as its
actions depend on nothing but the state.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from parallel_agents.acting import Inference
from parallel_agents.errors import ShapeError
from parallel_agents.market.importance.door import acting_of
from parallel_agents.models import Model
from parallel_agents.seeding import Purpose, uniforms
from parallel_agents.types import Array, Weights

__all__ = ["Actor", "Wrapper", "actor_of"]

_TILE = 32
"""Rows of a forward, whatever the number of worlds: a row's last bits depend on how many there are."""


class Actor(Protocol):
    """An agent as one flight of W worlds sees it."""

    def board(self, worlds: Sequence[int], lap: int, steps: int) -> None:
        """A flight of these worlds begins."""

    async def act(self, states: NDArray[np.float32], step: int) -> Array:
        """Actions (W, …) for states (W, F)."""


class Wrapper(Protocol):
    """Something that acts in an agent's place now and then."""

    def around(self, actor: Actor) -> Actor:
        """The same actor, wrapped."""


def actor_of(agent: Any) -> Actor:
    """The way in which this agent acts best."""
    model = agent if isinstance(agent, Model) else getattr(agent, "model", None)
    if isinstance(model, Model):
        return _ModelActor(model)
    if callable(getattr(agent, "act_many", None)):
        return _ManyActor(agent.act_many, instant=bool(getattr(agent, "instant", False)))
    act = acting_of(agent)
    return _AsyncActor(act) if inspect.iscoroutinefunction(act) else _EachActor(act)


class _ModelActor:
    def __init__(self, model: Model) -> None:
        self.model = model
        self._inference = Inference(model.blueprint.network, 1, _TILE, together=True)
        self._inference.publish(Weights(0, model.blueprint.learner().policy(model.state)))
        self._draws: NDArray[np.float64] = np.empty((0, 0, 0, 0))

    def board(self, worlds: Sequence[int], lap: int, steps: int) -> None:
        who, slots = self.model.identity, self.model.blueprint.slots
        self._draws = uniforms(who.seeds, Purpose.ACT, who.agents, worlds, epoch=lap, turns=steps, slots=slots)

    async def act(self, states: NDArray[np.float32], step: int) -> Array:
        wanted = self.model.blueprint.network.inputs
        if states.shape[1] != wanted:
            raise ShapeError(f"the model reads {wanted} features, the worlds show {states.shape[1]}: make it anew")
        count = len(states)
        padded = np.zeros((-(-count // _TILE) * _TILE, wanted), np.float32)
        padded[:count] = states
        parts = [self._inference.forward(padded[None, i : i + _TILE]) for i in range(0, len(padded), _TILE)]
        outputs = np.concatenate(parts, axis=1)[:, :count]
        actions, _ = self.model.blueprint.choose(outputs, self._draws[step], np.array([self.model.epsilon]), None)
        return np.asarray(actions[0])


class _ManyActor:
    def __init__(self, act_many: Callable[[Array], Any], *, instant: bool) -> None:
        self._act_many, self._instant = act_many, instant

    def board(self, worlds: Sequence[int], lap: int, steps: int) -> None:
        """Nothing to prepare."""

    async def act(self, states: NDArray[np.float32], step: int) -> Array:
        found = self._act_many(states) if self._instant else await _aside(lambda: self._act_many(states))
        actions = np.asarray(found)
        if actions.shape[:1] != states.shape[:1]:
            raise ShapeError(f"act_many gave actions of shape {actions.shape} for {len(states)} states: give one each")
        return actions


class _EachActor:
    def __init__(self, act: Callable[[Array], Any]) -> None:
        self._act = act

    def board(self, worlds: Sequence[int], lap: int, steps: int) -> None:
        """Nothing to prepare."""

    async def act(self, states: NDArray[np.float32], step: int) -> Array:
        return np.asarray(await _aside(lambda: [self._act(state) for state in states]))


class _AsyncActor:
    def __init__(self, act: Callable[[Array], Any]) -> None:
        self._act = act

    def board(self, worlds: Sequence[int], lap: int, steps: int) -> None:
        """Nothing to prepare."""

    async def act(self, states: NDArray[np.float32], step: int) -> Array:
        return np.asarray(await asyncio.gather(*(self._act(state) for state in states)))


async def _aside(work: Callable[[], Any]) -> Any:
    """Do the work in a thread that nobody has to wait for: one that never returns is left behind."""
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
        except BaseException as error:  # handed to whoever waits
            failure = error
        with suppress(RuntimeError):  # too late: the loop has ended
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="market-agent", daemon=True).start()
    return await future
