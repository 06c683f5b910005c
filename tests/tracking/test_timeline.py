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
from parallel_agents.tracking.timeline import Timeline, Trace, TraceWriter, read_trace


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
from parallel_agents.tracking.timeline import Timeline, Trace, TraceWriter, read_trace

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


# -- arrows, live traces, and what a trace says ------------------------------------------------------------------------

MS = 1_000_000


def _span(name: str, start: int, length: int, thread: int = 1, **arguments: int) -> Any:
    return (name, "role", start * MS, length * MS, 7, thread, arguments)


def _trace_of(tmp_path: Path, *spans: Any) -> Trace:
    timeline = Timeline()
    timeline.merge(spans)
    timeline.write(tmp_path / "trace.json")
    return read_trace(tmp_path / "trace.json")


def test_arrows_lead_from_the_epoch_of_a_round_over_its_learners_to_its_publication(tmp_path: Path) -> None:
    spans = [
        _span("collect", 0, 10, epoch=1), _span("collect", 10, 10, epoch=2), _span("snapshot", 20, 1, round=1),
        _span("learn", 22, 5, 2, round=1), _span("learn", 23, 5, 3, round=1), _span("collect", 21, 10, epoch=3),
        _span("publish", 32, 1, round=1), _span("publish", 50, 1, round=2),
    ]  # fmt: skip
    timeline = Timeline()
    timeline.merge(spans)
    timeline.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    arrows = [(e["ph"], e["id"], e["tid"], e["ts"]) for e in events if e["ph"] in "stf"]
    (begin, *middle, end) = arrows
    assert begin[:3] == ("s", 1, 1)
    assert 10_000 < begin[3] < 20_000, "in the second epoch, whose data the round reads"
    assert middle == [("t", 1, 2, 22_000), ("t", 1, 3, 23_000)]
    assert end == ("f", 1, 1, 32_000)


def test_a_trace_is_read_back_with_its_shares_waiting_and_overlap(tmp_path: Path) -> None:
    trace = _trace_of(
        tmp_path,
        _span("collect", 0, 40, epoch=1), _span("boundary", 40, 40, round=1), _span("wait", 45, 30, round=1),
        _span("collect", 80, 20, epoch=2), _span("learn", 20, 50, 2, round=1),
    )  # fmt: skip
    shares = {(stage.thread.partition(": ")[0], stage.name): stage.share for stage in trace.stages()}
    assert shares["worker 7", "collect"] == pytest.approx(0.6)
    assert shares["worker 7", "boundary"] == pytest.approx(0.1), "without the waiting in it"
    assert trace.waits() == pytest.approx(0.3)
    assert trace.learner_waits() == pytest.approx(1 - 50 / 80)
    assert trace.overlap() == pytest.approx(20 / 50)
    assert trace.advice() == [
        "collection waits 30% for the learner: raise parallel.train_interval or parallel.policy_lag, or lower "
        "model.updates_per_round"
    ]
    assert "overlap efficiency 40%" in trace.text()
    assert trace.as_dict()["stages"][0] == {
        "thread": "worker 7: role",
        "name": "collect",
        "count": 2,
        "seconds": 0.06,
        "share": 0.6,
    }


def test_a_collector_that_helps_the_learners_does_not_wait(tmp_path: Path) -> None:
    spans = [
        _span("collect", 0, 40, epoch=1), _span("learn", 0, 60, 2, round=1), _span("wait", 40, 30, round=1),
        _span("learn", 40, 25, round=1), _span("collect", 70, 30, epoch=2), _span("learn", 70, 30, 2, round=2),
    ]  # fmt: skip
    trace = _trace_of(tmp_path, *spans)
    assert trace.waits() == pytest.approx(0.05)
    assert trace.advice() == ["nothing stands out"]


def test_an_idle_learner_and_turns_taken_are_named(tmp_path: Path) -> None:
    idle = [_span("collect", 10 * n, 10) for n in range(10)] + [_span("learn", 0, 20, 2, round=1)]
    assert "the learner waits 80%" in _trace_of(tmp_path, *idle).advice()[0]
    in_turn = [_span("collect", 0, 50), _span("learn", 50, 50, round=1)]
    assert "take turns" in _trace_of(tmp_path, *in_turn).advice()[0]
    assert _trace_of(tmp_path, _span("collect", 0, 10)).advice() == ["nothing stands out"]


@pytest.mark.parametrize("text", ["[]", "{}", '{"traceEvents": 3}', '"x"'])
def test_what_is_no_trace_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(text)
    with pytest.raises(ConfigError, match=r"trace.json is not a trace"):
        read_trace(tmp_path / "trace.json")


def test_hostile_events_are_left_out(tmp_path: Path) -> None:
    good = {"ph": "X", "name": "collect", "ts": 0, "dur": 5, "pid": 1, "tid": 1}
    bad = [
        1,
        None,
        {},
        good | {"ts": "x"},
        good | {"dur": -1},
        good | {"ts": 1e300},
        good | {"pid": []},
        good | {"name": 3},
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": [*bad, good | {"args": 3}]}))
    trace = read_trace(tmp_path / "trace.json")
    assert len(trace.spans) == 1
    assert [panel["kind"] for panel in trace.panels] == ["timeline", "table"]


def test_the_newest_spans_are_written_while_a_run_goes_on(tmp_path: Path, make_epoch: Callable[..., Any]) -> None:
    timeline, path = Timeline(), tmp_path / "trace.json"
    writer = TraceWriter(timeline, path, every=0.0)
    for epoch in range(1, 700):
        with timeline.span("collect", "collector", epoch=epoch):
            pass
    writer.on_epoch(make_epoch(699))
    spans = read_trace(path).spans
    assert [span[6]["epoch"] for span in spans] == list(range(200, 700))
    seldom = TraceWriter(timeline, tmp_path / "seldom.json", every=60.0)
    seldom.on_epoch(make_epoch(1))
    assert not (tmp_path / "seldom.json").exists()
