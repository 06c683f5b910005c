"""The state of a world as one record: the true network, what blue remembers, and what red knows.

A field that is a set of hosts is a 13-bit mask, in signed integers because numba turns mixed signs into floats. A batch
of worlds is an array of records; copying a record copies a world.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.compiled import njit
from parallel_agents.workflows.network.scenario import N_HOSTS, SUBNETS, USER0

Record = Any  # one record of a structured array, as the compiled kernels see it; it has no static type

# Result of an action.
FAILED, SUCCEEDED, UNKNOWN = 0, 1, 2
NO_HOST, NO_EXPLOIT = -1, -1

STATE = np.dtype(
    [
        # Red's sessions: privileged, user-level that Remove ends, user-level that Remove does not end.
        ("privileged", np.int16),
        ("removable", np.int16),
        ("unremovable", np.int16),
        # The rest of the true network.
        ("malware", np.int16),
        ("restored", np.int16),
        ("decoys", np.int16, (N_HOSTS,)),  # ports that decoys hold open
        ("ot_running", np.int8),
        ("ot_killable", np.int8),
        # Blue's observation, two bits each: activity of this turn (None 00, Scan 10, Exploit 11) and remembered
        # compromise (No 00, Unknown 10, User 01, Privileged 11).
        ("active", np.int16),
        ("attacked", np.int16),
        ("memory_first", np.int16),
        ("memory_second", np.int16),
        ("blue_success", np.int8),
        ("repaired", np.int8),  # the host that blue's last action took from red, or NO_HOST
        # Red's last action, and the knowledge that all red agents have.
        ("red_agent", np.int8),
        ("red_kind", np.int8),
        ("red_target", np.int8),
        ("red_success", np.int8),
        ("known_ports", np.int16, (N_HOSTS,)),
        ("ot_known", np.int8),
        # What a red agent written in Python has chosen for this turn.
        ("next_kind", np.int8),
        ("next_target", np.int8),
        # B_line: its stage, the user host it entered by, whether it has attacked Op_Server0, whether its last port
        # scan reached the host.
        ("stage", np.int8),
        ("entry", np.int8),
        ("server_attacked", np.int8),
        ("scan_answered", np.int8),
        # Meander, and agents written in Python: their lists.
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


def initial_state(red_agents: NDArray[np.int8]) -> NDArray[np.void]:
    """Return worlds before their first turn, one for each entry of `red_agents` (W,)."""
    state = np.zeros(len(red_agents), STATE)
    state["privileged"] = state["addresses_known"] = state["names_known"] = 1 << USER0
    state["ot_running"] = state["ot_killable"] = 1
    state["subnets_known"] = 1 << SUBNETS.index("User")
    state["red_agent"] = red_agents
    state["stage"] = state["entry"] = -1
    state["red_success"] = SUCCEEDED  # B_line advances to stage 0 after a success
    state["blue_success"] = UNKNOWN
    state["repaired"] = NO_HOST
    return state


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def has(mask: int, i: int) -> bool:
    """Return whether bit i is set."""
    return (mask >> i) & 1 == 1


@njit(cache=True)  # type: ignore[untyped-decorator]
def count(mask: int) -> int:
    """Return the number of bits that are set."""
    n = 0
    while mask:
        mask &= mask - 1
        n += 1
    return n


@njit(cache=True)  # type: ignore[untyped-decorator]
def pick(mask: int, u: float) -> int:
    """Return one of the set bits, chosen uniformly by a number u in [0, 1)."""
    skip = int(u * count(mask))
    for _ in range(skip):
        mask &= mask - 1
    i = 0
    while not has(mask, i):
        i += 1
    return i


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def sessions(s: Record) -> int:
    """Return the hosts where red has a session of any kind."""
    hosts: int = s.privileged | s.removable | s.unremovable
    return hosts


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def write_access(state: NDArray[np.void], out: NDArray[np.uint8]) -> None:
    """Write red's access per world and host into `out` (W, 13): 0 none, 1 user, 2 privileged."""
    for w in range(state.shape[0]):
        s = state[w]
        held = sessions(s)
        for h in range(out.shape[1]):
            out[w, h] = 2 if has(s.privileged, h) else 1 if has(held, h) else 0
