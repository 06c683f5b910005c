"""Metrics as a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallel_agents.tracking.metrics import Metrics
from parallel_agents.tracking.tables import COLUMNS, TABLE_NAME, table_rows, write_table


def epoch(number: int) -> dict[str, object]:
    figures = {"epsilon": [0.5, None], "buffer_fill": [0.1, 0.2]}
    return {"kind": "epoch", "epoch": number, "rewards": [1.0, 2.0], "lag": 1, "metrics": figures}


def test_losses_are_those_of_the_last_round_and_updates_add_up() -> None:
    rounds = [
        {"round": 1, "epoch": 1, "updates": [4, 4], "metrics": {"loss": [0.5, 0.25]}},
        {"round": 2, "epoch": 2, "updates": [4, 0], "metrics": {"loss": [0.4, None], "entropy": [None, 1.5]}},
    ]
    rows = list(table_rows(Metrics({"agents": ["a", "b"]}, [epoch(n) for n in (1, 2, 3)], rounds)))
    assert all(tuple(row) == COLUMNS for row in rows)
    assert [row["loss"] for row in rows] == [None, None, 0.5, 0.25, 0.4, None]
    assert [row["updates"] for row in rows] == [0, 0, 4, 4, 8, 4]
    assert [row["entropy"] for row in rows[-2:]] == [None, 1.5]
    assert [row["epsilon"] for row in rows[:2]] == [0.5, None]


def test_replicas_are_told_apart() -> None:
    metrics = Metrics({"agents": ["a", "a"], "replicas": 2}, [epoch(1)], [])
    assert [(row["replica"], row["agent"]) for row in table_rows(metrics)] == [(0, "a"), (1, "a")]


def test_a_folder_that_stands_in_the_way_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    (tmp_path / TABLE_NAME).mkdir()
    with pytest.raises(IsADirectoryError):
        write_table(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [TABLE_NAME, "metrics.jsonl"]
