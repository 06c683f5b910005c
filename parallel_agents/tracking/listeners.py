"""Many listeners as one. A listener that fails is reported once and dropped; the run never notices.

This is the seam for further sinks: anything with the five methods of `protocols.Listener` can be in the list.

>>> class Count(SilentListener):
...     epochs = 0
...     def on_epoch(self, stats: EpochStats) -> None:
...         self.epochs += 1
>>> count = Count()
>>> everyone = Listeners([count])
>>> everyone.on_epoch(EpochStats(1, 100, 500, np.zeros(5), version=0, lag=0, updates=0, seconds=0.1))
>>> count.epochs
1
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import structlog

from parallel_agents.protocols import Listener
from parallel_agents.types import EpochStats, RoundResult, RunInfo

__all__ = ["Listeners", "SilentListener"]

_Record = TypeVar("_Record", EpochStats, RoundResult)


class SilentListener(Listener):
    """Hears everything and does nothing: the base of listeners that care for a part of it."""

    def on_start(self, run: RunInfo) -> None:
        return None

    def on_epoch(self, stats: EpochStats) -> None:
        return None

    def on_round(self, result: RoundResult) -> None:
        return None

    def on_event(self, name: str, fields: Mapping[str, Any]) -> None:
        return None

    def on_end(self, summary: Mapping[str, Any]) -> None:
        return None


class Listeners(Listener):
    """Passes everything on, in list order, as views that cannot be written to."""

    def __init__(self, listeners: Iterable[Listener] = ()) -> None:
        self._listeners = list(listeners)
        self.dropped = 0
        """How many failed."""

    def __len__(self) -> int:
        """How many still listen."""
        return len(self._listeners)

    def on_start(self, run: RunInfo) -> None:
        self._tell("on_start", lambda listener: listener.on_start(run))

    def on_epoch(self, stats: EpochStats) -> None:
        frozen = _read_only(stats)
        self._tell("on_epoch", lambda listener: listener.on_epoch(frozen))

    def on_round(self, result: RoundResult) -> None:
        frozen = _read_only(result)
        self._tell("on_round", lambda listener: listener.on_round(frozen))

    def on_event(self, name: str, fields: Mapping[str, Any]) -> None:
        frozen = MappingProxyType(dict(fields))
        self._tell("on_event", lambda listener: listener.on_event(name, frozen))

    def on_end(self, summary: Mapping[str, Any]) -> None:
        frozen = MappingProxyType(dict(summary))
        self._tell("on_end", lambda listener: listener.on_end(frozen))

    def _tell(self, method: str, call: Callable[[Listener], None]) -> None:
        for listener in tuple(self._listeners):
            try:
                call(listener)
            except (Exception, SystemExit):  # a sink never ends a run
                self._listeners = [other for other in self._listeners if other is not listener]
                self.dropped += 1
                structlog.get_logger().exception(
                    "listener_dropped",
                    listener=type(listener).__qualname__,
                    method=method,
                    advice="the run goes on without it",
                )


def _read_only(record: _Record) -> _Record:
    """The same record, its arrays as views that cannot be written to: results are shared, not copied."""
    return replace(record, **{field.name: _view(getattr(record, field.name)) for field in fields(record)})


def _view(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        view = value.view()
        view.flags.writeable = False
        return view
    if isinstance(value, Mapping):
        return MappingProxyType({name: _view(entry) for name, entry in value.items()})
    return value
