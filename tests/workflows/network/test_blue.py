"""What blue's actions do."""

from __future__ import annotations

import pytest

from parallel_agents.workflows.network import HOST_NAMES
from parallel_agents.workflows.network import scenario as sc

LINUX, WINDOWS, OFFICE = "Apache HarakaSMPT Tomcat Vsftpd", "Femitter", "Apache Smss Svchost Tomcat"
POSSIBLE = {
    "Defender": LINUX, "Enterprise0": LINUX, "Enterprise1": WINDOWS, "Enterprise2": WINDOWS,
    "Op_Host0": LINUX, "Op_Host1": LINUX, "Op_Host2": LINUX, "Op_Server0": LINUX,
    "User0": OFFICE, "User1": OFFICE, "User2": "Apache Femitter SSHD Tomcat", "User3": "SSHD Vsftpd", "User4": "Vsftpd",
}  # fmt: skip


@pytest.mark.parametrize("host", HOST_NAMES)
def test_decoys_that_a_fresh_host_accepts(game, host):
    taken = {d.name for d in sc.DECOYS if game().turn(f"{d.name} {host}").blue_success == "T"}
    assert taken == {f"Decoy{name}" for name in POSSIBLE[host].split()}


def test_a_decoy_takes_its_port_until_restore(game):
    play = game()
    assert play.turn("DecoyTomcat User1").blue_success == "T"
    assert play.turn("DecoyTomcat User1").blue_success == "F"
    play.turn("Restore User1")
    assert play.turn("DecoyTomcat User1").blue_success == "T"


def test_success_flags_of_actions_without_conditions(game):
    play = game()
    assert play.turn("Sleep").blue_success == "U"
    for action in ("Monitor", "Analyse User1", "Remove User1", "Restore User1"):
        assert play.turn(action).blue_success == "T"


def test_analyse_finds_malware_that_was_there_before_reds_move(game):
    play = game().scan("User4")
    play.exploit("User4", "HTTPRFI", blue="Analyse User4")
    assert play.memory("User4") == "user"
    assert play.turn("Analyse User4").memory("User4") == "privileged"


def test_malware_survives_remove_and_the_memory_becomes_unknown(game):
    play = game().scan("User4").exploit("User4", "HTTPRFI")
    assert play.access("User4") == 1
    play.turn("Remove User4")
    assert (play.access("User4"), play.memory("User4")) == (0, "unknown")
    assert play.turn("Analyse User4").memory("User4") == "privileged"


def test_remove_leaves_undetected_and_privileged_sessions(game):
    play = game().scan("User4").exploit("User4", "HTTPRFI", detected=False)
    assert play.turn("Remove User4").access("User4") == 1
    assert play.memory("User4") == "no"
    play.scan("User3").exploit("User3", "HarakaRCE")
    assert play.turn("Remove User3").access("User3") == 2


def test_restore_clears_all_and_costs_one(game):
    play = game().take("Enterprise0")
    assert play.reward == -1.0
    play.turn("Restore Enterprise0")
    assert (play.access("Enterprise0"), play.memory("Enterprise0"), play.reward) == (0, "no", -1.0)
    assert play.turn("Analyse Enterprise0").memory("Enterprise0") == "no"
    assert play.reward == 0.0


def test_reds_foothold_survives_restore(game):
    play = game().turn("Restore User0")
    assert (play.access("User0"), play.reward) == (2, -1.0)


def test_an_exploit_sets_the_memory_of_a_host_restored_in_the_same_turn(game):
    play = game().scan("User1").exploit("User1", "SSHBruteForce")
    play.exploit("User1", "SSHBruteForce", blue="Restore User1")
    assert (play.activity("User1"), play.memory("User1"), play.access("User1")) == ("exploit", "user", 1)
