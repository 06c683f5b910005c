"""The commands `watch`, `report` and `trace`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from parallel_agents.cli import _complete_watch
from tests.cli.conftest import ROOT, Command, settings
from tests.tracking.run_folders import make_run_folder


def test_report_and_trace_of_a_run(command: Command, tmp_path: Path) -> None:
    make_run_folder(tmp_path / "run", epochs=5)
    ended = command("report", "run", "--out", "report.html", "--json")
    assert ended.code == 0
    assert ended.json["file"] == "report.html"
    assert (tmp_path / "report.html").stat().st_size == ended.json["bytes"]
    ended = command("trace", "run", "--json")
    assert ended.json["overlap_efficiency"] == 1.0
    assert "the learner 46%" in command("trace", "run").out


def test_what_is_no_run_is_named(command: Command, tmp_path: Path) -> None:
    for words in (("watch", "nothing"), ("report", "nothing"), ("trace", "nothing")):
        ended = command(*words)
        assert ended.code == 2
        assert "nothing is not a run folder" in ended.err
    make_run_folder(tmp_path / "run", epochs=1)
    (tmp_path / "run" / "trace.json").write_text("{")
    assert "cannot read" in command("trace", "run").err


def test_watch_serves_until_interrupted(tmp_path: Path) -> None:
    make_run_folder(tmp_path / "run", epochs=5)
    words = [sys.executable, "-m", "parallel_agents", "watch", "run", "--port", "0"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stderr is not None
        address = server.stderr.readline().split()[0]
        with urllib.request.urlopen(address + "data", timeout=10) as answer:
            assert b'"title":"run"' in answer.read()
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=20) == 130
        assert server.stderr.read() == "interrupted\n"


def test_a_training_may_be_shown_in_the_terminal(command: Command, tmp_path: Path) -> None:
    small = settings("world.agents=2", "world.height=6", "world.width=6", "experiment.record_period=0")
    ended = command("train", "treasure_hunt", "--epochs", "3", "--watch", "terminal", "--out", "run", "--json", *small)
    assert ended.code == 0
    assert "TreasureHunt, turn" in ended.err
    assert "epoch 1, reward" in ended.err
    ended = command("train", "guess.py", "--watch", "terminal", "--out", "other")
    assert ended.code == 2
    assert "--watch terminal draws grid games" in ended.err
    assert not (tmp_path / "other").exists()


def test_watch_without_a_value_is_the_page_of_a_training_and_the_terminal_of_an_evaluation() -> None:
    assert _complete_watch(["train", "x", "--watch"]) == ["train", "x", "--watch", "page"]
    assert _complete_watch(["train", "x", "--watch", "--quiet"]) == ["train", "x", "--watch", "page", "--quiet"]
    assert _complete_watch(["train", "--watch", "terminal", "x"]) == ["train", "--watch", "terminal", "x"]
    assert _complete_watch(["eval", "--watch", "run"]) == ["eval", "--watch", "terminal", "run"]
