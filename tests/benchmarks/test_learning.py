"""What is stored and shown of learning beside peers, and of scaling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import peers_learning, plots, tables
from benchmarks.learning_tasks import TASKS, Task
from benchmarks.peers import Unavailable
from benchmarks.run import provenance

TASK = Task("CartPole-v1", 100.0, 300)


def learns(task: Task, seed: int) -> peers_learning.Curve:
    """Reach the level after 200 steps with seed 0, never with others."""
    return [(100, 1.0, 50.0), (200, 2.0, 150.0 if seed == 0 else 60.0), (300, 3.0, 80.0)]


def absent(task: Task, seed: int) -> peers_learning.Curve:
    raise Unavailable("no wheel")


def test_a_side_says_when_each_seed_first_reached_the_level() -> None:
    side = peers_learning.side_of(learns, TASK, 2)
    assert side["final"] == [80.0, 80.0, 80.0]
    assert side["steps_to_level"] == [200, None]
    assert side["seconds_to_level"] == [2.0, None]
    assert peers_learning.side_of(absent, TASK, 2) == {"skipped": "no wheel"}


def test_the_table_shows_every_side_and_why_one_was_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    result = peers_learning.study(TASK, 2, {"ours": learns, "sb3": absent})
    (tmp_path / "peers_learning.json").write_text(json.dumps({"CartPole-v1": result}))
    text = tables.learning()
    assert "300 steps, 2 seeds, level 100. Measured at commit" in text
    assert "| ours | 80.0 [80.0, 80.0] | 1 of 2 | 200 | 2 |" in text
    assert "| sb3 | skipped: no wheel |" in text


def test_tasks_survive_being_told_to_a_peer() -> None:
    for task in TASKS.values():
        told = json.loads(json.dumps(task.settings()))
        assert Task(**{**told, "hidden": tuple(told["hidden"])}) == task
        assert task.turns * task.worlds % task.minibatches == 0


def test_unknown_tasks_and_a_single_stored_seed_are_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (["CartPole"], "no task is called CartPole"),
        (["--seeds", "1"], "one seed has no interval"),
    ):
        with pytest.raises(SystemExit, match="2"):
            peers_learning.main(words)
        assert message in capsys.readouterr().err


def scaling_records() -> list[dict[str, Any]]:
    update = {
        "network": "8-64-64-4", "agents": 8, "gflops": 40.0, "flops_per_byte": 60.0, "peak_gflops": 80.0,
        "bandwidth_gb": 10.0, "share_of_roofline": 0.5,
    }  # fmt: skip
    speeds = {"inline": 1000.0, "thread": 1500.0, "process": 900.0}
    details: dict[str, dict[str, Any]] = {
        "turn: 8 agents, 16 worlds": {"agents": 8, "worlds": 16},
        "update: 8-64-64-4, 8 agents": update,
        "buffer: 1000 rows": {"rows": 1000, "bytes_per_row": 50.0},
        "backend: small, 8 agents": {
            "network": "small", "agents": 8, "fastest": "thread", "updates_per_second": speeds,
        },
    }  # fmt: skip
    return [{"name": name, "ratio": 1.5, "detail": own, **provenance()} for name, own in details.items()]


def test_scaling_has_a_table_for_each_kind_of_row_and_a_plot_that_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "rows_of", lambda name: scaling_records())
    text = tables.scaling()
    for line in ("| 8 | 1.5 |", "| 8-64-64-4 | 8 | 1.5 | 40 | 60 | 50% |", "| 1,000 | 1.5 | 50 |"):
        assert line in text
    assert "| small | 8 | thread | 1,000 | 1,500 | 900 |" in text
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    plots.scaling(scaling_records(), first)
    plots.scaling(scaling_records(), second)
    assert first.read_bytes() == second.read_bytes()
