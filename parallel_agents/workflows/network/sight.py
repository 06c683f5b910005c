"""What a turn shows to blue, and what it costs: 52 bits and one number."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parallel_agents.compiled import njit
from parallel_agents.workflows.network import tables as t
from parallel_agents.workflows.network.state import Record, count, has, sessions

__all__ = ["notice", "turn_cost", "write_observation"]

QUIET, SCANNED, ATTACKED = range(3)
SERVICE_DOWN, RESTORE_COST = 100, 10  # tenths of a point

_N_HOSTS = t.N_HOSTS
_COST = np.array([host.cost for host in t.HOSTS], np.int64)
_MANY = 3  # events, or ports, that make a pattern


@njit(cache=True)  # type: ignore[untyped-decorator]
def classify(ports: int, events: int, shell: bool, decoy_placed: bool, scan_hides_exploit: bool) -> int:
    """What one host's events of a turn look like. Placing a decoy counts as an event without a port."""
    if events == 0:
        return QUIET
    distinct = count(ports) + shell
    if shell and not scan_hides_exploit:
        return ATTACKED
    if distinct >= _MANY:
        return SCANNED
    if shell or (distinct == 1 and events + decoy_placed >= _MANY):
        return ATTACKED
    return QUIET if decoy_placed else SCANNED


@njit(cache=True)  # type: ignore[untyped-decorator]
def notice(s: Record, h: int, activity: int) -> None:
    """Mark this turn's activity on a host; an attack is remembered as user access."""
    bit = 1 << h
    if activity != QUIET:
        s.active |= bit
    if activity == ATTACKED:
        s.attacked |= bit
        s.memory_first &= ~bit
        s.memory_second |= bit


@njit(cache=True)  # type: ignore[untyped-decorator]
def turn_cost(s: Record, restored: bool, user_sessions_are_free: bool) -> int:
    """Tenths of a point: privileged hosts, the service while it is down, blue's own Restore."""
    held = s.privileged if user_sessions_are_free else sessions(s)
    tenths = 0
    for h in range(_N_HOSTS):
        if has(held, h):
            tenths += _COST[h]
    if not s.ot_running:
        tenths += SERVICE_DOWN
    return tenths + RESTORE_COST if restored else tenths


@njit(cache=True)  # type: ignore[untyped-decorator]
def write_observation(s: Record, row: NDArray[np.uint8]) -> None:
    """Four bits a host: active, attacked, and the two of memory. Shape (52,)."""
    for h in range(_N_HOSTS):
        row[4 * h] = has(s.active, h)
        row[4 * h + 1] = has(s.attacked, h)
        row[4 * h + 2] = has(s.memory_first, h)
        row[4 * h + 3] = has(s.memory_second, h)
