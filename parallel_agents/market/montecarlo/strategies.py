"""Strategies: fixed ways to bid, played in the same worlds on the same draws; and learning that starts from some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from parallel_agents.errors import ConfigError, WorldError
from parallel_agents.market.montecarlo.actors import Actor
from parallel_agents.market.montecarlo.simulator import MonteCarloSimulator
from parallel_agents.market.worlds import WorldType
from parallel_agents.types import Array

__all__ = ["Focus", "Strategy", "StrategyResults", "constant_strategies", "play_strategies"]


@dataclass(frozen=True)
class Strategy:
    """Always the same action."""

    action: Any
    instant: ClassVar[bool] = True

    def act_many(self, states: Array) -> Array:
        """The action, for every state."""
        return np.repeat(np.asarray(self.action)[None], len(states), axis=0)


@dataclass(frozen=True, eq=False)
class StrategyResults:
    """Returns (W, laps) of every strategy in the same worlds."""

    returns: Mapping[str, NDArray[np.float64]]
    kinds: tuple[WorldType, ...]


def constant_strategies(levels: Sequence[float], creatives: Sequence[str]) -> dict[str, Strategy]:
    """Every level with every creative, as actions of the joint form.

    >>> {name: s.action for name, s in constant_strategies((0.5, 1.0), ("a", "b")).items()}
    {'0.5 a': 0, '0.5 b': 1, '1 a': 2, '1 b': 3}
    """
    pairs = [(level, creative) for level in levels for creative in creatives]
    return {f"{level:g} {creative}": Strategy(number) for number, (level, creative) in enumerate(pairs)}


async def play_strategies(
    simulator: MonteCarloSimulator, strategies: Mapping[str, Any], laps: int = 1
) -> StrategyResults:
    """Let every strategy (any agent) play the same laps of every world; on equal draws, since laps address them."""
    if laps < 1:
        raise ConfigError(f"laps is {laps}: give at least 1")
    first = -(-simulator.episodes // len(simulator.worlds)) * len(simulator.worlds)
    found = {}
    for name, strategy in strategies.items():
        simulator.episodes = first
        batch = await simulator.run_episode_batch(strategy, laps * len(simulator.worlds))
        if batch.failures:
            failed = batch.failures[0]
            raise WorldError(f"strategy {name!r} failed in world {failed.world}, lap {failed.lap}: {failed.reason}")
        rewards = np.array([e.total_reward for e in batch])
        found[name] = rewards.reshape(laps, len(simulator.worlds)).T
    return StrategyResults(found, tuple(world.kind for world in simulator.worlds))


class Focus:
    """Lets robust strategies play a share of the worlds while an agent learns from all of them.

    The share falls linearly from `share` to 0 over `laps` laps, so that in the end the agent stands alone. Which worlds
    a strategy plays follows from world and lap.
    """

    def __init__(self, strategies: Sequence[Strategy], share: float = 0.5, laps: int = 10) -> None:
        if not strategies:
            raise ConfigError("there is no strategy to focus on: give at least one, such as those found robust")
        if not 0.0 <= share <= 1.0 or laps < 1:
            raise ConfigError(f"share {share} over {laps} laps: give a share from 0 to 1 and at least 1 lap")
        self.strategies, self.share, self.laps = tuple(strategies), share, laps

    def around(self, actor: Actor) -> Actor:
        """The same actor, with strategies in its place in some worlds."""
        return _FocusedActor(actor, self)

    def assigned(self, worlds: Sequence[int], lap: int) -> NDArray[np.int64]:
        """(W,) which strategy plays a world, −1 for the agent itself."""
        share = self.share * max(0.0, 1.0 - lap / self.laps)
        places = np.array([(world * 0.6180339887498949 + lap * 0.7548776662466927) % 1.0 for world in worlds])
        which = (np.asarray(worlds) + lap) % len(self.strategies)
        return np.where(places < share, which, -1)  # low-discrepancy: each lap another, evenly spread, part


class _FocusedActor:
    def __init__(self, actor: Actor, focus: Focus) -> None:
        self._actor, self._focus = actor, focus
        self._who: NDArray[np.int64] = np.empty(0, np.int64)

    def board(self, worlds: Sequence[int], lap: int, steps: int) -> None:
        self._actor.board(worlds, lap, steps)
        self._who = self._focus.assigned(worlds, lap)

    async def act(self, states: NDArray[np.float32], step: int) -> Array:
        actions = np.array(await self._actor.act(states, step))
        for number, strategy in enumerate(self._focus.strategies):
            mine = self._who == number
            if mine.any():
                actions[mine] = strategy.act_many(states[mine])
        return actions
