"""What a defender can know from its own observations and actions, as numbers for a network to read.

The 52 bits tell this turn's activity and little of the past. A defender who keeps notes also knows which hosts were
ever touched, what it did to each of them how long ago, and which of its decoys still stand: a decoy either fits by
the tables or does not, so nobody needs to tell it. Nothing here looks at the truth or at red.

Columns of a row, 13 a block where they are per host:

    bits 52 · touched ever · touches counted · traces of touch, attack, Analyse, Remove, Restore · restored ever
    · decoys standing, one per possible pair of host and decoy · turn

A trace is 1 in the turn itself and fades by a fifth every turn.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parallel_agents.compiled import njit
from parallel_agents.workflows.network import tables as t
from parallel_agents.workflows.network.blue import ANALYSE, FIRST_DECOY, REMOVE, RESTORE, place_decoy
from parallel_agents.workflows.network.state import Record, has

__all__ = ["DECOY_PLACES", "HISTORY_SIZE", "History"]

DECOY_PLACES = tuple(
    (h, d)
    for h, host in enumerate(t.HOSTS)
    for d, decoy in enumerate(t.DECOYS)
    if decoy.windows in (None, host.windows) and decoy.needs_free not in host.ports
)
"""The pairs of host and decoy that are possible on a fresh host."""

_TOUCH, _ATTACK, _ANALYSE, _REMOVE, _RESTORE = range(5)
_FADE, _MANY_TOUCHES, _LONG = np.float32(0.8), np.float32(0.1), np.float32(0.01)
_N, _BITS, _FIRST = t.N_HOSTS, t.OBSERVATION_SIZE, t.FIRST_HOST_ACTION
_PLACES = np.array(DECOY_PLACES, np.int64)
HISTORY_SIZE = _BITS + 8 * _N + len(DECOY_PLACES) + 1

NOTES = np.dtype(
    [
        ("decoys", np.int16, (_N,)),  # ports held open by decoys
        ("standing", np.int16, (_N,)),  # the decoys that stand
        ("blue_success", np.int8),
        ("touched", np.int16),
        ("restored", np.int16),
        ("touches", np.int16, (_N,)),
        ("traces", np.float32, (5, _N)),
        ("turn", np.int16),
    ]
)


class History:
    """The notes of a defender in each of W worlds.

    >>> from parallel_agents.workflows.network import NetworkWorlds, action_id
    >>> worlds = NetworkWorlds(1, red="Sleep")
    >>> notes = History(1, worlds.rules)
    >>> notes.begin(worlds.reset(0)).shape
    (1, 198)
    >>> action = [action_id("DecoyFemitter", "Enterprise1")]
    >>> notes.after(action, worlds.step(action)[0])[0, 156:-1].sum().item()
    1.0
    """

    def __init__(self, n_worlds: int, rules: NDArray[np.void]) -> None:
        self._notes = np.zeros(n_worlds, NOTES)
        self._rules = rules
        self._nothing = np.full(n_worlds, t.SLEEP)

    def begin(self, observations: NDArray[np.uint8], turn: int = 0) -> NDArray[np.float32]:
        """Forget everything; what is known at an episode's start, (W, HISTORY_SIZE)."""
        self._notes[:] = 0
        self._notes["turn"] = turn - 1
        return self.after(self._nothing, observations)

    def after(self, actions: NDArray[np.int64], observations: NDArray[np.uint8]) -> NDArray[np.float32]:
        """What is known after these (W,) actions led to these (W, 52) observations, (W, HISTORY_SIZE)."""
        rows = np.empty((len(self._notes), HISTORY_SIZE), np.float32)
        _after(self._notes, self._rules, np.asarray(actions, np.int64), observations, rows)
        return rows


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _after(
    notes: NDArray[np.void], rules: NDArray[np.void], actions: NDArray[np.int64], observations: NDArray[np.uint8],
    rows: NDArray[np.float32],
) -> None:  # fmt: skip
    for w in range(notes.shape[0]):
        s = notes[w]
        s.turn += 1
        for kind in range(5):
            for h in range(_N):
                s.traces[kind, h] *= _FADE
        _note_action(s, rules[0], actions[w])
        _note_bits(s, observations[w])
        _write(s, observations[w], rows[w])


@njit(cache=True)  # type: ignore[untyped-decorator]
def _note_action(s: Record, rules: Record, action: int) -> None:
    if action < _FIRST:
        return
    block, h = divmod(action - _FIRST, _N)
    if block == ANALYSE:
        s.traces[_ANALYSE, h] = 1.0
    elif block == REMOVE:
        s.traces[_REMOVE, h] = 1.0
    elif block == RESTORE:
        s.traces[_RESTORE, h] = 1.0
        s.restored |= 1 << h
        s.decoys[h] = s.standing[h] = 0
    elif place_decoy(s, rules, h, block - FIRST_DECOY):
        s.standing[h] |= 1 << (block - FIRST_DECOY)


@njit(cache=True)  # type: ignore[untyped-decorator]
def _note_bits(s: Record, bits: NDArray[np.uint8]) -> None:
    for h in range(_N):
        if bits[4 * h]:
            s.touched |= 1 << h
            s.touches[h] += 1
            s.traces[_TOUCH, h] = 1.0
        if bits[4 * h + 1]:
            s.traces[_ATTACK, h] = 1.0


@njit(cache=True)  # type: ignore[untyped-decorator]
def _write(s: Record, bits: NDArray[np.uint8], row: NDArray[np.float32]) -> None:
    for i in range(_BITS):
        row[i] = bits[i]
    for h in range(_N):
        row[_BITS + h] = has(s.touched, h)
        row[_BITS + _N + h] = s.touches[h] * _MANY_TOUCHES
        for kind in range(5):
            row[_BITS + (2 + kind) * _N + h] = s.traces[kind, h]
        row[_BITS + 7 * _N + h] = has(s.restored, h)
    first = _BITS + 8 * _N
    for i in range(_PLACES.shape[0]):
        row[first + i] = has(s.standing[_PLACES[i, 0]], _PLACES[i, 1])
    row[first + _PLACES.shape[0]] = s.turn * _LONG
