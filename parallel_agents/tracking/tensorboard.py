"""Metrics for TensorBoard, as a further listener. Needs the extra `tensorboard`; `metrics.jsonl` stays the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from parallel_agents.errors import ConfigError, RunError
from parallel_agents.tracking.files import open_folder
from parallel_agents.tracking.listeners import SilentListener
from parallel_agents.types import Array, EpochStats, RoundResult, RunInfo

__all__ = ["TensorBoardWriter", "load_tensorboard"]

_MOST_AGENTS = 64
"""Curves of single agents beyond so many help nobody; their mean is always written."""


def load_tensorboard() -> Any:
    """What writes event files, or an error that says how to get it."""
    try:
        from tensorboard.summary import Writer
    except ImportError as error:
        raise ConfigError(
            "TensorBoard is not installed: install parallel-agents with the extra 'tensorboard', or go without it"
        ) from error
    return Writer


class TensorBoardWriter(SilentListener):
    """Writes reward, loss, ε or entropy, lag and buffer fill, their mean and those of each agent, against the epoch."""

    def __init__(self, folder: Path, *, root: Path | None = None) -> None:
        """root: the run folder, below which no link is followed."""
        self._open = ExitStack()  # its files are opened again and again, by name
        try:
            descriptor = self._open.enter_context(open_folder(folder, root, create=True))
        except OSError as error:
            raise RunError(f"cannot write into {folder}: {error.strerror}") from error
        reached = Path(f"/proc/self/fd/{descriptor}")
        self._writer = load_tensorboard()(str(reached if reached.exists() else folder))
        self._names: Sequence[str] = ()
        self._epoch = 0

    def on_start(self, run: RunInfo) -> None:
        each = len(run.agents) // run.replicas
        several = run.replicas > 1
        self._names = [f"seed_{n // each}/{name}" if several else name for n, name in enumerate(run.agents)]
        self._epoch = run.first_epoch - 1

    def on_epoch(self, stats: EpochStats) -> None:
        self._epoch = stats.epoch
        self._add("reward", stats.rewards)
        for name, column in stats.metrics.items():
            self._add(name, column)
        for name, value in (("lag", stats.lag), ("version", stats.version), ("updates", stats.updates)):
            self._writer.add_scalar(f"run/{name}", value, self._epoch)
        self._writer.add_scalar("run/turns_per_second", stats.turns / max(stats.seconds, 1e-9), self._epoch)

    def on_round(self, result: RoundResult) -> None:
        for name, column in result.metrics.items():
            self._add(name, column)

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self._writer.close()
        self._open.close()

    def _add(self, name: str, column: Array) -> None:
        values = np.asarray(column, float)
        if np.isfinite(values).any():
            self._writer.add_scalar(f"mean/{name}", float(np.nanmean(values)), self._epoch)
        for agent, value in zip(self._names[:_MOST_AGENTS], values, strict=False):
            if np.isfinite(value):
                self._writer.add_scalar(f"{name}/{agent}", float(value), self._epoch)
