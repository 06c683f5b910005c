"""Log a run to TensorBoard, Weights & Biases or MLflow, beside `metrics.jsonl`.

The step of every point is the number of environment steps; names are those of Stable-Baselines3 where it has them.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from parallel_agents.core.errors import ConfigError, RunError
from parallel_agents.core.files import open_folder, plain
from parallel_agents.core.types import Array, EpochStats, RoundStats, RunInfo
from parallel_agents.tracking.callbacks import BaseCallback
from parallel_agents.tracking.metrics import episode_means
from parallel_agents.tracking.run_folder import flat

_MAX_AGENTS = 64
"""Agents that get curves of their own, since nobody reads more; the mean is over all agents."""


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


class _Service(BaseCallback):
    """Send the numbers of every epoch and round to `_log`: here, the mean of each metric over agents."""

    name: str

    def __init__(self, folder: Path) -> None:
        self._folder, self._package = folder, self.load()
        self._replicas, self._step = 1, 0

    @classmethod
    def load(cls) -> Any:
        """Return the package of the service; raise ConfigError if it is not installed."""
        try:
            return importlib.import_module(cls.name)
        except ImportError as error:
            raise ConfigError(
                f"--{cls.name}: the package {cls.name} is not installed: pip install {cls.name}, or leave it out"
            ) from error

    def on_start(self, run: RunInfo) -> None:
        self._replicas = run.replicas

    def on_epoch(self, stats: EpochStats) -> None:
        self._step = stats.total_timesteps
        self._log(scalars(stats, self._replicas) | self._columns(self._of_epoch(stats)))

    def on_round(self, result: RoundStats) -> None:
        self._log(self._columns(result.metrics))

    def _of_epoch(self, stats: EpochStats) -> Mapping[str, Array]:
        return stats.metrics

    def _columns(self, columns: Mapping[str, Array]) -> dict[str, float]:
        return _means(columns, "train")

    def _log(self, values: Mapping[str, float]) -> None:
        raise NotImplementedError


def _means(columns: Mapping[str, Array], group: str) -> dict[str, float]:
    """Return the mean over agents of each column, without those that no agent has."""
    finite = {name: np.asarray(column, float)[np.isfinite(column)] for name, column in columns.items()}
    return {f"{group}/{name}": float(values.mean()) for name, values in finite.items() if values.size}


class TensorBoardWriter(_Service):
    """Write episode returns, reward, loss, ε or entropy and buffer fill: the mean and the value of each agent.

    The files are in `tensorboard/` of the run folder, below which no link is followed.
    """

    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._descriptors, inside = ExitStack(), folder / "tensorboard"
        try:
            descriptor = self._descriptors.enter_context(open_folder(inside, folder, create=True))
        except OSError as error:
            raise RunError(f"cannot write into {inside}: {error.strerror}") from error
        by_descriptor = Path(f"/proc/self/fd/{descriptor}")  # the writer opens files in it again and again, by name
        make_writer, self._make_event = self._package
        self._writer = make_writer(str(by_descriptor if by_descriptor.exists() else inside))
        self._agents: Sequence[str] = ()

    @classmethod
    def load(cls) -> tuple[Any, Any]:
        """Return TensorBoard's `EventFileWriter` and `Event`; raise an error that says how to install it."""
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise ConfigError(
                "TensorBoard is not installed: install parallel-agents with the extra 'tensorboard', or go without it"
            ) from error
        return EventFileWriter, Event

    def on_start(self, run: RunInfo) -> None:
        super().on_start(run)
        each, several = len(run.agents) // run.replicas, run.replicas > 1
        self._agents = [f"seed_{n // each}/{name}" if several else name for n, name in enumerate(run.agents)]

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self._writer.close()
        self._descriptors.close()

    def _of_epoch(self, stats: EpochStats) -> Mapping[str, Array]:
        returns, lengths = episode_means(stats.episodes)
        return {"reward": stats.rewards, "ep_rew_mean": returns, "ep_len_mean": lengths, **stats.metrics}

    def _columns(self, columns: Mapping[str, Array]) -> dict[str, float]:
        """Return the finite values of each agent, and their mean, by tag."""
        tags = _means(columns, "mean")
        for name, column in columns.items():
            agents = zip(self._agents[:_MAX_AGENTS], np.asarray(column, float).tolist(), strict=False)
            tags |= {f"{name}/{agent}": value for agent, value in agents if np.isfinite(value)}
        return tags

    def _log(self, values: Mapping[str, float]) -> None:
        """Write real scalars (`simple_value`), which every reader of event files understands."""
        event = self._make_event(wall_time=time.time(), step=self._step)
        for tag, value in values.items():
            event.summary.value.add(tag=tag, simple_value=value)
        self._writer.add_event(event)


class WandbWriter(_Service):
    """Log to Weights & Biases; its own environment variables say where (WANDB_PROJECT, WANDB_MODE)."""

    name = "wandb"

    def on_start(self, run: RunInfo) -> None:
        super().on_start(run)
        settings = {"dir": str(self._folder), "name": self._folder.name, "config": plain(run.config)}
        self._run = self._package.init(**settings, id=run.run_id, resume="allow")

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self._run.finish()

    def _log(self, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=self._step)


class MLflowWriter(_Service):
    """Log to MLflow; its own environment variables say where (MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME)."""

    name = "mlflow"

    def on_start(self, run: RunInfo) -> None:
        super().on_start(run)
        self._package.start_run(run_name=self._folder.name)
        self._package.log_params({name: str(value)[:500] for name, value in flat(plain(run.config))})

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self._package.end_run()

    def _log(self, values: Mapping[str, float]) -> None:
        self._package.log_metrics(dict(values), step=self._step)


SERVICES: tuple[type[_Service], ...] = (TensorBoardWriter, WandbWriter, MLflowWriter)
"""Each is chosen by the option with its name."""
