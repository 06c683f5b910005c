"""CAGE Challenge 2, Scenario 2, as data: hosts, ports, blue's actions, decoys, exploits, and versions of the rules.

The other modules of the game read their constants from here. Sets of hosts, ports and subnets are bit masks: bit i
stands for entry i of `HOSTS`, `PORTS` and `SUBNETS`. Costs are whole tenths of a point, so that rewards are exact.

>>> [host.name for host in HOSTS][7], len(ACTION_NAMES), ACTION_NAMES[139]
('Op_Server0', 145, 'Restore Op_Server0')
>>> action_id("DecoyTomcat", "Enterprise0")
107

Every known oddity of the reference simulator is a switch (`Quirks`), every version of it a preset of switches. Without
quirks the rules are what the scenario evidently intends. All published scores were made with quirks, so `head`, the
simulator's last revision, is the default. `debugged` has the documented faults repaired, to show how much a defender
owes to them.

>>> VERSIONS["head"].scans_accumulate, VERSIONS["leaderboard"].scans_accumulate
(False, True)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.errors import ActionError, ConfigError

LENGTHS = (30, 50, 100)  # turns of the challenge's episodes
SUBNETS = ("User", "Enterprise", "Operational")
PORTS = (21, 22, 25, 53, 68, 80, 135, 139, 443, 445, 3389, 3390)

# Result of an exploit against a host's own services. ABSENT: no such service, or one that resists the exploit.
ABSENT, USER_SHELL, ROOT_SHELL, SSH_SESSION, SSH_REFUSED = range(5)


@dataclass(frozen=True)
class Host:
    """One computer. `cost` is in tenths of a point per turn while red has privileged access."""

    name: str
    subnet: str
    unit: str
    windows: bool
    ports: tuple[int, ...]
    cost: int
    exploits: dict[str, int]
    link: str | None = None  # red learns the address of this host by escalating here


@dataclass(frozen=True)
class Decoy:
    """A false service that makes the exploit of its port fail. `windows` is None if any operating system will do."""

    name: str
    windows: bool | None
    needs_free: int
    opens: int


@dataclass(frozen=True)
class Exploit:
    """An exploit that red may choose if it knows `port` to be open, and also one of `beside` if that is not empty."""

    name: str
    port: int
    beside: tuple[int, ...] = ()


_SSH = {"SSHBruteForce": SSH_SESSION}
_WEB = {"HTTPSRFI": USER_SHELL, "HTTPRFI": USER_SHELL}
_FILE_SERVER = {"FTPDirectoryTraversal": ROOT_SHELL} | _SSH
_WINDOWS_SERVER = _WEB | _SSH | {"BlueKeep": ROOT_SHELL, "EternalBlue": ROOT_SHELL}
_WINDOWS_PORTS = (22, 135, 3389, 445, 139, 80, 443)
_MAIL = {"HarakaRCE": ROOT_SHELL, "SQLInjection": ROOT_SHELL} | _WEB

HOSTS = (
    Host("Defender", "Enterprise", "defender", False, (22, 53, 68), 1, {"SSHBruteForce": SSH_REFUSED}),
    Host("Enterprise0", "Enterprise", "enterprise", False, (22,), 10, _SSH),
    Host("Enterprise1", "Enterprise", "enterprise", True, _WINDOWS_PORTS, 10, _WINDOWS_SERVER),
    Host("Enterprise2", "Enterprise", "enterprise", True, _WINDOWS_PORTS, 10, _WINDOWS_SERVER, "Op_Server0"),
    Host("Op_Host0", "Operational", "op_host", False, (22,), 1, _SSH),
    Host("Op_Host1", "Operational", "op_host", False, (22,), 1, _SSH),
    Host("Op_Host2", "Operational", "op_host", False, (22,), 1, _SSH),
    Host("Op_Server0", "Operational", "op_server", False, (22,), 10, _SSH),
    Host("User0", "User", "user", True, (22, 21), 0, _FILE_SERVER),
    Host("User1", "User", "user", True, (22, 21), 1, _FILE_SERVER, "Enterprise1"),
    Host("User2", "User", "user", True, (445, 139, 135, 3389), 1,
         {"EternalBlue": ROOT_SHELL, "BlueKeep": USER_SHELL}, "Enterprise1"),
    Host("User3", "User", "user", False, (80, 3390, 443, 25), 1, _MAIL, "Enterprise0"),
    Host("User4", "User", "user", False, (22, 80, 3390, 443, 25), 1, _MAIL | _SSH, "Enterprise0"),
)  # fmt: skip
HOST_NAMES = tuple(host.name for host in HOSTS)

DECOYS = (
    Decoy("DecoyApache", None, 80, 80),
    Decoy("DecoyFemitter", True, 21, 21),
    Decoy("DecoyHarakaSMPT", False, 25, 25),
    Decoy("DecoySmss", True, 139, 139),
    Decoy("DecoySSHD", None, 22, 22),
    Decoy("DecoySvchost", True, 3389, 3389),
    Decoy("DecoyTomcat", None, 443, 443),
    Decoy("DecoyVsftpd", False, 21, 21),
)

# Red prefers the first: of several possible exploits it takes the first with probability 0.75.
EXPLOITS = (
    Exploit("FTPDirectoryTraversal", 21),
    Exploit("HarakaRCE", 25),
    Exploit("SQLInjection", 3390, beside=(80, 443)),
    Exploit("HTTPSRFI", 443),
    Exploit("HTTPRFI", 80),
    Exploit("EternalBlue", 139),
    Exploit("BlueKeep", 3389),
    Exploit("SSHBruteForce", 22),
)
EXPLOIT_NAMES = tuple(exploit.name for exploit in EXPLOITS)

# Blue's actions: two without a host, then eleven blocks with one action per host.
SLEEP, MONITOR, FIRST_HOST_ACTION = 0, 1, 2
BLOCKS = ("Analyse", "Remove", *(decoy.name for decoy in DECOYS), "Restore")
ACTION_NAMES = ("Sleep", "Monitor", *(f"{block} {host}" for block in BLOCKS for host in HOST_NAMES))
N_HOSTS, N_ACTIONS, OBSERVATION_SIZE = len(HOSTS), len(ACTION_NAMES), 4 * len(HOSTS)
ANALYSE, REMOVE, FIRST_DECOY, RESTORE = 0, 1, 2, len(BLOCKS) - 1
FIRST_REMOVE, FIRST_RESTORE = FIRST_HOST_ACTION + REMOVE * N_HOSTS, FIRST_HOST_ACTION + RESTORE * N_HOSTS

DEFENDER, ENTERPRISE0, ENTERPRISE1, ENTERPRISE2 = range(4)
OP_SERVER = HOST_NAMES.index("Op_Server0")
USER0, USER1, USER2, USER3, USER4 = range(HOST_NAMES.index("User0"), N_HOSTS)


def port_mask(*ports: int) -> int:
    """Return the bit mask of these ports."""
    return sum(1 << PORTS.index(port) for port in set(ports))


def subnet_mask(subnet: str) -> int:
    """Return the bit mask of the hosts of a subnet."""
    return sum(1 << i for i, host in enumerate(HOSTS) if host.subnet == subnet)


def action_id(block: str, host: str | None = None) -> int:
    """Return the number of the blue action with this name on this host."""
    name = block if host is None else f"{block} {host}"
    if name not in ACTION_NAMES:
        raise ActionError(
            f"there is no blue action {name!r}: give Sleep or Monitor without a host, or one of "
            f"{', '.join(BLOCKS)} with one of {', '.join(HOST_NAMES)}"
        )
    return ACTION_NAMES.index(name)


# -- versions of the rules -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quirks:
    """One switch per oddity. The defaults are those of `head`."""

    service_unkillable_after_restore: bool = True
    """After a Restore of Op_Server0, Impact still succeeds but no longer stops the service in this episode."""
    vsftpd_opens_80: bool = True
    """The Vsftpd decoy requires port 21 to be free but opens port 80, so it can be placed repeatedly."""
    vsftpd_is_web_server: bool = True
    """The Vsftpd decoy runs a web server: FTPDirectoryTraversal finds nothing to attack on its port 21."""
    eternalblue_fails_on_enterprise: bool = True
    """EternalBlue always fails on Enterprise1 and Enterprise2, although their port 139 is open."""
    mysql_on_3389: bool = True
    """User3's database listens on port 3389: BlueKeep is tried there and fails, SQLInjection is never tried."""
    remove_always_succeeds: bool = True
    """Remove reports success even if there was nothing to remove."""
    remove_knows_last_shell: bool = False
    """Remove knows only the shell that was detected last: it ends no older session, nor anything if that has root."""
    user_sessions_are_free: bool = True
    """Only privileged red sessions cost points."""
    scan_hides_exploit: bool = True
    """Events on three or more ports in a turn are shown as a scan, even if a reverse shell is among them."""
    scans_accumulate: bool = False
    """Red keeps every port that it has ever seen open, even if it has been closed since."""
    haraka_breaks_on_restore: bool = False
    """After a Restore of User3 or User4, HarakaRCE always fails there."""


VERSIONS = {
    "head": Quirks(),
    "leaderboard": Quirks(scans_accumulate=True, haraka_breaks_on_restore=True),
    "debugged": Quirks(
        vsftpd_opens_80=False,
        eternalblue_fails_on_enterprise=False,
        mysql_on_3389=False,
        remove_always_succeeds=False,
        remove_knows_last_shell=True,
        user_sessions_are_free=False,
        scan_hides_exploit=False,
    ),
}

_SWITCHES = (
    "service_unkillable_after_restore", "vsftpd_is_web_server", "remove_always_succeeds", "remove_knows_last_shell",
    "user_sessions_are_free", "scan_hides_exploit", "scans_accumulate", "haraka_breaks_on_restore",
)  # fmt: skip
# The rules as the kernels read them: the scenario's data changed by the quirks, and the switches that are behaviour.
RULES = np.dtype(
    [
        ("services", np.int64, (N_HOSTS,)),
        ("outcomes", np.int8, (N_HOSTS, len(EXPLOITS))),
        ("decoy_opens", np.int16, (len(DECOYS),)),
        *((name, np.bool_) for name in _SWITCHES),
    ]
)


def version_quirks(version: str) -> Quirks:
    """Return the quirks of a version of the simulator."""
    if version not in VERSIONS:
        raise ConfigError(f"version {version!r} is unknown: choose one of {', '.join(VERSIONS)}")
    return VERSIONS[version]


def compile_rules(quirks: Quirks) -> NDArray[np.void]:
    """Return the rules under these quirks as one record for the kernels, shape (1,)."""
    rules = np.zeros(1, RULES)
    record = rules[0]
    for name in _SWITCHES:
        record[name] = getattr(quirks, name)
    for h, host in enumerate(HOSTS):
        record["services"][h] = port_mask(*host.ports)
        record["outcomes"][h] = [host.exploits.get(name, ABSENT) for name in EXPLOIT_NAMES]
    record["decoy_opens"] = [port_mask(decoy.opens) for decoy in DECOYS]
    exploit = EXPLOIT_NAMES.index
    if quirks.vsftpd_opens_80:
        record["decoy_opens"][-1] = port_mask(80)
    if quirks.eternalblue_fails_on_enterprise:
        record["outcomes"][[ENTERPRISE1, ENTERPRISE2], exploit("EternalBlue")] = ABSENT
    if quirks.mysql_on_3389:
        record["services"][USER3] = port_mask(80, 3389, 443, 25)
        record["outcomes"][USER3, exploit("SQLInjection")] = ABSENT
    return rules
