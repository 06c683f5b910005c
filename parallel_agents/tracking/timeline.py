"""Record what each thread and process does when, as Chrome trace events for Perfetto; read and judge such a trace.

A span has a name (collect, learn, wait, …), the role of the worker, and arguments such as the round. Recording appends
to a bounded ring. A worker sends its spans back as plain tuples; all processes of a machine share the monotonic clock.

>>> timeline = Timeline()
>>> with timeline.span("learn", "learner", round=3):
...     pass
>>> [(span[0], span[1], span[6]) for span in timeline.spans()]
[('learn', 'learner', {'round': 3})]

Arrows lead from the epoch that produced the data of a round to the learners of that round and on to where its weights
were published. While a run goes on, `TraceWriter` keeps the newest spans in its folder; `read_trace` reads them back.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.files import plain, read_json, write_atomically
from parallel_agents.core.types import EpochStats
from parallel_agents.tracking.callbacks import BaseCallback, Throttle
from parallel_agents.tracking.plots import Panel, table

Span = tuple[str, str, int, int, int, int, dict[str, Any]]
"""name, role, start and duration in ns of the monotonic clock, process, thread, arguments"""

LIVE_SPANS = 500
"""Spans that are kept in the file while a run goes on."""
_NO_SPAN: AbstractContextManager[None] = nullcontext()
_encode = json.JSONEncoder(separators=(",", ":")).encode


class Timeline:
    """The newest `capacity` spans of this process and of workers whose spans were merged."""

    def __init__(self, *, enabled: bool = True, capacity: int = 200_000) -> None:
        if capacity < 1:
            raise ConfigError(f"a timeline of {capacity} spans is impossible: give at least 1, or disable it")
        self.enabled = enabled
        self._spans: deque[Span] = deque(maxlen=capacity)
        self._process = os.getpid()

    def span(self, name: str, role: str, **arguments: Any) -> AbstractContextManager[None]:
        """Return a context manager that records the time of its `with` block, also if it raises.

        In a tight loop, make the span once and enter it each time, in the thread that made it.
        """
        if not self.enabled:
            return _NO_SPAN
        return _Span(self._spans, name, role, (self._process, threading.get_native_id(), arguments))

    def merge(self, spans: Iterable[Span]) -> None:
        """Add spans that a worker sent."""
        if self.enabled:
            self._spans.extend(spans)

    def take(self) -> list[Span]:
        """Remove and return all spans, for a worker to send."""
        spans: list[Span] = []
        while self._spans:
            spans.append(self._spans.popleft())
        return spans

    def spans(self) -> list[Span]:
        """Return all spans."""
        while True:
            try:
                return list(self._spans)
            except RuntimeError:  # another thread appended during the copy: copy again
                continue

    def write(self, path: Path, *, newest: int | None = None) -> None:
        """Write the trace, or its `newest` spans; other threads may record spans meanwhile."""
        spans = self.spans()
        write_atomically(path, self._document(spans if newest is None else spans[-newest:]), sync=newest is None)

    def _document(self, spans: list[Span]) -> Iterator[bytes]:
        origin = min((span[2] for span in spans), default=0)
        yield b'{"displayTimeUnit":"ms",\n"otherData":'
        yield _encode({"spans": len(spans), "oldest_dropped": len(spans) in (self._spans.maxlen, LIVE_SPANS)}).encode()
        yield b',\n"traceEvents":['
        separator = b"\n"
        for event in chain(
            _labels(spans, self._process), (_event(span, origin) for span in spans), _arrows(spans, origin)
        ):
            yield separator + _encode(event).encode()
            separator = b",\n"
        yield b"\n]}\n"


class TraceWriter(BaseCallback):
    """Keep the newest spans in a file while the run goes on, so that others can look at them and a kill leaves them."""

    def __init__(self, timeline: Timeline, path: Path, *, every: float = 5.0) -> None:
        self._timeline, self._path = timeline, path
        self._throttle = Throttle(every, at_once=False)  # short runs are written once, at their end

    def on_epoch(self, stats: EpochStats) -> None:
        self._throttle.call(lambda: self._timeline.write(self._path, newest=LIVE_SPANS))


class _Span:
    __slots__ = ("_append", "_name", "_rest", "_role", "_start")

    def __init__(self, spans: deque[Span], name: str, role: str, rest: tuple[int, int, dict[str, Any]]) -> None:
        self._append, self._name, self._role, self._rest = spans.append, name, role, rest

    def __enter__(self) -> None:
        self._start = time.monotonic_ns()

    def __exit__(self, *_: object) -> None:
        duration = time.monotonic_ns() - self._start
        self._append((self._name, self._role, self._start, duration, *self._rest))


def _event(span: Span, origin: int) -> dict[str, Any]:
    """Return a complete event, with times in microseconds."""
    name, role, start, duration, process, thread, arguments = span
    event = {
        "ph": "X",
        "name": name,
        "cat": role,
        "pid": process,
        "tid": thread,
        "ts": (start - origin) / 1000,
        "dur": duration / 1000,
    }
    if arguments:
        event["args"] = plain(arguments)
    return event


def _labels(spans: list[Span], main_process: int) -> list[dict[str, Any]]:
    """Return metadata events that name each process (main or worker) and each thread (by its roles)."""
    roles: dict[tuple[int, int], dict[str, None]] = {}
    for _, role, _, _, process, thread, _ in spans:
        roles.setdefault((process, thread), {})[role] = None
    labels = [
        ("process_name", process, 0, "main" if process == main_process else f"worker {process}")
        for process in dict.fromkeys(process for process, _ in roles)
    ]
    labels += [("thread_name", process, thread, ", ".join(names)) for (process, thread), names in roles.items()]
    return [
        {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": label}}
        for kind, process, thread, label in labels
    ]


def _arrows(spans: list[Span], origin: int) -> Iterator[dict[str, Any]]:
    """Yield flow events: from an epoch to the learners of the round that reads its data, and on to its publication."""
    collected = sorted((span for span in spans if span[0] == "collect"), key=_end)
    ends = [_end(span) for span in collected]
    stages: dict[int, dict[str, list[Span]]] = {}
    for span in spans:
        if span[0] in ("snapshot", "learn", "publish") and "round" in span[6]:
            stages.setdefault(span[6]["round"], {}).setdefault(span[0], []).append(span)
    for number, stage in stages.items():
        first = min((span[2] for name in ("snapshot", "learn") for span in stage.get(name, ())), default=0)
        place = bisect_right(ends, first) - 1
        if place < 0 or "learn" not in stage:
            continue
        source = collected[place]
        yield _arrow("s", number, source, source[2] + source[3] - 1, origin)
        for span in stage["learn"]:
            yield _arrow("t", number, span, span[2], origin)
        for span in stage.get("publish", ())[:1]:
            yield _arrow("f", number, span, span[2], origin) | {"bp": "e"}


def _end(span: Span) -> int:
    return span[2] + span[3]


def _arrow(phase: str, number: int, span: Span, at: int, origin: int) -> dict[str, Any]:
    where = {"pid": span[4], "tid": span[5], "ts": (at - origin) / 1000}
    return {"ph": phase, "id": number, "name": "round", "cat": "round", **where}


# -- reading -----------------------------------------------------------------------------------------------------------

_MAX_TRACE_BYTES = 256 * 2**20
_SHOWN_SPANS = 400


@dataclass(frozen=True)
class Stage:
    """What one thread spent on one kind of span, without the spans within it."""

    thread: str
    name: str
    count: int
    seconds: float
    share: float
    """Of the time from the first span of the trace to the end of the last."""


class Trace:
    """A trace that was read: its spans, the threads they belong to, and what they say about the run."""

    def __init__(self, spans: list[Span], threads: dict[tuple[int, int], str]) -> None:
        self.spans = sorted(spans, key=lambda span: span[2])
        self.threads = threads
        self.start = min((span[2] for span in spans), default=0)
        self.seconds = (max((_end(span) for span in spans), default=0) - self.start) / 1e9

    def stages(self) -> list[Stage]:
        """Return how long each thread spent in each stage, the longest first within each thread."""
        totals: dict[tuple[str, str], list[float]] = {}
        for (process, thread), name in self.threads.items():
            own = [span for span in self.spans if (span[4], span[5]) == (process, thread)]
            for span, nanoseconds in _exclusive(own):
                entry = totals.setdefault((name, span[0]), [0, 0.0])
                entry[0] += 1
                entry[1] += nanoseconds / 1e9
        whole = max(self.seconds, 1e-12)
        found = [Stage(*key, int(count), seconds, seconds / whole) for key, (count, seconds) in totals.items()]
        return sorted(found, key=lambda stage: (list(self.threads.values()).index(stage.thread), -stage.seconds))

    def share(self, name: str) -> float:
        """Return the share of the time in which some thread was in this stage."""
        return _length(_union(self._intervals(name))) / max(self.seconds * 1e9, 1.0)

    def _intervals(self, name: str) -> Intervals:
        return [(span[2], _end(span)) for span in self.spans if span[0] == name]

    def waits(self) -> float:
        """Return the share of the time in which collection waited and did not help the learners."""
        return sum(stage.share for stage in self.stages() if stage.name == "wait")

    def learner_waits(self) -> float:
        """Return the share of the time since the first round in which no learner was learning; NaN without rounds."""
        busy = _union(self._intervals("learn"))
        if not busy:
            return math.nan
        last = max(_end(span) for span in self.spans)
        return 1.0 - _length(busy) / max(1.0, last - busy[0][0])

    def overlap(self) -> float:
        """Return the overlap efficiency: how much of the shorter of collection and learning ran beside the other."""
        collect, learn = _union(self._intervals("collect")), _union(self._intervals("learn"))
        shorter = min(_length(collect), _length(learn))
        both = _length(collect) + _length(learn) - _length(_union([*collect, *learn]))
        return both / shorter if shorter else math.nan

    def advice(self) -> list[str]:
        """Return what to change, if something stands out."""
        waits, idle, overlap = self.waits(), self.learner_waits(), self.overlap()
        found = []
        if waits > 0.15:
            found.append(
                f"collection waits {waits:.0%} for the learner: raise parallel.train_interval or "
                "parallel.policy_lag, or lower model.updates_per_round"
            )
        elif idle > 0.4 and overlap > 0.2:
            found.append(
                f"the learner waits {idle:.0%}: there is room for more updates; raise model.updates_per_round or lower "
                "parallel.train_interval"
            )
        if overlap < 0.2:
            found.append(
                "collection and learning take turns: with parallel.async_learning and --backend thread (process for "
                "networks that torch computes) they run side by side"
            )
        for stage, limit, change in (
            ("checkpoint", 0.1, "experiment.checkpoint_every"),
            ("evaluate", 0.25, "experiment.eval_every"),
            ("snapshot", 0.2, "parallel.train_interval"),
        ):
            if self.share(stage) > limit:
                found.append(f"{stage} takes {self.share(stage):.0%}: raise {change}")
        return found or ["nothing stands out"]

    @cached_property
    def panels(self) -> list[Panel]:
        """The newest spans as a timeline, and the shares of all of them as a table."""
        shown = self.spans[-_SHOWN_SPANS:]
        lanes = list(dict.fromkeys(self.threads.get((span[4], span[5]), "?") for span in shown))
        origin = shown[0][2] if shown else 0
        rows = [
            [lanes.index(self.threads.get((span[4], span[5]), "?")), span[0], round((span[2] - origin) / 1e9, 6),
             round(span[3] / 1e9, 6), ", ".join(f"{name} {value}" for name, value in span[6].items())]
            for span in shown
        ]  # fmt: skip
        timeline = {
            "kind": "timeline", "title": f"The last {len(shown)} spans", "lanes": lanes, "spans": rows,
            "note": "trace.json in the run folder opens in Perfetto, with all spans and the arrows between them",
        }  # fmt: skip
        cells = [[s.thread, s.name, s.count, f"{s.seconds:.3g}", f"{s.share:.1%}"] for s in self.stages()]
        note = f"overlap efficiency {self.overlap():.0%}; " if math.isfinite(self.overlap()) else ""
        stages = table("Shares", ["thread", "stage", "spans", "seconds", "share"], cells,
                       note=note + "; ".join(self.advice()))  # fmt: skip
        return [timeline, stages]

    def as_dict(self) -> dict[str, Any]:
        """Return what `parallel-agents trace --json` prints."""
        values: dict[str, Any] = plain({
            "seconds": self.seconds, "stages": self.stages(), "waiting": self.waits(),
            "learner_waits": self.learner_waits(), "overlap_efficiency": self.overlap(), "advice": self.advice(),
        })  # fmt: skip
        return values

    def text(self) -> str:
        """Return the same for people."""
        lines = [f"{self.seconds:.1f} s in {len(self.threads)} threads, {len(self.spans)} spans"]
        lines += [f"  {s.thread:<34} {s.name:<16} {s.seconds:9.2f} s {s.share:7.1%}" for s in self.stages()]
        if math.isfinite(self.overlap()):
            lines.append(f"collection waits {self.waits():.0%}, the learner {self.learner_waits():.0%}; "
                         f"overlap efficiency {self.overlap():.0%}")  # fmt: skip
        return "\n".join([*lines, *self.advice()]) + "\n"


def read_trace(path: Path) -> Trace:
    """Read a trace that `Timeline.write` wrote. Events of any other form are left out."""
    document = read_json(path, _MAX_TRACE_BYTES)
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list):
        raise ConfigError(f"{path} is not a trace: give a trace.json that a run wrote")
    spans: list[Span] = []
    names: dict[tuple[str, int, int], str] = {}
    for event in events:
        match event:
            case {"ph": "X", "name": str(name), "ts": int() | float() as ts, "dur": int() | float() as duration,
                  "pid": int(pid), "tid": int(tid)} if abs(ts) < 1e15 and 0 <= duration < 1e15:  # fmt: skip
                arguments = event.get("args")
                arguments = arguments if isinstance(arguments, dict) else {}
                role = str(event.get("cat", ""))
                spans.append((name[:80], role, int(ts * 1000), int(duration * 1000), pid, tid, arguments))
            case {"ph": "M", "name": str(kind), "pid": int(pid), "tid": int(tid), "args": {"name": str(label)}}:
                names[kind, pid, tid] = label[:80]
    threads = dict.fromkeys((span[4], span[5]) for span in spans)
    return Trace(spans, {
        (pid, tid): f"{names.get(('process_name', pid, 0), pid)}: {names.get(('thread_name', pid, tid), tid)}"
        for pid, tid in threads
    })  # fmt: skip


def _exclusive(spans: Sequence[Span]) -> Iterator[tuple[Span, float]]:
    """Yield the spans of one thread with their duration less that of the spans within them."""
    open_spans: list[list[Any]] = []
    for span in sorted(spans, key=lambda span: (span[2], -span[3])):
        while open_spans and _end(open_spans[-1][0]) <= span[2]:
            yield (*open_spans.pop(),)
        if open_spans:
            open_spans[-1][1] -= span[3]
        open_spans.append([span, float(span[3])])
    while open_spans:
        yield (*open_spans.pop(),)


Intervals = list[tuple[int, int]]


def _union(intervals: Intervals) -> Intervals:
    """Return disjoint intervals that cover the same times."""
    merged: Intervals = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _length(intervals: Intervals) -> int:
    return sum(end - start for start, end in intervals)
