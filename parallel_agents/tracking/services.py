"""Log a run to Weights & Biases or to MLflow: the same numbers that TensorBoard gets, by environment steps."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.files import plain
from parallel_agents.core.types import Array, EpochStats, RoundStats, RunInfo
from parallel_agents.tracking.callbacks import BaseCallback
from parallel_agents.tracking.tensorboard import scalars


def load_wandb() -> Any:
    """Return the module `wandb`; raise ConfigError if it is not installed."""
    return _load("wandb")


def load_mlflow() -> Any:
    """Return the module `mlflow`; raise ConfigError if it is not installed."""
    return _load("mlflow")


def _load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"--{name}: the package {name} is not installed: pip install {name}, or leave it out"
        ) from error


class _Service(BaseCallback):
    """Send the numbers of every epoch and round to `_log`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._replicas, self._step = 1, 0

    def on_start(self, run: RunInfo) -> None:
        self._replicas = run.replicas

    def on_epoch(self, stats: EpochStats) -> None:
        self._step = stats.total_timesteps
        self._log(scalars(stats, self._replicas) | _means(stats.metrics))

    def on_round(self, result: RoundStats) -> None:
        self._log(_means(result.metrics))

    def _log(self, values: Mapping[str, float]) -> None:
        raise NotImplementedError


def _means(columns: Mapping[str, Array]) -> dict[str, float]:
    """Return the mean over agents of each metric, without those that no agent has."""
    finite = {name: np.asarray(column, float)[np.isfinite(column)] for name, column in columns.items()}
    return {f"train/{name}": float(values.mean()) for name, values in finite.items() if values.size}


class WandbWriter(_Service):
    """Log to Weights & Biases; its own environment variables say where (WANDB_PROJECT, WANDB_MODE)."""

    def on_start(self, run: RunInfo) -> None:
        super().on_start(run)
        settings = {"dir": str(self._folder), "name": self._folder.name, "config": plain(run.config)}
        self._run = load_wandb().init(**settings, id=run.run_id, resume="allow")

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self._run.finish()

    def _log(self, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=self._step)


class MLflowWriter(_Service):
    """Log to MLflow; its own environment variables say where (MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME)."""

    def on_start(self, run: RunInfo) -> None:
        super().on_start(run)
        self._mlflow = load_mlflow()
        self._mlflow.start_run(run_name=self._folder.name)
        sections = plain(run.config)
        flat = {f"{section}.{key}": value for section, keys in sections.items() for key, value in keys.items()}
        self._mlflow.log_params({name: str(value)[:500] for name, value in flat.items()})

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self._mlflow.end_run()

    def _log(self, values: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(dict(values), step=self._step)
