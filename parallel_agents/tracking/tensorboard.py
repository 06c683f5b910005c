"""Write metrics for TensorBoard, beside `metrics.jsonl`. Needs the extra `tensorboard`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from parallel_agents.core.errors import ConfigError, RunError
from parallel_agents.core.files import open_folder
from parallel_agents.core.types import Array, EpochStats, RoundStats, RunInfo
from parallel_agents.tracking.callbacks import BaseCallback

_MAX_AGENTS = 64
"""Agents that get curves of their own, since nobody reads more; the mean is over all agents."""


def load_tensorboard() -> Any:
    """Return TensorBoard's `Writer` class; raise an error that says how to install it."""
    try:
        from tensorboard.summary import Writer
    except ImportError as error:
        raise ConfigError(
            "TensorBoard is not installed: install parallel-agents with the extra 'tensorboard', or go without it"
        ) from error
    return Writer


class TensorBoardWriter(BaseCallback):
    """Write reward, loss, ε or entropy, lag and buffer fill per epoch: the mean and the value of each agent."""

    def __init__(self, folder: Path, *, root: Path | None = None) -> None:
        """Open `folder`. `root` is the run folder, below which no link is followed."""
        self._descriptors = ExitStack()
        try:
            descriptor = self._descriptors.enter_context(open_folder(folder, root, create=True))
        except OSError as error:
            raise RunError(f"cannot write into {folder}: {error.strerror}") from error
        by_descriptor = Path(f"/proc/self/fd/{descriptor}")  # the writer opens files in it again and again, by name
        self._writer = load_tensorboard()(str(by_descriptor if by_descriptor.exists() else folder))
        self._names: Sequence[str] = ()
        self._epoch = 0

    def on_start(self, run: RunInfo) -> None:
        per_replica = len(run.agents) // run.replicas
        self._names = [
            f"seed_{n // per_replica}/{name}" if run.replicas > 1 else name for n, name in enumerate(run.agents)
        ]
        self._epoch = run.first_epoch - 1

    def on_epoch(self, stats: EpochStats) -> None:
        self._epoch = stats.epoch
        self._add("reward", stats.rewards)
        for name, column in stats.metrics.items():
            self._add(name, column)
        for name, value in (("lag", stats.lag), ("version", stats.version), ("updates", stats.updates)):
            self._writer.add_scalar(f"run/{name}", value, self._epoch)
        self._writer.add_scalar("run/turns_per_second", stats.turns / max(stats.seconds, 1e-9), self._epoch)

    def on_round(self, result: RoundStats) -> None:
        for name, column in result.metrics.items():
            self._add(name, column)

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self._writer.close()
        self._descriptors.close()

    def _add(self, name: str, column: Array) -> None:
        values = np.asarray(column, float)
        if np.isfinite(values).any():
            self._writer.add_scalar(f"mean/{name}", float(np.nanmean(values)), self._epoch)
        for agent, value in zip(self._names[:_MAX_AGENTS], values, strict=False):
            if np.isfinite(value):
                self._writer.add_scalar(f"{name}/{agent}", float(value), self._epoch)
