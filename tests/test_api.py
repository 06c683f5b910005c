"""The Python API gives the run folder and the results of the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from parallel_agents import Agent, ParallelEnvironment, evaluate, load_run, train
from parallel_agents.cli import main
from parallel_agents.core.errors import ConfigError
from parallel_agents.core.types import Array, EpochStats
from parallel_agents.tracking.callbacks import BaseCallback


class Guess(ParallelEnvironment):
    """Agents are rewarded for the number that they see."""

    default_config: ClassVar[dict[str, Any]] = {
        "experiment": {"epochs": 4, "max_turns": 5},
        "world": {"agents": 2},
        "model": {"hidden": (4,), "batch_size": 2, "updates_per_round": 2, "learning_starts": 2, "buffer_size": 50},
        "parallel": {"train_interval": 1, "backend": "inline"},
    }

    def setup_agents(self) -> None:
        self.agents = [Agent(model=self.make_model((1,), 3)) for _ in range(self.config.world["agents"])]

    def reset(self) -> None:
        self.number = self.epoch % 3

    def observe(self) -> Array:
        return np.full((len(self.agents), self.n_worlds, 1), self.number, np.float32)

    def apply_actions(self, actions: Array) -> Array:
        return (np.asarray(actions) == self.number).astype(np.float32)


class Count(BaseCallback):
    epochs = 0

    def on_epoch(self, stats: EpochStats) -> None:
        self.epochs += 1


TARGET = "tests.test_api:Guess"


def test_train_gives_the_folder_and_the_digest_of_the_command_line(tmp_path: Path, capsys: Any) -> None:
    count = Count()
    run = train(Guess, agents=3, epochs=3, seed=5, out=tmp_path / "api", progress=False, callbacks=[count])
    words = ["train", TARGET, "--agents", "3", "--epochs", "3", "--seed", "5", "--out", str(tmp_path / "cli")]
    assert main([*words, "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["digest"] == run.summary["digest"]
    names = [{path.name for path in (tmp_path / own).iterdir()} for own in ("api", "cli")]
    assert names[0] == names[1] >= {"config.json", "record.json", "metrics.csv", "summary.json", "checkpoints"}
    assert count.epochs == 3


def test_load_run_gives_trained_agents_metrics_and_configuration(tmp_path: Path) -> None:
    run = train(Guess, out=tmp_path / "run", progress=False)
    loaded = load_run(tmp_path / "run")
    assert loaded.summary == json.loads((tmp_path / "run" / "summary.json").read_text())
    assert bool((loaded.agents[1].model.state["online"] == run.agents[1].model.state["online"]).all())
    assert loaded.config.experiment.epochs == 4
    table = loaded.metrics.table()
    assert {len(column) for column in table.values()} == {4 * 2}
    assert (
        evaluate(tmp_path / "run", 3).mean_return
        == run.evaluate(3).mean_return
        == evaluate(run.environment, 3).mean_return
    )


def test_what_is_shown_is_readable(tmp_path: Path) -> None:
    run = train(Guess, epochs=1, out=tmp_path / "run", progress=False)
    assert repr(run).startswith(
        f"TrainedRun({tmp_path / 'run'}: Guess(2 agents, 1 world, seed 0), epoch 1, ep_rew_mean "
    )
    assert repr(run.agents[0]).startswith("Agent(name='agent_0', model=DQN(obs_shape=(1,), ")
    assert "hidden=(4,)" in repr(run.agents[0])
    assert repr(run.evaluate(2)).startswith("Evaluation(mean_return ")
    assert repr(run.metrics) == "Metrics(1 epochs of 2 agents)"


def test_an_algorithm_may_be_a_class(tmp_path: Path) -> None:
    class Constant:
        def __init__(self, obs_shape: Any, n_actions: int, **options: Any) -> None:
            self.n_actions = n_actions

        def take_action(self, state: Any) -> int:
            return 1

    run = train(Guess, algo=Constant, out=tmp_path / "run", progress=False)
    assert type(run.agents[0].model) is Constant
    assert run.summary["ep_rew_mean"] == pytest.approx(5 * 2 / 4), "epochs 1 and 4 ask for 1"


def test_contradicting_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="both say how long the run is"):
        train(Guess, epochs=3, total_timesteps=9, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_every_replica_can_be_evaluated(tmp_path: Path) -> None:
    run = train(Guess, seeds=2, out=tmp_path / "run", progress=False)
    assert [env.seed for env in load_run(run.path).replicas] == [0, 1]
    assert run.evaluate(2, replica=1).returns.shape == (2, 2)
