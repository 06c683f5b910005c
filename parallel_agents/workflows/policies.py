"""Scripted defenders: what a learner must beat, and what the statistics of the game are checked with.

A policy is a function of blue's observations (W, 52), the epoch and the turn; it gives actions (W,).

>>> from parallel_agents.workflows.network import NetworkWorlds
>>> rewards = play(NetworkWorlds(4, red="Sleep", steps=30), op_once, epoch=0)
>>> rewards.shape, rewards.sum(axis=0).tolist()
((30, 4), [-1.0, -1.0, -1.0, -1.0])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from parallel_agents.errors import ConfigError
from parallel_agents.seeding import Purpose, uniforms
from parallel_agents.workflows.network import NetworkWorlds, action_id
from parallel_agents.workflows.network import tables as t
from parallel_agents.workflows.orders import host_ranks

__all__ = [
    "SCRIPTED", "Policy", "op_once", "play", "random_actions", "react_remove", "react_restore", "restore_in_order",
    "scripted", "sleep",
]  # fmt: skip

Policy = Callable[[NDArray[np.uint8], int, int], NDArray[np.int64]]

_FIRST_REMOVE = action_id("Remove", t.HOST_NAMES[0])
_FIRST_RESTORE = action_id("Restore", t.HOST_NAMES[0])


def play(worlds: NetworkWorlds, policy: Policy, epoch: int) -> NDArray[np.float64]:
    """One episode of every world: rewards (turns, W), those of a late start left out."""
    observations = worlds.reset(epoch)
    rewards = np.empty((worlds.steps - worlds.late_start, worlds.n_worlds))
    for row in rewards:
        observations, row[:], _ = worlds.step(policy(observations, epoch, worlds.turn))
    return rewards


def sleep(observations: NDArray[np.uint8], epoch: int, turn: int) -> NDArray[np.int64]:
    """Do nothing."""
    return np.full(len(observations), t.SLEEP)


def react_restore(observations: NDArray[np.uint8], epoch: int, turn: int) -> NDArray[np.int64]:
    """Restore the first host that looks compromised in any way."""
    return _on_first(suspects(observations), _FIRST_RESTORE)


def react_remove(observations: NDArray[np.uint8], epoch: int, turn: int) -> NDArray[np.int64]:
    """Remove from the first host that looks compromised at user level."""
    unknown_or_more = _memory(observations)[..., 0] == 1
    return _on_first(suspects(observations) & ~unknown_or_more, _FIRST_REMOVE)


def op_once(observations: NDArray[np.uint8], epoch: int, turn: int) -> NDArray[np.int64]:
    """Restore Op_Server0 at once, then do nothing: what one quirk is worth."""
    return np.full(len(observations), _FIRST_RESTORE + t.OP_SERVER if turn == 0 else t.SLEEP)


def random_actions(seed: int) -> Policy:
    """Any of the 145 actions, uniformly."""

    def policy(observations: NDArray[np.uint8], epoch: int, turn: int) -> NDArray[np.int64]:
        u = uniforms([seed], Purpose.ACT, [0], range(len(observations)), epoch=epoch, turns=1, slots=1, first_turn=turn)
        return (u[0, 0, :, 0] * t.N_ACTIONS).astype(np.int64)

    return policy


def restore_in_order(order: Iterable[str]) -> Policy:
    """Restore the host that looks compromised and whose type is the most urgent in the order."""
    rank = host_ranks(order)
    by_urgency = np.argsort(rank, kind="stable")

    def policy(observations: NDArray[np.uint8], epoch: int, turn: int) -> NDArray[np.int64]:
        waiting = suspects(observations)[:, by_urgency]
        chosen = by_urgency[waiting.argmax(axis=1)]
        return np.where(waiting.any(axis=1), _FIRST_RESTORE + chosen, t.SLEEP)

    return policy


SCRIPTED = ("sleep", "random", "react_restore", "react_remove", "op_once")


def scripted(name: str, seed: int = 0) -> Policy:
    """A scripted defender by its name."""
    if name == "random":
        return random_actions(seed)
    known = {"sleep": sleep, "react_restore": react_restore, "react_remove": react_remove, "op_once": op_once}
    if name not in known:
        raise ConfigError(f"blue policy {name!r} is unknown: choose one of {', '.join(SCRIPTED)}")
    return known[name]


def suspects(observations: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """The hosts blue has reason to repair (W, 13); User0 is red's for good and is left out."""
    seen: NDArray[np.bool_] = np.any(_memory(observations), axis=2)
    seen[:, t.USER0] = False
    return seen


def _memory(observations: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return observations.reshape(len(observations), t.N_HOSTS, 4)[:, :, 2:]


def _on_first(marked: NDArray[np.bool_], first_action: int) -> NDArray[np.int64]:
    """The action on the first marked host of each world, or Sleep."""
    return np.where(marked.any(axis=1), first_action + marked.argmax(axis=1), t.SLEEP)
