"""`parallel-agents workflow …`: every command once, with a small budget."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parallel_agents.tracking.run_view import RunView
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


def shown(folder: Path) -> dict[str, list[str]]:
    """Return what the page and the report show of a folder: the titles of each section's panels."""
    view = RunView(folder)
    view.refresh()
    view.close()
    return {section["title"]: [panel["title"] for panel in section["panels"]] for section in view.sections()}


TRAINING = ["Compliance", "Compliance, documented measure", "Return"]


def test_replay_counts_the_turns_that_differ(command: Command, tmp_path: Path) -> None:
    same = command("workflow", "replay", str(recording(tmp_path / "same.jsonl.gz", 0.0)), "--json")
    assert same.json == {"version": "head", "episodes": 1, "steps": 2, "mismatches": 0, "first_mismatch": None}, (
        same.err
    )
    other = command("workflow", "replay", str(recording(tmp_path / "other.jsonl.gz", -1.0)), "--json", "--quiet")
    assert (same.code, other.code) == (0, 1)
    assert other.json["mismatches"] == 1
    assert other.json["first_mismatch"]["step"] == 2
    told = command("workflow", "replay", str(tmp_path / "other.jsonl.gz"), "--version", "debugged").out
    assert "1 mismatches with version debugged\n" in told
    assert told.endswith("give --version head or --version leaderboard\n")
    assert "--version" not in command("workflow", "replay", str(tmp_path / "same.jsonl.gz")).out


def test_a_defender_is_trained_and_scored(command: Command, tmp_path: Path) -> None:
    out = str(tmp_path / "defender")
    small = ("--set", "experiment.max_turns=10", "--set", "model.hidden=[8]")
    trained = command(
        "workflow", "train", "--epochs", "2", "--worlds", "4", "--version", "leaderboard", *small, "--out", out,
        "--json", "--quiet",
    )  # fmt: skip
    assert trained.code == 0, trained.err
    assert trained.json["config"]["world"]["version"] == "leaderboard"
    assert shown(Path(out))["The defended network"] == ["The network"]
    animation = tmp_path / "episode.gif"
    drawn = ("--animation", str(animation), "--steps", "12")
    scored = command("workflow", "evaluate", out, "--episodes", "4", *drawn, "--json", "--quiet")
    assert scored.code == 0, scored.err
    assert len(scored.json["variants"]) == 4
    assert scored.json["total"] == scored.json["variants"]["leaderboard"]["total"]
    assert animation.read_bytes()[:3] == b"GIF"
    table = command("workflow", "evaluate", out, "--episodes", "4")
    assert "leaderboard" in table.out
    judged = command("workflow", "evaluate", out, "--order", ORDER, "--episodes", "4", "--json")
    assert judged.json["learnt"] is False
    refused = command("eval", out, "--gif", "x.gif")
    assert refused.code == 2
    assert "workflow evaluate RUN --animation FILE.gif" in refused.err


def test_the_next_command_fits_a_run_without_an_order(command: Command, tmp_path: Path) -> None:
    small = ("--set", "experiment.max_turns=10", "--set", "model.hidden=[8]")
    trained = command("workflow", "train", "--epochs", "1", "--worlds", "2", *small, "--out", "plain", "--quiet")
    assert f"next: parallel-agents workflow evaluate {tmp_path / 'plain'}   or: " in trained.out
    refused = command("workflow", "train", "--resume", "plain")
    assert refused.code == 2
    assert "`parallel-agents resume plain`" in refused.err


def test_replicas_form_an_ensemble(command: Command, tmp_path: Path) -> None:
    out = str(tmp_path / "three")
    small = ("--set", "experiment.max_turns=10", "--set", "model.hidden=[8]", "--set", "world.turn_weights=true")
    words = ("workflow", "train", "--epochs", "1", "--worlds", "2", "--seeds", "3", *small, "--out", out, "--quiet")
    assert command(*words, "--json").code == 0
    together = command("workflow", "evaluate", out, "--episodes", "3", "--json", "--quiet")
    twice = command("workflow", "evaluate", out, out, "--episodes", "3", "--json", "--quiet")
    assert together.json["total"] == twice.json["total"]


def test_an_outside_agent_is_scored(command: Command, tmp_path: Path) -> None:
    """In the form of the challenge, from a module in the current folder."""
    (tmp_path / "visitors.py").write_text(
        "class Restorer:\n"
        "    def get_action(self, observation, action_space):\n"
        "        return 139 if observation.sum() else action_space - 145\n"
    )
    out = tmp_path / "table"
    words = ("--episodes", "4", "--out", str(out), "--timeline", "one.png", "--steps", "12", "--late-start", "4")
    scored = command("workflow", "evaluate", "visitors:Restorer", *words, "--json", "--quiet")
    assert scored.code == 0, scored.err
    stored = json.loads((out / "table.json").read_text())
    assert stored["variants"] == scored.json["variants"]
    assert "| leaderboard |" in (out / "table.md").read_text()
    assert (out / "table.png").read_bytes()[1:4] == (tmp_path / "one.png").read_bytes()[1:4] == b"PNG"
    assert shown(out)["Scores"] == ["Scores", "Mean return after 30, 50 and 100 turns"]
    unknown = command("workflow", "evaluate", "visitors:Restorers")
    assert "did you mean visitors:Restorer?" in unknown.err


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
    assert {"compliance", "documented", "mean_return", "script", "learnt"} <= scored.json.keys()
    mapped = command("workflow", "landscape", "--policy", out, "--episodes", "2", "--picture", "map.png", "--json")
    assert len(mapped.json["orders"]) == len(ORDERS)
    assert (tmp_path / "map.png").read_bytes()[1:4] == b"PNG"


def test_a_training_in_an_order_leaves_metrics_and_is_resumed(command: Command, tmp_path: Path) -> None:
    words = ("workflow", "train", "--order", ORDER, "--worlds", "2", "--clone", "1", "--json", "--quiet",
             "--set", "model.hidden=[8]", "--rule", "no_higher_compromised")  # fmt: skip
    whole = command(*words, "--epochs", "3", "--out", "whole")
    assert whole.code == 0, whole.err
    first = command(*words, "--epochs", "2", "--out", "parts", "--plots")
    for name in ("compliance", "documented", "returns"):
        assert (tmp_path / "parts" / f"{name}.png").read_bytes()[1:4] == b"PNG"
    assert shown(tmp_path / "whole")["Training on an order"] == TRAINING
    resumed = command("workflow", "train", "--resume", "parts", "--epochs", "3", "--json", "--quiet")
    assert resumed.code == 0, resumed.err
    assert (first.json["episodes"], resumed.json["episodes"]) == (2, 3)
    assert resumed.json["returns"] == whole.json["returns"]
    lines = [json.loads(line) for line in (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()]
    assert [line["return"] for line in lines] == whole.json["returns"]
    refused = command("resume", "parts")
    assert refused.code == 2
    assert f"`parallel-agents workflow train --resume {tmp_path / 'parts'}`" in refused.err


def test_a_search_writes_pictures_and_is_resumed(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "search"
    words = ("workflow", "search", "--envs", "2", "--episodes", "1", "--out", str(out), "--json")
    first = command(*words, "--workflows", "1", "--plots")
    assert first.code == 0, first.err
    assert "workflow 1/1" in first.err
    names = ("posterior", "compliance", "documented", "returns")
    assert first.json["pictures"] == [str(out / f"{name}.png") for name in names]
    assert all(Path(path).read_bytes()[1:4] == b"PNG" for path in first.json["pictures"])
    assert shown(out)["Search"] == ["Posterior over all orders", *TRAINING, "Orders tried"]
    more = command(*words, "--workflows", "2", "--quiet")
    assert len(more.json["results"]) == 2
    assert more.json["results"][0] == first.json["results"][0]
    (orders,) = [panel for panel in json.loads((out / "search.panels.json").read_text())["panels"] if "rows" in panel]
    assert len(orders["rows"]) == 2


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
        (("train", "--order", "all", "--set", "world.red=Sleep"), "with --order only values of model can be set"),
        (("train", "--order", "all", "--worlds", "0"), "--worlds is 0"),
        (("train", "--order", "all", "--epochs", "0"), "--epochs is 0"),
        (("train", "--worlds", "0"), "worlds"),
        (("train", "--rule", "fixed_types"), "--rule needs a defender that is trained on an order"),
        (("evaluate",), "no defender is named"),
        (("train", "--alignment", "3"), "--alignment needs a defender that is trained on an order"),
        (("search", "--envs", "0"), "n_envs is 0"),
        (("evaluate", "react_retore"), "no defender is called 'react_retore': give a run folder"),
        (("evaluate", "nowhere:Defender"), "cannot import nowhere"),
        (("evaluate", "sleep", "random"), "sleep is a script: give it alone"),
        (("landscape", "--episodes", "1"), "at least two are needed"),
        (("replay", "nowhere.jsonl.gz"), "there is no such file"),
    ],
)
def test_wrong_options_end_with_exit_code_2(command: Command, words: tuple[str, ...], message: str) -> None:
    ended = command("workflow", *words)
    assert ended.code == 2
    assert message in ended.err


def test_a_file_without_the_name_of_its_class_is_no_defender(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Defender: ...\n")
    ended = command("workflow", "evaluate", str(tmp_path / "mine.py"))
    assert ended.code == 2
    assert "name the class in it" in ended.err
