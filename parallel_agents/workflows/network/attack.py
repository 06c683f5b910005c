"""Red's actions carried out: what each does to the world and which network events blue could notice.

Events of one host in one turn are three numbers: the set of local ports touched, how many events there were,
and whether one of them was a reverse shell (remote port 4444, on a fresh local port). A scan counts a port
once even where two services share it: the count decides only when a single port was touched, and no host
offers one port twice and no other.
"""

from __future__ import annotations

import numpy as np

from parallel_agents.compiled import njit
from parallel_agents.workflows.network import tables as t
from parallel_agents.workflows.network.state import FAILED, UNTOLD, WORKED, Record, count, has, pick, sessions

__all__ = ["attack", "choose_exploit", "exploit_options", "open_ports"]

# Kinds of red action; names as recordings spell them.
SLEEP, SWEEP, SCAN, EXPLOIT, ESCALATE, IMPACT = range(6)
KIND_NAMES = (
    "Sleep", "DiscoverRemoteSystems", "DiscoverNetworkServices", "ExploitRemoteService", "PrivilegeEscalate",
    "Impact",
)  # fmt: skip
NO_EXPLOIT = -1
P_FAVOURITE = 0.75  # of several exploits, how often the first in the list
P_DETECTED = 0.95  # how often a reverse shell is noticed

_ABSENT, _ROOT_SHELL = t.ABSENT, t.ROOT_SHELL
_SSH_SESSION, _SSH_REFUSED = t.SSH_SESSION, t.SSH_REFUSED
_OP_SERVER, _N_EXPLOITS = t.OP_SERVER, len(t.EXPLOITS)
_HARAKA, _SSH = t.EXPLOIT_NAMES.index("HarakaRCE"), t.EXPLOIT_NAMES.index("SSHBruteForce")
_ENTERPRISE, _OPERATIONAL = t.hosts_where("Enterprise"), t.hosts_where("Operational")
_OPERATIONAL_SUBNET = t.SUBNETS.index("Operational")
_PORT = np.array([t.port_mask(x.port) for x in t.EXPLOITS], np.int16)
_BESIDE = np.array([t.port_mask(*(x.beside or (x.port,))) for x in t.EXPLOITS], np.int16)
_SSH_EVENTS_REFUSED, _SSH_EVENTS_SUCCESS, _DECOY_EVENTS = 10, 11, 2


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def open_ports(s: Record, rules: Record, h: int) -> int:
    """The ports that answer on a host now."""
    ports: int = rules.services[h] | s.decoys[h]
    return ports


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _routable(s: Record, h: int) -> bool:
    """The Operational subnet answers only while red holds a host of the Enterprise subnet."""
    return not has(_OPERATIONAL, h) or sessions(s) & _ENTERPRISE != 0


@njit(cache=True)  # type: ignore[untyped-decorator]
def exploit_options(s: Record, h: int) -> int:
    """The set of exploits that red may choose from; empty where the attempt is refused outright."""
    known = s.known_ports[h]
    if known == 0 or not _routable(s, h):
        return 0
    options = 0
    for x in range(_N_EXPLOITS):
        if known & _PORT[x] and known & _BESIDE[x]:
            options |= 1 << x
    return options


@njit(cache=True)  # type: ignore[untyped-decorator]
def choose_exploit(options: int, u: float) -> int:
    """Three times out of four the favourite, else one of the others; NO_EXPLOIT if there is none."""
    exploit = NO_EXPLOIT
    if options:
        others = options & (options - 1)
        if others == 0 or u < P_FAVOURITE:
            exploit = pick(options, 0.0)
        else:
            exploit = pick(others, (u - P_FAVOURITE) / (1.0 - P_FAVOURITE))
    return exploit


@njit(cache=True)  # type: ignore[untyped-decorator]
def attack(s: Record, rules: Record, kind: int, target: int, exploit: int, detected: bool) -> tuple[int, int, bool]:
    """Carry out a red action; give its events (ports, count, reverse shell) on the target host."""
    s.red_kind, s.red_target, s.red_exploit, s.red_success = kind, target, exploit, WORKED
    events = (0, 0, False)
    if kind == SCAN:
        events = _scan(s, rules, target)
    elif kind == EXPLOIT:
        events = _exploit(s, rules, target, exploit, detected)
    elif kind == SWEEP:
        if target == _OPERATIONAL_SUBNET and not sessions(s) & _ENTERPRISE:
            s.red_success = FAILED
    elif kind == ESCALATE:
        _escalate(s, target)
    elif kind == IMPACT:
        if has(sessions(s), target) and s.ot_known:
            if s.ot_killable:
                s.ot_running = 0
        else:
            s.red_success = FAILED
    else:
        s.red_success = UNTOLD
    return events


@njit(cache=True)  # type: ignore[untyped-decorator]
def _scan(s: Record, rules: Record, h: int) -> tuple[int, int, bool]:
    """Remember the open ports; a scan that finds no route still calls itself a success."""
    s.scan_answered = _routable(s, h)
    if not s.scan_answered:
        return 0, 0, False
    ports = open_ports(s, rules, h)
    s.known_ports[h] = s.known_ports[h] | ports if rules.scans_accumulate else ports
    return ports, count(ports), False


@njit(cache=True)  # type: ignore[untyped-decorator]
def _exploit(s: Record, rules: Record, h: int, exploit: int, detected: bool) -> tuple[int, int, bool]:
    """A host's own service answers first, then a decoy on its port, else nobody."""
    s.red_success = FAILED
    if exploit == NO_EXPLOIT:
        return 0, 0, False
    port, outcome, bit = int(_PORT[exploit]), rules.outcomes[h, exploit], 1 << h
    if outcome == _ABSENT:
        if not s.decoys[h] & port:
            return 0, 0, False
        return port, _SSH_EVENTS_REFUSED if exploit == _SSH else _DECOY_EVENTS, False
    if outcome == _SSH_REFUSED:
        return port, _SSH_EVENTS_REFUSED, False
    if exploit == _HARAKA and rules.haraka_breaks_on_restore and has(s.restored, h):
        return port, 1, False
    s.red_success = WORKED
    if outcome == _SSH_SESSION:
        s.stubborn |= bit
        return port, _SSH_EVENTS_SUCCESS, False
    s.malware |= bit
    if outcome == _ROOT_SHELL:
        s.privileged |= bit
    elif detected:
        s.removable |= bit
    else:
        s.stubborn |= bit
    return port, 2 if detected else 1, detected


@njit(cache=True)  # type: ignore[untyped-decorator]
def _escalate(s: Record, h: int) -> None:
    """From any session to a privileged one; it leaves malware behind and, on the server, shows the service."""
    if not has(sessions(s), h):
        s.red_success = FAILED
        return
    if not has(s.privileged, h):
        s.privileged |= 1 << h
        s.malware |= 1 << h
    if h == _OP_SERVER:
        s.ot_known = 1
