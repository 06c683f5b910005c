"""A turn of the worlds with their defender: its choice becomes an action, the worlds are stepped, it observes.

`NetworkDefence` calls these functions turn by turn, and compiled epochs (`engine.collect`) call the same ones.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.compiled import compiled_once
from parallel_agents.workflows.network.observations import resolve_choices, update_history
from parallel_agents.workflows.network.scenario import N_ACTIONS
from parallel_agents.workflows.network.step_kernels import step_worlds


class DefenceWorld(NamedTuple):
    """The worlds with their defender: what the functions of this module read and write."""

    state: NDArray[np.void]
    """(W,), like `history`; `rules` and `episode` have one record each."""
    rules: NDArray[np.void]
    episode: NDArray[np.void]
    history: NDArray[np.void]
    bits: NDArray[np.uint8]
    """(W, 52) what blue observes."""
    features: NDArray[np.float32]
    """(W, ORDERED_SIZE) bits and features of the past, of which the defender reads the first columns."""
    actions: NDArray[np.int64]
    """(W,) the actions of the last turn, among all 145."""
    rewards: NDArray[np.float64]
    """(W,) its rewards, without the weight of the turn."""
    turn_weights: NDArray[np.float64]
    """One for each turn of an episode."""
    n_choices: int
    ends: bool
    """Whether the last turn ends the episode."""


@compiled_once
def observe(world: DefenceWorld, out: NDArray[np.float32]) -> None:
    """Write the observations (1, W, size)."""
    for w in range(out.shape[1]):
        for d in range(out.shape[2]):
            out[0, w, d] = world.features[w, d]


@compiled_once
def apply(
    world: DefenceWorld,
    actions: NDArray[np.int64],
    acting: NDArray[np.bool_],
    active: NDArray[np.bool_],
    rewards: NDArray[np.float32],
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
    epoch: int,
    turn: int,
) -> int:
    """Play one turn of every world with the choices (1, W, 1)."""
    number = world.episode[0].turn
    if number >= len(world.turn_weights):
        return 0
    for w in range(len(world.actions)):
        world.actions[w] = actions[0, w, 0]
        if not 0 <= world.actions[w] < world.n_choices:
            return w
    if world.n_choices < N_ACTIONS:
        resolve_choices(world.history, world.rules, world.actions)
    step_worlds(world.state, world.rules, world.episode, world.actions, world.bits, world.rewards)
    update_history(world.history, world.rules, world.actions, world.bits, world.features)
    for w in range(len(world.actions)):
        rewards[0, w] = world.turn_weights[number] * world.rewards[w]
        terminated[0, w] = world.ends and number + 1 == len(world.turn_weights)
    return -1
