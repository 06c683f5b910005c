"""`parallel-agents workflow …`: every command once, with a small budget."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parallel_agents.workflows.network import ACTION_NAMES, HOST_NAMES
from parallel_agents.workflows.orders import ORDERS

Command = Callable[..., Any]
ORDER = "op_server,enterprise,op_host,user,defender"


def recording(path: Path, reward: float) -> Path:
    """Write an episode of two turns in which nothing happens."""
    episode = {
        "seed": 0, "red": "SleepAgent", "blue": "sleep", "steps": 2, "obs0": "0" * 52, "a": [0, 0],
        "obs": ["0" * 52] * 2, "r": [0.0, reward], "blue_success": "UU", "red_action": ["Sleep", "Sleep"],
        "red_success": "UU", "exploit": [None, None], "detected": "00",
        "access": ["0" * 8 + "2" + "0" * 4] * 2, "ot_running": "11", "return": reward,
    }  # fmt: skip
    header = {"header": True, "hosts": HOST_NAMES, "actions": ACTION_NAMES}
    path.write_bytes(gzip.compress("\n".join(json.dumps(line) for line in (header, episode)).encode()))
    return path


def test_replay_counts_the_turns_that_differ(command: Command, tmp_path: Path) -> None:
    same = command("workflow", "replay", str(recording(tmp_path / "same.jsonl.gz", 0.0)), "--json")
    assert same.json == {"episodes": 1, "steps": 2, "mismatches": 0, "first_mismatch": None}, same.err
    other = command("workflow", "replay", str(recording(tmp_path / "other.jsonl.gz", -1.0)), "--json", "--quiet")
    assert other.json["mismatches"] == 1
    assert other.json["first_mismatch"]["step"] == 2


def test_a_defender_is_trained_and_scored(command: Command, tmp_path: Path) -> None:
    out = str(tmp_path / "defender")
    small = ("--set", "experiment.max_turns=10", "--set", "model.hidden=[8]")
    trained = command(
        "workflow", "train", "--epochs", "2", "--worlds", "4", "--version", "leaderboard", *small, "--out", out,
        "--json", "--quiet",
    )  # fmt: skip
    assert trained.code == 0, trained.err
    assert trained.json["config"]["world"]["version"] == "leaderboard"
    animation = tmp_path / "episode.gif"
    scored = command("workflow", "evaluate", out, "--episodes", "4", "--animation", str(animation), "--json", "--quiet")
    assert scored.code == 0, scored.err
    assert len(scored.json["variants"]) == 4
    assert scored.json["total"] == scored.json["variants"]["leaderboard"]["total"]
    assert animation.read_bytes()[:3] == b"GIF"
    table = command("workflow", "evaluate", out, "--episodes", "4")
    assert "leaderboard" in table.out
    refused = command("workflow", "evaluate", out, "--order", ORDER)
    assert refused.code == 2
    assert "was not trained on an order" in refused.err


def test_scripted_defenders_are_scored(command: Command) -> None:
    scored = command("workflow", "evaluate", "op_once", "--episodes", "20", "--json", "--quiet")
    assert scored.json["variants"]["head"]["means"]["Sleep"] == [-1.0, -1.0, -1.0]
    on, off = (scored.json["variants"][name]["total"] for name in ("head", "head, service stays killable"))
    assert on > off + 500  # what one quirk is worth


def test_a_defender_of_all_orders_is_evaluated_under_one(command: Command, tmp_path: Path) -> None:
    out = str(tmp_path / "all")
    trained = command("workflow", "train", "--order", "all", "--epochs", "1", "--worlds", "2", "--out", out, "--json")
    assert trained.code == 0, trained.err
    assert "episode 1/1" in trained.err
    without_order = command("workflow", "evaluate", out, "--episodes", "3")
    assert without_order.code == 2
    assert "say with --order" in without_order.err
    scored = command("workflow", "evaluate", out, "--episodes", "3", "--order", ORDER, "--json")
    assert scored.json["order"] == ORDER.split(",")
    assert 0.0 <= scored.json["compliance"] <= 1.0


def test_a_search_writes_pictures_and_is_resumed(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "search"
    words = ("workflow", "search", "--envs", "2", "--episodes", "1", "--out", str(out), "--plots", "--json")
    first = command(*words, "--workflows", "1")
    assert first.code == 0, first.err
    assert "workflow 1/1" in first.err
    assert (out / "training.png").read_bytes()[1:4] == b"PNG"
    assert (out / "posterior.png").read_bytes()[1:4] == b"PNG"
    more = command(*words, "--workflows", "2", "--quiet")
    assert len(more.json["results"]) == 2
    assert more.json["results"][0] == first.json["results"][0]


def test_the_landscape_ranks_all_orders(command: Command) -> None:
    ended = command("workflow", "landscape", "--episodes", "4", "--json", "--quiet")
    means = [one["mean"] for one in ended.json["orders"]]
    assert len(means) == len(ORDERS)
    assert means == sorted(means, reverse=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "--order", "user,enterprise"), "missing: defender, op_server, op_host"),
        (("train", "--order", ORDER.replace("user", "op_host")), "repeated: op_host"),
        (("train", "--order", "all", "--set", "model.lr=1"), "--set is for the configuration"),
        (("train", "--alignment", "3"), "--alignment needs a defender that is trained on an order"),
        (("search", "--envs", "0"), "n_envs is 0"),
        (("evaluate", "nowhere"), "is not a run folder"),
        (("landscape", "--episodes", "1"), "at least two are needed"),
        (("replay", "nowhere.jsonl.gz"), "there is no such file"),
    ],
)
def test_wrong_options_end_with_exit_code_2(command: Command, words: tuple[str, ...], message: str) -> None:
    ended = command("workflow", *words)
    assert ended.code == 2
    assert message in ended.err
