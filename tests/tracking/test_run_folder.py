from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from parallel_agents.core.errors import ConfigError, RunError
from parallel_agents.tracking.run_folder import RunFolder


def test_a_new_folder_is_named_by_environment_time_and_id(tmp_path: Path) -> None:
    folder = RunFolder.create("treasure_hunt", root=tmp_path / "runs")
    assert folder.path.parent == tmp_path / "runs"
    assert re.fullmatch(rf"treasure_hunt-\d{{8}}-\d{{6}}-{folder.run_id}", folder.path.name)
    assert json.loads((folder.path / "run.json").read_text()) == {
        "run_id": folder.run_id,
        "environment": "treasure_hunt",
    }
    assert {folder.metrics.name, folder.log.name, folder.trace.name} == {
        "metrics.jsonl",
        "log.jsonl",
        "trace.json",
    }


@pytest.mark.parametrize(
    ("environment", "begins"),
    [
        ("gymnasium:CartPole-v1", "gymnasium-CartPole-v1-2"),
        ("../../etc/passwd", "etc-passwd-2"),
        ("examples/ü b.py", "examples-b-2"),
        ("..", "run-2"),
    ],
)
def test_any_target_gives_a_folder_inside_the_root(tmp_path: Path, environment: str, begins: str) -> None:
    folder = RunFolder.create(environment, root=tmp_path)
    assert folder.path.parent == tmp_path
    assert folder.path.name.startswith(begins)


def test_two_runs_never_get_the_same_folder(tmp_path: Path) -> None:
    folders = {RunFolder.create("hunt", root=tmp_path).path for _ in range(20)}
    assert len(folders) == 20


def test_a_given_folder_is_used_if_new_or_empty(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert RunFolder.create("hunt", tmp_path / "empty").path == tmp_path / "empty"
    assert RunFolder.create("hunt", tmp_path / "deep" / "new").path == tmp_path / "deep" / "new"


def test_a_relative_folder_survives_a_change_of_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.create("hunt")
    monkeypatch.chdir("/")
    folder.write("summary.json", {"epochs": 1})
    assert (tmp_path / "runs" / folder.path.name / "summary.json").exists()


def test_values_are_written_as_json_and_replaced_as_a_whole(tmp_path: Path) -> None:
    folder = RunFolder.create("hunt", tmp_path / "x")
    folder.write("config.json", {"experiment": {"epochs": 5}, "world": {"size": (21, 21)}})
    folder.write("fingerprint.json", {"cpu": "AVX2"})
    folder.write("summary.json", {"digest": "ab", "mean_reward": float("nan")})
    folder.write("summary.json", {"digest": "cd"})
    assert json.loads((folder.path / "config.json").read_text())["world"] == {"size": [21, 21]}
    assert json.loads((folder.path / "fingerprint.json").read_text()) == {"cpu": "AVX2"}
    assert json.loads((folder.path / "summary.json").read_text()) == {"digest": "cd"}


def test_a_folder_that_holds_something_is_refused_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(ConfigError, match=r"is not empty and not a run folder \(it holds 'thesis.tex'\): give a"):
        RunFolder.create("hunt", tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(ConfigError, match=r"thesis.tex is a file: give a folder that is new or empty"):
        RunFolder.create("hunt", tmp_path / "thesis.tex")
    RunFolder.create("hunt", tmp_path / "run").close()
    with pytest.raises(ConfigError, match=r"already holds a run: go on with it by `parallel-agents resume .*/run`, or"):
        RunFolder.create("hunt", tmp_path / "run")


def test_a_folder_that_cannot_be_made_is_reported() -> None:
    with pytest.raises(RunError, match=r"cannot make the run folder /proc/x/y: .*; choose another folder"):
        RunFolder.create("hunt", Path("/proc/x/y"))


def test_opening_a_run_for_writing_removes_unfinished_files(tmp_path: Path) -> None:
    with RunFolder.create("hunt", tmp_path / "x") as made:
        leftover = made.path / ".summary.json.12ab34cd.unfinished"
        leftover.write_text("{")
        assert RunFolder.open(tmp_path / "x") == made
        assert leftover.exists(), "a reader must not remove a file that another process is writing"
    with RunFolder.open(tmp_path / "x", write=True):
        assert sorted(file.name for file in made.path.iterdir()) == ["run.json", "run.lock"]


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "[]",
        '{"run_id": 3, "environment": "x"}',
        '{"run_id": "' + "x" * 70_000 + '", "environment": "y"}',
    ],
)
def test_a_folder_without_a_valid_run_json_is_not_a_run_folder(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(ConfigError, match=r"is not a run folder: its run.json is absent or unreadable"):
        RunFolder.open(tmp_path)


def test_a_full_disk_is_an_error_and_keeps_the_old_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder.create("hunt", tmp_path / "x")
    folder.write("summary.json", {"digest": "ab"})

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"cannot write .*summary.json: No space left on device; what stood there"):
        folder.write("summary.json", {"digest": "cd"})
    assert json.loads((folder.path / "summary.json").read_text()) == {"digest": "ab"}
    assert sorted(file.name for file in folder.path.iterdir()) == ["run.json", "run.lock", "summary.json"]
