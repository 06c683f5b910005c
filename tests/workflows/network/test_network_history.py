"""A defender's notes, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_agents.workflows.network import HOST_NAMES, NetworkWorlds, action_id
from parallel_agents.workflows.network import tables as t
from parallel_agents.workflows.network.history import DECOY_PLACES, HISTORY_SIZE, History

BLOCKS = ("touched", "touches", "touch", "attack", "Analyse", "Remove", "Restore", "restored")


def column(row: np.ndarray, block: str, host: str) -> float:
    return float(row[52 + 13 * BLOCKS.index(block) + HOST_NAMES.index(host)])


def standing(row: np.ndarray) -> set[tuple[str, str]]:
    marks = row[52 + 13 * len(BLOCKS) : -1]
    return {(HOST_NAMES[h], t.DECOYS[d].name) for (h, d), mark in zip(DECOY_PLACES, marks, strict=True) if mark}


@pytest.fixture
def notes() -> History:
    return History(1, NetworkWorlds(1).rules)


def bits(**hosts: str) -> np.ndarray:
    row = np.zeros((1, 52), np.uint8)
    for host, four in hosts.items():
        at = 4 * HOST_NAMES.index(host)
        row[0, at : at + 4] = [int(b) for b in four]
    return row


def test_there_are_as_many_places_for_decoys_as_the_tables_say() -> None:
    per_host = {host: sum(h == i for h, _ in DECOY_PLACES) for i, host in enumerate(HOST_NAMES)}
    assert per_host["Enterprise0"] == per_host["Op_Server0"] == per_host["User1"] == per_host["User2"] == 4
    assert per_host["Enterprise1"] == per_host["User4"] == 1
    assert per_host["User3"] == 2


def test_the_beginning_is_blank(notes: History) -> None:
    row = notes.begin(bits())
    assert row.shape == (1, HISTORY_SIZE)
    assert not row.any()
    assert notes.begin(bits(), turn=50)[0, -1] == pytest.approx(0.5)


def test_touches_are_counted_and_fade(notes: History) -> None:
    notes.begin(bits())
    sleep = np.zeros(1, np.int64)
    seen = notes.after(sleep, bits(User1="1000"))[0]
    assert column(seen, "touched", "User1") == column(seen, "touch", "User1") == 1.0
    assert column(seen, "attack", "User1") == 0.0
    seen = notes.after(sleep, bits(User1="1101"))[0]
    assert column(seen, "touches", "User1") == pytest.approx(0.2)
    assert column(seen, "attack", "User1") == 1.0
    seen = notes.after(sleep, bits(User1="0001"))[0]
    assert column(seen, "attack", "User1") == pytest.approx(0.8)
    assert column(seen, "touched", "User1") == 1.0
    assert column(seen, "touched", "User2") == 0.0
    assert seen[-1] == pytest.approx(0.03)


def test_own_actions_leave_traces(notes: History) -> None:
    notes.begin(bits())
    for block in ("Analyse", "Remove", "Restore"):
        seen = notes.after(np.array([action_id(block, "Op_Host1")]), bits())[0]
        assert column(seen, block, "Op_Host1") == 1.0
    assert column(seen, "Analyse", "Op_Host1") == pytest.approx(0.64)
    assert column(seen, "restored", "Op_Host1") == 1.0


def test_decoys_stand_where_they_fit_until_a_restore(notes: History) -> None:
    notes.begin(bits())
    for decoy in ("DecoyVsftpd", "DecoyApache", "DecoyFemitter"):  # Vsftpd takes port 80, Femitter is for Windows
        seen = notes.after(np.array([action_id(decoy, "Enterprise0")]), bits())[0]
    assert standing(seen) == {("Enterprise0", "DecoyVsftpd")}
    seen = notes.after(np.array([action_id("DecoyFemitter", "Enterprise1")]), bits())[0]
    assert standing(seen) == {("Enterprise0", "DecoyVsftpd"), ("Enterprise1", "DecoyFemitter")}
    seen = notes.after(np.array([action_id("Restore", "Enterprise0")]), bits())[0]
    assert standing(seen) == {("Enterprise1", "DecoyFemitter")}


def test_notes_agree_with_the_truth_over_random_play() -> None:
    """What the notes say of decoys is what the worlds hold, though they never look there."""
    worlds = NetworkWorlds(30, red="Meander")
    notes = History(30, worlds.rules)
    notes.begin(worlds.reset(0))
    draws = np.random.default_rng(0)
    for _ in range(100):
        actions = draws.integers(0, 145, 30)
        seen = notes.after(actions, worlds.step(actions)[0])
        np.testing.assert_array_equal(notes._notes["decoys"], worlds._state["decoys"])
    assert seen[:, 156:-1].any()
