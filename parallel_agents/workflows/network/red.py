"""Red's choice: which actions an agent may take now, and what it notes down when it takes one.

All agents have the same two halves. `options` brings the agent's notes up to date with its last result and
gives one kind of action and the set of targets it may have; `commit` notes the target that was taken. Free
play picks uniformly from the set; a replay checks that the recorded target is in it.
"""

from __future__ import annotations

import numpy as np

from parallel_agents.compiled import njit
from parallel_agents.errors import ConfigError
from parallel_agents.workflows.network import tables as t
from parallel_agents.workflows.network.attack import ESCALATE, EXPLOIT, IMPACT, SCAN, SLEEP, SWEEP
from parallel_agents.workflows.network.state import WORKED, Record

__all__ = ["RED_AGENTS", "commit", "options", "red_id"]

RED_AGENTS = ("B_line", "Meander", "Sleep")
B_LINE, MEANDER, ASLEEP = range(3)

_OP_SERVER_BIT = 1 << t.OP_SERVER
_USER, _ENTERPRISE = t.SUBNETS.index("User"), t.SUBNETS.index("Enterprise")
_SUBNET = np.array([t.SUBNETS.index(host.subnet) for host in t.HOSTS], np.int8)
_SUBNET_HOSTS = np.array([t.hosts_where(name) for name in t.SUBNETS], np.int16)
_LINK = np.array([t.HOST_NAMES.index(host.link) if host.link else -1 for host in t.HOSTS], np.int8)
_OP_HOSTS = sum(1 << h for h, name in enumerate(t.HOST_NAMES) if "Op" in name)
_ENTERPRISE_HOSTS = sum(1 << h for h, name in enumerate(t.HOST_NAMES) if "Ent" in name)

# B_line's stages: sweep, scan, exploit, escalate along User_i - Enterprise_j - Enterprise2 - Op_Server0.
_VIA_ENTRY, _VIA_LINK = -1, -2
_E2, _OP = t.ENTERPRISE2, t.OP_SERVER
_STAGE_KIND = np.array(
    [SWEEP, SCAN, EXPLOIT, ESCALATE, SCAN, EXPLOIT, ESCALATE, SWEEP, SCAN, EXPLOIT, ESCALATE, SCAN, EXPLOIT,
     ESCALATE, IMPACT], np.int8,
)  # fmt: skip
_STAGE_TARGET = np.array(
    [_USER, *[_VIA_ENTRY] * 3, *[_VIA_LINK] * 3, _ENTERPRISE, _E2, _E2, _E2, _OP, _OP, _OP, _OP], np.int8
)
_STAGE_AFTER_FAILURE = np.array([0, 1, 2, 2, 2, 2, 5, 5, 5, 5, 9, 9, 9, 12, 13], np.int8)
_LAST_STAGE, _SCAN_ENTRY, _EXPLOIT_SERVER = 14, 1, 12
_ENTRIES = sum(1 << h for h in (t.USER1, t.USER2, t.USER3, t.USER4))


def red_id(name: str) -> int:
    """The number of a red agent."""
    if name not in RED_AGENTS:
        raise ConfigError(f"red agent {name!r} is unknown: choose one of {', '.join(RED_AGENTS)}")
    return RED_AGENTS.index(name)


@njit(cache=True)  # type: ignore[untyped-decorator]
def options(s: Record, agent: int) -> tuple[int, int]:
    """The kind of action this agent takes now and the set of its possible targets."""
    kind, targets = SLEEP, 1
    if agent == B_LINE:
        kind, targets = _b_line_options(s)
    elif agent == MEANDER:
        _meander_learn(s)
        kind, targets = _meander_options(s)
    return kind, targets


@njit(cache=True)  # type: ignore[untyped-decorator]
def commit(s: Record, agent: int, kind: int, target: int) -> None:
    """Note that this target was taken, before it is known how it went."""
    if agent == B_LINE:
        if s.stage == _SCAN_ENTRY:
            s.entry = target
        elif s.stage == _EXPLOIT_SERVER:
            s.aimed = 1
    elif agent == MEANDER:
        bit = 1 << target
        if kind == SWEEP:
            s.subnets_swept |= bit
        elif kind == SCAN:
            s.addresses_scanned |= bit
        elif kind == ESCALATE:
            s.escalated |= bit
        elif kind == EXPLOIT:
            s.exploited |= bit


@njit(cache=True)  # type: ignore[untyped-decorator]
def _b_line_options(s: Record) -> tuple[int, int]:
    """One stage on after a success, back along the line after a failure."""
    if s.red_success == WORKED:
        s.stage = min(s.stage + 1, _LAST_STAGE)
    else:
        s.stage = _STAGE_AFTER_FAILURE[s.stage]
    if s.stage == _EXPLOIT_SERVER and not s.aimed and not s.scan_answered:
        s.stage = _SCAN_ENTRY  # it never saw the server: start again from its own user host
    target = _STAGE_TARGET[s.stage]
    if target == _VIA_ENTRY:
        if s.entry < 0:
            return SCAN, _ENTRIES
        target = s.entry
    elif target == _VIA_LINK:
        target = _LINK[s.entry]
    return _STAGE_KIND[s.stage], 1 << target


@njit(cache=True)  # type: ignore[untyped-decorator]
def _meander_learn(s: Record) -> None:
    """Bring Meander's lists up to date with the result of its last action."""
    kind, h = s.red_kind, s.red_target
    bit = 1 << h
    if s.red_success == WORKED:
        if kind == SWEEP:
            s.addresses_known |= _SUBNET_HOSTS[h]
        elif kind == EXPLOIT:
            s.names_known |= bit
            s.names_mapped |= bit
        elif kind == ESCALATE:
            s.subnets_known |= 1 << _SUBNET[h]
            if _LINK[h] >= 0:
                s.addresses_known |= 1 << _LINK[h]
    elif kind == EXPLOIT:
        lost = s.escalated & _OP_HOSTS
        if lost == 0:
            lost = s.escalated & _ENTERPRISE_HOSTS
        s.escalated &= ~lost
        s.exploited &= ~(lost | bit)
    elif kind in (ESCALATE, IMPACT):
        s.escalated &= ~bit
        s.exploited &= ~bit


@njit(cache=True)  # type: ignore[untyped-decorator]
def _meander_options(s: Record) -> tuple[int, int]:
    """The first that applies: impact, sweep, scan, escalate, exploit."""
    if s.escalated & _OP_SERVER_BIT:
        return IMPACT, _OP_SERVER_BIT
    subnets = s.subnets_known & ~s.subnets_swept
    if subnets:
        return SWEEP, subnets & -subnets
    unscanned = s.addresses_known & ~s.addresses_scanned
    if unscanned:
        return SCAN, unscanned
    held = s.names_known & ~s.escalated & (s.exploited | ~s.names_mapped)
    if held:
        return ESCALATE, held
    untried = s.addresses_known & ~s.exploited
    return (EXPLOIT, untried) if untried else (SLEEP, 1)
