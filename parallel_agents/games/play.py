"""Episodes of scripted players, to compare learners against.

A policy is a function from a game to (N, W) actions; it may look at the whole grid. `ways` and `go` are what most
scripted players of grid games need: the best way to what they want, and the action that leads there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from parallel_agents.games.environment import GridEnvironment
from parallel_agents.games.grid import Grid
from parallel_agents.games.steps import WAYS
from parallel_agents.seeding import Purpose
from parallel_agents.types import Array

__all__ = ["Episode", "go", "play", "random_player", "ways"]

Game = TypeVar("Game", bound=GridEnvironment)
_ABSOLUTE = ("up", "right", "down", "left")
_RELATIVE = ("forward", "step_right", "backward", "step_left")


@dataclass(frozen=True)
class Episode:
    """What an episode brought, turn by turn; see `parallel_agents.games.social` for what to make of it."""

    rewards: NDArray[np.float32]
    """(T, N, W)"""
    free: NDArray[np.bool_]
    """(T, N, W) who was free to act."""

    @property
    def returns(self) -> Array:
        """(N, W)"""
        return np.asarray(self.rewards.sum(axis=0))


def play(game: Game, policy: Callable[[Game], Array], *, epoch: int = 1) -> Episode:
    """One episode in every world of the game, `experiment.max_turns` turns at most; nothing is remembered.

    A world whose episode has ended pays nothing any more.
    """
    game.begin_epoch(epoch)
    game.reset_worlds(np.ones(game.n_worlds, np.bool_))
    going = np.ones(game.grid.headings.shape, np.bool_)
    rewards, free = [], []
    for turn in range(1, game.config.experiment.max_turns + 1):
        game.turn = turn
        game.begin_turn()
        able = game.can_act()
        free.append(going if able is None else going & able)
        rewards.append(np.where(going, game.apply_actions(policy(game)), np.float32(0.0)))
        ended = game.dones()
        if ended is not None:
            going = going & ~(ended[0] | ended[1])
            game.active = np.asarray(going.any(axis=0))
    return Episode(np.stack(rewards).astype(np.float32), np.stack(free))


def random_player(game: GridEnvironment) -> Array:
    """(N, W) each action equally likely."""
    return np.asarray(game.draws(1, Purpose.ACT)[..., 0] * len(game.grid.actions), np.int64)


def ways(grid: Grid, worth: Array, *, fade: float = 0.9, tie: Array | None = None) -> NDArray[np.int64]:
    """(N, W) the way each agent goes, 0 up, 1 right, 2 down, 3 left, -1 if there is nothing to go for.

    `worth` is (W, H, C), or (N, W, H, C) where agents want different things: what being in a cell is worth, 0 or more.
    It fades by `fade` a step, round walls; agents take the best free cell beside them. `tie`, (N, W, 4), decides
    between equal ones.
    """
    layer = grid.field.layer
    shut = ~grid.field.passable[grid.cells].all(axis=1)  # (W, H, C)
    bodies = np.isin(grid.cells[:, layer], np.unique(grid.looks))
    scent = np.pad(np.asarray(worth, np.float64), [(0, 0)] * (np.ndim(worth) - 2) + [(1, 1), (1, 1)])
    inner = scent[..., 1:-1, 1:-1]
    for _ in range(grid.field.height + grid.field.width):
        sides = scent[..., :-2, 1:-1], scent[..., 1:-1, 2:], scent[..., 2:, 1:-1], scent[..., 1:-1, :-2]
        spread = fade * np.maximum.reduce(sides)
        spread[..., shut & ~bodies] = 0.0
        np.maximum(inner, spread, out=inner)
    at = np.moveaxis(grid.positions[:, :, None] + WAYS + 1, -1, 0)  # rows, columns: (N, W, 4), with a rim
    agents, worlds = grid.headings.shape
    world = np.arange(worlds)[:, None]
    value = (
        scent[world, at[0], at[1]] if scent.ndim == 3 else scent[np.arange(agents)[:, None, None], world, at[0], at[1]]
    )
    shut = np.pad(shut, [(0, 0), (1, 1), (1, 1)], constant_values=True)[world, at[0], at[1]]
    value = np.where(shut, 0.0, value)
    best = np.asarray((value * (1.0 if tie is None else 1.0 + 1e-6 * tie)).argmax(axis=-1))
    return np.where(value.max(axis=-1) > 0.0, best, -1)


def go(grid: Grid, way: Array, otherwise: Array | int = 0) -> NDArray[np.int64]:
    """(N, W) the actions that lead there, absolute or relative, whichever the game has; `otherwise` where way is -1."""
    if "forward" in grid.actions:
        names, way_seen = _RELATIVE, (way - grid.headings) % 4
    else:
        names, way_seen = _ABSOLUTE, way
    codes = np.array([grid.actions.index(name) for name in names])
    return np.where(way < 0, otherwise, codes[way_seen])
