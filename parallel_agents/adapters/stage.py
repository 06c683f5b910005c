"""An environment of ours, driven turn by turn from outside instead of by a run."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from parallel_agents.config import Config, merge
from parallel_agents.environment import Environment
from parallel_agents.errors import ActionError, ContractError
from parallel_agents.networks import MultiDiscrete, SquashedGaussian
from parallel_agents.types import Array

__all__ = ["Outcome", "Stage", "action_space"]


class Outcome(NamedTuple):
    """What a turn gave, (N, W) each; nothing to those whose episode had ended before."""

    rewards: Array
    terminated: Array
    truncated: Array


class Stage:
    """The turns of an environment: `start`, then `seen`, `play`, `seen`, `play`, …

    Episodes are cut off after `experiment.max_turns` turns. A seed makes the environment anew, so that equal seeds
    and equal actions give equal episodes; without one the next episode's draws are taken.
    """

    def __init__(self, environment: Environment) -> None:
        self.game = environment
        self.names = [str(agent.name) for agent in environment.agents]
        self._epoch = 0
        self.start(None)
        self.shapes = [tuple(np.shape(seen)[1:]) for seen in self.seen()]
        self._epoch = 0

    def start(self, seed: int | None) -> None:
        """A fresh episode in every world."""
        if seed is not None:
            given = merge(self.game.config.as_dict(), {"experiment": {"seed": seed}})
            self.game, self._epoch = self.game.remade(Config.build(given)), 0
        self._epoch += 1
        self.alive = np.ones((len(self.names), self.game.n_worlds), np.bool_)
        self._ages = np.zeros(self.game.n_worlds, np.int64)
        self._turn = 0
        self.game.begin_epoch(self._epoch)
        self.game.reset_worlds(np.ones(self.game.n_worlds, np.bool_))
        self._begin_turn()

    def _begin_turn(self) -> None:
        self._turn += 1
        self.game.turn, self.game.active = self._turn, np.any(self.alive, axis=0)
        self.game.begin_turn()
        able = self.game.can_act()
        self.able = self.alive if able is None else self.alive & able

    def seen(self) -> list[Array]:
        """(W, *obs) per agent, as copies."""
        return [np.array(own, np.float32) for own in self.game.observe()]

    def masks(self) -> list[Array | None]:
        """(W, A) per agent: what it may do; None: everything."""
        return list(self.game.action_masks()) if self.game.masks_actions else [None] * len(self.names)

    def play(self, actions: list[Array]) -> Outcome:
        """One turn by the (W, …) actions of every agent."""
        if not self.alive.any():
            raise ActionError("the episode has ended: call reset() before the next step()")
        alive, game = self.alive, self.game
        game.acting = self.able
        same = len({own.shape for own in actions}) == 1
        rewards = np.where(alive, game.apply_actions(np.stack(actions) if same else actions), 0.0)
        terminated, truncated = game.dones() or (np.zeros_like(alive), np.zeros_like(alive))
        self._ages += game.active
        terminated = terminated & alive
        truncated = (truncated | (self._ages >= game.config.experiment.max_turns)) & alive & ~terminated
        self.alive = alive & ~(terminated | truncated)
        return Outcome(rewards, terminated, truncated)

    def go_on(self) -> None:
        """Begin the next turn, if there is one: until then, what is seen is what the last one led to."""
        if self.alive.any():
            self._begin_turn()

    def restart(self, which: Array) -> None:
        """A fresh episode in the worlds of the (W,) mask, from the next turn on."""
        if which.any():
            self.game.reset_worlds(which)
            self.alive = self.alive | which
            self._ages[which] = 0


def action_space(agent: Any) -> spaces.Space[Any]:
    """What an agent can do, as its model knows it."""
    if agent.n_actions is not None:
        return spaces.Discrete(agent.n_actions)
    match getattr(getattr(agent.model, "blueprint", None), "distribution", None):
        case MultiDiscrete(sizes=sizes):
            return spaces.MultiDiscrete(list(sizes))
        case SquashedGaussian(low=low, high=high):
            return spaces.Box(np.array(low, np.float32), np.array(high, np.float32))
    raise ContractError(f"nobody knows what {agent.name} can do: its model has neither n_actions nor a distribution")
