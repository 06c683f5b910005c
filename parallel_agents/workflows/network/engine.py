"""One turn of one world, and the loops over worlds.

    blue acts ─► green scans ─► red chooses and acts ─► cost ─► blue's 52 bits

The same turn runs in two ways: `step_worlds` draws red's choices, `drive` is told them by a recording. The four
numbers a world uses in a turn stand at the address (world, epoch, turn), one per question, whether asked or
not: which target red takes, which exploit, whether a shell is noticed, what green does.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parallel_agents.compiled import njit
from parallel_agents.seeding import draw, uniform
from parallel_agents.workflows.network import tables as t
from parallel_agents.workflows.network.attack import (
    EXPLOIT,
    NO_EXPLOIT,
    P_DETECTED,
    attack,
    choose_exploit,
    exploit_options,
    open_ports,
)
from parallel_agents.workflows.network.blue import FIRST_RESTORE, NOBODY, blue_turn
from parallel_agents.workflows.network.red import commit, options
from parallel_agents.workflows.network.sight import classify, notice, turn_cost, write_observation
from parallel_agents.workflows.network.state import Record, count, has, pick

__all__ = ["ADMITTED", "EXPLOIT_REFUSED", "TARGET_REFUSED", "drive", "show", "sleep_worlds", "step_worlds"]

ADMITTED, TARGET_REFUSED, EXPLOIT_REFUSED = range(3)
P_GREEN_ACTS = 0.5

_N_ACTIONS, _SLEEP = t.N_ACTIONS, t.SLEEP
_GREEN_TARGETS = sum(1 << h for h, host in enumerate(t.HOSTS) if host.subnet == "User" or host.unit == "enterprise")


@njit(cache=True)  # type: ignore[untyped-decorator]
def _green_target(u: float) -> int:
    """Green rests half of the time, else scans a user or enterprise host."""
    return NOBODY if u < P_GREEN_ACTS else pick(_GREEN_TARGETS, (u - P_GREEN_ACTS) / (1.0 - P_GREEN_ACTS))


@njit(cache=True)  # type: ignore[untyped-decorator]
def _settle(
    s: Record, rules: Record, action: int, decoy_on: int, infected: int, green_on: int,
    kind: int, target: int, exploit: int, detected: bool,
) -> int:  # fmt: skip
    """Green's and red's moves, what blue sees of them, and the turn's cost in tenths of a point."""
    green_ports = 0 if green_on == NOBODY else open_ports(s, rules, green_on)
    green_events = count(green_ports)
    ports, events, shell = attack(s, rules, kind, target, exploit, detected)
    s.active = s.attacked = 0
    if events:
        if green_on == target:
            ports, events, green_on = ports | green_ports, events + green_events, NOBODY
        notice(s, target, classify(ports, events, shell, decoy_on == target, rules.scan_hides_exploit))
    if green_on != NOBODY:
        notice(s, green_on, classify(green_ports, green_events, False, decoy_on == green_on, True))
    if infected != NOBODY:
        s.memory_first |= 1 << infected
        s.memory_second |= 1 << infected
    cost: int = turn_cost(s, action >= FIRST_RESTORE, rules.user_sessions_are_free)
    return cost


@njit(cache=True)  # type: ignore[untyped-decorator]
def _turn(
    s: Record, rules: Record, agent: int, action: int, green: bool,
    words: tuple[np.uint64, np.uint64, np.uint64, np.uint64],
) -> int:  # fmt: skip
    """A turn in free play."""
    decoy_on, infected = blue_turn(s, rules, action)
    kind, targets = options(s, agent)
    target = pick(targets, uniform(words[0]))
    commit(s, agent, kind, target)
    exploit, detected = NO_EXPLOIT, False
    if kind == EXPLOIT:
        exploit = choose_exploit(exploit_options(s, target), uniform(words[1]))
        detected = uniform(words[2]) < P_DETECTED
    green_on = _green_target(uniform(words[3])) if green else NOBODY
    cost: int = _settle(s, rules, action, decoy_on, infected, green_on, kind, target, exploit, detected)
    return cost


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def step_worlds(
    state: NDArray[np.void], rules: NDArray[np.void], agents: NDArray[np.int8], green: bool,
    k0: np.uint64, k1: np.uint64, epoch: np.uint64, turn: np.uint64, first_world: np.uint64,
    actions: NDArray[np.int64], observations: NDArray[np.uint8], rewards: NDArray[np.float64],
) -> int:  # fmt: skip
    """One turn of every world; the first world with an impossible action, if any, and then nothing is done."""
    for w in range(state.shape[0]):
        if not 0 <= actions[w] < _N_ACTIONS:
            return w
    for w in range(state.shape[0]):
        words = draw(k0, k1, np.uint64(0), turn, epoch, first_world + np.uint64(w))
        rewards[w] = -_turn(state[w], rules[0], agents[w], actions[w], green, words) / 10
        write_observation(state[w], observations[w])
    return -1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def sleep_worlds(
    state: NDArray[np.void], rules: NDArray[np.void], agents: NDArray[np.int8], green: bool,
    k0: np.uint64, k1: np.uint64, epoch: np.uint64, turns: int, first_world: np.uint64,
) -> None:  # fmt: skip
    """The first turns of every world while blue sleeps."""
    for w in range(state.shape[0]):
        for turn in range(turns):
            words = draw(k0, k1, np.uint64(0), np.uint64(turn), epoch, first_world + np.uint64(w))
            _turn(state[w], rules[0], agents[w], _SLEEP, green, words)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def show(state: NDArray[np.void], observations: NDArray[np.uint8]) -> None:
    """Blue's bits of every world."""
    for w in range(state.shape[0]):
        write_observation(state[w], observations[w])


@njit(cache=True)  # type: ignore[untyped-decorator]
def drive(
    state: NDArray[np.void], rules: NDArray[np.void], agent: int, action: int,
    kind: int, target: int, exploit: int, detected: bool, observation: NDArray[np.uint8],
) -> tuple[int, int]:  # fmt: skip
    """A turn of world 0 as recorded: whether red's policy admits it, and its cost in tenths of a point."""
    s = state[0]
    verdict = ADMITTED
    decoy_on, infected = blue_turn(s, rules[0], action)
    admitted_kind, targets = options(s, agent)
    if kind == admitted_kind and has(targets, target):
        commit(s, agent, kind, target)
    else:
        verdict = TARGET_REFUSED
    if kind == EXPLOIT:
        possible = exploit_options(s, target)
        if possible == 0:
            exploit = NO_EXPLOIT  # refused before the choice: a recording may name a stale one
        elif exploit == NO_EXPLOIT or not has(possible, exploit):
            verdict = EXPLOIT_REFUSED
    cost = _settle(s, rules[0], action, decoy_on, infected, NOBODY, kind, target, exploit, detected)
    write_observation(s, observation)
    return verdict, cost
