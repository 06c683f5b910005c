"""Record what each thread and process does when, as Chrome trace events for Perfetto.

A span has a name (collect, learn, wait, …), the role of the worker, and arguments such as the round. Recording appends
to a bounded ring. A worker sends its spans back as plain tuples; all processes of a machine share the monotonic clock.

>>> timeline = Timeline()
>>> with timeline.span("learn", "learner", round=3):
...     pass
>>> [(span[0], span[1], span[6]) for span in timeline.spans()]
[('learn', 'learner', {'round': 3})]
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.files import plain, write_atomically

Span = tuple[str, str, int, int, int, int, dict[str, Any]]
"""name, role, start and duration in ns of the monotonic clock, process, thread, arguments"""

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

    def write(self, path: Path) -> None:
        """Write the trace; other threads may record spans meanwhile."""
        write_atomically(path, self._document())

    def _document(self) -> Iterator[bytes]:
        spans = self.spans()
        origin = min((span[2] for span in spans), default=0)
        yield b'{"displayTimeUnit":"ms",\n"otherData":'
        yield _encode({"spans": len(spans), "oldest_dropped": len(spans) == self._spans.maxlen}).encode()
        yield b',\n"traceEvents":['
        separator = b"\n"
        for event in chain(_labels(spans, self._process), (_event(span, origin) for span in spans)):
            yield separator + _encode(event).encode()
            separator = b",\n"
        yield b"\n]}\n"


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
