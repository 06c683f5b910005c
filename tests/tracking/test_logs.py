from __future__ import annotations

import io
import json
import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from parallel_agents.core.types import EpochStats
from parallel_agents.tracking.callbacks import BaseCallback, CallbackList
from parallel_agents.tracking.jsonl import read_jsonl
from parallel_agents.tracking.logs import (
    EventLog,
    bind,
    configure_logs,
    configure_worker,
    worker_context,
)

Python = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


def _records(path: Path) -> list[dict[str, Any]]:
    return list(read_jsonl(path))


def test_every_record_has_the_full_context(path: Path) -> None:
    with configure_logs(path, run="r1", console=False), bind(role="conductor", version=3):
        structlog.get_logger().info("plain")
        with bind(agent="blue"):
            structlog.get_logger().warning("retry", round=7)
    first, retry = _records(path)
    assert list(first) == ["time", "level", "event", "run", "role", "agent", "version", "thread", "process"]
    assert first["agent"] is None
    del retry["time"]
    assert retry == {
        "level": "warning",
        "event": "retry",
        "run": "r1",
        "role": "conductor",
        "agent": "blue",
        "version": 3,
        "thread": "MainThread",
        "process": os.getpid(),
        "round": 7,
    }


def test_bound_context_ends_with_its_block_or_stays(path: Path) -> None:
    with configure_logs(path, run="r1", console=False):
        bind(role="conductor")
        with bind(role="evaluator"):
            structlog.get_logger().info("inside")
        structlog.get_logger().info("outside")
    assert [record["role"] for record in _records(path)] == ["evaluator", "conductor"]


SPAWN = """
import contextvars, multiprocessing, sys, threading
from pathlib import Path
import structlog
from parallel_agents.tracking.logs import bind, configure_logs, configure_worker, worker_context

def work(settings):
    configure_worker(settings)
    with bind(role="learner", agent="red"):
        structlog.get_logger().warning("from the worker")
        context, log = contextvars.copy_context(), structlog.get_logger().info
        thread = threading.Thread(target=context.run, args=(log, "its thread"), name="inner")
        thread.start()
        thread.join()

if __name__ == "__main__":
    with configure_logs(Path(sys.argv[1]), run="r9"), bind(role="conductor", version=4):
        structlog.get_logger().info("from the parent")
        worker = multiprocessing.get_context("spawn").Process(target=work, args=(worker_context(),))
        worker.start()
        worker.join()
    sys.exit(worker.exitcode)
"""


def test_a_spawned_process_has_the_context_of_its_parent(path: Path, python: Python) -> None:
    done = python(SPAWN, path)
    assert done.returncode == 0, done.stderr
    parent, worker, inner = _records(path)
    assert (parent["event"], parent["role"], parent["agent"]) == ("from the parent", "conductor", None)
    assert {record["run"] for record in (parent, worker, inner)} == {"r9"}
    assert {record["version"] for record in (parent, worker, inner)} == {4}
    assert [(r["event"], r["role"], r["agent"]) for r in (worker, inner)] == [
        ("from the worker", "learner", "red"),
        ("its thread", "learner", "red"),
    ]
    assert worker["process"] == inner["process"] != parent["process"]
    assert inner["thread"] == "inner"
    assert done.stdout == ""
    assert "from the worker" in done.stderr


def test_worker_settings_are_plain_values_and_not_installed_twice(path: Path) -> None:
    with (
        configure_logs(path, run="r1", console=False),
        bind(role="conductor", agent=Path("x")),
    ):
        settings = json.loads(json.dumps(worker_context()))
        with configure_worker(settings):
            structlog.get_logger().debug("once")
    assert len(_records(path)) == 1
    assert settings["context"] == {"run": "r1", "role": "conductor", "agent": "x"}
    assert settings["console"] is False


def test_without_a_run_folder_a_worker_logs_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with configure_worker(worker_context()):
        structlog.get_logger().info("hello")
    out, err = capsys.readouterr()
    assert out == ""
    assert "hello" in err


def test_the_console_is_stderr_and_has_the_context(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with configure_logs(path, run="r1"), bind(role="learner"):
        structlog.get_logger().debug("too quiet")
        structlog.get_logger().warning("loud", round=2)
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert all(word in err for word in ("warning", "loud", "role=learner", "round=2"))
    assert "run=" not in err
    assert "\x1b" not in err
    assert [record["event"] for record in _records(path)] == ["too quiet", "loud"], "the file has all"


def test_without_a_console_only_the_file_is_written(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with configure_logs(path, run="r1", console=False):
        structlog.get_logger().error("quiet")
    assert capsys.readouterr() == ("", "")
    assert len(_records(path)) == 1


def test_a_closed_stderr_does_not_end_a_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    with configure_logs(path, run="r1"):
        for stderr in (closed, None):
            monkeypatch.setattr(sys, "stderr", stderr)
            structlog.get_logger().error("not written")
        monkeypatch.undo()
    assert len(_records(path)) == 2


def test_an_existing_structlog_configuration_is_kept(path: Path) -> None:
    events: list[dict[str, Any]] = []

    def users(logger: Any, method: str, event: Any) -> Any:
        events.append(dict(event))
        raise structlog.DropEvent

    structlog.configure(processors=[users], cache_logger_on_first_use=False)
    before = structlog.get_config()
    with configure_logs(path, run="r1") as logs, bind(role="conductor"):
        structlog.get_logger().info("both", round=1)
        logs.close()
        structlog.get_logger().info("user alone")
    assert events == [{"event": "both", "round": 1}, {"event": "user alone"}]
    assert [(record["event"], record["role"]) for record in _records(path)] == [("both", "conductor")]
    after = structlog.get_config()
    assert {**after, "processors": list(after["processors"])} == {**before, "processors": [users]}


def test_standard_logging_is_not_changed(path: Path) -> None:
    handlers, level = list(logging.root.handlers), logging.root.level
    with configure_logs(path, run="r1", console=False):
        assert (logging.root.handlers, logging.root.level) == (handlers, level)


def test_closing_restores_structlog_and_closes_the_file(path: Path) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    logs = configure_logs(path, run="r1", console=False)
    assert structlog.is_configured()
    assert len(os.listdir("/proc/self/fd")) == descriptors + 1
    pickle.dumps(structlog.get_logger())
    logs.close()
    logs.close()
    assert not structlog.is_configured()
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_the_console_of_a_command_outlives_its_runs(tmp_path: Path) -> None:
    outer = configure_worker(worker_context() | {"console": False})
    first = configure_logs(tmp_path / "1.jsonl", run="r1")
    second = configure_logs(tmp_path / "2.jsonl", run="r2")
    first.close()
    assert structlog.is_configured()
    second.close()
    assert structlog.is_configured()
    outer.close()
    assert not structlog.is_configured()


def test_two_runs_in_one_process_have_separate_records(tmp_path: Path) -> None:
    one, two = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    with configure_logs(one, run="r1", console=False), configure_logs(two, run="r2"):
        with bind(run="r1"):
            structlog.get_logger().info("first")
        with bind(run="r2"):
            structlog.get_logger().info("second")
        thread = threading.Thread(target=structlog.get_logger().info, args=("either",))  # names no run
        thread.start()
        thread.join()
    assert [record["event"] for record in _records(one)] == ["first", "either"]
    assert [record["event"] for record in _records(two)] == ["second", "either"]


def test_the_size_of_the_log_is_bounded(path: Path) -> None:
    with configure_logs(path, run="r1", console=False, max_bytes=2000, backups=2):
        for number in range(300):
            structlog.get_logger().info("again", number=number)
    assert sum(part.stat().st_size for part in path.parent.iterdir()) <= 6000
    numbers = [record["number"] for record in _records(path)]
    assert numbers == list(range(numbers[0], 300))


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_is_reported_on_stderr_and_raises_nothing(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with configure_logs(path, run="r1", console=False):
        structlog.get_logger().info("first")
        structlog.get_logger().info("second")
    assert capsys.readouterr().err == (
        f"cannot write {path}: File too large; its lines are lost until that is repaired\n"
    )


def test_any_field_becomes_valid_json(path: Path) -> None:
    with configure_logs(path, run="r1", console=False):
        structlog.get_logger().info("odd", loss=float("nan"), thing=object, thread="mine", level="mine")
    (record,) = _records(path)
    assert (record["loss"], record["thing"]) == (None, "<class 'object'>")
    assert (record["thread"], record["level"]) == ("MainThread", "info")


def test_a_dropped_callback_is_logged_with_its_traceback_and_shown_in_one_line(
    path: Path, make_epoch: Callable[..., EpochStats], capsys: pytest.CaptureFixture[str]
) -> None:
    class Failing(BaseCallback):
        def on_epoch(self, stats: EpochStats) -> None:
            raise ZeroDivisionError("the callback is broken")

    with configure_logs(path, run="r1"):
        CallbackList([Failing()]).on_epoch(make_epoch(1))
    (line,) = capsys.readouterr().err.splitlines()
    assert "ZeroDivisionError: the callback is broken" in line
    (record,) = _records(path)
    assert (record["event"], record["level"], record["method"]) == ("callback_dropped", "error", "on_epoch")
    assert record["exception"].startswith("Traceback")
    assert record["exception"].endswith("ZeroDivisionError: the callback is broken")


def test_the_event_log_has_start_events_and_end_of_a_run(path: Path, make_run: Any, make_epoch: Any) -> None:
    log = EventLog()
    with configure_logs(path, run="r1", console=False):
        log.on_start(make_run(epochs=2))
        log.on_epoch(make_epoch(4))
        log.on_event("round_retried", {"round": 1, "event": "a clash", "agent": "blue"})
        log.on_event("checkpoint_saved", {"level": "info"})
        log.on_end({"digest": "ab", "epochs": 2, "config": {"large": 1}})
    assert structlog.contextvars.get_contextvars() == {}
    started, retried, saved, ended = _records(path)
    assert (started["event"], started["agents"], started["fingerprint"]) == ("run_started", 3, {"cpu": "x"})
    assert started["version"] is None
    assert (retried["level"], retried["version"], retried["agent"]) == ("warning", 2, "blue")
    assert (retried["event"], retried["event_"]) == ("round_retried", "a clash")
    assert (saved["level"], saved["version"]) == ("info", 2)
    assert (ended["event"], ended["digest"], ended["epochs"]) == ("run_ended", "ab", 2)
    assert "config" not in ended


def test_records_reach_the_file_whatever_the_id_of_the_run(path: Path, make_run: Any) -> None:
    log = EventLog()
    with configure_logs(path, run="folder", console=False):
        log.on_start(make_run(run_id="another"))
        structlog.get_logger().info("working")
        log.on_end({"epochs": 3})
        assert structlog.contextvars.get_contextvars() == {"run": "folder"}
    assert structlog.contextvars.get_contextvars() == {}
    assert [(record["event"], record["run"]) for record in _records(path)] == [
        ("run_started", "folder"),
        ("working", "folder"),
        ("run_ended", "folder"),
    ]


def test_without_a_file_the_event_log_binds_the_id_of_the_run(make_run: Any) -> None:
    log = EventLog()
    for run in ("r1", "r2"):
        log.on_start(make_run(run_id=run))
        assert structlog.contextvars.get_contextvars()["run"] == run
        log.on_end({})
    assert structlog.contextvars.get_contextvars() == {}


IMPORT = """
import logging, sys
import parallel_agents.tracking
from parallel_agents.tracking import (
    callbacks, jsonl, logs, metrics, plots, progress, run_folder, statistics, timeline
)
import structlog
print(structlog.is_configured(), logging.root.handlers, sorted({"torch", "matplotlib"} & set(sys.modules)))
"""


def test_importing_configures_nothing_and_imports_nothing_heavy(python: Python) -> None:
    assert python(IMPORT).stdout == "False [] []\n"
