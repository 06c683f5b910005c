"""Red's part of a turn: which action an agent may choose, and what the action does to the network.

Choosing has two halves for every agent. `allowed_actions` updates the agent's notes with its last result and returns
one kind of action and the set of its possible targets; `note_choice` notes the target that was taken. A simulation
picks a target uniformly; a replay checks that the recorded target is in the set.

`apply_red_action` carries an action out and returns its network events on the target host, from which blue's
observation is made. A port scan counts a port once, even where two services share it. That changes no observation: the
number of events matters only if they are all on one port, and no host offers one port twice and no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from parallel_agents.core.compiled import njit
from parallel_agents.core.errors import ActionError, ConfigError
from parallel_agents.core.seeding import uniform
from parallel_agents.workflows.network import scenario as sc
from parallel_agents.workflows.network.state import (
    FAILED,
    NO_EXPLOIT,
    SUCCEEDED,
    UNKNOWN,
    Record,
    count,
    has,
    pick,
    sessions,
)

RED_AGENTS = ("B_line", "Meander", "Sleep")
B_LINE, MEANDER, SLEEPING, CUSTOM = range(4)

# Kinds of red action, with their names in recordings.
NO_ACTION, SWEEP, SCAN, EXPLOIT, ESCALATE, IMPACT = range(6)
KIND_NAMES = (
    "Sleep", "DiscoverRemoteSystems", "DiscoverNetworkServices", "ExploitRemoteService", "PrivilegeEscalate",
    "Impact",
)  # fmt: skip
P_FIRST_EXPLOIT = 0.75  # of several possible exploits the first is taken
P_DETECTED = 0.95  # a reverse shell is detected

_OP_SERVER_BIT = 1 << sc.OP_SERVER
_USER_SUBNET, _ENTERPRISE_SUBNET, _OPERATIONAL_SUBNET = range(len(sc.SUBNETS))
_SUBNET = np.array([sc.SUBNETS.index(host.subnet) for host in sc.HOSTS], np.int8)
_SUBNET_HOSTS = np.array([sc.subnet_mask(name) for name in sc.SUBNETS], np.int16)
_ENTERPRISE, _OPERATIONAL = sc.subnet_mask("Enterprise"), sc.subnet_mask("Operational")
_LINK = np.array([sc.HOST_NAMES.index(host.link) if host.link else -1 for host in sc.HOSTS], np.int8)
_OP_NAMES = sum(1 << h for h, name in enumerate(sc.HOST_NAMES) if "Op" in name)
_ENTERPRISE_NAMES = sum(1 << h for h, name in enumerate(sc.HOST_NAMES) if "Ent" in name)

_FTP, _HARAKA, _SSH = map(sc.EXPLOIT_NAMES.index, ("FTPDirectoryTraversal", "HarakaRCE", "SSHBruteForce"))
_WINDOWS = sum(1 << h for h, host in enumerate(sc.HOSTS) if host.windows)
_PORT = np.array([sc.port_mask(x.port) for x in sc.EXPLOITS], np.int64)
_BESIDE = np.array([sc.port_mask(*(x.beside or (x.port,))) for x in sc.EXPLOITS], np.int64)
_SSH_EVENTS_REFUSED, _SSH_EVENTS_SUCCESS, _DECOY_EVENTS = 10, 11, 2

# B_line's stages: sweep, scan, exploit and escalate along a user host, an enterprise host, Enterprise2, Op_Server0.
_ENTRY_HOST, _LINKED_HOST = -1, -2
_STAGE_KIND = np.array(
    [SWEEP, SCAN, EXPLOIT, ESCALATE, SCAN, EXPLOIT, ESCALATE, SWEEP, SCAN, EXPLOIT, ESCALATE, SCAN, EXPLOIT,
     ESCALATE, IMPACT], np.int8,
)  # fmt: skip
_STAGE_TARGET = np.array(
    [_USER_SUBNET, *[_ENTRY_HOST] * 3, *[_LINKED_HOST] * 3, _ENTERPRISE_SUBNET, *[sc.ENTERPRISE2] * 3,
     *[sc.OP_SERVER] * 4], np.int8,
)  # fmt: skip
_STAGE_AFTER_FAILURE = np.array([0, 1, 2, 2, 2, 2, 5, 5, 5, 5, 9, 9, 9, 12, 13], np.int8)
_LAST_STAGE, _SCAN_ENTRY, _EXPLOIT_SERVER = 14, 1, 12
_ENTRY_HOSTS = sum(1 << h for h in (sc.USER1, sc.USER2, sc.USER3, sc.USER4))


class RedMove(NamedTuple):
    """One red action: its kind, its target (a host, or a subnet for a sweep), and for an exploit which and how."""

    kind: int
    target: int
    exploit: int
    detected: bool


class HostEvents(NamedTuple):
    """Network events on one host in one turn: local ports touched, number of events, whether one is a reverse shell.

    A reverse shell has remote port 4444 and a local port of its own, which is not among `ports`.
    """

    ports: int
    number: int
    shell: bool


def red_id(name: str) -> int:
    """Return the number of a red agent."""
    if name not in RED_AGENTS:
        raise ConfigError(f"red agent {name!r} is unknown: choose one of {', '.join(RED_AGENTS)}")
    return RED_AGENTS.index(name)


class RedAgent:
    """A red agent of your own, for `NetworkWorlds(red=…)`: subclass it and write `get_action`.

    One instance plays in each world; `reset` is called before every episode. `knowledge` is what red has found out:

    - `hosts`, `subnets`: names that it may attack or sweep; `names`: hosts on which it may escalate;
    - `scanned`, `sessions`, `privileged`: hosts it has scanned, and holds now;
    - `ports`: the open ports it knows of each scanned host;
    - `last_action`, `success`: its last action and whether that succeeded (None before the first).

    An action is named as in recordings: "Sleep", "DiscoverRemoteSystems:User", "DiscoverNetworkServices:User1",
    "ExploitRemoteService:User1", "PrivilegeEscalate:User1" or "Impact:Op_Server0". Which exploit is tried, and whether
    it is detected, follows from the rules.
    """

    def reset(self) -> None:
        """Forget the last episode."""

    def get_action(self, knowledge: Mapping[str, Any]) -> str:
        """Return the name of the action to take now."""
        raise NotImplementedError("write get_action(knowledge): return the name of red's next action")


def red_knowledge(s: Any) -> dict[str, Any]:
    """Return what the red agent of a world (one record) may know."""
    names = partial(_names, sc.HOST_NAMES)
    held, scanned = int(s["privileged"] | s["removable"] | s["unremovable"]), int(s["addresses_scanned"])
    ports = {name: _names(sc.PORTS, int(s["known_ports"][sc.HOST_NAMES.index(name)])) for name in names(scanned)}
    acted = s["red_kind"] != NO_ACTION
    return {
        "hosts": names(int(s["addresses_known"])), "subnets": _names(sc.SUBNETS, int(s["subnets_known"])),
        "names": names(int(s["names_known"])), "scanned": names(scanned), "sessions": names(held),
        "privileged": names(int(s["privileged"])), "ports": ports,
        "last_action": red_action_name(int(s["red_kind"]), int(s["red_target"])),
        "success": bool(s["red_success"] == SUCCEEDED) if acted else None,
    }  # fmt: skip


def parse_red_action(name: str, s: Any = None) -> tuple[int, int]:
    """Return the kind and the target of a red action by its name; given a world's record, red must know the target."""
    kind_name, _, target = str(name).partition(":")
    kind = KIND_NAMES.index(kind_name) if kind_name in KIND_NAMES else None
    if kind == NO_ACTION:
        return NO_ACTION, 0
    targets = sc.SUBNETS if kind == SWEEP else sc.HOST_NAMES
    if kind is None or target not in targets:
        raise ActionError(f"red action {name!r} is not a known action on a known host or subnet")
    field = {SWEEP: "subnets_known", ESCALATE: "names_known"}.get(kind, "addresses_known")
    if s is not None and kind != IMPACT and not s[field] >> targets.index(target) & 1:
        raise ActionError(f"red action {name!r} has a target that red has not discovered yet")
    return kind, targets.index(target)


def _names(names: Sequence[Any], mask: int) -> tuple[Any, ...]:
    """Return the entries whose bits are set."""
    return tuple(name for i, name in enumerate(names) if mask >> i & 1)


def red_action_name(kind: int, target: int) -> str:
    """Return a red action's name as recordings spell it.

    >>> red_action_name(IMPACT, sc.OP_SERVER)
    'Impact:Op_Server0'
    """
    if kind == NO_ACTION:
        return KIND_NAMES[NO_ACTION]
    return f"{KIND_NAMES[kind]}:{(sc.SUBNETS if kind == SWEEP else sc.HOST_NAMES)[target]}"


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]  # inlined: 5 % faster in large batches
def choose_move(s: Record, words: tuple[np.uint64, np.uint64, np.uint64, np.uint64]) -> RedMove:
    """Choose red's next action with the turn's random words, and note it."""
    kind, targets = allowed_actions(s)
    target = pick(targets, uniform(words[0]))
    note_choice(s, kind, target)
    exploit, detected = NO_EXPLOIT, False
    if kind == EXPLOIT:
        exploit = choose_exploit(exploit_options(s, target), uniform(words[1]))
        detected = uniform(words[2]) < P_DETECTED
    return RedMove(kind, target, exploit, detected)


@njit(cache=True)  # type: ignore[untyped-decorator]
def allowed_actions(s: Record) -> tuple[int, int]:
    """Return the kind of action that red's agent takes now and the set of its possible targets."""
    kind, targets = NO_ACTION, 1
    if s.red_agent == B_LINE:
        kind, targets = _b_line_actions(s)
    elif s.red_agent == MEANDER:
        _update_lists(s)
        kind, targets = _meander_actions(s)
    elif s.red_agent == CUSTOM:
        kind, targets = s.next_kind, 1 << s.next_target
    return kind, targets


@njit(cache=True)  # type: ignore[untyped-decorator]
def note_choice(s: Record, kind: int, target: int) -> None:
    """Note that this target was taken, before the result of the action is known."""
    if s.red_agent == B_LINE:
        if s.stage == _SCAN_ENTRY:
            s.entry = target
        elif s.stage == _EXPLOIT_SERVER:
            s.server_attacked = 1
    elif s.red_agent != SLEEPING:
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
def _b_line_actions(s: Record) -> tuple[int, int]:
    """Advance B_line one stage after a success, or set it back after a failure; return the stage's action."""
    if s.red_success == SUCCEEDED:
        s.stage = min(s.stage + 1, _LAST_STAGE)
    else:
        s.stage = _STAGE_AFTER_FAILURE[s.stage]
    if s.stage == _EXPLOIT_SERVER and not s.server_attacked and not s.scan_answered:
        s.stage = _SCAN_ENTRY  # the scan never reached the server: start again from the entry host
    target = _STAGE_TARGET[s.stage]
    if target == _ENTRY_HOST:
        if s.entry < 0:
            return SCAN, _ENTRY_HOSTS
        target = s.entry
    elif target == _LINKED_HOST:
        target = _LINK[s.entry]
    return _STAGE_KIND[s.stage], 1 << target


@njit(cache=True)  # type: ignore[untyped-decorator]
def _update_lists(s: Record) -> None:
    """Update the lists of Meander, or of an agent written in Python, with the result of its last action."""
    kind, h = s.red_kind, s.red_target
    bit = 1 << h
    if s.red_success == SUCCEEDED:
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
        lost = s.escalated & _OP_NAMES
        if lost == 0:
            lost = s.escalated & _ENTERPRISE_NAMES
        s.escalated &= ~lost
        s.exploited &= ~(lost | bit)
    elif kind in (ESCALATE, IMPACT):
        s.escalated &= ~bit
        s.exploited &= ~bit


@njit(cache=True)  # type: ignore[untyped-decorator]
def _meander_actions(s: Record) -> tuple[int, int]:
    """Return the first that is possible: impact, sweep, scan, escalate, exploit."""
    if s.escalated & _OP_SERVER_BIT:
        return IMPACT, _OP_SERVER_BIT
    subnets = s.subnets_known & ~s.subnets_swept
    if subnets:
        return SWEEP, subnets & -subnets
    unscanned = s.addresses_known & ~s.addresses_scanned
    if unscanned:
        return SCAN, unscanned
    escalatable = s.names_known & ~s.escalated & (s.exploited | ~s.names_mapped)
    if escalatable:
        return ESCALATE, escalatable
    untried = s.addresses_known & ~s.exploited
    return (EXPLOIT, untried) if untried else (NO_ACTION, 1)


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def open_ports(s: Record, rules: Record, h: int) -> int:
    """Return the ports that are open on a host now."""
    ports: int = rules.services[h] | s.decoys[h]
    return ports


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _routable(s: Record, h: int) -> bool:
    """Return whether red reaches a host: the Operational subnet only while it has a session in Enterprise."""
    return not has(_OPERATIONAL, h) or sessions(s) & _ENTERPRISE != 0


@njit(cache=True)  # type: ignore[untyped-decorator]
def exploit_options(s: Record, h: int) -> int:
    """Return the set of exploits that red may choose from; empty if the attempt fails before the choice."""
    known = s.known_ports[h]
    if known == 0 or not _routable(s, h):
        return 0
    options = 0
    for x in range(len(_PORT)):
        if known & _PORT[x] and known & _BESIDE[x]:
            options |= 1 << x
    return options


@njit(cache=True)  # type: ignore[untyped-decorator]
def choose_exploit(options: int, u: float) -> int:
    """Return the first exploit with probability 0.75, else one of the others; NO_EXPLOIT if there is none."""
    exploit = NO_EXPLOIT
    if options:
        others = options & (options - 1)
        if others == 0 or u < P_FIRST_EXPLOIT:
            exploit = pick(options, 0.0)
        else:
            exploit = pick(others, (u - P_FIRST_EXPLOIT) / (1.0 - P_FIRST_EXPLOIT))
    return exploit


@njit(cache=True)  # type: ignore[untyped-decorator]
def apply_red_action(s: Record, rules: Record, move: RedMove) -> HostEvents:
    """Carry out red's action; return its events on the target host."""
    kind, target = move.kind, move.target
    s.red_kind, s.red_target, s.red_success = kind, target, SUCCEEDED
    events = HostEvents(0, 0, False)
    if kind == SCAN:
        events = _scan(s, rules, target)
    elif kind == EXPLOIT:
        events = _exploit(s, rules, target, move.exploit, move.detected)
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
        s.red_success = UNKNOWN
    if s.red_agent == CUSTOM:
        _update_lists(s)  # at once, since the agent reads them before its next turn
    return events


@njit(cache=True)  # type: ignore[untyped-decorator]
def _scan(s: Record, rules: Record, h: int) -> HostEvents:
    """Remember the open ports of a host. A scan without a route learns nothing, but counts as a success."""
    s.scan_answered = _routable(s, h)
    if not s.scan_answered:
        return HostEvents(0, 0, False)
    ports = open_ports(s, rules, h)
    s.known_ports[h] = s.known_ports[h] | ports if rules.scans_accumulate else ports
    return HostEvents(ports, count(ports), False)


@njit(cache=True)  # type: ignore[untyped-decorator]
def _exploit(s: Record, rules: Record, h: int, exploit: int, detected: bool) -> HostEvents:
    """Attack a host's own service if it has one, else the decoy on the exploit's port, else nothing."""
    s.red_success = FAILED
    if exploit == NO_EXPLOIT:
        return HostEvents(0, 0, False)
    port, outcome, bit = _PORT[exploit], rules.outcomes[h, exploit], 1 << h
    if outcome == sc.ABSENT:
        if not s.decoys[h] & port or (exploit == _FTP and rules.vsftpd_is_web_server and not has(_WINDOWS, h)):
            return HostEvents(0, 0, False)
        return HostEvents(port, _SSH_EVENTS_REFUSED if exploit == _SSH else _DECOY_EVENTS, False)
    if outcome == sc.SSH_REFUSED:
        return HostEvents(port, _SSH_EVENTS_REFUSED, False)
    if exploit == _HARAKA and rules.haraka_breaks_on_restore and has(s.restored, h):
        return HostEvents(port, 1, False)
    s.red_success = SUCCEEDED
    if outcome == sc.SSH_SESSION:
        s.unremovable |= bit
        return HostEvents(port, _SSH_EVENTS_SUCCESS, False)
    s.malware |= bit
    if detected and rules.remove_knows_last_shell:
        s.unremovable |= s.removable & bit
        s.removable &= ~bit
    if outcome == sc.ROOT_SHELL:
        s.privileged |= bit
    elif detected:
        s.removable |= bit
    else:
        s.unremovable |= bit
    return HostEvents(port, 2 if detected else 1, detected)


@njit(cache=True)  # type: ignore[untyped-decorator]
def _escalate(s: Record, h: int) -> None:
    """Make a session privileged. That leaves malware and, on Op_Server0, shows red the service."""
    if not has(sessions(s), h):
        s.red_success = FAILED
        return
    if not has(s.privileged, h):
        s.privileged |= 1 << h
        s.malware |= 1 << h
        s.removable &= ~(1 << h)  # this session itself becomes the privileged one, which Remove does not end
    if h == sc.OP_SERVER:
        s.ot_known = 1
