"""What is true in a world, what blue remembers of it, and what red believes: one record a world.

A field of hosts is a 13-bit mask, in signed integers because numba turns a mixture of signs into floats. Records
lie side by side in one array: a batch is an array of worlds, a copy of a world is a copy of its record.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_agents.compiled import njit
from parallel_agents.workflows.network import tables as t

__all__ = ["STATE", "Record", "fill_access", "fresh"]

Record = Any  # one record as the compiled kernels see it; it has no static type

# Whether an action worked.
FAILED, WORKED, UNTOLD = 0, 1, 2

STATE = np.dtype(
    [
        # Red's sessions: privileged, user-level that Remove ends, user-level that it does not.
        ("privileged", np.int16),
        ("removable", np.int16),
        ("stubborn", np.int16),
        # The rest of the truth.
        ("malware", np.int16),
        ("restored", np.int16),
        ("decoys", np.int16, (t.N_HOSTS,)),  # ports that decoys hold open
        ("ot_running", np.int8),
        ("ot_killable", np.int8),
        # What blue sees: this turn's activity (None 00, Scan 10, Exploit 11), and what it
        # remembers of each host (No 00, Unknown 10, User 01, Privileged 11).
        ("active", np.int16),
        ("attacked", np.int16),
        ("memory_first", np.int16),
        ("memory_second", np.int16),
        ("blue_success", np.int8),
        # What red did last, and what every red agent knows.
        ("red_kind", np.int8),
        ("red_target", np.int8),
        ("red_success", np.int8),
        ("red_exploit", np.int8),
        ("known_ports", np.int16, (t.N_HOSTS,)),
        ("ot_known", np.int8),
        # B_line: where it stands on its line, which user it entered by, whether it ever aimed at the server.
        ("stage", np.int8),
        ("entry", np.int8),
        ("aimed", np.int8),
        ("scan_answered", np.int8),
        # Meander: its lists.
        ("subnets_known", np.int8),
        ("subnets_swept", np.int8),
        ("addresses_known", np.int16),
        ("addresses_scanned", np.int16),
        ("exploited", np.int16),
        ("names_known", np.int16),
        ("names_mapped", np.int16),
        ("escalated", np.int16),
    ]
)


def fresh() -> NDArray[np.void]:
    """The state of a world before its first turn, shape (1,)."""
    start = np.zeros(1, STATE)
    start["privileged"] = start["addresses_known"] = start["names_known"] = 1 << t.USER0
    start["ot_running"] = start["ot_killable"] = 1
    start["subnets_known"] = 1 << t.SUBNETS.index("User")
    start["stage"] = start["entry"] = start["red_exploit"] = -1
    start["red_success"] = WORKED  # so that B_line steps on to stage 0
    start["blue_success"] = UNTOLD
    return start


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def has(mask: int, i: int) -> bool:
    """Whether bit i is set."""
    return (mask >> i) & 1 == 1


@njit(cache=True)  # type: ignore[untyped-decorator]
def count(mask: int) -> int:
    """How many bits are set."""
    n = 0
    while mask:
        mask &= mask - 1
        n += 1
    return n


@njit(cache=True)  # type: ignore[untyped-decorator]
def pick(mask: int, u: float) -> int:
    """One of the set bits, uniformly, by a number u in [0, 1)."""
    skip = int(u * count(mask))
    for _ in range(skip):
        mask &= mask - 1
    i = 0
    while not has(mask, i):
        i += 1
    return i


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def sessions(s: Record) -> int:
    """The hosts where red has a session of any kind."""
    held: int = s.privileged | s.removable | s.stubborn
    return held


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def fill_access(state: NDArray[np.void], out: NDArray[np.uint8]) -> None:
    """Red's access per world and host, into (W, 13): 0 none, 1 user, 2 privileged."""
    for w in range(state.shape[0]):
        s = state[w]
        held = sessions(s)
        for h in range(out.shape[1]):
            out[w, h] = 2 if has(s.privileged, h) else 1 if has(held, h) else 0
