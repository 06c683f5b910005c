from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parallel_agents.core.errors import ConfigError
from parallel_agents.tracking.timeline import Timeline


def _trace(timeline: Timeline, path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    timeline.write(path)
    document = json.loads(path.read_text(), parse_constant=pytest.fail)
    events = document["traceEvents"]
    return [e for e in events if e["ph"] == "X"], [e for e in events if e["ph"] == "M"]


def test_spans_become_trace_events(tmp_path: Path) -> None:
    timeline = Timeline()
    with timeline.span("collect", "collector"), timeline.span("act", "collector"):
        time.sleep(0.002)
    with timeline.span("learn", "learner", round=3):
        pass
    spans, labels = _trace(timeline, tmp_path / "trace.json")
    act, collect, learn = spans  # a span is recorded when it ends
    assert (act["name"], collect["name"], learn["name"]) == ("act", "collect", "learn")
    assert (collect["cat"], learn["cat"], learn["args"]) == ("collector", "learner", {"round": 3})
    assert collect["ts"] == 0
    assert collect["ts"] <= act["ts"]
    assert act["ts"] + act["dur"] <= collect["ts"] + collect["dur"] <= learn["ts"]
    assert act["dur"] >= 2000
    assert {(e["pid"], e["tid"]) for e in spans} == {(os.getpid(), threading.get_native_id())}
    assert [(e["name"], e["args"]["name"]) for e in labels] == [
        ("process_name", "main"),
        ("thread_name", "collector, learner"),
    ]


def test_a_span_is_recorded_when_its_block_raises() -> None:
    timeline = Timeline()
    with pytest.raises(KeyError), timeline.span("learn", "learner"):
        raise KeyError
    assert len(timeline.spans()) == 1


def test_an_empty_trace_is_valid_json(tmp_path: Path) -> None:
    assert _trace(Timeline(), tmp_path / "trace.json") == ([], [])


def test_any_argument_becomes_valid_json(tmp_path: Path) -> None:
    timeline = Timeline()
    with timeline.span('say "hi"\n', "röle", loss=float("nan"), what={1, 2}, start=1, duration=2):
        pass
    spans, _ = _trace(timeline, tmp_path / "trace.json")
    assert (spans[0]["name"], spans[0]["cat"]) == ('say "hi"\n', "röle")
    assert spans[0]["args"] == {"loss": None, "what": [1, 2], "start": 1, "duration": 2}


def test_the_ring_keeps_the_newest_spans(tmp_path: Path) -> None:
    timeline = Timeline(capacity=10)
    for number in range(25):
        with timeline.span("act", "collector", number=number):
            pass
    assert [span[6]["number"] for span in timeline.spans()] == list(range(15, 25))
    timeline.write(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text())["otherData"] == {
        "spans": 10,
        "oldest_dropped": True,
    }


def test_take_removes_spans_and_merge_adds_them() -> None:
    worker, main = Timeline(), Timeline()
    for number in range(3):
        with worker.span("learn", "learner", round=number):
            pass
    main.merge(worker.take())
    assert worker.take() == []
    assert [span[6]["round"] for span in main.spans()] == [0, 1, 2]


def test_a_span_may_be_made_once_and_entered_often() -> None:
    timeline = Timeline()
    span = timeline.span("act", "collector")
    for _ in range(3):
        with span:
            pass
    starts = [start for _, _, start, *_ in timeline.spans()]
    assert len(set(starts)) == 3


def test_a_disabled_timeline_records_nothing() -> None:
    timeline = Timeline(enabled=False)
    with timeline.span("act", "collector"):
        pass
    timeline.merge([("learn", "learner", 0, 1, 1, 1, {})])
    assert timeline.spans() == []
    assert timeline.span("act", "collector") is timeline.span("learn", "learner")


def test_threads_have_separate_rows_and_the_trace_can_be_written_meanwhile(tmp_path: Path) -> None:
    timeline = Timeline()

    def work(role: str) -> None:
        for _ in range(2000):
            with timeline.span("step", role):
                pass

    threads = [threading.Thread(target=work, args=(f"role {k}",)) for k in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        timeline.write(tmp_path / "trace.json")
    assert len(timeline.spans()) == 4000
    _, labels = _trace(timeline, tmp_path / "trace.json")
    assert {e["args"]["name"] for e in labels if e["name"] == "thread_name"} == {"role 0", "role 1"}


WORKER = """
import multiprocessing, sys
from pathlib import Path
from parallel_agents.tracking.timeline import Timeline

def work(pipe):
    timeline = Timeline()
    with timeline.span("learn", "learner", round=1):
        pass
    pipe.send(timeline.take())

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    timeline = Timeline()
    receiver, sender = context.Pipe()
    with timeline.span("wait", "conductor"):
        worker = context.Process(target=work, args=(sender,))
        worker.start()
        timeline.merge(receiver.recv())
        worker.join()
    timeline.write(Path(sys.argv[1]))
"""


def test_spans_of_a_spawned_worker_are_merged_on_one_clock(
    tmp_path: Path, python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    path = tmp_path / "trace.json"
    done = python(WORKER, path)
    assert done.returncode == 0, done.stderr
    events = json.loads(path.read_text())["traceEvents"]
    learn, wait = (e for e in events if e["ph"] == "X")
    assert learn["pid"] != wait["pid"]
    assert wait["ts"] < learn["ts"] < learn["ts"] + learn["dur"] < wait["ts"] + wait["dur"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {wait["pid"]: "main", learn["pid"]: f"worker {learn['pid']}"}


def test_a_jumping_wall_clock_does_not_change_the_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    jumps = iter(range(0, -10_000, -1))
    monkeypatch.setattr(time, "time", lambda: next(jumps) * 1e6)
    monkeypatch.setattr(time, "time_ns", lambda: next(jumps) * 10**15)
    timeline = Timeline()
    for _ in range(3):
        with timeline.span("act", "collector"):
            pass
    starts = [span[2] for span in timeline.spans()]
    assert starts == sorted(starts)
    assert all(0 <= span[3] < 10**9 for span in timeline.spans())


def test_a_failed_write_keeps_the_old_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        Timeline().write(path)
    assert path.read_text() == "old"


def test_a_capacity_of_0_is_refused() -> None:
    with pytest.raises(ConfigError, match="a timeline of 0 spans is impossible: give at least 1, or disable it"):
        Timeline(capacity=0)
