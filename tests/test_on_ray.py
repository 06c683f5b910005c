"""Replicas and trials of Ray Tune on a real Ray give the bytes of one process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parallel_agents.api import train
from parallel_agents.core.config import merge
from parallel_agents.core.errors import ConfigError, Interrupted
from parallel_agents.execution.ray import RayCluster
from parallel_agents.on_ray import numbers, train_replica, train_replicas, trainable
from parallel_agents.tracking.callbacks import BaseCallback
from tests.equivalence.worlds import Odd

CONFIG: dict[str, Any] = {"experiment": {"epochs": 6, "checkpoint_every": 2, "record_period": 0}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    connected = RayCluster(None, workers=4)
    yield connected
    connected.close()


@pytest.fixture
def tune_undone() -> Iterator[None]:
    """Put back the signal handlers and environment variables that Ray Tune changes."""
    environment = dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR1)}
    yield
    os.environ.clear()
    os.environ.update(environment)
    for number, handler in handlers.items():
        signal.signal(number, handler)


class StopAfter(BaseCallback):
    """Ends a run after an epoch, with a checkpoint, as SIGTERM does."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch

    def on_epoch(self, stats: Any) -> None:
        if stats.epoch == self._epoch:
            signal.raise_signal(signal.SIGTERM)


def test_a_replica_whose_node_was_lost_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "replica"
    with pytest.raises(Interrupted):
        train(Odd, config=CONFIG, out=folder, progress=False, callbacks=[StopAfter(3)])
    resumed = train_replica(Odd, CONFIG, str(folder))
    assert resumed["epochs"] == 6
    assert resumed["digest"] == Odd(config=CONFIG).run_experiment()["digest"]


def test_a_trial_needs_a_positive_number_of_epochs_between_reports() -> None:
    with pytest.raises(ConfigError, match=r"report_every is 0: give at least 1"):
        trainable(Odd, report_every=0)
    assert numbers({"epochs": 3, "digest": "ab", "config": {}}) == {"epochs": 3, "digest": "ab"}


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_replicas_on_ray_have_the_digests_of_one_run(tmp_path: Path) -> None:
    sweep = {"model.lr": [0.001, 0.01]}
    found = train_replicas(Odd, seeds=2, sweep=sweep, config=CONFIG, out=tmp_path, timeout=280.0)
    together = Odd(config=merge(CONFIG, {"experiment": {"seeds": 2, "sweep": sweep}})).run_experiment()
    assert found["digests"] == together["digests"]
    assert found["digest"] == together["digest"]
    assert len(set(found["digests"] or ())) == 4
    assert [r["seed"] for r in found["replicas"]] == [0, 1, 0, 1]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"replica-{k:04d}" for k in range(4)]


class BreaksOnce(Odd):
    """Raises in epoch 4 of its first trial: `world.marker` is a file that says whether it has done so."""

    default_config = merge(Odd.default_config, {"world": {"marker": ""}})

    def begin_turn(self) -> None:
        marker = Path(self.config.world["marker"])
        if self.epoch == 4 and not marker.exists():
            marker.touch()
            raise ValueError("the node is lost")
        super().begin_turn()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster", "tune_undone")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray", "ignore::FutureWarning:ray")
def test_a_trial_of_ray_tune_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    from ray import tune

    marker = tmp_path / "broken"
    config = merge(CONFIG, {"world": {"marker": str(marker)}})
    failures = tune.FailureConfig(max_failures=1)
    run = tune.RunConfig(storage_path=str(tmp_path), name="again", verbose=0, failure_config=failures)
    [result] = tune.Tuner(trainable(BreaksOnce, config=config, report_every=2), run_config=run).fit()
    assert marker.exists()
    assert list(result.metrics_dataframe["epochs"]) == [2, 4, 6], "nothing is computed twice"
    assert result.metrics["digest"] == Odd(config=CONFIG).run_experiment()["digest"]


@pytest.mark.slow
@pytest.mark.usefixtures("cluster", "tune_undone")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray", "ignore::FutureWarning:ray")
def test_ray_tune_searches_and_gets_metrics_and_checkpoints(tmp_path: Path) -> None:
    from ray import tune

    names = {"model.lr": tune.grid_search([0.001, 0.01])}
    run = tune.RunConfig(storage_path=str(tmp_path), name="first", verbose=0)
    results = tune.Tuner(trainable(Odd, config=CONFIG, report_every=2), param_space=names, run_config=run).fit()
    assert not results.errors
    assert len(results) == 2
    for result in results:
        wanted = Odd(config=merge(CONFIG, {"model": {"lr": result.config["model.lr"]}})).run_experiment()
        assert result.metrics["digest"] == wanted["digest"]
        assert result.metrics["training_iteration"] == 3
        assert result.metrics["mean_reward"] == pytest.approx(wanted["mean_reward"])
        assert list(result.metrics_dataframe["epochs"]) == [2, 4, 6]
        with result.checkpoint.as_directory() as folder:
            assert (Path(folder) / "checkpoints").exists()
