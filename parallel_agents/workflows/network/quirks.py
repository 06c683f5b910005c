"""Versions of the reference simulator: every known oddity is a switch, every version a preset of switches.

Without quirks the rules are what the scenario evidently intends. All published scores were made with quirks, so
`head`, the simulator's last revision, is the default. `debugged` has the documented faults repaired, to show how much
a defender owes to them.

>>> VERSIONS["head"].scans_accumulate, VERSIONS["leaderboard"].scans_accumulate
(False, True)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.errors import ConfigError
from parallel_agents.workflows.network import scenario as sc


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
        ("services", np.int64, (sc.N_HOSTS,)),
        ("outcomes", np.int8, (sc.N_HOSTS, len(sc.EXPLOITS))),
        ("decoy_opens", np.int16, (len(sc.DECOYS),)),
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
    for h, host in enumerate(sc.HOSTS):
        record["services"][h] = sc.port_mask(*host.ports)
        record["outcomes"][h] = [host.exploits.get(name, sc.ABSENT) for name in sc.EXPLOIT_NAMES]
    record["decoy_opens"] = [sc.port_mask(decoy.opens) for decoy in sc.DECOYS]
    exploit = sc.EXPLOIT_NAMES.index
    if quirks.vsftpd_opens_80:
        record["decoy_opens"][-1] = sc.port_mask(80)
    if quirks.eternalblue_fails_on_enterprise:
        record["outcomes"][[sc.ENTERPRISE1, sc.ENTERPRISE2], exploit("EternalBlue")] = sc.ABSENT
    if quirks.mysql_on_3389:
        record["services"][sc.USER3] = sc.port_mask(80, 3389, 443, 25)
        record["outcomes"][sc.USER3, exploit("SQLInjection")] = sc.ABSENT
    return rules
