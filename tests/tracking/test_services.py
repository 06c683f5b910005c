"""TensorBoard, Weights & Biases and MLflow get the numbers of a run; stand-ins for the last two record the calls."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.types import EpochStats, RoundStats, RunInfo
from parallel_agents.tracking.services import MLflowWriter, TensorBoardWriter, WandbWriter

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
        WandbWriter.load()


def run_info(agents: tuple[str, ...], replicas: int) -> RunInfo:
    return RunInfo("x", "Game", agents, 1, replicas, epochs=2, first_epoch=1, config={}, fingerprint={})


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_every_metric_of_every_agent_is_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    writer = TensorBoardWriter(tmp_path)
    writer.on_start(run_info(("a", "b", "a", "b"), 2))
    writer.on_round(RoundStats(1, np.ones(4, int), np.zeros(4, int), {"loss": np.array([0.5, np.nan, 0.25, 0.5])}))
    metrics = {"epsilon": np.full(4, 0.5), "buffer_fill": np.arange(4.0)}
    rewards = np.array([1.0, 2.0, 3.0, 4.0])
    episodes = np.array([[1.0, 0.0, 0.0, 1.0], [5.0, 0.0, 0.0, 7.0], [10.0, 0.0, 0.0, 20.0]])
    stats = EpochStats(1, 10, 40, rewards, version=0, lag=1, updates=8, seconds=0.5, metrics=metrics)
    writer.on_epoch(replace(stats, episodes=episodes, timesteps=20, total_timesteps=20))
    writer.on_end({})
    written = scalars(tmp_path / "tensorboard")
    assert written["reward/seed_1/a"] == [(20, 3.0)]
    assert written["mean/reward"] == [(20, 2.5)]
    assert written["loss/seed_0/a"] == [(0, 0.5)]
    assert "loss/seed_0/b" not in written, "NaN is left out"
    assert written["epsilon/seed_0/b"] == [(20, 0.5)]
    assert written["train/lag"] == [(20, 1.0)]
    assert written["time/fps"] == [(20, 80.0)], "steps of both replicas"
    assert written["rollout/ep_rew_mean"] == [(20, 6.0)]
    assert written["rollout/ep_len_mean"] == [(20, 15.0)]
    assert written["ep_rew_mean/seed_0/a"] == [(20, 5.0)]
    assert "ep_rew_mean/seed_0/b" not in written, "no episode of this agent has ended"


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **options: Any) -> Any:
        if name.startswith("tensorboard"):
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"TensorBoard is not installed: .* extra 'tensorboard'"):
        TensorBoardWriter.load()
