"""What blue observes: 52 bits per turn, and the features that it can keep from earlier turns.

The 52 bits are four per host: activity in this turn (two bits) and remembered compromise (two bits).

`History` adds what a defender can know from its own observations and actions alone: which hosts were ever active, what
it did to each host how long ago, and which of its decoys stand (whether a decoy can be placed follows from the
scenario). It reads neither the true state nor red's. Columns of a row of features, 13 per block where they are per
host:

    bits 52 · active ever · activity count · traces of activity, exploit, Analyse, Remove, Restore · restored ever
    · decoys standing, one per possible pair of host and decoy · turn · active since its last Restore

It also knows which decoy a host can still get. So a defender can choose among few `CHOICES` instead of all 145 actions:
Sleep; Analyse, Remove and Restore of the hosts that red can take; and the next decoy of a host.

The last block is for defenders that repair in an order (`ORDERED_SIZE` columns); others read `HISTORY_SIZE`. A trace is
1 in the turn itself and is multiplied by 0.8 every turn.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.compiled import compiled_once, njit
from parallel_agents.workflows.network import scenario as sc
from parallel_agents.workflows.network.blue import can_place_decoy, place_decoy
from parallel_agents.workflows.network.red import HostEvents
from parallel_agents.workflows.network.state import Record, count, has

NO_ACTIVITY, SCAN_SEEN, EXPLOIT_SEEN = range(3)
_MANY = 3  # events or ports from which on activity is classified as a scan or an exploit


@njit(cache=True)  # type: ignore[untyped-decorator]
def classify(events: HostEvents, decoy_placed: bool, scan_hides_exploit: bool) -> int:
    """Return how one host's events of a turn appear to blue. Placing a decoy counts as an event without a port."""
    if events.number == 0:
        return NO_ACTIVITY
    distinct = count(events.ports) + events.shell
    if events.shell and not scan_hides_exploit:
        return EXPLOIT_SEEN
    if distinct >= _MANY:
        return SCAN_SEEN
    if events.shell or (distinct == 1 and events.number + decoy_placed >= _MANY):
        return EXPLOIT_SEEN
    return NO_ACTIVITY if decoy_placed else SCAN_SEEN


@njit(cache=True)  # type: ignore[untyped-decorator]
def record_activity(s: Record, h: int, activity: int) -> None:
    """Set this turn's activity bits of a host. An exploit is remembered as user access."""
    bit = 1 << h
    if activity != NO_ACTIVITY:
        s.active |= bit
    if activity == EXPLOIT_SEEN:
        s.attacked |= bit
        s.memory_first &= ~bit
        s.memory_second |= bit


@njit(cache=True)  # type: ignore[untyped-decorator]
def write_observation(s: Record, row: NDArray[np.uint8]) -> None:
    """Write blue's 52 bits of one world into `row`."""
    for h in range(sc.N_HOSTS):
        row[4 * h] = has(s.active, h)
        row[4 * h + 1] = has(s.attacked, h)
        row[4 * h + 2] = has(s.memory_first, h)
        row[4 * h + 3] = has(s.memory_second, h)


DECOY_PLACES = tuple(
    (h, d)
    for h, host in enumerate(sc.HOSTS)
    for d, decoy in enumerate(sc.DECOYS)
    if decoy.windows in (None, host.windows) and decoy.needs_free not in host.ports
)
"""The pairs of host and decoy that are possible on a fresh host."""

_N_TRACES = 5
_ACTIVITY_TRACE, _EXPLOIT_TRACE, _ANALYSE_TRACE, _REMOVE_TRACE, _RESTORE_TRACE = range(_N_TRACES)
_FADE, _PER_ACTIVITY, _PER_TURN = np.float32(0.8), np.float32(0.1), np.float32(0.01)  # scales near 1 for a network
_PLACES = np.array(DECOY_PLACES, np.int64)
HISTORY_SIZE = sc.OBSERVATION_SIZE + 8 * sc.N_HOSTS + len(DECOY_PLACES) + 1
ORDERED_SIZE = HISTORY_SIZE + sc.N_HOSTS

_DECOY_ORDER = np.array([i for name in ("Femitter", "HarakaSMPT", "Tomcat", "Apache", "Smss", "Svchost", "SSHD")
                         for i, decoy in enumerate(sc.DECOYS) if decoy.name == f"Decoy{name}"])  # fmt: skip
"""As red prefers their exploits. Without Vsftpd: it opens Apache's port, or one where the host's own server answers."""
_REPAIRED = tuple(h for h in range(sc.N_HOSTS) if h not in (sc.DEFENDER, sc.USER0))
_DECOYED = tuple(h for h in range(sc.N_HOSTS) if any((h, d) in DECOY_PLACES for d in _DECOY_ORDER) and h != sc.DEFENDER)
_CHOICES = np.array(
    [(sc.SLEEP, -1)]
    + [(sc.FIRST_HOST_ACTION + block * sc.N_HOSTS + h, -1) for block in (sc.ANALYSE, sc.REMOVE, sc.RESTORE)
       for h in _REPAIRED]
    + [(sc.SLEEP, h) for h in _DECOYED], np.int64
)  # fmt: skip
"""Per choice: the action, or the host that gets a decoy, and what is done if it can get none."""
CHOICES = tuple(sc.ACTION_NAMES[a] if h < 0 else f"Decoy {sc.HOST_NAMES[h]}" for a, h in _CHOICES)

_HISTORY = np.dtype(
    [
        ("decoys", np.int16, (sc.N_HOSTS,)),  # ports that decoys hold open; `place_decoy` reads and sets it
        ("blue_success", np.int8),  # set by `place_decoy`
        ("standing", np.int16, (sc.N_HOSTS,)),  # the decoys that stand
        ("active_ever", np.int16),
        ("restored_ever", np.int16),
        ("active_since", np.int16),  # since the host's last Restore
        ("activity_count", np.int16, (sc.N_HOSTS,)),
        ("traces", np.float32, (_N_TRACES, sc.N_HOSTS)),
        ("turn", np.int16),
    ]
)


class History:
    """Features of the past for one defender in each of W worlds: the first `size` columns.

    >>> from parallel_agents.workflows.network import NetworkWorlds, action_id
    >>> worlds = NetworkWorlds(1, red="Sleep")
    >>> history = History(1, worlds.rules)
    >>> history.reset(worlds.reset(0)).shape
    (1, 198)
    >>> action = [action_id("DecoyFemitter", "Enterprise1")]
    >>> history.update(action, worlds.step(action)[0])[0, 156:-1].sum().item()
    1.0
    """

    def __init__(self, n_worlds: int, rules: NDArray[np.void], size: int = HISTORY_SIZE) -> None:
        self.records, self.size = np.zeros(n_worlds, _HISTORY), size
        self.rules = rules
        self._sleep = np.full(n_worlds, sc.SLEEP)

    def reset(self, observations: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Forget everything; return the features at the start of an episode, (W, size)."""
        self.records[:] = 0
        self.records["turn"] = -1
        return self.update(self._sleep, observations)

    def update(self, actions: NDArray[np.int64], observations: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the features (W, size) after actions (W,) led to observations (W, 52)."""
        rows = np.empty((len(self.records), ORDERED_SIZE), np.float32)
        update_history(self.records, self.rules, np.asarray(actions, np.int64), observations, rows)
        return rows[:, : self.size]

    def actions(self, choices: NDArray[np.int64], n_choices: int) -> NDArray[np.int64]:
        """Return the actions (W,) for choices (W,) among all 145 actions, or among `CHOICES`."""
        if n_choices == sc.N_ACTIONS:
            return choices
        actions = np.array(choices, np.int64)
        resolve_choices(self.records, self.rules, actions)
        return actions


@compiled_once
def resolve_choices(records: NDArray[np.void], rules: NDArray[np.void], actions: NDArray[np.int64]) -> None:
    """Replace every world's choice by the action that it stands for."""
    for w in range(records.shape[0]):
        actions[w], h = _CHOICES[actions[w], 0], _CHOICES[actions[w], 1]
        if h >= 0:
            for d in _DECOY_ORDER:
                if can_place_decoy(records[w], rules[0], h, d):
                    actions[w] = sc.FIRST_HOST_ACTION + (sc.FIRST_DECOY + d) * sc.N_HOSTS + h
                    break


@compiled_once
def update_history(
    records: NDArray[np.void], rules: NDArray[np.void], actions: NDArray[np.int64], observations: NDArray[np.uint8],
    rows: NDArray[np.float32],
) -> None:  # fmt: skip
    """Update the record of every world and write its row of features."""
    for w in range(records.shape[0]):
        s = records[w]
        s.turn += 1
        for trace in range(_N_TRACES):
            for h in range(sc.N_HOSTS):
                s.traces[trace, h] *= _FADE
        _add_action(s, rules[0], actions[w])
        _add_observation(s, observations[w])
        _write_features(s, observations[w], rows[w])


@njit(cache=True)  # type: ignore[untyped-decorator]
def _add_action(s: Record, rules: Record, action: int) -> None:
    """Add blue's action of a turn to the record."""
    if action < sc.FIRST_HOST_ACTION:
        return
    block, h = divmod(action - sc.FIRST_HOST_ACTION, sc.N_HOSTS)
    if block == sc.ANALYSE:
        s.traces[_ANALYSE_TRACE, h] = 1.0
    elif block == sc.REMOVE:
        s.traces[_REMOVE_TRACE, h] = 1.0
    elif block == sc.RESTORE:
        s.traces[_RESTORE_TRACE, h] = 1.0
        s.restored_ever |= 1 << h
        s.active_since &= ~(1 << h)
        s.decoys[h] = s.standing[h] = 0
    elif place_decoy(s, rules, h, block - sc.FIRST_DECOY):
        s.standing[h] |= 1 << (block - sc.FIRST_DECOY)


@njit(cache=True)  # type: ignore[untyped-decorator]
def _add_observation(s: Record, bits: NDArray[np.uint8]) -> None:
    """Add the activity that blue observed in a turn to the record."""
    for h in range(sc.N_HOSTS):
        if bits[4 * h]:
            s.active_ever |= 1 << h
            s.active_since |= 1 << h
            s.activity_count[h] += 1
            s.traces[_ACTIVITY_TRACE, h] = 1.0
        if bits[4 * h + 1]:
            s.traces[_EXPLOIT_TRACE, h] = 1.0


@njit(cache=True)  # type: ignore[untyped-decorator]
def _write_features(s: Record, bits: NDArray[np.uint8], row: NDArray[np.float32]) -> None:
    """Write the features of one world into `row`, in the order of the module's docstring."""
    for i in range(sc.OBSERVATION_SIZE):
        row[i] = bits[i]
    for h in range(sc.N_HOSTS):
        row[sc.OBSERVATION_SIZE + h] = has(s.active_ever, h)
        row[sc.OBSERVATION_SIZE + sc.N_HOSTS + h] = s.activity_count[h] * _PER_ACTIVITY
        for trace in range(_N_TRACES):
            row[sc.OBSERVATION_SIZE + (2 + trace) * sc.N_HOSTS + h] = s.traces[trace, h]
        row[sc.OBSERVATION_SIZE + 7 * sc.N_HOSTS + h] = has(s.restored_ever, h)
    first = sc.OBSERVATION_SIZE + 8 * sc.N_HOSTS
    for i in range(_PLACES.shape[0]):
        row[first + i] = has(s.standing[_PLACES[i, 0]], _PLACES[i, 1])
    row[first + _PLACES.shape[0]] = s.turn * _PER_TURN
    for h in range(sc.N_HOSTS):
        row[HISTORY_SIZE + h] = has(s.active_since, h)
