"""`parallel-agents runs` and `compare`: list run folders, and set some of them side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parallel_agents.cli.commands import Compare, Runs
from parallel_agents.cli.output import print_result
from parallel_agents.cli.record import (
    compared_configs,
    differences,
    flat_config,
    read_config,
    read_record,
    read_summary,
    setting_name,
)
from parallel_agents.core.errors import ConfigError, FolderInUse
from parallel_agents.core.folder_lock import require_unlocked
from parallel_agents.tracking.metrics import read_metrics
from parallel_agents.tracking.run_folder import RunFolder
from parallel_agents.tracking.statistics import Interval, mean_interval

SHARE = 0.1
"""Share of the last epochs that runs are compared by."""


def list_runs(options: Runs) -> None:
    """Print the runs below a folder, newest first."""
    if not options.root.is_dir():
        raise ConfigError(f"no folder {options.root}: give the folder in which the run folders are")
    folders = [path.parent for path in sorted(options.root.glob("**/run.json"))]
    rows = [_describe(folder) for folder in folders]
    wanted = [row for row in rows if all(text in row["search"] for text in options.match)]
    wanted.sort(key=lambda row: str(row["started"]), reverse=True)
    for row in wanted:
        del row["search"]
    columns = ("run", "target", "algo", "seeds", "epochs", "total_timesteps", "ep_rew_mean", "status")
    print_result({"runs": wanted}, format_table(columns, wanted) or "no run\n", as_json=options.json)


def _describe(path: Path) -> dict[str, Any]:
    """Return what `runs` shows of a run folder."""
    folder = RunFolder.open(path)
    summary, record = read_summary(folder), read_record(folder)
    config = read_config(folder) if (path / "config.json").is_file() else None
    epochs = read_metrics(path).epochs if folder.metrics.is_file() else []
    last: Mapping[str, Any] = epochs[-1] if epochs else {}
    classes = ", ".join(sorted({str(model["class"]) for model in record.get("models", {}).values()}))
    row = {
        "run": str(path),
        "started": record.get("started", ""),
        "target": folder.environment,
        "algo": (config.model.get("algorithm") if config else None) or classes,
        "seeds": config.experiment.seeds if config else None,
        "epochs": last.get("epoch", 0),
        "total_timesteps": last.get("total_timesteps"),
        "ep_rew_mean": summary.get("ep_rew_mean", last.get("ep_rew_mean")),
        "digest": summary.get("digest"),
        "status": _status(path, finished=bool(summary)),
    }
    settings = [f"{key}={value}" for key, value in flat_config(folder).items()] if config else []
    return {**row, "search": " ".join([*map(str, row.values()), *settings])}


def _status(path: Path, *, finished: bool) -> str:
    try:
        require_unlocked(path)
    except FolderInUse:
        return "running"
    return "done" if finished else "stopped"


def compare(options: Compare) -> None:
    """Print runs side by side: the mean return of their last epochs, with intervals over seeds."""
    if not options.run_dirs:
        raise ConfigError("no run to compare: give run folders, as `train` printed them")
    rows = [row for path in options.run_dirs for row in _results(path)]
    rows.sort(key=lambda row: -np.inf if row["mean"] is None else -row["mean"])
    different = differences(*compared_configs(*(RunFolder.open(path) for path in options.run_dirs)))
    result = {"measure": f"ep_rew_mean of the last {100 * SHARE:.0f} % of epochs", "rows": rows, "config": different}
    text = format_table(("run", "setting", "seeds", "total_timesteps", "mean", "low", "high"), rows)
    if different:
        text += f"settings that differ, in {' | '.join(map(str, options.run_dirs))}:\n"
        text += "".join(f"  {line}\n" for line in different)
    print_result(result, f"{result['measure']}, 95 % intervals over seeds\n{text}", as_json=options.json)


def _results(path: Path) -> list[dict[str, Any]]:
    """Return a row for each setting of a run: its replicas are the seeds of that setting, and of no other."""
    folder = RunFolder.open(path)
    metrics, settings = read_metrics(folder.path), read_config(folder).experiment.settings
    returns = metrics.episode_returns()
    last = max(1, round(SHARE * len(metrics.epochs)))
    seeds = returns.reshape(len(settings), -1, returns.shape[1])[:, :, -last:] if returns.size else np.empty((0, 0, 0))
    rows = []
    for setting, replicas in zip(settings, seeds, strict=False):
        known = [float(np.nanmean(row)) for row in replicas if np.isfinite(row).any()]
        mean, low, high = mean_interval(known) if known else Interval(np.nan, np.nan, np.nan)
        rows.append(
            {
                "run": str(path),
                "setting": setting_name(setting),
                "seeds": len(replicas),
                "total_timesteps": metrics.epochs[-1].get("total_timesteps"),
                **{
                    name: float(x) if np.isfinite(x) else None
                    for name, x in zip(("mean", "low", "high"), (mean, low, high), strict=True)
                },
            }
        )
    return rows


def format_table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as aligned text; empty without rows."""
    if not rows:
        return ""
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(column), *(len(row[i]) for row in cells)) for i, column in enumerate(columns)]
    lines = [columns, *cells]
    return "".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() + "\n" for line in lines
    )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
