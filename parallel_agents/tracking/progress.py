"""Show the progress of a run: a live bar on a terminal, else one plain line every few seconds.

Everything goes to stderr; stdout is for results. Rates are over about the last ten seconds of the monotonic clock. The
display is drawn from `on_epoch`, so that it needs no thread.
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

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.types import EpochStats, RunInfo
from parallel_agents.tracking.callbacks import BaseCallback, Callback

Clock = Callable[[], float]
_WINDOW = 10.0
"""Seconds that rates are averaged over."""
_POINTS = 20
"""Measurements kept within the window."""
_REDRAW = 0.25
"""Seconds between two drawings of the live bar."""


def show_progress(
    *, quiet: bool = False, stream: TextIO | None = None, every: float = 5.0, clock: Clock = time.monotonic
) -> Callback:
    """Return a display for the stream (default: stderr); with `quiet`, a callback that does nothing."""
    stream = sys.stderr if stream is None else stream
    if quiet or stream is None:  # a Python without a console has no stderr
        return BaseCallback()
    return LiveProgress(stream, clock) if stream.isatty() else PlainProgress(stream, every, clock)


class RecentRates:
    """Turns and updates per second and the mean reward of the last seconds, in bounded memory."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start = clock()
        self._turns = 0
        self._updates = 0
        self._points: deque[tuple[float, int, int]] = deque([(self._start, 0, 0)], maxlen=_POINTS)
        self._rewards: deque[float] = deque(maxlen=_POINTS)
        self._lag = 0

    def add(self, stats: EpochStats) -> float:
        """Add an epoch; return the time of the clock."""
        now = self._clock()
        if not self._rewards:  # a resumed run starts with the updates of the run before
            self._points[0] = (self._start, 0, stats.updates if stats.epoch > 1 else 0)
        self._turns += stats.turns
        self._updates = stats.updates
        self._lag = stats.lag
        self._rewards.append(float(np.mean(stats.rewards)) if np.size(stats.rewards) else float("nan"))
        if now - self._points[-1][0] >= _WINDOW / _POINTS:
            self._points.append((now, self._turns, self._updates))
        return now

    @property
    def seconds(self) -> float:
        """Seconds since the start of the run."""
        return self._clock() - self._start

    def text(self) -> str:
        """Return a line such as `1,204 turns/s  310 updates/s  reward 3.42  lag 1`."""
        if not self._rewards:
            return "starting"
        since, turns, updates = self._points[0]
        seconds = max(self._clock() - since, 1e-9)
        rates = (self._turns - turns) / seconds, (self._updates - updates) / seconds
        reward = sum(self._rewards) / len(self._rewards)
        return f"{rates[0]:,.0f} turns/s  {rates[1]:,.0f} updates/s  reward {reward:.3g}  lag {self._lag}"


class _Display(BaseCallback):
    """Count epochs, and call `_draw` when the next drawing is due."""

    def __init__(self, every: float, clock: Clock) -> None:
        self._every, self._clock = every, clock
        self._rates = RecentRates(clock)
        self._epoch = self._epochs = 0
        self._due = 0.0

    def on_start(self, run: RunInfo) -> None:
        self._rates = RecentRates(self._clock)
        self._epoch, self._epochs = run.first_epoch - 1, run.epochs
        self._due = self._clock()

    def on_epoch(self, stats: EpochStats) -> None:
        now = self._rates.add(stats)
        self._epoch = stats.epoch
        if now >= self._due:
            self._due = now + self._every
            self._draw()

    def _draw(self) -> None:
        raise NotImplementedError


class PlainProgress(_Display):
    """Write a line at the first epoch, then at most one every `every` seconds, and one at the end."""

    def __init__(self, stream: TextIO, every: float = 5.0, clock: Clock = time.monotonic) -> None:
        if not every >= 0:
            raise ConfigError(f"a progress line every {every} seconds is impossible: give 0 or more")
        super().__init__(every, clock)
        self._stream = stream

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self._draw(f"  after {timedelta(seconds=round(self._rates.seconds))}")

    def _draw(self, suffix: str = "") -> None:
        self._stream.write(f"epoch {self._epoch}/{self._epochs}  {self._rates.text()}{suffix}\n")
        self._stream.flush()


class LiveProgress(_Display):
    """Draw a bar that stays in place while log lines scroll above it."""

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic) -> None:
        super().__init__(_REDRAW, clock)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, max_width=20)),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),  # takes the width that the other columns leave
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[rates]}", markup=False),
            TimeRemainingColumn(elapsed_when_finished=True, table_column=Column(no_wrap=True)),
            expand=True,
            console=Console(file=stream),
            auto_refresh=False,
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),  # piped results must not be redirected
            get_time=clock,
        )
        self._task = self._bar.add_task("", total=None, rates="starting")

    def on_start(self, run: RunInfo) -> None:
        super().on_start(run)
        self._due += _REDRAW
        self._bar.update(self._task, description=run.environment, total=run.epochs, completed=self._epoch)
        self._bar.start()

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self._draw()
        self._bar.stop()

    def _draw(self) -> None:
        self._bar.update(self._task, completed=self._epoch, rates=self._rates.text(), refresh=True)
