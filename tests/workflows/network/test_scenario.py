"""The data of the game, and every quirk, on and off."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from parallel_agents.core.errors import ActionError, ConfigError
from parallel_agents.workflows.network import ACTION_NAMES, HOST_NAMES, VERSIONS, Quirks, action_id
from parallel_agents.workflows.network import scenario as sc
from parallel_agents.workflows.network.observations import EXPLOIT_SEEN, SCAN_SEEN, classify
from parallel_agents.workflows.network.red import HostEvents


def test_actions_are_numbered_as_in_the_scenario():
    assert len(ACTION_NAMES) == 145
    first = {
        "Analyse": 2, "Remove": 15, "DecoyApache": 28, "DecoyFemitter": 41, "DecoyHarakaSMPT": 54, "DecoySmss": 67,
        "DecoySSHD": 80, "DecoySvchost": 93, "DecoyTomcat": 106, "DecoyVsftpd": 119, "Restore": 132,
    }  # fmt: skip
    for block, number in first.items():
        assert [action_id(block, host) for host in HOST_NAMES] == list(range(number, number + 13))
    assert action_id("Sleep") == 0
    assert action_id("Monitor") == 1


def test_costs_in_tenths_per_unit():
    assert [(host.name, host.cost) for host in sc.HOSTS if host.cost != 1] == [
        ("Enterprise0", 10), ("Enterprise1", 10), ("Enterprise2", 10), ("Op_Server0", 10), ("User0", 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("block", "host"), [("Restore", "User9"), ("Reboot", "User1"), ("Restore", None), ("Sleep", "User1")]
)
def test_an_unknown_action_or_host_is_refused(block, host):
    with pytest.raises(ActionError, match=r"there is no blue action .*one of Analyse, .* Op_Server0"):
        action_id(block, host)


def test_masks_have_one_bit_per_port_or_host():
    assert sc.port_mask(21) == 1
    assert sc.port_mask(21, 22, 22) == 3
    assert sc.subnet_mask("Operational") == 0b0000011110000


ON = Quirks(**{field.name: True for field in fields(Quirks)})
OFF = Quirks(**{field.name: False for field in fields(Quirks)})


def only(name: str, on: bool) -> Quirks:
    return replace(OFF, **{name: on})


def test_versions_are_presets():
    assert VERSIONS["head"] == Quirks()
    assert VERSIONS["leaderboard"] == replace(Quirks(), scans_accumulate=True, haraka_breaks_on_restore=True)
    assert VERSIONS["debugged"].service_unkillable_after_restore
    with pytest.raises(ConfigError, match=r"version 'tail' is unknown: choose one of head, leaderboard, debugged"):
        sc.version_quirks("tail")


@pytest.mark.parametrize("on", [True, False])
def test_service_unkillable_after_restore(game, on):
    play = game(only("service_unkillable_after_restore", on)).turn("Restore Op_Server0")
    play.take("Enterprise0").take("Op_Server0").turn(red="Impact:Op_Server0")
    assert play.red_succeeded
    assert play.service is on


@pytest.mark.parametrize("on", [True, False])
def test_vsftpd_opens_80(game, on):
    play = game(only("vsftpd_opens_80", on)).turn("DecoyVsftpd Enterprise0").scan("Enterprise0")
    assert play.ports("Enterprise0") == {22, 80 if on else 21}
    assert play.turn("DecoyVsftpd Enterprise0").blue_success == ("T" if on else "F")


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("host", ["Enterprise1", "Enterprise2"])
def test_eternalblue_fails_on_enterprise(game, on, host):
    play = game(only("eternalblue_fails_on_enterprise", on)).scan(host).exploit(host, "EternalBlue")
    assert play.access(host) == (0 if on else 2)


@pytest.mark.parametrize("on", [True, False])
def test_mysql_on_3389(game, on):
    play = game(only("mysql_on_3389", on)).scan("User3")
    assert play.ports("User3") == {80, 443, 25, 3389 if on else 3390}
    play.exploit("User3", "BlueKeep" if on else "SQLInjection")
    assert play.access("User3") == (0 if on else 2)


@pytest.mark.parametrize("on", [True, False])
def test_remove_always_succeeds(game, on):
    play = game(only("remove_always_succeeds", on))
    assert play.turn("Remove User4").blue_success == ("T" if on else "F")
    play.scan("User4").exploit("User4", "HTTPRFI")
    assert play.turn("Remove User4").blue_success == "T"


@pytest.mark.parametrize("on", [True, False])
def test_user_sessions_are_free(game, on):
    play = game(only("user_sessions_are_free", on)).scan("Enterprise0").exploit("Enterprise0", "SSHBruteForce")
    assert play.reward == (0.0 if on else -1.0)


@pytest.mark.parametrize("on", [True, False])
def test_scan_hides_exploit(on):
    assert classify(HostEvents(0b11, 3, True), False, on) == (SCAN_SEEN if on else EXPLOIT_SEEN)


@pytest.mark.parametrize("on", [True, False])
def test_scans_accumulate(game, on):
    play = game(only("scans_accumulate", on)).turn("DecoyTomcat Enterprise0").scan("Enterprise0")
    play.turn("Restore Enterprise0").scan("Enterprise0")
    assert play.ports("Enterprise0") == ({22, 443} if on else {22})


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("host", ["User3", "User4"])
def test_haraka_breaks_on_restore(game, on, host):
    play = game(only("haraka_breaks_on_restore", on)).scan(host).exploit(host, "HarakaRCE")
    assert play.red_succeeded
    play.turn(f"Restore {host}").exploit(host, "HarakaRCE")
    assert play.red_succeeded is not on
    assert play.activity(host) == ("scan" if on else "exploit")
    assert play.exploit(host, "HTTPRFI").red_succeeded


def test_other_exploits_work_after_a_restore(game):
    play = game(ON).scan("User2").turn("Restore User2").exploit("User2", "EternalBlue")
    assert play.red_succeeded


def test_an_escalated_session_is_not_removable_and_remove_knows_the_last_shell(game) -> None:
    debugged = VERSIONS["debugged"]
    escalated = game(debugged).scan("User2").exploit("User2", "BlueKeep").escalate("User2")
    assert escalated.turn("Remove User2").blue_success == "F"
    again = game(debugged).scan("User3").exploit("User3", "HTTPSRFI").exploit("User3", "HarakaRCE")
    assert again.turn("Remove User3").blue_success == "F"  # the last shell that was detected has root
    older = game(debugged).scan("User3").exploit("User3", "HTTPSRFI").exploit("User3", "HTTPRFI").turn("Remove User3")
    assert (older.blue_success, older.access("User3")) == ("T", 1)  # the older session stays
    head = game().scan("User3").exploit("User3", "HTTPSRFI").exploit("User3", "HTTPRFI").turn("Remove User3")
    assert head.access("User3") == 0


def test_the_vsftpd_decoy_on_port_21_is_a_web_server(game) -> None:
    debugged = VERSIONS["debugged"]
    for quirks, activity in ((debugged, "none"), (replace(debugged, vsftpd_is_web_server=False), "scan")):
        attacked = game(quirks).turn("DecoyVsftpd Enterprise0").scan("Enterprise0")
        assert 21 in attacked.ports("Enterprise0")
        attacked.exploit("Enterprise0", "FTPDirectoryTraversal")
        assert attacked.activity("Enterprise0") == activity
        assert not attacked.red_succeeded
