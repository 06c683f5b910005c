"""Recordings written by the test, intact, changed and broken; and the real ones if they are beside the checkout."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parallel_agents.core.errors import ConfigError
from parallel_agents.workflows import recordings as module
from parallel_agents.workflows.network import ACTION_NAMES, HOST_NAMES, Quirks, action_id
from parallel_agents.workflows.recordings import read_recordings, replay

HEADER = {"header": True, "hosts": list(HOST_NAMES), "actions": list(ACTION_NAMES)}
NO_BITS = "0" * 52


def bits(**marks: str) -> str:
    """52 bits from a host's four."""
    return "".join(marks.get(host, "0000") for host in HOST_NAMES)


def access(**marks: str) -> str:
    return "".join(marks.get(host, "2" if host == "User0" else "0") for host in HOST_NAMES)


@pytest.fixture
def episode() -> dict[str, Any]:
    """Five turns of B_line, worked out from the rules on paper."""
    return {
        "seed": 7, "red": "B_lineAgent", "blue": "hand", "steps": 5, "obs0": NO_BITS,
        # Analyse comes before the exploit and sees nothing; Remove ends the session before red can escalate, so
        # that red exploits again; Restore comes before that exploit and costs one.
        "a": [action_id("Sleep"), action_id("Monitor"), *(action_id(b, "User3") for b in ("Analyse", "Remove", "Restore"))],
        "red_action": [
            "DiscoverRemoteSystems:User", "DiscoverNetworkServices:User3", "ExploitRemoteService:User3",
            "PrivilegeEscalate:User3", "ExploitRemoteService:User3",
        ],
        "exploit": [None, None, "HTTPSRFI", None, "HarakaRCE"],
        "detected": "00101",
        "obs": [NO_BITS, bits(User3="1000"), bits(User3="1101"), bits(User3="0010"), bits(User3="1101")],
        "r": [0.0, 0.0, 0.0, 0.0, -1.1],
        "blue_success": "UTTTT",
        "red_success": "TTTFT",
        "access": [access(), access(), access(User3="1"), access(), access(User3="2")],
        "ot_running": "11111",
        "return": -1.1,
    }  # fmt: skip


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(*lines: Any, name: str = "episodes.jsonl.gz") -> Path:
        path = tmp_path / name
        with gzip.open(path, "wt") as stream:
            stream.writelines(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
        return path

    return write


def test_an_episode_worked_out_by_hand_is_reproduced(write, episode):
    result = replay(write(HEADER, episode, episode))
    assert result == {"episodes": 2, "steps": 10, "mismatches": 0, "first_mismatch": None}


CHANGED = [
    ("obs", 2, bits(User3="1001"), "observation"),
    ("r", 4, -1.2, "reward"),
    ("r", 0, 1e-9, "reward"),
    ("blue_success", 0, "T", "blue_success"),
    ("red_success", 3, "T", "red_success"),
    ("access", 2, access(User3="2"), "access"),
    ("ot_running", 1, "0", "ot_running"),
    ("red_action", 1, "DiscoverNetworkServices:Enterprise0", "red_policy"),
    ("red_action", 1, "Sleep", "red_policy"),
    ("exploit", 2, "SQLInjection", "red_policy"),
    ("exploit", 2, None, "red_policy"),
    ("detected", 2, "0", "observation"),
    ("a", 4, 0, "reward"),
]


@pytest.mark.parametrize(("field", "turn", "value", "quantity"), CHANGED)
def test_a_change_of_any_quantity_is_reported(write, episode, field, turn, value, quantity):
    column = list(episode[field])
    column[turn] = value
    episode[field] = "".join(column) if isinstance(episode[field], str) else column
    result = replay(write(HEADER, episode))
    assert result["mismatches"] >= 1
    first = result["first_mismatch"]
    assert (first["episode"], first["seed"], first["step"]) == (0, 7, turn + 1)
    assert quantity in first["differs"]
    json.dumps(result)


def test_a_change_of_the_first_observation_is_reported(write, episode):
    episode["obs0"] = bits(User1="1000")
    result = replay(write(HEADER, episode))
    assert result["mismatches"] == 1
    assert result["first_mismatch"]["step"] == 0


def test_a_stale_exploit_of_a_refused_attempt_is_ignored(write, episode):
    result = episode | {
        "red": "RedMeanderAgent",
        "steps": 1,
        "a": [0],
        "obs": [NO_BITS],
        "r": [0.0],
        "blue_success": "U",
    }
    result |= {"red_action": ["ExploitRemoteService:User3"], "red_success": "F", "exploit": ["HTTPRFI"]}
    result |= {"detected": "0", "access": [access()], "ot_running": "1"}
    differs = replay(write(HEADER, result))["first_mismatch"]["differs"]
    assert set(differs) == {"red_policy"}  # Meander would have swept first; nothing else happened


def test_greens_scans_are_honoured(write, episode):
    """Two scans by green: one of its own, and one of the host that red attacks in the same turn."""
    episode["green"] = ["Sleep", "GreenPortScan:User1", "GreenPortScan:User3", "Sleep", "Sleep"]
    scanned = replay(write(HEADER, episode))
    assert scanned["mismatches"] == 3
    assert scanned["first_mismatch"]["differs"]["observation"]["replayed"] == bits(User1="1000", User3="1000")
    # A scan hides the shell, so that nothing is remembered of it.
    episode["obs"][1:4] = [bits(User1="1000", User3="1000"), bits(User3="1000"), NO_BITS]
    assert replay(write(HEADER, episode))["mismatches"] == 0
    for name in ("GreenPortScan:Printer", "Dance"):
        with pytest.raises(ConfigError, match="is neither Sleep nor GreenPortScan of a known host"):
            replay(write(HEADER, episode | {"green": [name] * 5}))


def test_quirks_may_be_given_instead_of_a_version(write, episode):
    result = replay(write(HEADER, episode), quirks=Quirks(user_sessions_are_free=False))
    assert result["first_mismatch"]["differs"] == {"reward": {"recorded": 0.0, "replayed": -0.1}}


def test_the_recordings_are_reproduced_without_one_mismatch(recordings):
    for version, path in recordings.items():
        result = replay(path, version)
        assert result["mismatches"] == 0, result["first_mismatch"]
        assert result["episodes"] > 0
    assert replay(recordings["leaderboard"], "head")["mismatches"] > 0
    assert replay(recordings["head"], "leaderboard")["mismatches"] > 0
    assert replay(recordings["debugged"], "head")["mismatches"] > 0


BROKEN = [
    ({"steps": 4}, "a is not a list of 4 entries"),
    ({"steps": "5"}, "steps is '5', not a number of turns"),
    ({"red": "Blotto"}, "red agent 'Blotto' is unknown"),
    ({"red": ["B_lineAgent"]}, "unhashable type"),
    ({"a": [0, 0, 0, 0, 145]}, "blue action 145 is not one of 0 to 144"),
    ({"a": [0, 0, 0, 0, 1.0]}, "blue action 1.0 is not"),
    ({"a": [0, 0, 0, 0, True]}, "blue action True is not"),
    ({"obs": [NO_BITS] * 4 + ["01"]}, "'01' is not a text of 52 characters out of '01'"),
    ({"obs0": NO_BITS[:-1] + "2"}, "is not a text of 52 characters"),
    ({"blue_success": "TTTTX"}, "blue_success: 'TTTTX' is not a text of 5 characters out of 'FTU'"),
    ({"detected": None}, "detected: 'None' is not a text"),
    ({"red_action": ["Sleep"] * 4 + ["Impact:Op_Server9"]}, "red action 'Impact:Op_Server9' is not a known action"),
    ({"red_action": ["Sleep"] * 4 + ["Dance:User1"]}, "red action 'Dance:User1' is not a known action"),
    ({"exploit": [None] * 4 + ["Heartbleed"]}, "exploit 'Heartbleed' is unknown"),
    ({"exploit": [None] * 4 + [[]]}, "exploit .* is unknown"),
    ({"access": ["0" * 13] * 4 + ["3" * 13]}, "is not a text of 13 characters out of '012'"),
    ({"r": [0.0] * 4 + ["much"]}, "could not convert string to float"),
    ({"seed": "seven"}, "invalid literal for int"),
]


@pytest.mark.parametrize(("change", "message"), BROKEN)
def test_a_broken_episode_is_refused_with_its_line_number(write, episode, change, message):
    with pytest.raises(ConfigError, match=f"line 2: this is no recorded episode: .*{message}"):
        replay(write(HEADER, episode | change))


def test_a_missing_field_is_named(write, episode):
    del episode["access"]
    with pytest.raises(ConfigError, match="line 2: this is no recorded episode: has no field 'access'"):
        replay(write(HEADER, episode))


def test_a_file_must_begin_with_the_scenarios_header(write, episode):
    with pytest.raises(ConfigError, match="line 1: a recording begins with a header line"):
        replay(write(episode))
    with pytest.raises(ConfigError, match="line 1: a recording begins with a header line"):
        replay(write())
    hosts = HEADER | {"hosts": [*HOST_NAMES[:-1], "User9"]}
    with pytest.raises(ConfigError, match="the header's hosts are not those of Scenario 2"):
        replay(write(hosts, episode))


def test_what_is_not_gzipped_json_lines_is_refused(write, episode, tmp_path):
    plain = tmp_path / "plain.jsonl.gz"
    plain.write_text(json.dumps(HEADER))
    with pytest.raises(ConfigError, match="this is not a whole gzip file"):
        replay(plain)
    whole = write(HEADER, episode)
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(whole.read_bytes()[:-20])
    with pytest.raises(ConfigError, match="this is not a whole gzip file"):
        replay(cut)
    with pytest.raises(ConfigError, match="line 2: this is not JSON"):
        replay(write(HEADER, "{no json}\n"))
    with pytest.raises(ConfigError, match="line 2: found list, not a JSON object"):
        replay(write(HEADER, [1, 2]))
    with pytest.raises(ConfigError, match="there is no such file"):
        replay(tmp_path / "absent.jsonl.gz")


def test_sizes_are_checked_before_anything_is_read(write, episode, monkeypatch):
    path = write(HEADER, episode)
    monkeypatch.setattr(module, "MAX_FILE_BYTES", 10)
    with pytest.raises(ConfigError, match="more than 10: split it"):
        next(read_recordings(path))
    monkeypatch.undo()
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 3000)
    with pytest.raises(ConfigError, match="line 1: a line may have 3000 bytes"):
        next(read_recordings(path))
    monkeypatch.undo()
    monkeypatch.setattr(module, "MAX_UNPACKED_BYTES", 4000)
    with pytest.raises(ConfigError, match=r"line 2: a line may have .* and a file 4000 unpacked"):
        list(read_recordings(path))
