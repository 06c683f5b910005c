"""Blue's turn: the first to act, on the true state."""

from __future__ import annotations

import numpy as np

from parallel_agents.compiled import njit
from parallel_agents.workflows.network import tables as t
from parallel_agents.workflows.network.state import FAILED, UNTOLD, WORKED, Record, has

__all__ = ["blue_turn", "place_decoy"]

NOBODY = -1
ANALYSE, REMOVE, FIRST_DECOY, RESTORE = 0, 1, 2, len(t.BLOCKS) - 1
FIRST_RESTORE = t.FIRST_HOST_ACTION + RESTORE * t.N_HOSTS

_N_HOSTS, _FIRST = t.N_HOSTS, t.FIRST_HOST_ACTION
_SLEEP, _USER0, _OP_SERVER = t.SLEEP, t.USER0, t.OP_SERVER
_WINDOWS = sum(1 << h for h, host in enumerate(t.HOSTS) if host.windows)
_NEEDS_FREE = np.array([t.port_mask(decoy.needs_free) for decoy in t.DECOYS], np.int16)
_EVERY = (1 << t.N_HOSTS) - 1
_FITS = np.array(
    [_EVERY if d.windows is None else _WINDOWS if d.windows else _EVERY & ~_WINDOWS for d in t.DECOYS], np.int16
)


@njit(cache=True)  # type: ignore[untyped-decorator]
def blue_turn(s: Record, rules: Record, action: int) -> tuple[int, int]:
    """Carry out blue's action; give the host that got a decoy and the host found infected (or NOBODY)."""
    s.blue_success = WORKED
    if action < _FIRST:
        if action == _SLEEP:
            s.blue_success = UNTOLD
        return NOBODY, NOBODY
    block, h = divmod(action - _FIRST, _N_HOSTS)
    if block == ANALYSE:
        return NOBODY, h if has(s.malware, h) else NOBODY
    if block == REMOVE:
        _remove(s, rules, h)
    elif block == RESTORE:
        _restore(s, rules, h)
    elif place_decoy(s, rules, h, block - FIRST_DECOY):
        return h, NOBODY
    return NOBODY, NOBODY


@njit(cache=True)  # type: ignore[untyped-decorator]
def _remove(s: Record, rules: Record, h: int) -> None:
    """End the sessions that blue can see; the malware stays, and blue no longer knows where it stands."""
    bit = 1 << h
    if not has(s.removable, h) and not rules.remove_always_succeeds:
        s.blue_success = FAILED
    s.removable &= ~bit
    if has(s.memory_first | s.memory_second, h):
        s.memory_first |= bit
        s.memory_second &= ~bit


@njit(cache=True)  # type: ignore[untyped-decorator]
def _restore(s: Record, rules: Record, h: int) -> None:
    """Put the host back as it was installed; only red's foothold on User0 survives."""
    keep = ~(1 << h)
    if h != _USER0:
        s.privileged &= keep
    s.removable &= keep
    s.stubborn &= keep
    s.malware &= keep
    s.memory_first &= keep
    s.memory_second &= keep
    s.decoys[h] = 0
    s.restored |= 1 << h
    if h == _OP_SERVER:
        s.ot_running = 1
        if rules.service_unkillable_after_restore:
            s.ot_killable = 0


@njit(cache=True)  # type: ignore[untyped-decorator]
def place_decoy(s: Record, rules: Record, h: int, decoy: int) -> bool:
    """Open a false service where the system fits and the port is free."""
    used = rules.services[h] | s.decoys[h]
    if has(_FITS[decoy], h) and not used & _NEEDS_FREE[decoy]:
        s.decoys[h] |= rules.decoy_opens[decoy]
        return True
    s.blue_success = FAILED
    return False
