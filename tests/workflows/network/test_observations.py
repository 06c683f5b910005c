"""Blue's 52 bits, and its features of the past, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_agents.workflows.network import HOST_NAMES, NetworkWorlds, action_id
from parallel_agents.workflows.network import scenario as sc
from parallel_agents.workflows.network.observations import (
    CHOICES,
    DECOY_PLACES,
    EXPLOIT_SEEN,
    HISTORY_SIZE,
    NO_ACTIVITY,
    ORDERED_SIZE,
    SCAN_SEEN,
    History,
    classify,
)
from parallel_agents.workflows.network.red import HostEvents

ONE, TWO, THREE = 0b1, 0b11, 0b111


@pytest.mark.parametrize(
    ("ports", "events", "shell", "decoy", "expected"),
    [
        (0, 0, False, False, NO_ACTIVITY),
        (0, 0, False, True, NO_ACTIVITY),  # only a decoy
        (ONE, 1, False, False, SCAN_SEEN),
        (ONE, 1, False, True, NO_ACTIVITY),  # the decoy hides a scan of one port …
        (TWO, 2, False, True, NO_ACTIVITY),  # … and of two
        (THREE, 3, False, True, SCAN_SEEN),
        (ONE, 2, False, False, SCAN_SEEN),  # a decoy was hit
        (ONE, 2, False, True, EXPLOIT_SEEN),  # a decoy was hit on a host that got another: three events, one port
        (ONE, 10, False, False, EXPLOIT_SEEN),
        (ONE, 2, True, False, EXPLOIT_SEEN),
        (ONE, 2, True, True, EXPLOIT_SEEN),
        (TWO, 3, False, False, SCAN_SEEN),
        (TWO, 3, True, False, SCAN_SEEN),  # three ports with the shell's own: the exploit is misread
    ],
)
def test_how_events_of_a_turn_are_classified(ports, events, shell, decoy, expected):
    assert classify(HostEvents(ports, events, shell), decoy, True) == expected


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
        play.take(user)
    play.take("Enterprise0").take("Op_Host0").take("Op_Host1").take("Op_Server0")
    assert play.reward == -2.4
    assert play.turn("Restore User3", red="Impact:Op_Server0").reward == -13.4


BLOCKS = ("active_ever", "count", "activity", "exploit", "Analyse", "Remove", "Restore", "restored_ever")


def column(row: np.ndarray, block: str, host: str) -> float:
    return float(row[52 + 13 * BLOCKS.index(block) + HOST_NAMES.index(host)])


def standing(row: np.ndarray) -> set[tuple[str, str]]:
    marks = row[52 + 13 * len(BLOCKS) : -1]
    return {(HOST_NAMES[h], sc.DECOYS[d].name) for (h, d), mark in zip(DECOY_PLACES, marks, strict=True) if mark}


@pytest.fixture
def history() -> History:
    return History(1, NetworkWorlds(1).rules)


def bits(**hosts: str) -> np.ndarray:
    row = np.zeros((1, 52), np.uint8)
    for host, four in hosts.items():
        at = 4 * HOST_NAMES.index(host)
        row[0, at : at + 4] = [int(b) for b in four]
    return row


def test_decoy_places_are_those_that_a_fresh_host_accepts() -> None:
    per_host = {host: sum(h == i for h, _ in DECOY_PLACES) for i, host in enumerate(HOST_NAMES)}
    assert per_host["Enterprise0"] == per_host["Op_Server0"] == per_host["User1"] == per_host["User2"] == 4
    assert per_host["Enterprise1"] == per_host["User4"] == 1
    assert per_host["User3"] == 2


def test_features_at_the_start_are_zero_except_the_turn(history: History) -> None:
    row = history.reset(bits())
    assert row.shape == (1, HISTORY_SIZE)
    assert not row.any()
    assert history.update(np.array([0]), bits())[0, -1] == pytest.approx(0.01)


def test_activity_is_counted_and_its_trace_fades(history: History) -> None:
    history.reset(bits())
    sleep = np.zeros(1, np.int64)
    features = history.update(sleep, bits(User1="1000"))[0]
    assert column(features, "active_ever", "User1") == column(features, "activity", "User1") == 1.0
    assert column(features, "exploit", "User1") == 0.0
    features = history.update(sleep, bits(User1="1101"))[0]
    assert column(features, "count", "User1") == pytest.approx(0.2)
    assert column(features, "exploit", "User1") == 1.0
    features = history.update(sleep, bits(User1="0001"))[0]
    assert column(features, "exploit", "User1") == pytest.approx(0.8)
    assert column(features, "active_ever", "User1") == 1.0
    assert column(features, "active_ever", "User2") == 0.0
    assert features[-1] == pytest.approx(0.03)


def test_blue_actions_leave_traces(history: History) -> None:
    history.reset(bits())
    for block in ("Analyse", "Remove", "Restore"):
        features = history.update(np.array([action_id(block, "Op_Host1")]), bits())[0]
        assert column(features, block, "Op_Host1") == 1.0
    assert column(features, "Analyse", "Op_Host1") == pytest.approx(0.64)
    assert column(features, "restored_ever", "Op_Host1") == 1.0


def test_decoys_stand_where_they_fit_until_a_restore(history: History) -> None:
    history.reset(bits())
    for decoy in ("DecoyVsftpd", "DecoyApache", "DecoyFemitter"):  # Vsftpd takes port 80, Femitter is for Windows
        features = history.update(np.array([action_id(decoy, "Enterprise0")]), bits())[0]
    assert standing(features) == {("Enterprise0", "DecoyVsftpd")}
    features = history.update(np.array([action_id("DecoyFemitter", "Enterprise1")]), bits())[0]
    assert standing(features) == {("Enterprise0", "DecoyVsftpd"), ("Enterprise1", "DecoyFemitter")}
    features = history.update(np.array([action_id("Restore", "Enterprise0")]), bits())[0]
    assert standing(features) == {("Enterprise1", "DecoyFemitter")}


def test_decoys_in_the_history_agree_with_the_true_state_over_random_play() -> None:
    """The history never reads the true state."""
    worlds = NetworkWorlds(30, red="Meander")
    history = History(30, worlds.rules)
    history.reset(worlds.reset(0))
    draws = np.random.default_rng(0)
    for _ in range(100):
        actions = draws.integers(0, 145, 30)
        features = history.update(actions, worlds.step(actions)[0])
        np.testing.assert_array_equal(history.records["decoys"], worlds.state["decoys"])
    assert features[:, 156:-1].any()


def test_a_defender_in_an_order_reads_which_hosts_were_active_since_their_last_restore() -> None:
    history = History(1, NetworkWorlds(1).rules, ORDERED_SIZE)
    history.reset(bits())
    user1 = HOST_NAMES.index("User1")
    restore = np.array([action_id("Restore", "User1")])
    column = [
        history.update(action, observed)[0, HISTORY_SIZE + user1]
        for action, observed in (
            (np.array([0]), bits(User1="1000")), (np.array([0]), bits()), (restore, bits()),
            (restore, bits(User1="1101")),
        )
    ]  # fmt: skip
    assert column == [1.0, 1.0, 0.0, 1.0]  # an attack after the Restore of the same turn counts


def test_a_choice_of_a_decoy_places_the_next_one_that_fits_then_nothing(history: History) -> None:
    bits = np.zeros((1, 52), np.uint8)
    history.reset(bits)

    def resolve(name: str) -> str:
        actions = history.actions(np.array([CHOICES.index(name)]), len(CHOICES))
        history.update(actions, bits)
        return sc.ACTION_NAMES[actions[0]]

    expected = ["DecoyHarakaSMPT Op_Server0", "DecoyTomcat Op_Server0", "DecoyApache Op_Server0", "Sleep"]
    assert [resolve("Decoy Op_Server0") for _ in range(4)] == expected
    assert [resolve("Decoy Enterprise1") for _ in range(2)] == ["DecoyFemitter Enterprise1", "Sleep"]
    assert resolve("Restore Op_Server0") == "Restore Op_Server0"
    assert resolve("Decoy Op_Server0") == expected[0]


def test_choices_name_actions_and_every_host_that_red_can_take() -> None:
    plain = [name for name in CHOICES if not name.startswith("Decoy ")]
    assert len(CHOICES) == 45
    assert set(plain) <= set(sc.ACTION_NAMES)
    for host in set(HOST_NAMES) - {"Defender", "User0"}:
        assert {f"{block} {host}" for block in ("Analyse", "Remove", "Restore")} <= set(plain)
    history, every = History(145, NetworkWorlds(1).rules), np.arange(145)
    np.testing.assert_array_equal(history.actions(every, 145), every)
