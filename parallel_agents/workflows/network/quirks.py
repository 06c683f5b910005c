"""The known oddities of the reference simulator, each a switch, and its versions as presets of them.

The plain rules are what the scenario evidently means; a quirk is where the simulator does something else.
All recorded scores were made with quirks on, so `head` is the default and `debugged`, the variant with the
documented faults repaired, is there to see what a defender owes to them.

>>> VERSIONS["head"].scans_accumulate, VERSIONS["leaderboard"].scans_accumulate
(False, True)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parallel_agents.errors import ConfigError
from parallel_agents.workflows.network import tables as t

__all__ = ["VERSIONS", "Quirks", "compile_rules", "quirks_of"]


@dataclass(frozen=True)
class Quirks:
    """One switch per oddity; the defaults are those of the simulator's last revision."""

    service_unkillable_after_restore: bool = True
    """Restoring Op_Server0 protects its service for the rest of the episode: Impact succeeds without effect."""
    vsftpd_opens_80: bool = True
    """The Vsftpd decoy asks for port 21 and opens 80, so it can be placed again and again."""
    eternalblue_fails_on_enterprise: bool = True
    """EternalBlue never works on Enterprise1 and Enterprise2, which offer it."""
    mysql_on_3389: bool = True
    """User3's database listens on 3389: it lures BlueKeep, which fails, and hides from SQLInjection."""
    remove_always_succeeds: bool = True
    """Remove reports success even where there was nothing to remove."""
    user_sessions_are_free: bool = True
    """Only privileged red sessions cost points."""
    scan_hides_exploit: bool = True
    """Three ports touched in a turn read as a scan, even with a reverse shell among them."""
    scans_accumulate: bool = False
    """Red never forgets a port it has seen, though it has since been closed."""
    haraka_breaks_on_restore: bool = False
    """After a Restore of User3 or User4, HarakaRCE there fails for good."""


VERSIONS = {
    "head": Quirks(),
    "leaderboard": Quirks(scans_accumulate=True, haraka_breaks_on_restore=True),
    "debugged": Quirks(
        vsftpd_opens_80=False,
        eternalblue_fails_on_enterprise=False,
        mysql_on_3389=False,
        remove_always_succeeds=False,
        user_sessions_are_free=False,
        scan_hides_exploit=False,
    ),
}

# What the kernels read: the tables as these quirks leave them, and the quirks that are behaviour.
RULES = np.dtype(
    [
        ("services", np.int16, (t.N_HOSTS,)),
        ("outcomes", np.int8, (t.N_HOSTS, len(t.EXPLOITS))),
        ("decoy_opens", np.int16, (len(t.DECOYS),)),
        ("service_unkillable_after_restore", np.bool_),
        ("remove_always_succeeds", np.bool_),
        ("user_sessions_are_free", np.bool_),
        ("scan_hides_exploit", np.bool_),
        ("scans_accumulate", np.bool_),
        ("haraka_breaks_on_restore", np.bool_),
    ]
)


def quirks_of(version: str) -> Quirks:
    """The preset of a named version of the simulator."""
    if version not in VERSIONS:
        raise ConfigError(f"version {version!r} is unknown: choose one of {', '.join(VERSIONS)}")
    return VERSIONS[version]


def compile_rules(quirks: Quirks) -> NDArray[np.void]:
    """One record, shape (1,), that the kernels read."""
    rules = np.zeros(1, RULES)
    record = rules[0]
    for name in RULES.names[3:]:  # type: ignore[index]
        record[name] = getattr(quirks, name)
    for h, host in enumerate(t.HOSTS):
        record["services"][h] = t.port_mask(*host.ports)
        for x, exploit in enumerate(t.EXPLOITS):
            record["outcomes"][h, x] = host.exploits.get(exploit.name, t.ABSENT)
    record["decoy_opens"] = [t.port_mask(decoy.opens) for decoy in t.DECOYS]
    _bend(record, quirks)
    return rules


def _bend(record: np.void, quirks: Quirks) -> None:
    """Apply the quirks that are data."""
    exploit = t.EXPLOIT_NAMES.index
    if quirks.vsftpd_opens_80:
        record["decoy_opens"][-1] = t.port_mask(80)
    if quirks.eternalblue_fails_on_enterprise:
        record["outcomes"][[t.ENTERPRISE1, t.ENTERPRISE2], exploit("EternalBlue")] = t.ABSENT
    if quirks.mysql_on_3389:
        record["services"][t.USER3] = t.port_mask(80, 3389, 443, 25)
        record["outcomes"][t.USER3, exploit("SQLInjection")] = t.ABSENT
