"""Sweeps: replicas that differ in hyperparameters train in one stack and equal their single runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parallel_agents.cli import main
from parallel_agents.core.config import Config
from parallel_agents.core.errors import ConfigError
from tests.equivalence.worlds import ROOT, Odd, run

SWEEP = {"model.lr": [0.001, 0.02], "model.gamma": [0.5, 0.9]}


def test_every_combination_equals_the_single_run_and_shares_a_stack() -> None:
    game = Odd(config={"experiment": {"sweep": SWEEP, "seeds": 2}})
    summary = game.run_experiment()
    assert len(game.prepare().group.stacks) == 1
    replicas = summary["replicas"]
    assert [(r["seed"], *r["setting"].values()) for r in replicas[:3]] == [
        (0, 0.001, 0.5),
        (1, 0.001, 0.5),
        (0, 0.001, 0.9),
    ]
    assert len({r["digest"] for r in replicas}) == 8
    for replica in replicas[::3]:
        model = {key.partition(".")[2]: value for key, value in replica["setting"].items()}
        alone = run(Odd, {"experiment": {"seed": replica["seed"]}, "model": model})
        assert alone["digest"] == replica["digest"]
        assert alone["mean_reward"] == pytest.approx(replica["mean_reward"])


def test_a_sweep_over_shapes_gives_one_stack_per_shape() -> None:
    game = Odd(config={"experiment": {"sweep": {"model.hidden": [[4], [6]]}}})
    assert len(game.prepare().group.stacks) == 2


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ({"parallel.policy_lag": [0, 1]}, "only keys of model and world"),
        ({"lr": [0.1]}, "only keys of model and world"),
        ({"model.lr": []}, "no values for model.lr"),
    ],
)
def test_a_sweep_over_unsupported_keys_or_without_values_raises(sweep: dict[str, list[float]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.build({"experiment": {"sweep": sweep}})


@pytest.mark.usefixtures("own_path")
def test_a_sweep_from_the_command_line_lists_its_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    game = [str(ROOT / "examples" / "treasure_hunt.py"), "--agents", "2", "--epochs", "2"]
    small = ["--set", "experiment.max_turns=20", "--set", "model.hidden=[8]", "--out", str(tmp_path / "run")]
    assert main(["train", *game, *small, "--sweep", "model.lr=0.001,0.01", "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)["replicas"]
    assert [replica["setting"] for replica in found] == [{"model.lr": 0.001}, {"model.lr": 0.01}]
