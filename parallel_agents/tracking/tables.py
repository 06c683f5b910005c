"""Metrics as a table: `metrics.csv`, one line per epoch and agent, for spreadsheets and data frames.

It is made from `metrics.jsonl` once a run ends, resumed or not, so that the two never disagree:

    epoch,replica,agent,reward,loss,epsilon,entropy,lag,buffer_fill,updates
    1,0,agent_0,3.5,,1.0,,0,0.01,0

A figure that there is none of (a loss before the first round, the ε of PPO) is left empty. Losses and entropies are
those of the last published round.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parallel_agents.tracking.files import write_atomically
from parallel_agents.tracking.metrics import Metrics, read_metrics

__all__ = ["COLUMNS", "TABLE_NAME", "table_rows", "write_table"]

TABLE_NAME = "metrics.csv"
COLUMNS = ("epoch", "replica", "agent", "reward", "loss", "epsilon", "entropy", "lag", "buffer_fill", "updates")


def write_table(folder: Path) -> Path:
    """Write the table of a run folder anew; its path."""
    path = folder / TABLE_NAME
    write_atomically(path, _lines(read_metrics(folder)))
    return path


def table_rows(metrics: Metrics) -> Iterator[dict[str, Any]]:
    """The lines of the table, in order of epoch, replica and agent."""
    names = metrics.start.get("agents", [])
    each = max(1, len(names) // max(1, int(metrics.start.get("replicas", 1))))
    rounds = iter(metrics.rounds)
    coming, learnt = next(rounds, None), {}
    updates = [0] * len(names)
    for record in metrics.epochs:
        while coming is not None and coming["epoch"] < record["epoch"]:
            learnt = coming["metrics"]
            updates = [total + new for total, new in zip(updates, coming["updates"], strict=True)]
            coming = next(rounds, None)
        for n, name in enumerate(names):
            yield {
                "epoch": record["epoch"],
                "replica": n // each,
                "agent": name,
                "reward": record["rewards"][n],
                "loss": _of(learnt, "loss", n),
                "epsilon": _of(record["metrics"], "epsilon", n),
                "entropy": _of(learnt, "entropy", n),
                "lag": record["lag"],
                "buffer_fill": _of(record["metrics"], "buffer_fill", n),
                "updates": updates[n],
            }


def _of(columns: dict[str, list[float | None]], name: str, agent: int) -> float | None:
    column = columns.get(name)
    return None if column is None else column[agent]


def _lines(metrics: Metrics) -> Iterator[bytes]:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in table_rows(metrics):
        writer.writerow(row)
        yield text.getvalue().encode()
        text.seek(0)
        text.truncate()
    yield text.getvalue().encode()
