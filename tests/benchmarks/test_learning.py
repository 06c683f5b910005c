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


def runs(sides: dict[str, peers_learning.Learn], seeds: int = 2, task: Task = TASK) -> list[dict[str, Any]]:
    return list(peers_learning.study(task, seeds, sides, []))


def test_a_side_says_when_each_seed_first_reached_the_level() -> None:
    side = peers_learning.summary(TASK, runs({"ours": learns}))
    assert side["final"] == [80.0, 80.0, 80.0]
    assert side["steps_to_level"] == [200, None]
    assert side["seconds_to_level"] == [2.0, None]
    assert side["seconds"] == [3.0, 3.0]
    assert peers_learning.summary(TASK, runs({"sb3": absent})) == {"skipped": "no wheel"}


def test_all_sides_take_a_seed_before_the_next_and_an_absent_one_is_asked_once() -> None:
    order = [(line["side"], line["seed"]) for line in runs({"ours": learns, "sb3": absent, "jax": learns})]
    assert order == [("ours", 0), ("sb3", 0), ("jax", 0), ("ours", 1), ("jax", 1)]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Return what was trained, in order; the fourth seed is interrupted."""
    asked: list[tuple[str, int]] = []
    for name in ("ours", "random_play"):

        def learn(task: Task, seed: int, name: str = name) -> peers_learning.Curve:
            if seed == 3:
                raise KeyboardInterrupt
            asked.append((name, seed))
            return learns(task, seed)

        monkeypatch.setattr(peers_learning, name, learn)
    return asked


WORDS = ["CartPole-v1", "--sides", "ours", "random", "--seeds"]


def test_a_run_that_was_stopped_goes_on_and_trains_nothing_twice(
    tmp_path: Path, trained: list[tuple[str, int]]
) -> None:
    for seeds in ("1", "2", "2"):
        peers_learning.main([*WORDS, seeds], folder=tmp_path)
    assert trained == [("ours", 0), ("random_play", 0), ("ours", 1), ("random_play", 1)]
    peers_learning.main([*WORDS, "1", "--again"], folder=tmp_path)
    assert trained[4:] == [("ours", 0), ("random_play", 0)]
    lines = [json.loads(line) for line in (tmp_path / "CartPole-v1.jsonl").read_text().splitlines()]
    assert [(line["side"], line["seed"]) for line in lines[:4]] == [
        ("ours", 0), ("random", 0), ("ours", 1), ("random", 1),
    ]  # fmt: skip
    assert all(len(line["commit"]) == 40 and line["load_start"] >= 0 for line in lines)


def test_what_was_trained_before_an_interrupt_is_kept(tmp_path: Path, trained: list[tuple[str, int]]) -> None:
    with pytest.raises(KeyboardInterrupt):
        peers_learning.main(["CartPole-v1", "--sides", "ours", "--seeds", "5"], folder=tmp_path)
    assert len(peers_learning.stored(TASKS["CartPole-v1"], tmp_path)) == len(trained) == 3


def test_lines_of_other_settings_do_not_count(tmp_path: Path, trained: list[tuple[str, int]]) -> None:
    other = Task(**{**vars(TASKS["CartPole-v1"]), "lr": 0.5})
    with (tmp_path / other.file).open("w") as file:
        file.writelines(json.dumps(line) + "\n" for line in runs({"ours": learns}, task=other))
    peers_learning.main([*WORDS, "2"], folder=tmp_path)
    assert len(trained) == 4
    assert len(peers_learning.stored(TASKS["CartPole-v1"], tmp_path)) == 4


def test_a_dry_run_reads_and_stores_nothing(tmp_path: Path, trained: list[tuple[str, int]]) -> None:
    peers_learning.main([*WORDS, "1", "--steps", "300", "--dry"], folder=tmp_path / "none")
    assert len(trained) == 2
    assert not (tmp_path / "none").exists()


def test_the_table_shows_every_side_and_why_one_was_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    monkeypatch.setattr(tables, "TASKS", {"CartPole-v1": TASK, "Acrobot-v1": TASKS["Acrobot-v1"]})
    (tmp_path / "peers_learning").mkdir()
    with (tmp_path / "peers_learning" / TASK.file).open("w") as file:
        file.writelines(json.dumps(line) + "\n" for line in runs({"ours": learns, "sb3": absent}))
        file.writelines(json.dumps(line) + "\n" for line in runs({"jax": learns}, seeds=1))
    text = tables.learning()
    assert "300 steps, level 100. Measured at commit" in text
    assert "| ours | 2 | 80 [80, 80] | 1 of 2 | 200 | 2 | 3 |" in text
    assert "| jax | 1 | 80 | 1 of 1 | 200 | 2 | 3 |" in text  # one seed has no interval
    assert "| sb3 |  | skipped: no wheel |" in text
    assert "Not measured yet: `python -m benchmarks.peers_learning Acrobot-v1`." in text


def test_tasks_survive_being_told_to_a_peer() -> None:
    for task in TASKS.values():
        told = json.loads(json.dumps(task.settings()))
        assert Task(**{**told, "hidden": tuple(told["hidden"])}) == task
        assert task.turns * task.worlds % task.minibatches == 0


def test_unknown_tasks_and_other_steps_that_would_be_stored_are_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (["CartPole"], "no task is called CartPole"),
        (["--steps", "100"], "nothing can be stored"),
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
