"""Write metrics for TensorBoard, beside `metrics.jsonl`. Needs the extra `tensorboard`.

The step of every point is the number of environment steps; names are those of Stable-Baselines3 where it has them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from parallel_agents.core.errors import ConfigError, RunError
from parallel_agents.core.files import open_folder
from parallel_agents.core.types import Array, EpochStats, RoundStats, RunInfo
from parallel_agents.tracking.callbacks import BaseCallback
from parallel_agents.tracking.episodes import episode_means

_MAX_AGENTS = 64
"""Agents that get curves of their own, since nobody reads more; the mean is over all agents."""


def load_tensorboard() -> tuple[Any, Any]:
    """Return TensorBoard's `EventFileWriter` and `Event`; raise an error that says how to install it."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise ConfigError(
            "TensorBoard is not installed: install parallel-agents with the extra 'tensorboard', or go without it"
        ) from error
    return EventFileWriter, Event


def scalars(stats: EpochStats, replicas: int = 1) -> dict[str, float]:
    """Return the numbers of an epoch that are one for the whole run, under the names of Stable-Baselines3."""
    ep_rew_mean, ep_len_mean = map(float, episode_means(stats.episodes.sum(axis=1)))
    values = {
        "rollout/ep_rew_mean": ep_rew_mean,
        "rollout/ep_len_mean": ep_len_mean,
        "time/fps": stats.timesteps * replicas / max(stats.seconds, 1e-9),
        "time/total_timesteps": stats.total_timesteps,
        "time/epoch": stats.epoch,
        "time/wall_seconds": stats.wall_seconds,
        "train/n_updates": stats.updates,
        "train/lag": stats.lag,
        "train/version": stats.version,
    }
    return {name: float(value) for name, value in values.items() if np.isfinite(value)}


class TensorBoardWriter(BaseCallback):
    """Write episode returns, reward, loss, ε or entropy and buffer fill: the mean and the value of each agent."""

    def __init__(self, folder: Path, *, root: Path | None = None) -> None:
        """Open `folder`. `root` is the run folder, below which no link is followed."""
        self._descriptors = ExitStack()
        try:
            descriptor = self._descriptors.enter_context(open_folder(folder, root, create=True))
        except OSError as error:
            raise RunError(f"cannot write into {folder}: {error.strerror}") from error
        by_descriptor = Path(f"/proc/self/fd/{descriptor}")  # the writer opens files in it again and again, by name
        make_writer, self._make_event = load_tensorboard()
        self._writer = make_writer(str(by_descriptor if by_descriptor.exists() else folder))
        self._names: Sequence[str] = ()
        self._replicas = 1
        self._step = 0

    def on_start(self, run: RunInfo) -> None:
        per_replica = len(run.agents) // run.replicas
        self._replicas = run.replicas
        self._names = [
            f"seed_{n // per_replica}/{name}" if run.replicas > 1 else name for n, name in enumerate(run.agents)
        ]

    def on_epoch(self, stats: EpochStats) -> None:
        self._step = stats.total_timesteps
        returns, lengths = episode_means(stats.episodes)
        columns = {"reward": stats.rewards, "ep_rew_mean": returns, "ep_len_mean": lengths, **stats.metrics}
        self._write({**scalars(stats, self._replicas), **self._by_agent(columns)})

    def on_round(self, result: RoundStats) -> None:
        self._write(self._by_agent(result.metrics))

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self._writer.close()
        self._descriptors.close()

    def _by_agent(self, columns: Mapping[str, Array]) -> dict[str, float]:
        """Return the finite values of each agent, and their mean, by tag."""
        tags: dict[str, float] = {}
        for name, column in columns.items():
            values = np.asarray(column, float)
            finite = values[np.isfinite(values)]
            if finite.size:
                tags[f"mean/{name}"] = float(finite.mean())
            agents = zip(self._names[:_MAX_AGENTS], values.tolist(), strict=False)
            tags |= {f"{name}/{agent}": value for agent, value in agents if np.isfinite(value)}
        return tags

    def _write(self, tags: Mapping[str, float]) -> None:
        """Write real scalars (`simple_value`), which every reader of event files understands."""
        event = self._make_event(wall_time=time.time(), step=self._step)
        for tag, value in tags.items():
            event.summary.value.add(tag=tag, simple_value=value)
        self._writer.add_event(event)
