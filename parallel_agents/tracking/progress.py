"""Progress while it happens: a live bar on a terminal, elsewhere one plain line every few seconds.

Everything goes to stderr, so that stdout stays free for results. Rates come from the monotonic clock, over
about the last ten seconds. The bar is drawn from `on_epoch`: no thread of its own competes with the run.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TextIO

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from parallel_agents.errors import ConfigError
from parallel_agents.protocols import Listener
from parallel_agents.tracking.listeners import SilentListener
from parallel_agents.types import EpochStats, RunInfo

__all__ = ["Figures", "LiveProgress", "PlainProgress", "show_progress"]

Clock = Callable[[], float]
_WINDOW = 10.0
_POINTS = 20
_REDRAW = 0.25


def show_progress(
    *, quiet: bool = False, stream: TextIO | None = None, every: float = 5.0, clock: Clock = time.monotonic
) -> Listener:
    """The display that suits the stream (stderr unless given)."""
    stream = sys.stderr if stream is None else stream
    if quiet or stream is None:  # a Python without a console has no stderr
        return SilentListener()
    return LiveProgress(stream, clock) if _is_terminal(stream) else PlainProgress(stream, every, clock)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


class Figures:
    """Rates and means over the recent past, kept in a handful of numbers however long the run."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock()
        self._turns = 0
        self._updates = 0
        self._points: deque[tuple[float, int, int]] = deque([(self._began, 0, 0)], maxlen=_POINTS)
        self._rewards: deque[float] = deque(maxlen=_POINTS)
        self._lag = 0

    def add(self, stats: EpochStats) -> float:
        """Take one epoch in; the time it was taken at."""
        now = self._clock()
        if not self._rewards:  # a resumed run has updates from before
            self._points[0] = (self._began, 0, stats.updates if stats.epoch > 1 else 0)
        self._turns += stats.turns
        self._updates = stats.updates
        self._lag = stats.lag
        self._rewards.append(float(np.mean(stats.rewards)) if np.size(stats.rewards) else float("nan"))
        if now - self._points[-1][0] >= _WINDOW / _POINTS:
            self._points.append((now, self._turns, self._updates))
        return now

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return self._clock() - self._began

    def text(self) -> str:
        """Such as `1,204 turns/s  310 updates/s  reward 3.42  lag 1`."""
        if not self._rewards:
            return "starting"
        then, turns, updates = self._points[0]
        seconds = max(self._clock() - then, 1e-9)
        rates = (self._turns - turns) / seconds, (self._updates - updates) / seconds
        reward = sum(self._rewards) / len(self._rewards)
        return f"{rates[0]:,.0f} turns/s  {rates[1]:,.0f} updates/s  reward {reward:.3g}  lag {self._lag}"


class PlainProgress(SilentListener):
    """A line at the first epoch, then one at most every `every` seconds, and one at the end."""

    def __init__(self, stream: TextIO, every: float = 5.0, clock: Clock = time.monotonic) -> None:
        if not every >= 0:
            raise ConfigError(f"a progress line every {every} seconds is impossible: give 0 or more")
        self._stream, self._every, self._clock = stream, every, clock
        self._figures = Figures(clock)
        self._epoch = self._last = 0
        self._due = 0.0

    def on_start(self, run: RunInfo) -> None:
        self._figures = Figures(self._clock)
        self._epoch, self._last = run.first_epoch - 1, run.epochs
        self._due = self._clock()

    def on_epoch(self, stats: EpochStats) -> None:
        now = self._figures.add(stats)
        self._epoch = stats.epoch
        if now >= self._due:
            self._due = now + self._every
            self._write("")

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self._write(f"  after {timedelta(seconds=round(self._figures.seconds))}")

    def _write(self, tail: str) -> None:
        self._stream.write(f"epoch {self._epoch}/{self._last}  {self._figures.text()}{tail}\n")
        self._stream.flush()


class LiveProgress(SilentListener):
    """A bar that stays in place while log lines scroll above it."""

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._figures = Figures(clock)
        self._epoch = 0
        self._drawn = 0.0
        self._bar = Progress(
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, max_width=20)),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),  # takes the width that the figures leave
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeRemainingColumn(elapsed_when_finished=True, table_column=Column(no_wrap=True)),
            expand=True,
            console=Console(file=stream),
            auto_refresh=False,
            redirect_stdout=_is_terminal(sys.stdout),  # results that are piped on stay where they are
            get_time=clock,
        )
        self._task = self._bar.add_task("", total=None, figures="starting")

    def on_start(self, run: RunInfo) -> None:
        self._figures = Figures(self._clock)
        self._epoch = run.first_epoch - 1
        self._drawn = self._clock()
        self._bar.update(self._task, description=run.environment, total=run.epochs, completed=self._epoch)
        self._bar.start()

    def on_epoch(self, stats: EpochStats) -> None:
        now = self._figures.add(stats)
        self._epoch = stats.epoch
        if now - self._drawn >= _REDRAW:
            self._drawn = now
            self._draw()

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self._draw()
        self._bar.stop()

    def _draw(self) -> None:
        self._bar.update(self._task, completed=self._epoch, figures=self._figures.text(), refresh=True)
