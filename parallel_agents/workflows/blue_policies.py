"""Policies for blue: scripted defenders, trained models, and agents written for the challenge itself.

A policy is a function of blue's observations (W, 52), the epoch and the turn; it returns actions (W,). One that
remembers plays in one batch of worlds, and starts afresh in a turn that does not follow its last one.

>>> from parallel_agents.workflows.network import NetworkWorlds
>>> rewards = play(NetworkWorlds(4, red="Sleep", steps=30), op_once, epoch=0)
>>> rewards.shape, rewards.sum(axis=0).tolist()
((30, 4), [-1.0, -1.0, -1.0, -1.0])
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_agents.algorithms import Model
from parallel_agents.algorithms.acting import Inference, Weights
from parallel_agents.core.errors import ActionError, ConfigError
from parallel_agents.core.seeding import Purpose, uniforms
from parallel_agents.core.types import Array
from parallel_agents.workflows.network import NetworkWorlds
from parallel_agents.workflows.network import scenario as sc
from parallel_agents.workflows.network.observations import History
from parallel_agents.workflows.orders import encode, host_ranks

Policy = Callable[[NDArray[np.uint8], int, int], NDArray[np.int64]]
PolicyFactory = Callable[[NetworkWorlds], Policy]
"""Makes a policy for the worlds that it will play in."""


def play(
    worlds: NetworkWorlds, policy: Policy, epoch: int, on_turn: Callable[[Any, Any, Any], None] | None = None
) -> NDArray[np.float64]:
    """Play one episode of every world; return the rewards (turns, W) after a late start.

    on_turn: called after every turn with the actions, and with access and observations before them.
    """
    observations = worlds.reset(epoch)
    rewards = np.empty((worlds.steps - worlds.late_start, worlds.n_worlds))
    for row in rewards:
        access, before = worlds.access if on_turn else None, observations
        actions = policy(before, epoch, worlds.turn)
        observations, row[:], _ = worlds.step(actions)
        if on_turn is not None:
            on_turn(actions, access, before)
    return rewards


def sleep(observations: NDArray[np.uint8], epoch: int, turn: int) -> NDArray[np.int64]:
    """Do nothing."""
    return np.full(len(observations), sc.SLEEP)


def react_restore(observations: NDArray[np.uint8], epoch: int, turn: int) -> NDArray[np.int64]:
    """Restore the first host that appears compromised."""
    return _act_on_first(_suspects(observations), sc.FIRST_RESTORE)


def react_remove(observations: NDArray[np.uint8], epoch: int, turn: int) -> NDArray[np.int64]:
    """Remove red from the first host that appears compromised at user level."""
    unknown_or_privileged = _memory(observations)[..., 0] == 1
    return _act_on_first(_suspects(observations) & ~unknown_or_privileged, sc.FIRST_REMOVE)


def op_once(observations: NDArray[np.uint8], epoch: int, turn: int) -> NDArray[np.int64]:
    """Restore Op_Server0 in the first turn, then do nothing: shows what one quirk is worth."""
    return np.full(len(observations), sc.FIRST_RESTORE + sc.OP_SERVER if turn == 0 else sc.SLEEP)


def random_actions(seed: int) -> Policy:
    """Return a policy that draws uniformly from the 145 actions."""

    def policy(observations: NDArray[np.uint8], epoch: int, turn: int) -> NDArray[np.int64]:
        u = uniforms([seed], Purpose.ACT, [0], range(len(observations)), epoch=epoch, turns=1, slots=1, first_turn=turn)
        return (u[0, 0, :, 0] * sc.N_ACTIONS).astype(np.int64)

    return policy


def blue_react_restore(observations: NDArray[np.uint8], epoch: int, turn: int) -> NDArray[np.int64]:
    """Do what the challenge's BlueReactRestore does: Monitor, which lists every host, then Restore them one by one."""
    listed = [h for h in range(sc.N_HOSTS) if h != sc.USER0]
    place = turn % (len(listed) + 1)
    return np.full(len(observations), sc.MONITOR if place == 0 else sc.FIRST_RESTORE + listed[place - 1])


def repair_in_order(
    observations: NDArray[np.uint8], active: NDArray[np.bool_], ranks: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the Restore (W,) that keeps the order, or Sleep where no host appears compromised.

    Not every attack is seen as one. So every host of a more urgent type that was active since its last Restore comes
    before a host that appears compromised. active, ranks: (W, 13), where ranks are the places of the hosts' types.
    """
    suspects = _suspects(observations)
    first = np.where(suspects, ranks, sc.N_HOSTS).min(axis=1, keepdims=True)
    repairs = suspects | (active & (ranks < first) & (first < sc.N_HOSTS) & (np.arange(sc.N_HOSTS) != sc.USER0))
    hosts = np.where(repairs, ranks, sc.N_HOSTS).argmin(axis=1)
    return np.where(repairs.any(axis=1), sc.FIRST_RESTORE + hosts, sc.SLEEP)


class OrderScript:
    """Repair in an order by `repair_in_order`, which after a clean start never breaks it."""

    def __init__(self, order: Iterable[str]) -> None:
        self._ranks, self._turn = host_ranks(order), -1
        self._active = np.zeros((0, sc.N_HOSTS), np.bool_)

    def __call__(self, observations: NDArray[np.uint8], epoch: int, turn: int) -> NDArray[np.int64]:
        if turn == 0 or turn != self._turn + 1:
            self._active = np.zeros((len(observations), sc.N_HOSTS), np.bool_)
        self._turn = turn
        self._active |= observations[:, ::4] == 1
        actions = repair_in_order(observations, self._active, np.broadcast_to(self._ranks, self._active.shape))
        restores = np.flatnonzero(actions)
        self._active[restores, actions[restores] - sc.FIRST_RESTORE] = False
        return actions


SCRIPTED = ("sleep", "random", "react_restore", "react_remove", "op_once", "blue_react_restore")


def scripted(name: str, seed: int = 0) -> Policy:
    """Return the scripted policy with this name."""
    if name == "random":
        return random_actions(seed)
    policies = {
        "sleep": sleep, "react_restore": react_restore, "react_remove": react_remove, "op_once": op_once,
        "blue_react_restore": blue_react_restore,
    }  # fmt: skip
    if name not in policies:
        raise ConfigError(f"blue policy {name!r} is unknown: choose one of {', '.join(SCRIPTED)}")
    return policies[name]


def _suspects(observations: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return the hosts that appear compromised (W, 13), without User0, which red always holds."""
    hosts: NDArray[np.bool_] = np.any(_memory(observations), axis=2)
    hosts[:, sc.USER0] = False
    return hosts


def _memory(observations: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the bits of remembered compromise (W, 13, 2)."""
    return observations.reshape(len(observations), sc.N_HOSTS, 4)[:, :, 2:]


def _act_on_first(hosts: NDArray[np.bool_], first_action: int) -> NDArray[np.int64]:
    """Return the action on the first marked host of each world (W, 13), or Sleep."""
    return np.where(hosts.any(axis=1), first_action + hosts.argmax(axis=1), sc.SLEEP)


class TrainedDefender:
    """Trained PPO models as a policy: the likeliest action, with the history that they read and perhaps an order.

    Several models form an ensemble: the action with the highest mean probability.
    """

    def __init__(
        self, models: Model | Sequence[Model], worlds: NetworkWorlds, order: Iterable[str] | None = None
    ) -> None:
        members = models if isinstance(models, Sequence) else [models]
        code = np.zeros(0, np.float32) if order is None else encode(order)
        self._code = np.broadcast_to(code, (worlds.n_worlds, len(code)))
        shapes = {(math.prod(m.spec.observation) - len(code), m.spec.actions or sc.N_ACTIONS) for m in members}
        if len(shapes) > 1:
            raise ConfigError(f"these models have {sorted(shapes)} inputs and choices: an ensemble's must be the same")
        size, self._n_choices = shapes.pop()
        self._history = History(worlds.n_worlds, worlds.rules, size)
        self._members = []
        for model in members:
            inference = Inference(model.spec.network, 1, worlds.n_worlds, together=True)
            inference.weights = Weights(0, model.spec.learner().policy(model.state))
            self._members.append(inference)
        self._first, self._turn, self._actions = worlds.late_start, -1, np.zeros(worlds.n_worlds, np.int64)

    def __call__(self, observations: NDArray[np.uint8], epoch: int, turn: int) -> NDArray[np.int64]:
        if turn == self._turn + 1 and turn > self._first:
            features = self._history.update(self._actions, observations)
        else:
            features = self._history.reset(observations)
        self._turn, self._actions = turn, self._history.actions(self.likeliest(features), self._n_choices)
        return self._actions

    def likeliest(self, features: Array) -> NDArray[np.int64]:
        """Return the likeliest choices (W,) for rows of features (W, size)."""
        inputs = np.concatenate([features, self._code], axis=1)[None]
        logits = [member.forward(inputs)[0][:, :-1] for member in self._members]  # the last column is the value
        if len(logits) == 1:
            return np.asarray(logits[0].argmax(-1))
        shifted = [np.exp(row - row.max(-1, keepdims=True)) for row in logits]
        return np.asarray(sum(row / row.sum(-1, keepdims=True) for row in shifted).argmax(-1))


class ChallengeAgents:
    """Agents in the form of the challenge as a policy, one instance per world.

    An agent has `get_action(observation, action_space)`; it gets its world's 52 numbers and the number of actions. An
    `end_episode()` is called between episodes; a class without it gets new instances for every episode.
    """

    def __init__(self, make: Callable[[], Any], n_worlds: int) -> None:
        self._make, self._agents = make, [make() for _ in range(n_worlds)]
        self._turn = -1
        if not callable(getattr(self._agents[0], "get_action", None)):
            raise ConfigError(f"{make!r} has no get_action(observation, action_space): write it as the challenge does")

    def __call__(self, observations: NDArray[np.uint8], epoch: int, turn: int) -> NDArray[np.int64]:
        if turn != self._turn + 1 and self._turn >= 0:
            if hasattr(self._agents[0], "end_episode"):
                for agent in self._agents:
                    agent.end_episode()
            else:
                self._agents = [self._make() for _ in self._agents]
        self._turn = turn
        rows = observations.astype(np.float64)
        chosen = [agent.get_action(row, sc.N_ACTIONS) for agent, row in zip(self._agents, rows, strict=True)]
        try:
            return np.array([operator.index(action) for action in chosen])
        except TypeError as fault:
            raise ActionError(f"get_action must return whole numbers from 0 to {sc.N_ACTIONS - 1}: {fault}") from fault
