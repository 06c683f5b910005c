"""Policies for blue: scripted defenders, trained models as policies, and the score of CAGE Challenge 2.

A policy is a function of blue's observations (W, 52), the epoch and the turn; it returns actions (W,).

>>> from parallel_agents.workflows.network import NetworkWorlds
>>> rewards = play(NetworkWorlds(4, red="Sleep", steps=30), op_once, epoch=0)
>>> rewards.shape, rewards.sum(axis=0).tolist()
((30, 4), [-1.0, -1.0, -1.0, -1.0])

The score is the sum of nine means: the mean return of the first 30, 50 and 100 turns against B_line, Meander and Sleep.
A policy does not know how long an episode lasts, so the shorter episodes are the beginnings of the longer ones.

>>> score(lambda worlds: op_once, episodes=4).means["Sleep"]
(-1.0, -1.0, -1.0)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_agents.algorithms import Model
from parallel_agents.algorithms.acting import Inference, Weights
from parallel_agents.core.errors import ConfigError
from parallel_agents.core.seeding import Purpose, uniforms
from parallel_agents.core.types import Array
from parallel_agents.workflows.network import RED_AGENTS, NetworkWorlds, Quirks
from parallel_agents.workflows.network import scenario as sc
from parallel_agents.workflows.network.observations import HISTORY_SIZE, History
from parallel_agents.workflows.network.quirks import version_quirks
from parallel_agents.workflows.orders import check_order, encode, host_ranks

LENGTHS = (30, 50, 100)

Policy = Callable[[NDArray[np.uint8], int, int], NDArray[np.int64]]
PolicyFactory = Callable[[NetworkWorlds], Policy]
"""Makes a policy for the worlds that it will play in."""


def play(worlds: NetworkWorlds, policy: Policy, epoch: int) -> NDArray[np.float64]:
    """Play one episode of every world; return the rewards (turns, W) after a late start."""
    observations = worlds.reset(epoch)
    rewards = np.empty((worlds.steps - worlds.late_start, worlds.n_worlds))
    for row in rewards:
        observations, row[:], _ = worlds.step(policy(observations, epoch, worlds.turn))
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


def restore_in_order(order: Iterable[str]) -> Policy:
    """Return a policy that restores, of the hosts that appear compromised, the one whose type is most urgent."""
    by_urgency = np.argsort(host_ranks(order), kind="stable")

    def policy(observations: NDArray[np.uint8], epoch: int, turn: int) -> NDArray[np.int64]:
        suspects = _suspects(observations)[:, by_urgency]
        hosts = by_urgency[suspects.argmax(axis=1)]
        return np.where(suspects.any(axis=1), sc.FIRST_RESTORE + hosts, sc.SLEEP)

    return policy


SCRIPTED = ("sleep", "random", "react_restore", "react_remove", "op_once")


def scripted(name: str, seed: int = 0) -> Policy:
    """Return the scripted policy with this name."""
    if name == "random":
        return random_actions(seed)
    policies = {"sleep": sleep, "react_restore": react_restore, "react_remove": react_remove, "op_once": op_once}
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


class _GreedyActions:
    """The likeliest actions of a trained PPO model, for any number of worlds."""

    def __init__(self, model: Model) -> None:
        self._network = model.spec.network
        self._weights = Weights(0, model.spec.learner().policy(model.state))
        self._inference: Inference | None = None

    def __call__(self, inputs: Array) -> NDArray[np.int64]:
        if self._inference is None or self._inference.worlds != len(inputs):
            self._inference = Inference(self._network, 1, len(inputs), together=True)
            self._inference.weights = self._weights
        outputs = self._inference.forward(inputs[None])[0]
        return np.asarray(outputs[:, :-1].argmax(-1))  # the last column is the value


class TrainedDefender:
    """A trained model of `NetworkDefence` as a policy: the likeliest action, with its history where it reads one.

    It plays in one batch of worlds. A turn that does not follow the last one starts a new episode.
    """

    def __init__(self, model: Model, worlds: NetworkWorlds) -> None:
        self._history = History(worlds.n_worlds, worlds.rules)
        self._reads_history = model.spec.observation == (HISTORY_SIZE,)
        self._greedy = _GreedyActions(model)
        self._turn = -1
        self._actions = np.zeros(worlds.n_worlds, np.int64)

    def __call__(self, observations: NDArray[np.uint8], epoch: int, turn: int) -> NDArray[np.int64]:
        if turn == self._turn + 1 and turn > 0:
            features = self._history.update(self._actions, observations)
        else:
            features = self._history.reset(observations, turn)
        self._turn = turn
        self._actions = self._greedy(features if self._reads_history else observations.astype(np.float32))
        return self._actions


class OrderedPolicy:
    """A trained order-conditioned model as a policy: the likeliest action under one order."""

    def __init__(self, model: Model, order: Iterable[str]) -> None:
        self.order = check_order(order)
        self._code = encode(self.order)
        self._greedy = _GreedyActions(model)

    def __call__(self, observations: NDArray[np.uint8], epoch: int, turn: int) -> NDArray[np.int64]:
        code = np.broadcast_to(self._code, (len(observations), len(self._code)))
        return self._greedy(np.concatenate([observations.astype(np.float32), code], axis=1))


@dataclass(frozen=True)
class Score:
    """Mean returns and their standard errors per red agent, at 30, 50 and 100 turns."""

    means: Mapping[str, tuple[float, ...]]
    errors: Mapping[str, tuple[float, ...]]
    total: float
    total_error: float
    episodes: int

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "total": self.total,
            "total_error": self.total_error,
            "episodes": self.episodes,
            "lengths": list(LENGTHS),
            "means": {red: list(means) for red, means in self.means.items()},
            "errors": {red: list(errors) for red, errors in self.errors.items()},
        }


def score(
    make_policy: PolicyFactory, version: str = "leaderboard", quirks: Quirks | None = None, episodes: int = 1000,
    seed: int = 0,
) -> Score:  # fmt: skip
    """Play `episodes` episodes against each red agent, with draws that no training uses; return the score."""
    if episodes < 2:
        raise ConfigError(f"episodes is {episodes}: at least two are needed for a standard error")
    means, errors, totals = {}, {}, []
    for red in RED_AGENTS:
        worlds = NetworkWorlds(
            episodes, red=red, version=version, quirks=quirks, steps=max(LENGTHS), seed=seed,
            purpose=Purpose.EVALUATION_WORLD,
        )  # fmt: skip
        cumulative = play(worlds, make_policy(worlds), epoch=0).cumsum(axis=0)
        returns = np.stack([cumulative[length - 1] for length in LENGTHS])
        means[red] = tuple(float(mean) for mean in returns.mean(axis=1))
        errors[red] = tuple(float(error) for error in returns.std(axis=1, ddof=1) / np.sqrt(episodes))
        totals.append(returns.sum(axis=0))
    total = float(np.mean(totals, axis=1).sum())
    total_error = float(np.sqrt(np.var(totals, axis=1, ddof=1).sum() / episodes))
    return Score(means, errors, total, total_error, episodes)


def score_table(make_policy: PolicyFactory, episodes: int = 1000, seed: int = 0) -> dict[str, Score]:
    """Return the scores in both versions of the game, with and without the un-killable service after a Restore."""
    table = {}
    for version in ("leaderboard", "head"):
        for unkillable in (True, False):
            quirks = replace(version_quirks(version), service_unkillable_after_restore=unkillable)
            name = version if unkillable else f"{version}, service stays killable"
            table[name] = score(make_policy, version, quirks, episodes, seed)
    return table
