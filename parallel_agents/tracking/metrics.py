"""Metrics: one JSON line per epoch and per round, and the way back to arrays.

A line is written whole as soon as its epoch is over, so that a killed run has everything up to there:

    {"kind": "start", "run": …, "first_epoch": 1, "agents": [names], "replicas": 1, …}
    {"kind": "epoch", "epoch": 1, "turns": 100, "turns_per_second": …, "mean_reward": …,
     "rewards": [per agent], "version": 0, "lag": 0, "updates": 0, "updates_per_second": …,
     "metrics": {"loss": [per agent], …}, …}
    {"kind": "round", "round": 1, "epoch": 4, "updates": [per agent], "metrics": {…}, …}

Lists are in the order of `agents`, replicas one after the other. Rewards are exact; further figures have six
digits. NaN and infinity are null. The file is bounded: a very long run loses its oldest epochs (`LineFile`).
A resumed run appends: its `start` line voids what an earlier attempt wrote from that epoch on.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from parallel_agents.errors import ConfigError
from parallel_agents.tracking.lines import MIB, LineFile, read_lines
from parallel_agents.tracking.listeners import SilentListener
from parallel_agents.types import Array, EpochStats, RoundResult, RunInfo

__all__ = [
    "FILE_NAME",
    "Metrics",
    "MetricsWriter",
    "epoch_record",
    "read_metrics",
    "round_record",
    "start_record",
]

FILE_NAME = "metrics.jsonl"


def start_record(run: RunInfo) -> dict[str, Any]:
    """The line that begins a run, or its continuation."""
    return {
        "kind": "start",
        "run": run.run_id,
        "environment": run.environment,
        "first_epoch": run.first_epoch,
        "epochs": run.epochs,
        "agents": list(run.agents),
        "replicas": run.replicas,
        "worlds": run.worlds,
    }


def epoch_record(stats: EpochStats, updates_before: int | None) -> dict[str, Any]:
    """One epoch; `updates_before` is the count at the epoch before, None where that is not known."""
    new = None if updates_before is None else stats.updates - updates_before
    rewards = np.asarray(stats.rewards, float)
    return {
        "kind": "epoch",
        "epoch": stats.epoch,
        "turns": stats.turns,
        "transitions": stats.transitions,
        "seconds": stats.seconds,
        "turns_per_second": _rate(stats.turns, stats.seconds),
        "mean_reward": _finite(float(rewards.mean())) if rewards.size else None,
        "rewards": [_finite(reward) for reward in rewards.tolist()],
        "version": stats.version,
        "lag": stats.lag,
        "updates": stats.updates,
        "updates_per_second": _rate(new, stats.seconds),
        "metrics": _figures(stats.metrics),
    }


def round_record(result: RoundResult, epoch: int) -> dict[str, Any]:
    """One round, published after `epoch`."""
    return {
        "kind": "round",
        "round": result.round,
        "epoch": epoch,
        "seconds": result.seconds,
        "updates": np.asarray(result.updates, int).tolist(),
        "rejected": np.asarray(result.rejected, int).tolist(),
        "metrics": _figures(result.metrics),
    }


def _figures(metrics: Mapping[str, Array]) -> dict[str, list[float | None]]:
    return {
        name: [_finite(float(f"{value:.6g}")) for value in np.ravel(np.asarray(column, float)).tolist()]
        for name, column in metrics.items()
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _rate(count: int | None, seconds: float) -> float | None:
    return None if count is None or seconds <= 0 else float(f"{count / seconds:.6g}")


class MetricsWriter(SilentListener):
    """Writes the lines above into a file."""

    def __init__(self, path: Path, *, max_bytes: int = 64 * MIB, backups: int = 3) -> None:
        self._file = LineFile(path, _report, max_bytes=max_bytes, backups=backups)
        self._epoch = 0
        self._updates: int | None = 0

    def on_start(self, run: RunInfo) -> None:
        self._epoch = run.first_epoch - 1
        self._updates = 0 if run.first_epoch <= 1 else None
        self._write(start_record(run))

    def on_epoch(self, stats: EpochStats) -> None:
        self._write(epoch_record(stats, self._updates))
        self._epoch, self._updates = stats.epoch, stats.updates

    def on_round(self, result: RoundResult) -> None:
        self._write(round_record(result, self._epoch))

    @property
    def lost_lines(self) -> int:
        """Lines that could not be written."""
        return self._file.lost_lines

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self._file.close()

    def _write(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":")))


def _report(news: str) -> None:
    structlog.get_logger().error("metrics_file", detail=news)


@dataclass(frozen=True, slots=True)
class Metrics:
    """What a run wrote, each epoch and round once."""

    start: dict[str, Any]
    """The last `start` line; empty if it has been rotated away."""
    epochs: list[dict[str, Any]]
    rounds: list[dict[str, Any]]

    def column(self, name: str) -> NDArray[np.float64]:
        """(epochs,) one figure, such as `mean_reward`; NaN where it is null or absent."""
        return np.array([record.get(name) for record in self.epochs], float)

    def rewards(self) -> NDArray[np.float64]:
        """(agents, epochs) reward of each agent, replicas one after the other."""
        rows = [record["rewards"] for record in self.epochs]
        return np.array(rows, float).T if rows else np.empty((0, 0))

    def seeds(self) -> NDArray[np.float64]:
        """(replicas, epochs) mean reward of the agents of each replica."""
        rewards = self.rewards()
        return np.asarray(rewards.reshape(int(self.start.get("replicas", 1)), -1, rewards.shape[1]).mean(axis=1))


def read_metrics(path: Path) -> Metrics:
    """The metrics of a run folder, or of a metrics file; also while the run is still writing."""
    file = path / FILE_NAME if path.is_dir() else path
    if not os.path.lexists(file):
        raise ConfigError(f"no metrics at {file}: give a run folder, or the {FILE_NAME} in it")
    start: dict[str, Any] = {}
    epochs: dict[int, dict[str, Any]] = {}
    rounds: dict[int, dict[str, Any]] = {}
    try:
        for record in read_lines(file):
            match record:
                case {"kind": "start", "first_epoch": int(first)}:
                    start = record
                    epochs = {epoch: kept for epoch, kept in epochs.items() if epoch < first}
                    rounds = {number: kept for number, kept in rounds.items() if kept["epoch"] < first}
                case {"kind": "epoch", "epoch": int(epoch), "rewards": list()}:
                    epochs[epoch] = record
                case {"kind": "round", "round": int(number), "epoch": int()}:
                    rounds[number] = record
    except OSError as error:
        raise ConfigError(f"cannot read {error.filename or file}: {error.strerror}") from error
    return Metrics(start, [epochs[e] for e in sorted(epochs)], [rounds[r] for r in sorted(rounds)])
