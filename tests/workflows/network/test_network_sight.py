from __future__ import annotations

import numpy as np
import pytest

from parallel_agents.workflows.network.sight import ATTACKED, QUIET, SCANNED, classify

ONE, TWO, THREE = 0b1, 0b11, 0b111


@pytest.mark.parametrize(
    ("ports", "events", "shell", "decoy", "expected"),
    [
        (0, 0, False, False, QUIET),
        (0, 0, False, True, QUIET),  # only a decoy
        (ONE, 1, False, False, SCANNED),
        (ONE, 1, False, True, QUIET),  # the decoy hides a scan of one port …
        (TWO, 2, False, True, QUIET),  # … and of two
        (THREE, 3, False, True, SCANNED),
        (ONE, 2, False, False, SCANNED),  # a decoy was hit
        (ONE, 2, False, True, ATTACKED),  # a decoy was hit on a host that got another: three events, one port
        (ONE, 10, False, False, ATTACKED),
        (ONE, 2, True, False, ATTACKED),
        (ONE, 2, True, True, ATTACKED),
        (TWO, 3, False, False, SCANNED),
        (TWO, 3, True, False, SCANNED),  # three ports with the shell's own: the exploit is misread
    ],
)
def test_how_events_read(ports, events, shell, decoy, expected):
    assert classify(ports, events, shell, decoy, True) == expected


def test_placing_a_decoy_hides_the_scan_of_that_host_only(game):
    play = game().scan("Enterprise0", blue="DecoyTomcat Enterprise0")
    assert play.activity("Enterprise0") == "none"
    assert play.ports("Enterprise0") == {22, 443}
    assert game().scan("Enterprise0", blue="DecoyTomcat User1").activity("Enterprise0") == "scan"
    assert game().scan("User1", blue="DecoyTomcat User1").activity("User1") == "scan"  # three ports


def test_a_failed_decoy_hides_nothing(game):
    assert game().scan("Enterprise0", blue="DecoySSHD Enterprise0").activity("Enterprise0") == "scan"


def test_activity_lasts_one_turn_and_memory_stays(game):
    play = game().scan("User1").exploit("User1", "SSHBruteForce")
    assert (play.activity("User1"), play.memory("User1")) == ("exploit", "user")
    play.turn()
    assert (play.activity("User1"), play.memory("User1")) == ("none", "user")


def test_an_exploit_seen_lowers_a_privileged_memory_to_user(game):
    play = game().scan("User1").exploit("User1", "FTPDirectoryTraversal").turn("Analyse User1")
    assert play.memory("User1") == "privileged"
    assert play.exploit("User1", "SSHBruteForce").memory("User1") == "user"
    assert play.exploit("User1", "SSHBruteForce", blue="Analyse User1").memory("User1") == "privileged"


def test_four_bits_a_host_in_the_order_of_hosts(game):
    play = game().scan("Enterprise0").exploit("Enterprise0", "SSHBruteForce")
    assert np.flatnonzero(play.bits).tolist() == [4, 5, 7]


def test_rewards_are_exact_tenths(game):
    play = game()
    for user in ("User1", "User4"):
        play.own(user)
    play.own("Enterprise0").own("Op_Host0").own("Op_Host1").own("Op_Server0")
    assert play.reward == -2.4
    assert play.turn("Restore User3", red="Impact:Op_Server0").reward == -13.4
