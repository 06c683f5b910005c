"""Event files for TensorBoard can be read back; a missing package is reported."""

from __future__ import annotations

import builtins
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.types import EpochStats, RoundStats, RunInfo
from parallel_agents.tracking.tensorboard import TensorBoardWriter, load_tensorboard

pytest.importorskip("tensorboard")


def run_info(agents: tuple[str, ...], replicas: int) -> RunInfo:
    return RunInfo("x", "Game", agents, 1, replicas, epochs=2, first_epoch=1, config={}, fingerprint={})


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_every_metric_of_every_agent_is_written(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path)
    writer.on_start(run_info(("a", "b", "a", "b"), 2))
    writer.on_round(RoundStats(1, np.ones(4, int), np.zeros(4, int), {"loss": np.array([0.5, np.nan, 0.25, 0.5])}))
    metrics = {"epsilon": np.full(4, 0.5), "buffer_fill": np.arange(4.0)}
    rewards = np.array([1.0, 2.0, 3.0, 4.0])
    episodes = np.array([[1.0, 0.0, 0.0, 1.0], [5.0, 0.0, 0.0, 7.0], [10.0, 0.0, 0.0, 20.0]])
    stats = EpochStats(1, 10, 40, rewards, version=0, lag=1, updates=8, seconds=0.5, metrics=metrics)
    writer.on_epoch(replace(stats, episodes=episodes, timesteps=20, total_timesteps=20))
    writer.on_end({})
    written = scalars(tmp_path)
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
        load_tensorboard()
