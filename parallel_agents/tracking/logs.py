"""Structured logs with structlog: readable lines on stderr, JSON lines in the run folder.

Every record in the file has run, role, agent, version (of the acting weights), thread and process. `bind` adds to this
context. `worker_context` and `configure_worker` carry it into a spawned process:

    with configure_logs(folder / "log.jsonl", run="k3f9"):
        with bind(role="conductor"):
            structlog.get_logger().info("round_submitted", round=3)
            Process(target=main, args=(worker_context(),)).start()      # main calls configure_worker first

Importing this module configures nothing. If structlog is configured already, that configuration stays: the file is one
more processor in front of it, which is removed at the end. Records go to the file of the run they name.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog
from structlog.contextvars import bind_contextvars, get_contextvars, unbind_contextvars
from structlog.typing import EventDict, WrappedLogger

from parallel_agents.core.files import plain
from parallel_agents.core.types import EpochStats, RunInfo
from parallel_agents.tracking.callbacks import BaseCallback
from parallel_agents.tracking.jsonl import MIB, JsonlFile

CONTEXT = ("run", "role", "agent", "version")
_RESULTS = ("digest", "epochs", "turns", "updates", "failures", "wall_seconds", "mean_reward", "reproducible")
_SHOWN_ELSEWHERE = ("run_started", "run_stopped", "run_ended")
"""Records of the file that the console leaves out, since the progress display, summary or last line say the same."""


class _FileSink:
    """A structlog processor that writes each record of its run as a JSON line and passes the record on unchanged."""

    def __init__(self, path: str | Path, run: str, max_bytes: int, backups: int) -> None:
        self.file = JsonlFile(Path(path), _write_stderr, max_bytes=max_bytes, backups=backups)
        self.run = run

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        record = {**get_contextvars(), **event}
        if record.get("run", self.run) == self.run:
            self.file.write(json.dumps(self._line(method, record), ensure_ascii=False, allow_nan=False))
        return event

    def _line(self, method: str, record: EventDict) -> dict[str, Any]:
        record = dict(structlog.processors.format_exc_info(None, method, record))
        head = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "level": "error" if method == "exception" else method,
            "event": record.pop("event", None),
            **{name: record.pop(name, None) for name in CONTEXT},
            "thread": threading.current_thread().name,
            "process": os.getpid(),
        }
        head["run"] = self.run
        return dict(plain(head | {name: value for name, value in record.items() if name not in head}))

    def settings(self) -> dict[str, Any]:
        file = self.file
        return {"path": str(file.path), "run": self.run, "max_bytes": file.max_bytes, "backups": file.backups}


class _Console:
    """The last processor of our own configuration: format the record for stderr, or drop it."""

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self.users = 0
        self._render = structlog.dev.ConsoleRenderer(colors=sys.stderr is not None and sys.stderr.isatty())

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> str:
        shown = event.get("event") not in _SHOWN_ELSEWHERE and method != "debug"
        if not self.enabled or not shown:
            raise structlog.DropEvent
        for name in ("exc_info", "run", "version"):  # the file has them
            event.pop(name, None)
        if event.get("role") == "conductor":  # the process that the user started
            del event["role"]
        return self._render(logger, method, event)

    def release(self) -> None:
        """Count one user less; the last one takes the configuration along."""
        self.users -= 1
        if not self.users:
            structlog.reset_defaults()


class _StderrLogger:
    """A structlog logger that looks up `sys.stderr` for each record, since a live display may have replaced it."""

    def __init__(self, *_: Any) -> None:
        pass

    def msg(self, message: str) -> None:
        _write_stderr(message)

    debug = info = warning = error = critical = exception = msg


def _write_stderr(message: str) -> None:
    with suppress(OSError, ValueError, AttributeError):  # stderr is closed or None: there is nowhere to write
        sys.stderr.write(message + "\n")
        sys.stderr.flush()


def configure_logs(
    path: Path, *, run: str, console: bool = True, max_bytes: int = 16 * MIB, backups: int = 3
) -> ExitStack:
    """Send records of `run` to the file `path` and, unless structlog is configured already, to stderr.

    `close` of the result, or the end of a `with` block, closes the file and restores structlog.
    """
    return _install([_FileSink(path, run, max_bytes, backups)], console)


def _install(sinks: list[_FileSink], enabled: bool) -> ExitStack:
    """Add the sinks to structlog's processors, and a console if it has none yet; return what undoes it."""
    console, undo = _find_console(), ExitStack()
    if structlog.is_configured():  # by the user, or by an earlier call for another run
        structlog.configure(processors=[*sinks, *_processors()])
    else:
        console = _Console(enabled=enabled)
        structlog.configure(
            processors=[
                *sinks,
                structlog.contextvars.merge_contextvars,
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
                console,
            ],
            wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),  # the console filters
            logger_factory=_StderrLogger,
            cache_logger_on_first_use=False,  # a cached logger outlives its configuration and cannot be pickled
        )
    if console is not None:
        console.users += 1
        undo.callback(console.release)
    if sinks:
        undo.callback(bind(run=sinks[0].run).undo)
    for sink in sinks:
        undo.callback(sink.file.close)
    undo.callback(lambda: structlog.configure(processors=[step for step in _processors() if step not in sinks]))
    return undo


def _processors() -> list[Any]:
    return list(structlog.get_config()["processors"])


def _find_console() -> _Console | None:
    return next((step for step in _processors() if isinstance(step, _Console)), None)


def _file_settings() -> list[dict[str, Any]]:
    return [step.settings() for step in _processors() if isinstance(step, _FileSink)]


class bind:  # noqa: N801 - reads as the verb it is
    """Add to the context of this thread's log records, permanently or within a `with` block.

    >>> with bind(role="learner", agent="blue"):
    ...     get_contextvars()["agent"]
    'blue'
    >>> "agent" in get_contextvars()
    False
    """

    def __init__(self, **context: Any) -> None:
        self._before = {name: value for name, value in get_contextvars().items() if name in context}
        self._names = tuple(context)
        bind_contextvars(**context)

    def undo(self) -> None:
        """Restore the values from before."""
        unbind_contextvars(*self._names)
        bind_contextvars(**self._before)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.undo()


def worker_context() -> dict[str, Any]:
    """Return the log context and files of this process as plain values, for `configure_worker`."""
    console = _find_console()
    return {
        "context": plain(get_contextvars()),
        "files": _file_settings(),
        "console": console is None or console.enabled,
    }


def configure_worker(settings: Mapping[str, Any]) -> ExitStack:
    """Configure the logs of a spawned process as in the process that called `worker_context`."""
    present = _file_settings()
    sinks = [_FileSink(**file) for file in settings["files"] if file not in present]
    undo = _install(sinks, settings["console"])
    bind_contextvars(**settings["context"])
    return undo


class EventLog(BaseCallback):
    """Log the start, events and end of a run, and keep `run` and `version` in the context of its records.

    A `run` that `configure_logs` has bound stays, since records go to the file of the run they name.
    """

    def __init__(self) -> None:
        self._context = bind()

    def on_start(self, run: RunInfo) -> None:
        self._context = bind(run=get_contextvars().get("run", run.run_id), version=None)
        structlog.get_logger().info(
            "run_started",
            environment=run.environment,
            agents=len(run.agents),
            worlds=run.worlds,
            replicas=run.replicas,
            first_epoch=run.first_epoch,
            epochs=run.epochs,
            fingerprint=dict(run.fingerprint),
        )

    def on_epoch(self, stats: EpochStats) -> None:
        bind_contextvars(version=stats.version)

    def on_event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Log a warning, or a record of the level that `fields` gives."""
        level = fields.get("level", "warning")
        values = {"event_" if key == "event" else key: value for key, value in fields.items() if key != "level"}
        log = structlog.get_logger().bind(**values)
        {"debug": log.debug, "info": log.info, "error": log.error}.get(level, log.warning)(name)

    def on_end(self, summary: Mapping[str, Any]) -> None:
        if summary:  # an empty summary means that the run failed, which its caller logs
            structlog.get_logger().info("run_ended", **{key: summary[key] for key in _RESULTS if key in summary})
        self._context.undo()
