"""Metrics as JSON lines, one per epoch and per round; read them back as arrays, or as a CSV table.

A line is written when its epoch ends, so that a killed run keeps everything up to there:

    {"kind": "start", "run": …, "first_epoch": 1, "agents": [names], "replicas": 1, …}
    {"kind": "epoch", "epoch": 1, "turns": 100, "total_timesteps": 800, "wall_seconds": …, "fps": …,
     "ep_rew_mean": …, "ep_len_mean": …, "episodes": [per agent], "episode_returns": [mean, per agent],
     "episode_lengths": [mean, per agent], "mean_reward": …, "rewards": [per agent], "version": 0, "lag": 0,
     "updates": 0, "updates_per_second": …, "metrics": {"epsilon": [per agent], …}, …}
    {"kind": "round", "round": 1, "epoch": 4, "updates": [per agent], "metrics": {…}, …}

`ep_rew_mean` and `ep_len_mean` are over the episodes that ended in the epoch, null where none did; `rewards` are sums
over the epoch, mean over worlds. `total_timesteps` counts steps of single worlds in each replica, `fps` those of all
replicas per second. Lists are in the order of `agents`, one replica after the other. Rewards are exact, other values
have six digits; NaN and infinity are null. The file is bounded: a very long run loses its oldest epochs (`JsonlFile`).
A resumed run appends: its `start` line invalidates earlier lines from that epoch on.

`metrics.csv` has one line per epoch and agent. It is made from `metrics.jsonl` at the end of a run, also of a resumed
one, so that both agree. Losses and entropies are those of the last published round; unknown values are empty:

    epoch,total_timesteps,wall_seconds,fps,replica,agent,episodes,ep_rew_mean,ep_len_mean,reward,loss,epsilon,…
    1,800,0.5,1600.0,0,agent_0,8,3.5,100.0,3.5,,1.0,…
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.files import write_atomically
from parallel_agents.core.types import Array, EpochStats, RoundStats, RunInfo
from parallel_agents.tracking.callbacks import BaseCallback
from parallel_agents.tracking.jsonl import MIB, JsonlFile, read_jsonl

FILE_NAME = "metrics.jsonl"
TABLE_NAME = "metrics.csv"
COLUMNS = (
    "epoch", "total_timesteps", "wall_seconds", "fps", "replica", "agent", "episodes", "ep_rew_mean", "ep_len_mean",
    "reward", "loss", "epsilon", "entropy", "lag", "buffer_fill", "updates",
)  # fmt: skip
WINDOW = 100
"""Newest episodes of all agents that the means of a summary are over, at least."""


def episode_means(finished: Array) -> tuple[Array, Array]:
    """Return the mean return and the mean length of finished (3, …) episodes; NaN where none has finished."""
    count = np.where(finished[0] > 0, finished[0], np.nan)
    return finished[1] / count, finished[2] / count


def newest_episodes(epochs: Sequence[Array] | deque[Array], least: int = WINDOW) -> Array:
    """Return the sum (3,) over the newest epochs' totals (3,) that together hold at least so many episodes.

    >>> newest_episodes([np.array([9.0, 9.0, 9.0]), np.array([1.0, 5.0, 2.0])], least=1).tolist()
    [1.0, 5.0, 2.0]
    """
    total = np.zeros(3)
    for epoch in reversed(epochs):
        if total[0] >= least:
            break
        total += epoch
    return total


def start_record(run: RunInfo) -> dict[str, Any]:
    """Return the line that starts or resumes a run."""
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


def epoch_record(stats: EpochStats, updates_before: int | None, replicas: int = 1) -> dict[str, Any]:
    """Return the line of an epoch; `updates_before` is the count at the epoch before, None if unknown."""
    updates = None if updates_before is None else stats.updates - updates_before
    rewards = np.asarray(stats.rewards, float)
    ep_rew_mean, ep_len_mean = map(float, episode_means(stats.episodes.sum(axis=1)))
    returns, lengths = episode_means(stats.episodes)
    return {
        "kind": "epoch",
        "epoch": stats.epoch,
        "turns": stats.turns,
        "transitions": stats.transitions,
        "seconds": stats.seconds,
        "turns_per_second": _rate(stats.turns, stats.seconds),
        "total_timesteps": stats.total_timesteps,
        "wall_seconds": round(stats.wall_seconds, 3),
        "fps": _rate(stats.timesteps * replicas, stats.seconds),
        "ep_rew_mean": _finite(ep_rew_mean),
        "ep_len_mean": _finite(ep_len_mean),
        "episodes": stats.episodes[0].astype(int).tolist(),
        "episode_returns": [_finite(value) for value in returns.tolist()],
        "episode_lengths": [_finite(value) for value in lengths.tolist()],
        "mean_reward": _finite(float(rewards.mean())) if rewards.size else None,
        "rewards": [_finite(reward) for reward in rewards.tolist()],
        "version": stats.version,
        "lag": stats.lag,
        "updates": stats.updates,
        "updates_per_second": _rate(updates, stats.seconds),
        "metrics": _rounded(stats.metrics),
    }


def round_record(result: RoundStats, epoch: int) -> dict[str, Any]:
    """Return the line of a round that was published after `epoch`."""
    return {
        "kind": "round",
        "round": result.round,
        "epoch": epoch,
        "seconds": result.seconds,
        "updates": np.asarray(result.updates, int).tolist(),
        "rejected": np.asarray(result.rejected, int).tolist(),
        "metrics": _rounded(result.metrics),
    }


def _rounded(metrics: Mapping[str, Array]) -> dict[str, list[float | None]]:
    return {
        name: [_finite(float(f"{value:.6g}")) for value in np.ravel(np.asarray(column, float)).tolist()]
        for name, column in metrics.items()
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _rate(count: int | None, seconds: float) -> float | None:
    return None if count is None or seconds <= 0 else float(f"{count / seconds:.6g}")


class MetricsWriter(BaseCallback):
    """Write the lines above into a file."""

    def __init__(self, path: Path, *, max_bytes: int = 64 * MIB, backups: int = 3) -> None:
        self._file = JsonlFile(path, _log_error, max_bytes=max_bytes, backups=backups)
        self._epoch = 0
        self._replicas = 1
        self._updates: int | None = 0

    def on_start(self, run: RunInfo) -> None:
        self._epoch, self._replicas = run.first_epoch - 1, run.replicas
        self._updates = 0 if run.first_epoch <= 1 else None
        self._write(start_record(run))

    def on_epoch(self, stats: EpochStats) -> None:
        self._write(epoch_record(stats, self._updates, self._replicas))
        self._epoch, self._updates = stats.epoch, stats.updates

    def on_round(self, result: RoundStats) -> None:
        self._write(round_record(result, self._epoch))

    @property
    def lost_lines(self) -> int:
        """Number of lines that could not be written."""
        return self._file.lost_lines

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self._file.close()

    def _write(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":")))


def _log_error(message: str) -> None:
    structlog.get_logger().error("metrics_file", detail=message)


@dataclass(frozen=True, slots=True, repr=False)
class Metrics:
    """The metrics of a run, each epoch and round once."""

    start: dict[str, Any]
    """The last `start` line; empty if rotation has removed it."""
    epochs: list[dict[str, Any]]
    rounds: list[dict[str, Any]]

    def __repr__(self) -> str:
        return f"Metrics({len(self.epochs)} epochs of {len(self.start.get('agents', []))} agents)"

    def column(self, name: str) -> NDArray[np.float64]:
        """Return one value per epoch, (epochs,), such as `mean_reward`; NaN where it is null or missing."""
        return np.array([record.get(name) for record in self.epochs], float)

    def rewards(self) -> NDArray[np.float64]:
        """Return the reward of each agent, (agents, epochs), one replica after the other."""
        rows = [record["rewards"] for record in self.epochs]
        return np.array(rows, float).T if rows else np.empty((0, 0))

    def table(self) -> dict[str, list[Any]]:
        """Return the table of `metrics.csv` by columns: `pandas.DataFrame(metrics.table())`."""
        rows = list(table_rows(self))
        return {name: [row[name] for row in rows] for name in COLUMNS}

    def episode_returns(self, groups: int | None = None) -> NDArray[np.float64]:
        """Return the mean return of the episodes of each replica, (replicas, epochs); NaN where none has ended.

        groups: into how many groups the agents are divided, instead of one for each replica.
        """
        rows = [(record.get("episodes") or [], record.get("episode_returns") or []) for record in self.epochs]
        groups = int(self.start.get("replicas", 1)) if groups is None else groups
        if not rows or not all(counts for counts, _ in rows):  # written by an older version
            return np.full((groups, len(rows)), np.nan)
        counts = np.array([counts for counts, _ in rows], float).reshape(len(rows), groups, -1)
        returns = np.array([returns for _, returns in rows], float).reshape(counts.shape)
        total, count = np.nansum(returns * counts, axis=2), counts.sum(axis=2)
        return np.where(count > 0, total / np.maximum(count, 1), np.nan).T

    def seeds(self) -> NDArray[np.float64]:
        """Return the mean reward of the agents of each replica, (replicas, epochs)."""
        rewards = self.rewards()
        return np.asarray(rewards.reshape(int(self.start.get("replicas", 1)), -1, rewards.shape[1]).mean(axis=1))


def read_metrics(path: Path) -> Metrics:
    """Return the metrics of a run folder or of a metrics file; the run may still be writing."""
    file = path / FILE_NAME if path.is_dir() else path
    if not os.path.lexists(file):
        raise ConfigError(f"no metrics at {file}: give a run folder, or the {FILE_NAME} in it")
    start: dict[str, Any] = {}
    epochs: dict[int, dict[str, Any]] = {}
    rounds: dict[int, dict[str, Any]] = {}
    try:
        for record in read_jsonl(file):
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


def write_table(folder: Path) -> None:
    """Write `metrics.csv` of a run folder, replacing an older one."""
    write_atomically(folder / TABLE_NAME, _csv_lines(read_metrics(folder)))


def table_rows(metrics: Metrics) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table in order of epoch, replica and agent."""
    names = metrics.start.get("agents", [])
    agents_per_replica = max(1, len(names) // max(1, int(metrics.start.get("replicas", 1))))
    rounds = iter(metrics.rounds)
    next_round, round_metrics = next(rounds, None), {}
    updates = [0] * len(names)
    for record in metrics.epochs:
        while next_round is not None and next_round["epoch"] < record["epoch"]:
            round_metrics = next_round["metrics"]
            updates = [total + new for total, new in zip(updates, next_round["updates"], strict=True)]
            next_round = next(rounds, None)
        for n, name in enumerate(names):
            yield {
                **{name: record.get(name) for name in ("epoch", "total_timesteps", "wall_seconds", "fps")},
                "replica": n // agents_per_replica,
                "agent": name,
                "episodes": _cell(record, "episodes", n),
                "ep_rew_mean": _cell(record, "episode_returns", n),
                "ep_len_mean": _cell(record, "episode_lengths", n),
                "reward": record["rewards"][n],
                "loss": _cell(round_metrics, "loss", n),
                "epsilon": _cell(record["metrics"], "epsilon", n),
                "entropy": _cell(round_metrics, "entropy", n),
                "lag": record["lag"],
                "buffer_fill": _cell(record["metrics"], "buffer_fill", n),
                "updates": updates[n],
            }


def _cell(columns: Mapping[str, list[float | None]], name: str, agent: int) -> float | None:
    column = columns.get(name)
    return None if column is None else column[agent]


def _csv_lines(metrics: Metrics) -> Iterator[bytes]:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in table_rows(metrics):
        writer.writerow(row)
        yield text.getvalue().encode()
        text.seek(0)
        text.truncate()
    yield text.getvalue().encode()
