"""Show the progress of a run: a live bar on a terminal or in a notebook, else one plain line every few seconds.

Everything goes to stderr; stdout is for results. Rates are over about the last ten seconds of the monotonic clock. The
display is drawn from `on_epoch`, so that it needs no thread.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TextIO

import numpy as np
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.types import Array, EpochStats, RunInfo
from parallel_agents.tracking.callbacks import BaseCallback, Callback
from parallel_agents.tracking.metric_bins import Bins
from parallel_agents.tracking.metrics import WINDOW, episode_means, newest_episodes

Clock = Callable[[], float]
_WINDOW = 10.0
"""Seconds that rates are averaged over."""
_POINTS = 20
"""Measurements kept within the window."""
_REDRAW = 0.25
"""Seconds between two drawings of the live bar."""
_SPARKLINES = 8
"""Agents that get a line of their own below the live bar; it is cut where the terminal ends."""
_SPARKLINE_WIDTH = 16
_BLOCKS = "▁▂▃▄▅▆▇█"


def show_progress(
    *, quiet: bool = False, stream: TextIO | None = None, every: float = 5.0, clock: Clock = time.monotonic
) -> Callback:
    """Return a display for the stream (default: stderr); with `quiet`, a callback that does nothing."""
    stream = sys.stderr if stream is None else stream
    if quiet or stream is None:  # a Python without a console has no stderr
        return BaseCallback()
    if in_notebook():
        return NotebookProgress(clock)
    return LiveProgress(stream, clock) if stream.isatty() else PlainProgress(stream, every, clock)


class RecentRates:
    """Steps and updates per second and the episodes of the last epochs, in bounded memory."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start = clock()
        self._steps = 0
        self._updates = 0
        self._points: deque[tuple[float, int, int]] = deque([(self._start, 0, 0)], maxlen=_POINTS)
        self._rewards: deque[float] = deque(maxlen=_POINTS)
        self._episodes: deque[Array] = deque(maxlen=WINDOW)
        self.replicas = 1
        self._lag = 0
        self.waiting_for = "starting"
        """What is shown before the first epoch."""

    def add(self, stats: EpochStats) -> float:
        """Add an epoch; return the time of the clock."""
        now = self._clock()
        if not self._rewards:  # a resumed run starts with the updates of the run before
            self._points[0] = (self._start, 0, stats.updates if stats.epoch > 1 else 0)
        self._steps += stats.timesteps * self.replicas
        self._updates = stats.updates
        self._lag = stats.lag
        self._episodes.append(stats.episodes.sum(axis=1))
        self._rewards.append(float(np.mean(stats.rewards)) if np.size(stats.rewards) else float("nan"))
        if now - self._points[-1][0] >= _WINDOW / _POINTS:
            self._points.append((now, self._steps, self._updates))
        return now

    @property
    def seconds(self) -> float:
        """Seconds since the start of the run."""
        return self._clock() - self._start

    def text(self, *, short: bool = False) -> str:
        """Return a line such as `ep_rew_mean 187  ep_len_mean 187  fps 9,204  updates/s 310  lag 1`."""
        if not self._rewards:
            return self.waiting_for
        since, steps, updates = self._points[0]
        seconds = max(self._clock() - since, 1e-9)
        fps, rate = (self._steps - steps) / seconds, (self._updates - updates) / seconds
        returns, lengths = episode_means(newest_episodes(self._episodes))
        if np.isnan(returns):  # before the first episode has ended
            earned = f"reward {sum(self._rewards) / len(self._rewards):.3g}"
        else:
            earned = f"ep_rew_mean {returns:.3g}" + ("" if short else f"  ep_len_mean {lengths:.3g}")
        return f"{earned}  fps {fps:,.0f}  updates/s {rate:,.0f}  lag {self._lag}"


def _plan(run: RunInfo) -> str:
    """Return a text such as `8 agents, 4 worlds, epochs 1 to 200`, and that kernels may be compiled."""
    counts = {"agent": len(run.agents) // run.replicas, "world": run.worlds}
    if run.replicas > 1:
        counts["replica"] = run.replicas
    things = ", ".join(f"{count} {name}{'s' if count != 1 else ''}" for name, count in counts.items())
    if run.first_epoch > run.epochs:
        return f"{things}, no epoch left to train"
    return f"{things}, epochs {run.first_epoch} to {run.epochs}; the first epochs may compile kernels, once"


class _Display(BaseCallback):
    """Count epochs, and call `_draw` when the next drawing is due."""

    def __init__(self, every: float, clock: Clock) -> None:
        self._every, self._clock = every, clock
        self._rates = RecentRates(clock)
        self._epoch = self._epochs = 0
        self._due = 0.0

    def on_start(self, run: RunInfo) -> None:
        self._rates = RecentRates(self._clock)
        self._rates.replicas = run.replicas
        self._epoch, self._epochs = run.first_epoch - 1, max(run.epochs, run.first_epoch - 1)
        self._due = self._clock()

    def on_epoch(self, stats: EpochStats) -> None:
        now = self._rates.add(stats)
        self._epoch = stats.epoch
        if now >= self._due:
            self._due = now + self._every
            self._draw()

    def on_event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Say what takes long before the first epoch."""
        if name == "ray_starting":
            self._rates.waiting_for = f"starting workers on Ray ({fields['address']})"
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

    def on_start(self, run: RunInfo) -> None:
        super().on_start(run)
        self._stream.write(f"{run.environment}: {_plan(run)}\n")
        self._stream.flush()

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self._draw(f"  after {timedelta(seconds=round(self._rates.seconds))}")

    def _draw(self, suffix: str = "") -> None:
        self._stream.write(f"epoch {self._epoch}/{self._epochs}  {self._rates.text()}{suffix}\n")
        self._stream.flush()


class Sparklines:
    """The rewards of a few agents over the whole run so far, in bounded memory: neighbouring epochs are averaged.

    >>> lines = Sparklines(["a", "b"])
    >>> for epoch in range(4):
    ...     lines.add(np.array([epoch, -epoch]))
    >>> lines.text()
    'a ▁▃▆█  b █▆▃▁'
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._epochs = list(names)[:_SPARKLINES], 0
        self._bins = Bins(_SPARKLINE_WIDTH)

    def add(self, rewards: Array) -> None:
        """Add the rewards (agents,) of an epoch."""
        self._epochs += 1
        shown = np.nan_to_num(np.asarray(rewards, float)[: len(self._names)])
        self._bins.add("reward", np.array([self._epochs]), shown[None])

    def text(self) -> str:
        """Return each agent's name and line, scaled from its least to its largest value."""
        columns = self._bins.means("reward").T.tolist() if self._epochs else []
        return "  ".join(f"{name} {_sparkline(column)}" for name, column in zip(self._names, columns, strict=False))


def _sparkline(values: Sequence[float]) -> str:
    low, span = min(values), max(values) - min(values)
    return "".join(_BLOCKS[round((value - low) / span * 7) if span > 0 else 0] for value in values)


class _Bar(Progress):
    """A progress bar with a line of text below."""

    below = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.below:
            yield Text(self.below, no_wrap=True, overflow="ellipsis", style="dim")


class LiveProgress(_Display):
    """Draw a bar that stays in place while log lines scroll above it, and below it the rewards of a few agents."""

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic) -> None:
        super().__init__(_REDRAW, clock)
        self._sparklines = Sparklines(())
        self._bar = _Bar(
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
        self._sparklines = Sparklines(run.agents)
        self._bar.update(self._task, description=run.environment, total=self._epochs, completed=self._epoch)
        self._bar.start()

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self._draw()
        self._bar.stop()

    def on_epoch(self, stats: EpochStats) -> None:
        self._sparklines.add(stats.rewards)
        super().on_epoch(stats)

    def _draw(self) -> None:
        self._bar.below = self._sparklines.text()
        self._bar.update(self._task, completed=self._epoch, rates=self._rates.text(short=True), refresh=True)


def in_notebook() -> bool:
    """Return True if this code runs in a Jupyter notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return type(shell).__name__ == "ZMQInteractiveShell"


class NotebookProgress(_Display):
    """Draw a bar and the rates below a notebook cell, in one output that is updated in place."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        super().__init__(1.0, clock)
        self._handle: Any = None

    def on_start(self, run: RunInfo) -> None:
        super().on_start(run)
        self._handle = sys.modules["IPython"].display.display(self._bundle(), raw=True, display_id=True)

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self._draw()

    def _draw(self) -> None:
        if self._handle is not None:
            self._handle.update(self._bundle(), raw=True)

    def _bundle(self) -> dict[str, str]:
        """Return the display as text and as HTML."""
        text = f"epoch {self._epoch}/{self._epochs}  {self._rates.text()}"
        return {
            "text/plain": text,
            "text/html": f'<progress value="{self._epoch}" max="{self._epochs}"></progress> {text}',
        }
