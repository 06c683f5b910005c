from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.types import EpochStats, RoundStats, RunInfo
from parallel_agents.tracking.metrics import (
    COLUMNS,
    TABLE_NAME,
    Metrics,
    MetricsWriter,
    epoch_record,
    read_metrics,
    round_record,
    table_rows,
    write_table,
)

Make = Callable[..., Any]


def _write(path: Path, run: RunInfo, make_epoch: Make, make_round: Make, epochs: range, **options: Any) -> None:
    writer = MetricsWriter(path, **options)
    writer.on_start(run)
    for epoch in epochs:
        writer.on_epoch(make_epoch(epoch))
        if epoch % 2 == 0:
            writer.on_round(make_round(epoch // 2))
    writer.on_end({})


def test_the_line_of_an_epoch_has_every_value(make_epoch: Callable[..., EpochStats]) -> None:
    record = epoch_record(make_epoch(3), updates_before=24)
    assert record == {
        "kind": "epoch",
        "epoch": 3,
        "turns": 100,
        "transitions": 300,
        "seconds": 0.5,
        "turns_per_second": 200.0,
        "total_timesteps": 600,
        "wall_seconds": 1.5,
        "fps": 400.0,
        "ep_rew_mean": 3.0,
        "ep_len_mean": 30.0,
        "episodes": [2, 0, 1],
        "episode_returns": [3.0, None, 3.0],
        "episode_lengths": [25.0, None, 40.0],
        "mean_reward": 9.0,
        "rewards": [3.0, 6.0, 18.0],
        "version": 1,
        "lag": 1,
        "updates": 36,
        "updates_per_second": 24.0,
        "metrics": {"loss": [0.1, None, 0.333333]},
    }


def test_unknown_values_are_null(make_epoch: Callable[..., EpochStats]) -> None:
    record = epoch_record(make_epoch(3, seconds=0.0, rewards=np.array([])), updates_before=None)
    assert (record["turns_per_second"], record["updates_per_second"], record["mean_reward"]) == (
        None,
        None,
        None,
    )


def test_rewards_are_exact(make_epoch: Callable[..., EpochStats]) -> None:
    rewards = np.array([1 / 3, 0.1 + 0.2, 1e-300])
    line = json.dumps(epoch_record(make_epoch(1, rewards=rewards), 0))
    assert json.loads(line)["rewards"] == rewards.tolist()


def test_the_line_of_a_round_has_every_value(make_round: Callable[..., RoundStats]) -> None:
    assert round_record(make_round(2), epoch=8) == {
        "kind": "round",
        "round": 2,
        "epoch": 8,
        "seconds": 0.2,
        "updates": [4, 4, 3],
        "rejected": [0, 0, 1],
        "metrics": {"loss": [0.5, None, 0.25]},
    }


def test_written_metrics_are_read_back(tmp_path: Path, make_run: Make, make_epoch: Make, make_round: Make) -> None:
    _write(tmp_path / "metrics.jsonl", make_run(), make_epoch, make_round, range(1, 6))
    metrics = read_metrics(tmp_path)
    assert metrics.start["agents"] == ["a", "b", "c"]
    assert [record["epoch"] for record in metrics.epochs] == [1, 2, 3, 4, 5]
    assert [(record["round"], record["epoch"]) for record in metrics.rounds] == [(1, 2), (2, 4)]
    assert metrics.rewards().tolist() == [[1, 2, 3, 4, 5], [2, 4, 6, 8, 10], [6, 12, 18, 24, 30]]
    assert metrics.column("mean_reward").tolist() == [3.0, 6.0, 9.0, 12.0, 15.0]
    assert metrics.column("updates_per_second").tolist() == [24.0] * 5
    assert np.isnan(metrics.column("absent")).all()


def test_a_resumed_run_replaces_earlier_lines_from_its_first_epoch_on(
    tmp_path: Path, make_run: Make, make_epoch: Make, make_round: Make
) -> None:
    path = tmp_path / "metrics.jsonl"
    _write(path, make_run(), make_epoch, make_round, range(1, 9))
    with path.open("a") as file:
        file.write('{"kind": "epoch", "epoch": 9, "tur')  # killed here
    _write(path, make_run(first_epoch=5), make_epoch, make_round, range(5, 7))
    with capture_logs():
        metrics = read_metrics(path)
    assert [record["epoch"] for record in metrics.epochs] == [1, 2, 3, 4, 5, 6]
    assert [record["round"] for record in metrics.rounds] == [1, 2, 3]
    assert metrics.epochs[4]["updates_per_second"] is None
    assert metrics.epochs[5]["updates_per_second"] == 24.0


def test_metrics_can_be_read_while_the_run_writes(tmp_path: Path, make_run: Make, make_epoch: Make) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    writer.on_start(make_run())
    writer.on_epoch(make_epoch(1))
    assert len(read_metrics(path).epochs) == 1
    with path.open("a") as file:
        file.write('{"kind": "epoch", "epo')
    with capture_logs() as logs:
        assert len(read_metrics(path).epochs) == 1
    assert logs == []


def test_the_file_is_bounded_and_keeps_the_newest_epochs(
    tmp_path: Path, make_run: Make, make_epoch: Make, make_round: Make
) -> None:
    path = tmp_path / "metrics.jsonl"
    _write(path, make_run(), make_epoch, make_round, range(1, 301), max_bytes=5000, backups=2)
    assert sum(part.stat().st_size for part in tmp_path.iterdir()) <= 15_000
    metrics = read_metrics(path)
    epochs = [record["epoch"] for record in metrics.epochs]
    assert epochs == list(range(epochs[0], 301))
    assert len(epochs) > 20
    assert metrics.start == {}


def test_lines_of_other_kinds_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "epoch", "epoch": "1"}\n{"kind": "other"}\n{"kind": "round", "round": 1}\n')
    metrics = read_metrics(path)
    assert (metrics.epochs, metrics.rounds) == ([], [])
    assert metrics.rewards().shape == (0, 0)


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_is_logged_and_raises_nothing(tmp_path: Path, make_run: Make, make_epoch: Make) -> None:
    writer = MetricsWriter(tmp_path / "metrics.jsonl")
    with capture_logs() as logs:
        writer.on_start(make_run())
        writer.on_epoch(make_epoch(1))
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("metrics_file", "error")]
    assert "File too large" in logs[0]["detail"]
    assert writer.lost_lines == 2


def test_missing_metrics_are_reported(tmp_path: Path) -> None:
    expected = re.escape(f"no metrics at {tmp_path / 'metrics.jsonl'}: give a run folder, or the metrics.jsonl")
    with pytest.raises(ConfigError, match=expected):
        read_metrics(tmp_path)


def _epoch_line(number: int) -> dict[str, object]:
    columns = {"epsilon": [0.5, None], "buffer_fill": [0.1, 0.2]}
    return {"kind": "epoch", "epoch": number, "rewards": [1.0, 2.0], "lag": 1, "metrics": columns}


def test_the_table_has_losses_of_the_last_round_and_the_sum_of_updates() -> None:
    rounds = [
        {"round": 1, "epoch": 1, "updates": [4, 4], "metrics": {"loss": [0.5, 0.25]}},
        {"round": 2, "epoch": 2, "updates": [4, 0], "metrics": {"loss": [0.4, None], "entropy": [None, 1.5]}},
    ]
    rows = list(table_rows(Metrics({"agents": ["a", "b"]}, [_epoch_line(n) for n in (1, 2, 3)], rounds)))
    assert all(tuple(row) == COLUMNS for row in rows)
    assert [row["loss"] for row in rows] == [None, None, 0.5, 0.25, 0.4, None]
    assert [row["updates"] for row in rows] == [0, 0, 4, 4, 8, 4]
    assert [row["entropy"] for row in rows[-2:]] == [None, 1.5]
    assert [row["epsilon"] for row in rows[:2]] == [0.5, None]


def test_the_table_numbers_replicas() -> None:
    metrics = Metrics({"agents": ["a", "a"], "replicas": 2}, [_epoch_line(1)], [])
    assert [(row["replica"], row["agent"]) for row in table_rows(metrics)] == [(0, "a"), (1, "a")]


def test_a_folder_with_the_name_of_the_table_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    (tmp_path / TABLE_NAME).mkdir()
    with pytest.raises(IsADirectoryError):
        write_table(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [TABLE_NAME, "metrics.jsonl"]
