from __future__ import annotations

import pytest

from parallel_agents.workflows.network import tables as t
from parallel_agents.workflows.network.attack import choose_exploit
from parallel_agents.workflows.network.engine import EXPLOIT_REFUSED

OUTCOMES = [
    ("User0", "FTPDirectoryTraversal", "priv"), ("User0", "SSHBruteForce", "ssh"),
    ("User1", "FTPDirectoryTraversal", "priv"), ("User1", "SSHBruteForce", "ssh"),
    ("User2", "EternalBlue", "priv"), ("User2", "BlueKeep", "user"),
    ("User3", "HarakaRCE", "priv"), ("User3", "HTTPSRFI", "user"), ("User3", "HTTPRFI", "user"),
    ("User3", "BlueKeep", "nothing"),
    ("User4", "HarakaRCE", "priv"), ("User4", "SQLInjection", "priv"), ("User4", "HTTPSRFI", "user"),
    ("User4", "HTTPRFI", "user"), ("User4", "SSHBruteForce", "ssh"),
    ("Enterprise0", "SSHBruteForce", "ssh"),
    ("Enterprise1", "HTTPSRFI", "user"), ("Enterprise1", "HTTPRFI", "user"), ("Enterprise1", "BlueKeep", "priv"),
    ("Enterprise1", "SSHBruteForce", "ssh"), ("Enterprise1", "EternalBlue", "nothing"),
    ("Enterprise2", "EternalBlue", "nothing"), ("Enterprise2", "BlueKeep", "priv"),
    ("Defender", "SSHBruteForce", "refused"),
]  # fmt: skip


@pytest.mark.parametrize(("host", "exploit", "outcome"), OUTCOMES)
@pytest.mark.parametrize("detected", [True, False])
def test_what_each_exploit_achieves(game, host, exploit, outcome, detected):
    play = game().scan(host).exploit(host, exploit, detected=detected)
    access = 2 if outcome == "priv" or host == "User0" else 1 if outcome in ("user", "ssh") else 0
    shell_seen = detected and outcome in ("priv", "user")
    seen = {"ssh": "exploit", "refused": "exploit", "nothing": "none"}.get(outcome, "exploit" if shell_seen else "scan")
    assert play.access(host) == access
    assert play.activity(host) == seen
    assert play.red_worked == (outcome in ("priv", "user", "ssh"))
    assert play.memory(host) == ("user" if seen == "exploit" else "no")
    has_malware = play.turn(f"Analyse {host}").memory(host) == "privileged"
    assert has_malware == (outcome in ("priv", "user"))


@pytest.mark.parametrize("host", ["Op_Host0", "Op_Host1", "Op_Host2", "Op_Server0"])
def test_operational_hosts_answer_only_through_the_enterprise_subnet(game, host):
    play = game().scan(host)
    assert play.red_worked
    assert (play.ports(host), play.activity(host)) == (set(), "none")
    play.own("Enterprise0").scan(host)
    assert (play.ports(host), play.activity(host)) == ({22}, "scan")
    assert play.exploit(host, "SSHBruteForce", blue="Restore Enterprise0").red_worked is False
    play.own("Enterprise0")
    assert play.exploit(host, "SSHBruteForce").red_worked
    assert play.access(host) == 1


def test_a_sweep_of_the_operational_subnet_needs_a_route(game):
    play = game()
    assert not play.turn(red="DiscoverRemoteSystems:Operational").red_worked
    assert play.turn(red="DiscoverRemoteSystems:Enterprise").red_worked
    play.own("Enterprise0")
    assert play.turn(red="DiscoverRemoteSystems:Operational").red_worked


def test_an_exploit_without_a_scan_is_refused(game):
    play = game().exploit("User1", "SSHBruteForce")
    assert (play.red_worked, play.activity("User1"), play.access("User1")) == (False, "none", 0)


def test_an_exploit_outside_the_remembered_ports_is_not_admitted(game):
    assert game().scan("User1").exploit("User1", "HTTPRFI").verdict == EXPLOIT_REFUSED
    assert game().scan("User3").exploit("User3", "SQLInjection").verdict == EXPLOIT_REFUSED
    assert game().scan("User4").exploit("User4", "SQLInjection").verdict != EXPLOIT_REFUSED


@pytest.mark.parametrize(("others", "works"), [((), False), ((80,), True), ((443,), True), ((22,), False)])
def test_the_database_is_injected_through_a_web_server(game, others, works):
    play = game().scan("User4")
    play.state["known_ports"][0, t.USER4] = t.port_mask(3390, *others)
    play.exploit("User4", "SQLInjection")
    assert (play.verdict != EXPLOIT_REFUSED and play.red_worked) == works


DECOY_HITS = [
    ("User1", "DecoyApache", "HTTPRFI"), ("User2", "DecoyFemitter", "FTPDirectoryTraversal"),
    ("Enterprise0", "DecoyHarakaSMPT", "HarakaRCE"), ("User1", "DecoySmss", "EternalBlue"),
    ("User1", "DecoySvchost", "BlueKeep"), ("Enterprise0", "DecoyTomcat", "HTTPSRFI"),
    ("Enterprise0", "DecoyVsftpd", "HTTPRFI"),
]  # fmt: skip


@pytest.mark.parametrize(("host", "decoy", "exploit"), DECOY_HITS)
def test_a_decoy_defeats_its_exploit_and_looks_like_a_scan(game, host, decoy, exploit):
    play = game().turn(f"{decoy} {host}").scan(host).exploit(host, exploit)
    assert (play.red_worked, play.access(host), play.activity(host)) == (False, 0, "scan")


def test_an_ssh_decoy_looks_like_an_exploit(game):
    play = game().turn("DecoySSHD User2").scan("User2").exploit("User2", "SSHBruteForce")
    assert (play.red_worked, play.access("User2"), play.activity("User2")) == (False, 0, "exploit")


def test_a_remembered_decoy_that_is_gone_fails_in_silence(game):
    play = game().turn("DecoyTomcat Enterprise0").scan("Enterprise0")
    play.exploit("Enterprise0", "HTTPSRFI", blue="Restore Enterprise0")
    assert (play.red_worked, play.activity("Enterprise0")) == (False, "none")


def test_a_real_web_server_answers_before_a_vsftpd_decoy(game):
    play = game().turn("DecoyVsftpd User4").scan("User4").exploit("User4", "HTTPRFI")
    assert play.red_worked


def test_escalation(game):
    play = game().escalate("User1")
    assert not play.red_worked
    play.scan("User1").exploit("User1", "SSHBruteForce").escalate("User1")
    assert (play.red_worked, play.access("User1"), play.reward) == (True, 2, -0.1)
    assert play.activity("User1") == "none"
    assert play.turn("Analyse User1").memory("User1") == "privileged"


def test_escalating_where_red_is_privileged_leaves_no_malware(game):
    play = game().escalate("User0")
    assert play.red_worked
    assert play.turn("Analyse User0").memory("User0") == "no"


def test_impact_needs_a_session_and_one_escalation_and_lasts(game):
    play = game().own("Enterprise0").scan("Op_Server0").exploit("Op_Server0", "SSHBruteForce")
    play.turn(red="Impact:Op_Server0")
    assert (play.red_worked, play.service) == (False, True)
    play.escalate("Op_Server0").turn(red="Impact:Op_Server0")
    assert (play.red_worked, play.service, play.reward) == (True, False, -12.0)
    assert play.turn().reward == -12.0
    assert play.turn("Restore Op_Server0").reward == -2.0
    assert play.service
    assert not play.turn(red="Impact:Op_Server0").red_worked


def test_the_favourite_exploit_is_taken_three_times_out_of_four():
    options = 0b10110
    taken = [choose_exploit(options, u / 1000) for u in range(1000)]
    assert [taken.count(x) for x in range(5)] == [0, 750, 125, 0, 125]
    assert choose_exploit(0b1000, 0.99) == 3
    assert choose_exploit(0, 0.5) == -1
