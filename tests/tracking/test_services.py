"""Weights & Biases and MLflow get the numbers of a run; stand-ins for the packages record the calls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parallel_agents.core.errors import ConfigError
from parallel_agents.tracking.services import MLflowWriter, WandbWriter, load_wandb

Make = Callable[..., Any]


class Recorder:
    """Record every call of every method."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Callable[..., Recorder]:
        def record(*arguments: Any, **options: Any) -> Recorder:
            self.calls.append((name, {"values": arguments[0] if arguments else None, **options}))
            return self

        return record


def play(writer: Any, make_run: Make, make_epoch: Make, make_round: Make) -> None:
    writer.on_start(make_run())
    writer.on_round(make_round(1))
    writer.on_epoch(make_epoch(3))
    writer.on_end({})


def test_wandb_gets_returns_by_environment_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_run: Make, make_epoch: Make, make_round: Make
) -> None:
    fake = Recorder()
    monkeypatch.setitem(sys.modules, "wandb", fake)  # type: ignore[arg-type]
    play(WandbWriter(tmp_path / "run"), make_run, make_epoch, make_round)
    names = [name for name, _ in fake.calls]
    assert names == ["init", "log", "log", "finish"]
    assert fake.calls[0][1]["config"] == {"experiment": {"epochs": 10}}
    logged = fake.calls[2][1]
    assert logged["step"] == 600
    assert logged["values"]["rollout/ep_rew_mean"] == 3.0
    assert fake.calls[1][1]["values"] == {"train/loss": 0.375}, "the mean of the finite losses"


def test_mlflow_gets_parameters_and_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_run: Make, make_epoch: Make, make_round: Make
) -> None:
    fake = Recorder()
    monkeypatch.setitem(sys.modules, "mlflow", fake)  # type: ignore[arg-type]
    play(MLflowWriter(tmp_path / "run"), make_run, make_epoch, make_round)
    assert [name for name, _ in fake.calls] == ["start_run", "log_params", "log_metrics", "log_metrics", "end_run"]
    assert fake.calls[1][1]["values"] == {"experiment.epochs": "10"}
    assert fake.calls[3][1]["values"]["time/total_timesteps"] == 600.0


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="--wandb: the package wandb is not installed"):
        load_wandb()
