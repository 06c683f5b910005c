"""Structured logs: lines for people on stderr, JSON lines in the run folder, one context on every record.

Every record in the file has run, role, agent, version (of the acting weights), thread and process. Context is
bound once and carried on: `bind` adds to it, `inherit` takes it into a thread, `worker_context` and
`configure_worker` into a spawned process.

    with configure_logs(folder / "log.jsonl", run="k3f9"):
        with bind(role="conductor"):
            structlog.get_logger().info("round_submitted", round=3)
            Thread(target=inherit(work)).start()
            Process(target=main, args=(worker_context(),)).start()      # main calls configure_worker first

Nothing is configured on import. Whoever has configured structlog keeps that configuration: the file is then
one more processor in front of it, taken out again at the end. Records go to the file of the run they name.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import copy_context
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import structlog
from structlog.contextvars import bind_contextvars, get_contextvars, unbind_contextvars
from structlog.typing import EventDict, WrappedLogger

from parallel_agents.errors import ConfigError
from parallel_agents.tracking.files import plain
from parallel_agents.tracking.lines import MIB, LineFile
from parallel_agents.tracking.listeners import SilentListener
from parallel_agents.types import EpochStats, RunInfo

__all__ = ["EventLog", "Logs", "bind", "configure_logs", "configure_worker", "inherit", "worker_context"]

CONTEXT = ("run", "role", "agent", "version")
_RESULTS = ("digest", "epochs", "turns", "updates", "failures", "wall_seconds", "mean_reward", "reproducible")
_LEVELS = ("debug", "info", "warning", "error", "critical")
_P = ParamSpec("_P")
_R = TypeVar("_R")


class _FileSink:
    """A structlog processor that writes each record of its run as a JSON line and passes it on untouched."""

    def __init__(self, path: str | Path, run: str, max_bytes: int, backups: int) -> None:
        self.file = LineFile(Path(path), _to_stderr, max_bytes=max_bytes, backups=backups)
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


class _Ending:
    """The last processor of our own configuration: the console, or nothing."""

    def __init__(self, *, console: bool, level: str) -> None:
        self.console, self.level = console, level
        self.users = 1
        self._render = structlog.dev.ConsoleRenderer(
            colors=_is_terminal(), exception_formatter=structlog.dev.plain_traceback
        )

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> str:
        if not self.console or _severity(method) < _severity(self.level):
            raise structlog.DropEvent
        return self._render(logger, method, event)


def _severity(method: str) -> int:
    return int(getattr(logging, "ERROR" if method == "exception" else method.upper()))


class _Stderr:
    """A structlog logger that looks stderr up at each record: a live display may have put itself there."""

    def __init__(self, *_: Any) -> None:
        pass

    def msg(self, message: str) -> None:
        _to_stderr(message)

    debug = info = warning = error = critical = exception = msg


def _to_stderr(message: str) -> None:
    with suppress(OSError, ValueError, AttributeError):  # stderr is closed or None: nobody is left to be told
        sys.stderr.write(message + "\n")
        sys.stderr.flush()


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


class Logs:
    """What `configure_logs` set up; closing it, or leaving its `with` block, undoes exactly that."""

    def __init__(self, sinks: list[_FileSink], ending: _Ending | None) -> None:
        self._sinks, self._ending = sinks, ending
        self._context = bind(run=sinks[0].run) if sinks else bind()
        self._open = True

    def close(self) -> None:
        """Stop writing and give structlog back as it was; may be called twice."""
        if not self._open:
            return
        self._open = False
        structlog.configure(processors=[step for step in _steps() if step not in self._sinks])
        for sink in self._sinks:
            sink.file.close()
        self._context.undo()
        if self._ending is not None:
            self._ending.users -= 1
            if self._ending.users == 0:
                structlog.reset_defaults()

    def __enter__(self) -> Logs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def configure_logs(
    path: Path | None,
    *,
    run: str = "",
    console: bool = True,
    level: str = "info",
    max_bytes: int = 16 * MIB,
    backups: int = 3,
) -> Logs:
    """Send records of `run` to the file `path` and, unless structlog is configured, to stderr.

    Without a path, as for a command that makes no run, there is only the console.
    """
    if level not in _LEVELS:
        raise ConfigError(f"log level {level!r} is unknown: choose one of {', '.join(_LEVELS)}")
    return _install([] if path is None else [_FileSink(path, run, max_bytes, backups)], console, level)


def _install(sinks: list[_FileSink], console: bool, level: str) -> Logs:
    if structlog.is_configured():  # by the user, or by ourselves for another run
        structlog.configure(processors=[*sinks, *_steps()])
        ours = _ending()
        if ours is not None:
            ours.users += 1
        return Logs(sinks, ours)
    ending = _Ending(console=console, level=level)
    structlog.configure(
        processors=[
            *sinks,
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            ending,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),  # the file has all, the console less
        logger_factory=_Stderr,
        cache_logger_on_first_use=False,  # a cached logger outlives its configuration and cannot be pickled
    )
    return Logs(sinks, ending)


def _steps() -> list[Any]:
    return list(structlog.get_config()["processors"])


def _ending() -> _Ending | None:
    return next((step for step in _steps() if isinstance(step, _Ending)), None)


def _files() -> list[dict[str, Any]]:
    return [step.settings() for step in _steps() if isinstance(step, _FileSink)]


class bind:  # noqa: N801 - reads as the verb it is
    """Add to the context of this thread's records: for good, or for the length of a `with` block.

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
        """Put back what stood there before."""
        unbind_contextvars(*self._names)
        bind_contextvars(**self._before)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.undo()


def inherit(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function, to be run in any thread with the context of the place that calls `inherit`."""
    context = copy_context()

    @wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        return context.copy().run(function, *args, **kwargs)  # a copy each: a context cannot be entered twice

    return run


def worker_context() -> dict[str, Any]:
    """The log context and files of this process as plain values, for `configure_worker` in a spawned one."""
    ending = _ending()
    return {
        "context": plain(get_contextvars()),
        "files": _files(),
        "console": ending is None or ending.console,
        "level": "info" if ending is None else ending.level,
    }


def configure_worker(settings: Mapping[str, Any]) -> Logs:
    """In a spawned process: the same files and context as in the process that called `worker_context`."""
    present = _files()
    sinks = [_FileSink(**file) for file in settings["files"] if file not in present]
    logs = _install(sinks, settings["console"], settings["level"])
    bind_contextvars(**settings["context"])
    return logs


class EventLog(SilentListener):
    """Writes start, events and end of a run as records, and keeps `run` and `version` in their context.

    A `run` that `configure_logs` has bound stays: records go to the file of the run they name.
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
        """A warning, unless `fields` has a `level` of its own."""
        level = fields.get("level", "warning")
        own = {"event_" if key == "event" else key: value for key, value in fields.items() if key != "level"}
        log = structlog.get_logger().bind(**own)
        {"debug": log.debug, "info": log.info, "error": log.error}.get(level, log.warning)(name)

    def on_end(self, summary: Mapping[str, Any]) -> None:
        if summary:  # without one the run failed, and whoever called it says why
            structlog.get_logger().info("run_ended", **{key: summary[key] for key in _RESULTS if key in summary})
        self._context.undo()
