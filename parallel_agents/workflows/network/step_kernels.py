"""One turn of one world, and the loops over worlds.

    blue acts ─► green scans ─► red chooses and acts ─► cost ─► blue's 52 bits

`step_worlds` draws red's choices at random; `replay_step` takes them from a recording. A world uses four random words
per turn, at the address (world, epoch, turn): red's target, red's exploit, whether a shell is detected, green's action.
They are drawn whether they are needed or not.

With a defender, its choice becomes an action, the worlds are stepped, and it observes (`apply`, `observe`):
`NetworkDefence` calls these functions turn by turn, and compiled epochs (`engine.collect`) call the same ones.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.compiled import compiled_once, njit
from parallel_agents.core.seeding import draw, uniform
from parallel_agents.workflows.network import scenario as sc
from parallel_agents.workflows.network.blue import apply_blue_action
from parallel_agents.workflows.network.observations import (
    classify,
    record_activity,
    resolve_choices,
    update_history,
    write_observation,
)
from parallel_agents.workflows.network.red import (
    EXPLOIT,
    HostEvents,
    RedMove,
    allowed_actions,
    apply_red_action,
    choose_move,
    exploit_options,
    note_choice,
    open_ports,
)
from parallel_agents.workflows.network.state import NO_EXPLOIT, NO_HOST, Record, count, has, pick, sessions

# Where the random words of the next turn are, and whether green acts: one record for all worlds of a batch.
EPISODE = np.dtype(
    [
        ("key", np.uint64, (2,)),
        ("epoch", np.uint64),
        ("turn", np.int64),
        ("first_world", np.uint64),
        ("green", np.bool_),
    ]
)

# Whether a red agent may take a recorded action.
ALLOWED, TARGET_NOT_ALLOWED, EXPLOIT_NOT_ALLOWED = range(3)
P_GREEN_ACTS = 0.5

_GREEN_TARGETS = sum(1 << h for h, host in enumerate(sc.HOSTS) if host.subnet == "User" or host.unit == "enterprise")
_COST = np.array([host.cost for host in sc.HOSTS], np.int64)
_SERVICE_DOWN_COST, _RESTORE_COST = 100, 10  # tenths of a point


@njit(cache=True)  # type: ignore[untyped-decorator]
def _green_target(u: float) -> int:
    """Return the user or enterprise host that green scans, or NO_HOST half of the time."""
    return NO_HOST if u < P_GREEN_ACTS else pick(_GREEN_TARGETS, (u - P_GREEN_ACTS) / (1.0 - P_GREEN_ACTS))


@njit(cache=True)  # type: ignore[untyped-decorator]
def _cost(s: Record, action: int, rules: Record) -> int:
    """Return the cost of a turn in tenths of a point: red's hosts, the stopped service, blue's Restore."""
    held = s.privileged if rules.user_sessions_are_free else sessions(s)
    tenths = 0
    for h in range(sc.N_HOSTS):
        if has(held, h):
            tenths += _COST[h]
    if not s.ot_running:
        tenths += _SERVICE_DOWN_COST
    return tenths + _RESTORE_COST if action >= sc.FIRST_RESTORE else tenths


@njit(cache=True)  # type: ignore[untyped-decorator]
def _finish_turn(
    s: Record, rules: Record, action: int, blue_result: tuple[int, int], green_on: int, move: RedMove
) -> int:
    """Carry out green's and red's moves and update blue's observation; return the turn's cost in tenths of a point.

    blue_result: what `apply_blue_action` returned, the host with a new decoy and the host where Analyse found malware.
    """
    decoy_on, infected = blue_result
    green_ports = 0 if green_on == NO_HOST else open_ports(s, rules, green_on)
    green_count = count(green_ports)
    events = apply_red_action(s, rules, move)
    target = move.target
    s.active = s.attacked = 0
    if events.number:
        if green_on == target:
            events = HostEvents(events.ports | green_ports, events.number + green_count, events.shell)
            green_on = NO_HOST
        record_activity(s, target, classify(events, decoy_on == target, rules.scan_hides_exploit))
    if green_on != NO_HOST:
        green_events = HostEvents(green_ports, green_count, False)
        record_activity(s, green_on, classify(green_events, decoy_on == green_on, True))
    if infected != NO_HOST:
        s.memory_first |= 1 << infected
        s.memory_second |= 1 << infected
    cost: int = _cost(s, action, rules)
    return cost


@njit(cache=True)  # type: ignore[untyped-decorator]
def _turn(s: Record, rules: Record, episode: Record, world: int, action: int) -> int:
    """Simulate one turn of one world; return its cost in tenths of a point."""
    words = draw(
        episode.key[0], episode.key[1], np.uint64(0), np.uint64(episode.turn), episode.epoch,
        episode.first_world + np.uint64(world),
    )  # fmt: skip
    blue_result = apply_blue_action(s, rules, action)
    move = choose_move(s, words)
    green_on = _green_target(uniform(words[3])) if episode.green else NO_HOST
    cost: int = _finish_turn(s, rules, action, blue_result, green_on, move)
    return cost


@compiled_once
def step_worlds(
    state: NDArray[np.void], rules: NDArray[np.void], episode: NDArray[np.void], actions: NDArray[np.int64],
    observations: NDArray[np.uint8], rewards: NDArray[np.float64],
) -> int:  # fmt: skip
    """Simulate one turn of every world and return -1; or do nothing and return the first world whose action is invalid.

    Write observations (W, 52) and rewards (W,).
    """
    for w in range(state.shape[0]):
        if not 0 <= actions[w] < sc.N_ACTIONS:
            return w
    for w in range(state.shape[0]):
        rewards[w] = -_turn(state[w], rules[0], episode[0], w, actions[w]) / 10
        write_observation(state[w], observations[w])
    episode[0].turn += 1
    return -1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def write_observations(state: NDArray[np.void], observations: NDArray[np.uint8]) -> None:
    """Write blue's bits of every world into `observations` (W, 52)."""
    for w in range(state.shape[0]):
        write_observation(state[w], observations[w])


@njit(cache=True)  # type: ignore[untyped-decorator]
def replay_step(
    state: NDArray[np.void], rules: NDArray[np.void], action: int, move: RedMove, green_on: int,
    observation: NDArray[np.uint8],
) -> tuple[int, int]:  # fmt: skip
    """Replay a recorded turn of world 0, in which green scans a host or NO_HOST, and write its observation.

    Return whether red's agent may take the recorded move, and the turn's cost in tenths of a point.
    """
    s = state[0]
    verdict = ALLOWED
    blue_result = apply_blue_action(s, rules[0], action)
    kind, targets = allowed_actions(s)
    if move.kind == kind and has(targets, move.target):
        note_choice(s, move.kind, move.target)
    else:
        verdict = TARGET_NOT_ALLOWED
    exploit = move.exploit
    if move.kind == EXPLOIT:
        options = exploit_options(s, move.target)
        if options == 0:
            exploit = NO_EXPLOIT  # the attempt fails before the choice: a recording may hold an older exploit here
        elif exploit == NO_EXPLOIT or not has(options, exploit):
            verdict = EXPLOIT_NOT_ALLOWED
    cost = _finish_turn(
        s, rules[0], action, blue_result, green_on, RedMove(move.kind, move.target, exploit, move.detected)
    )  # fmt: skip
    write_observation(s, observation)
    return verdict, cost


# -- with a defender -------------------------------------------------------------------------------------------------


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
    if world.n_choices < sc.N_ACTIONS:
        resolve_choices(world.history, world.rules, world.actions)
    step_worlds(world.state, world.rules, world.episode, world.actions, world.bits, world.rewards)
    update_history(world.history, world.rules, world.actions, world.bits, world.features)
    for w in range(len(world.actions)):
        rewards[0, w] = world.turn_weights[number] * world.rewards[w]
        terminated[0, w] = world.ends and number + 1 == len(world.turn_weights)
    return -1
