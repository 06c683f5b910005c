"""Blue's part of a turn. Blue acts first, on the true state."""

from __future__ import annotations

import numpy as np

from parallel_agents.core.compiled import njit
from parallel_agents.workflows.network import scenario as sc
from parallel_agents.workflows.network.state import FAILED, NO_HOST, SUCCEEDED, UNKNOWN, Record, has, sessions

_ALL_HOSTS = (1 << sc.N_HOSTS) - 1
_WINDOWS = sum(1 << h for h, host in enumerate(sc.HOSTS) if host.windows)
_DECOY_HOSTS = np.array(
    [_ALL_HOSTS if d.windows is None else _WINDOWS if d.windows else _ALL_HOSTS & ~_WINDOWS for d in sc.DECOYS],
    np.int16,
)
_NEEDS_FREE = np.array([sc.port_mask(decoy.needs_free) for decoy in sc.DECOYS], np.int16)


@njit(cache=True)  # type: ignore[untyped-decorator]
def apply_blue_action(s: Record, rules: Record, action: int) -> tuple[int, int]:
    """Carry out blue's action. Return the host that got a decoy and the host where Analyse found malware (or NO_HOST).

    Both are needed later in the turn, to write blue's observation.
    """
    s.blue_success, s.repaired = SUCCEEDED, NO_HOST
    if action < sc.FIRST_HOST_ACTION:
        if action == sc.SLEEP:
            s.blue_success = UNKNOWN
        return NO_HOST, NO_HOST
    block, h = divmod(action - sc.FIRST_HOST_ACTION, sc.N_HOSTS)
    if block == sc.ANALYSE:
        return NO_HOST, h if has(s.malware, h) else NO_HOST
    if block == sc.REMOVE or block == sc.RESTORE:
        was_held = has(sessions(s), h)
        if block == sc.REMOVE:
            _remove(s, rules, h)
        else:
            _restore(s, rules, h)
        if was_held and not has(sessions(s), h):
            s.repaired = h
    elif place_decoy(s, rules, h, block - sc.FIRST_DECOY):
        return h, NO_HOST
    return NO_HOST, NO_HOST


@njit(cache=True)  # type: ignore[untyped-decorator]
def _remove(s: Record, rules: Record, h: int) -> None:
    """End the removable session on a host. Malware stays; a remembered compromise becomes Unknown."""
    bit = 1 << h
    if not has(s.removable, h) and not rules.remove_always_succeeds:
        s.blue_success = FAILED
    s.removable &= ~bit
    if has(s.memory_first | s.memory_second, h):
        s.memory_first |= bit
        s.memory_second &= ~bit


@njit(cache=True)  # type: ignore[untyped-decorator]
def _restore(s: Record, rules: Record, h: int) -> None:
    """Reinstall a host. Only red's privileged session on User0 survives."""
    keep = ~(1 << h)
    if h != sc.USER0:
        s.privileged &= keep
    s.removable &= keep
    s.unremovable &= keep
    s.malware &= keep
    s.memory_first &= keep
    s.memory_second &= keep
    s.decoys[h] = 0
    s.restored |= 1 << h
    if h == sc.OP_SERVER:
        s.ot_running = 1
        if rules.service_unkillable_after_restore:
            s.ot_killable = 0


@njit(cache=True)  # type: ignore[untyped-decorator]
def can_place_decoy(s: Record, rules: Record, h: int, decoy: int) -> bool:
    """Return whether the operating system fits and the port is free."""
    used = rules.services[h] | s.decoys[h]
    return has(_DECOY_HOSTS[decoy], h) and not used & _NEEDS_FREE[decoy]


@njit(cache=True)  # type: ignore[untyped-decorator]
def place_decoy(s: Record, rules: Record, h: int, decoy: int) -> bool:
    """Open a decoy on a host and return True, if the operating system fits and the port is free."""
    if can_place_decoy(s, rules, h, decoy):
        s.decoys[h] |= rules.decoy_opens[decoy]
        return True
    s.blue_success = FAILED
    return False
