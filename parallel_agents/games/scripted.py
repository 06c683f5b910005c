"""Scripted players, to compare learners with, and the episodes they play.

A policy is a function from a game to (N, W) actions; it may read the whole grid. Most policies for grid games call
`walk_towards`, which finds the best direction (`best_directions`) and the action for it (`direction_actions`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.seeding import Purpose
from parallel_agents.core.types import Array
from parallel_agents.games.environment import GridEnvironment
from parallel_agents.games.grid import ABSOLUTE_MOVES, RELATIVE_MOVES, Grid, values_at
from parallel_agents.games.mechanics import neighbour_cells

Game = TypeVar("Game", bound=GridEnvironment)


@dataclass(frozen=True)
class Episode:
    """The rewards of an episode, turn by turn; `social_metrics` evaluates them."""

    rewards: NDArray[np.float32]
    """(T, N, W)"""
    free: NDArray[np.bool_]
    """(T, N, W) which agents were able to act."""

    @property
    def returns(self) -> Array:
        """(N, W)"""
        return np.asarray(self.rewards.sum(axis=0))


def play(game: Game, policy: Callable[[Game], Array], *, epoch: int = 1) -> Episode:
    """Play one episode in every world, at most `experiment.max_turns` turns, without storing transitions.

    A world whose episode has ended pays no more rewards.
    """
    game.begin_epoch(epoch)
    game.reset_worlds(np.ones(game.n_worlds, np.bool_))
    running = np.ones(game.grid.headings.shape, np.bool_)
    rewards, free = [], []
    for turn in range(1, game.config.experiment.max_turns + 1):
        game.turn = turn
        game.begin_turn()
        able = game.can_act()
        free.append(running if able is None else running & able)
        rewards.append(np.where(running, game.apply_actions(policy(game)), np.float32(0.0)))
        dones = game.dones()
        if dones is not None:
            running = running & ~(dones[0] | dones[1])
            game.active = np.asarray(running.any(axis=0))
    return Episode(np.stack(rewards).astype(np.float32), np.stack(free))


def random_policy(game: GridEnvironment) -> Array:
    """Return (N, W) random actions, all equally likely."""
    return np.asarray(game.draws(1, Purpose.ACT)[..., 0] * len(game.grid.actions), np.int64)


def walk_towards(game: GridEnvironment, worth: Array, *, otherwise: str | None = None) -> NDArray[np.int64]:
    """Return (N, W) the actions of agents that walk to what is worth most, as in `best_directions`; ties are random.

    Where there is nothing to walk to, an agent takes the action `otherwise`; None: one of the first four, at random.
    """
    draws = game.draws(5, Purpose.ACT)
    default = np.asarray(draws[..., 4] * 4, np.int64) if otherwise is None else game.grid.actions.index(otherwise)
    return direction_actions(game.grid, best_directions(game.grid, worth, tie=draws[..., :4]), default)


def best_directions(grid: Grid, worth: Array, *, fade: float = 0.9, tie: Array | None = None) -> NDArray[np.int64]:
    """Return (N, W) the direction in which each agent should go: 0 up, 1 right, 2 down, 3 left, -1 none.

    `worth`, (W, H, C), or (N, W, H, C) if agents want different things, is what being in a cell is worth, 0 or more. It
    fades by `fade` per step, around walls. An agent takes the best free cell beside it; `tie`, (N, W, 4), decides
    between equal cells.
    """
    blocked = ~grid.field.passable[grid.cells].all(axis=1)  # (W, H, C)
    bodies = np.isin(grid.cells[:, grid.field.layer], np.unique(grid.agent_kinds))
    padded = np.pad(np.asarray(worth, np.float64), [(0, 0)] * (np.ndim(worth) - 2) + [(1, 1), (1, 1)])
    inner = padded[..., 1:-1, 1:-1]
    for _ in range(grid.field.height + grid.field.width):
        sides = padded[..., :-2, 1:-1], padded[..., 1:-1, 2:], padded[..., 2:, 1:-1], padded[..., 1:-1, :-2]
        spread = fade * np.maximum.reduce(sides)
        spread[..., blocked & ~bodies] = 0.0
        np.maximum(inner, spread, out=inner)
    cells = neighbour_cells(grid) + 1  # in the padded arrays
    closed = values_at(np.pad(blocked, [(0, 0), (1, 1), (1, 1)], constant_values=True), cells)
    values = np.where(closed, 0.0, values_at(padded, cells))
    best = np.asarray((values * (1.0 if tie is None else 1.0 + 1e-6 * tie)).argmax(axis=-1))
    return np.where(values.max(axis=-1) > 0.0, best, -1)


def direction_actions(grid: Grid, directions: Array, otherwise: Array | int = 0) -> NDArray[np.int64]:
    """Return (N, W) the actions, absolute or relative, that move in the directions; `otherwise` for direction -1."""
    relative = "forward" in grid.actions
    codes = np.array([grid.actions.index(name) for name in (RELATIVE_MOVES if relative else ABSOLUTE_MOVES)])
    turned = (directions - grid.headings) % 4 if relative else directions
    return np.where(directions < 0, otherwise, codes[turned])
