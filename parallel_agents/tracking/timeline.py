"""Who did what when: spans by role, written as Chrome trace events, which Perfetto opens.

Roles and names used by the runtime: collect, act, observe, learn, publish, wait, snapshot; a round is an
argument of its span. Recording is one append into a bounded ring; a worker sends its spans back as plain
tuples, and the monotonic clock they are on is the same for all processes of a machine.

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

from parallel_agents.errors import ConfigError
from parallel_agents.tracking.files import plain, write_atomically

__all__ = ["Span", "Timeline"]

Span = tuple[str, str, int, int, int, int, dict[str, Any]]
"""name, role, start and duration in ns of the monotonic clock, process, thread, arguments"""

_NOTHING: AbstractContextManager[None] = nullcontext()
_encode = json.JSONEncoder(separators=(",", ":")).encode


class Timeline:
    """Spans of this process and, once merged, of others; the newest `capacity` of them."""

    def __init__(self, *, enabled: bool = True, capacity: int = 200_000) -> None:
        if capacity < 1:
            raise ConfigError(f"a timeline of {capacity} spans is impossible: give at least 1, or disable it")
        self.enabled = enabled
        self._spans: deque[Span] = deque(maxlen=capacity)
        self._process = os.getpid()

    def span(self, name: str, role: str, **arguments: Any) -> AbstractContextManager[None]:
        """Record how long the `with` block took, also when it raises.

        In a tight loop, make the span once and enter it each time; it belongs to the thread that made it.
        """
        if not self.enabled:
            return _NOTHING
        return _Recording(self._spans, name, role, (self._process, threading.get_native_id(), arguments))

    def merge(self, spans: Iterable[Span]) -> None:
        """Take in what a worker sent."""
        if self.enabled:
            self._spans.extend(spans)

    def take(self) -> list[Span]:
        """All spans so far, removed from here: what a worker sends."""
        taken: list[Span] = []
        while self._spans:
            taken.append(self._spans.popleft())
        return taken

    def spans(self) -> list[Span]:
        """All spans so far."""
        while True:
            try:
                return list(self._spans)
            except RuntimeError:  # another thread appended while we copied: copy again
                continue

    def write(self, path: Path) -> None:
        """Write the trace; may be called at any time, also while spans are recorded."""
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


class _Recording:
    __slots__ = ("_append", "_name", "_rest", "_role", "_start")

    def __init__(self, spans: deque[Span], name: str, role: str, rest: tuple[int, int, dict[str, Any]]) -> None:
        self._append, self._name, self._role, self._rest = spans.append, name, role, rest

    def __enter__(self) -> None:
        self._start = time.monotonic_ns()

    def __exit__(self, *_: object) -> None:
        duration = time.monotonic_ns() - self._start
        self._append((self._name, self._role, self._start, duration, *self._rest))


def _event(span: Span, origin: int) -> dict[str, Any]:
    """A complete event, times in microseconds."""
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


def _labels(spans: list[Span], own_process: int) -> list[dict[str, Any]]:
    """Metadata events: a process is named main or worker, a thread by the roles it had."""
    roles: dict[tuple[int, int], dict[str, None]] = {}
    for _, role, _, _, process, thread, _ in spans:
        roles.setdefault((process, thread), {})[role] = None
    named = [
        ("process_name", process, 0, "main" if process == own_process else f"worker {process}")
        for process in dict.fromkeys(process for process, _ in roles)
    ]
    named += [("thread_name", process, thread, ", ".join(seen)) for (process, thread), seen in roles.items()]
    return [
        {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": label}}
        for kind, process, thread, label in named
    ]
