"""The interface of callbacks, and a list that calls several. A callback that fails is logged once and removed.

>>> class Count(BaseCallback):
...     epochs = 0
...     def on_epoch(self, stats: EpochStats) -> None:
...         self.epochs += 1
>>> count = Count()
>>> callbacks = CallbackList([count])
>>> callbacks.on_epoch(EpochStats(1, 100, 500, np.zeros(5), version=0, lag=0, updates=0, seconds=0.1))
>>> count.epochs
1
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import numpy as np
import structlog

from parallel_agents.core.types import EpochStats, RoundStats, RunInfo

_Record = TypeVar("_Record", EpochStats, RoundStats)


class Callback(Protocol):
    """The methods that a run calls on whoever tracks it. Nothing that a callback does or raises changes a result."""

    def on_start(self, run: RunInfo) -> None:
        """Handle the start of a run, before the first epoch."""
        return

    def on_epoch(self, stats: EpochStats) -> None:
        """Handle the end of an epoch."""
        return

    def on_round(self, result: RoundStats) -> None:
        """Handle a published round; `result` has all agents of all stacks in canonical order."""
        return

    def on_event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Handle an event that belongs in the log: a retry, a fallback, a warning."""
        return

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Handle the end of a run, after the last epoch or when the run stops early; called once."""
        return


class BaseCallback(Callback):
    """A callback that does nothing: the base of callbacks that implement some of the methods."""

    @property
    def busy(self) -> bool:
        """Whether a thread of this callback is at work, which takes memory for a while."""
        return False


class Throttle:
    """Calls a function at most every `every` seconds, and so seldom that it takes at most `share` of the time.

    at_once: the first call need not wait.
    """

    def __init__(self, every: float, share: float = 0.005, *, at_once: bool = True) -> None:
        self._every, self._share = every, share
        self._due = 0.0 if at_once else time.monotonic() + every

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._due

    def call(self, function: Callable[[], None], *, always: bool = False) -> None:
        """Call the function, if it is due."""
        if always or self.is_due:
            began = time.monotonic()
            function()
            ended = time.monotonic()
            self._due = ended + max(self._every, (ended - began) / self._share)


class CallbackList(Callback):
    """Call several callbacks in order, with records that cannot be written to."""

    def __init__(self, callbacks: Iterable[Callback] = ()) -> None:
        self._callbacks = list(callbacks)
        self.dropped = 0
        """Number of callbacks that were removed because they failed."""

    def __len__(self) -> int:
        """Return the number of callbacks that are still called."""
        return len(self._callbacks)

    @property
    def busy(self) -> bool:
        """Whether the attribute `busy` of one of them is True: what it began in an earlier epoch is still going on."""
        for callback in tuple(self._callbacks):
            with self._dropped_if_it_fails(callback, "busy"):
                if getattr(callback, "busy", False) is True:
                    return True
        return False

    def on_start(self, run: RunInfo) -> None:
        self._call("on_start", run)

    def on_epoch(self, stats: EpochStats) -> None:
        self._call("on_epoch", _read_only(stats))

    def on_round(self, result: RoundStats) -> None:
        self._call("on_round", _read_only(result))

    def on_event(self, name: str, fields: Mapping[str, Any]) -> None:
        self._call("on_event", name, MappingProxyType(dict(fields)))

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self._call("on_end", MappingProxyType(dict(summary)))

    def _call(self, method: str, *arguments: Any) -> None:
        for callback in tuple(self._callbacks):
            with self._dropped_if_it_fails(callback, method):
                getattr(callback, method)(*arguments)

    @contextmanager
    def _dropped_if_it_fails(self, callback: Callback, method: str) -> Iterator[None]:
        """Remove a callback that raises something, and log it: a failing callback must not end the run."""
        try:
            yield
        except (Exception, SystemExit) as error:
            self._callbacks = [other for other in self._callbacks if other is not callback]
            self.dropped += 1
            structlog.get_logger().exception(
                "callback_dropped",
                callback=type(callback).__qualname__,
                method=method,
                error=f"{type(error).__name__}: {error}",
                advice="the run goes on without it; the log of the run folder has the traceback",
            )


def _read_only(record: _Record) -> _Record:
    """Return the record with read-only views of its arrays, since records are shared and not copied."""
    return replace(record, **{field.name: _view(getattr(record, field.name)) for field in fields(record)})


def _view(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        view = value.view()
        view.flags.writeable = False
        return view
    if isinstance(value, Mapping):
        return MappingProxyType({name: _view(entry) for name, entry in value.items()})
    return value
