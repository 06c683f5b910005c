"""The tuned settings of Gymnasium environments: they are defaults, and agents learn with them.

The slow tests train as `docs/learners.md` describes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_agents.cli import main
from parallel_agents.core.config import merge
from parallel_agents.env.adapters.gymnasium import (
    TUNED_BY_ALGORITHM,
    TUNED_BY_NAME,
    gymnasium_environment,
    tuned_settings,
)

SMALL: dict[str, Any] = {
    "experiment": {"epochs": 6, "max_turns": 12, "worlds": 2, "eval_every": 3, "eval_episodes": 2},
    "model": {"hidden": (8,), "learning_starts": 30, "batch_size": 8, "updates_per_round": 4, "buffer_size": 200},
    "parallel": {"backend": "inline"},
}


@pytest.mark.parametrize("algorithm", TUNED_BY_ALGORITHM)
def test_tuned_settings_are_defaults_that_the_user_can_override(algorithm: str) -> None:
    known = tuned_settings(algorithm, "CartPole-v1")
    plain = gymnasium_environment("CartPole-v1")(config={"model": {"algorithm": algorithm}}).config
    assert plain.experiment.epochs == known["experiment"]["epochs"]
    assert {**plain.model, **known["model"]} == plain.model
    own = {"experiment": {"epochs": 3}, "model": {"algorithm": algorithm, "gamma": 0.5, "lr_final": None}}
    mine = gymnasium_environment("CartPole-v1")(config=own).config
    assert (mine.experiment.epochs, mine.model["gamma"], mine.model["lr_final"]) == (3, 0.5, None)
    assert mine.model["lr"] == known["model"]["lr"]


def test_without_an_algorithm_the_settings_of_dqn_are_used() -> None:
    config = gymnasium_environment("CartPole-v1")().config
    assert config.model["n_step"] == TUNED_BY_ALGORITHM["dqn"]["model"]["n_step"]


def test_settings_by_name_change_those_of_their_algorithm() -> None:
    for algorithm, name in TUNED_BY_NAME:
        assert tuned_settings(algorithm, name) != TUNED_BY_ALGORITHM[algorithm]


@pytest.mark.parametrize("algorithm", ["dqn", "ppo"])
def test_ten_seeds_in_one_stack_equal_ten_single_runs(algorithm: str) -> None:
    model = SMALL["model"] if algorithm == "dqn" else {"hidden": (8,), "n_epochs": 2}
    config = {**SMALL, "model": {**model, "algorithm": algorithm}}

    def run(seed: int, seeds: int) -> dict[str, Any]:
        sections = merge(config, {"experiment": {"seed": seed, "seeds": seeds}})
        return gymnasium_environment("CartPole-v1")(config=sections).run_experiment()

    together, alone = run(0, 10), [run(seed, 1) for seed in range(10)]
    assert together["updates"] > 0
    assert together["digests"] == [own["digest"] for own in alone]
    assert together["best_returns"] == [own["best_returns"][0] for own in alone]


# -- returns with the tuned settings ------------------------------------------------------------------------------------


def trained(tmp_path: Path, capsys: pytest.CaptureFixture[str], *words: str, best: bool) -> list[float]:
    """Train and evaluate by the command line; return the mean return of each seed over 100 episodes."""
    out = str(tmp_path / "run")
    assert main(["train", *words, "--out", out, "--quiet", "--json"]) == 0
    capsys.readouterr()
    assert main(["eval", out, "--episodes", "100", "--json", *(["--best"] if best else [])]) == 0
    found = json.loads(capsys.readouterr().out)
    return [own["mean_return"] for own in found["replicas"]]


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_ppo_solves_cartpole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("gymnasium:CartPole-v1", "--algo", "ppo", "--worlds", "8", "--seeds", "10")
    returns = trained(tmp_path, capsys, *words, best=False)  # 586 epochs of 32 turns in 8 worlds: 150,016 steps
    assert sum(own >= 475.0 for own in returns) >= 9, returns


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_dqn_solves_cartpole_with_its_best_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("gymnasium:CartPole-v1", "--algo", "dqn", "--worlds", "8", "--seeds", "10")
    returns = trained(tmp_path, capsys, *words, best=True)  # 780 epochs of 32 turns in 8 worlds: 199,680 steps
    assert sum(own >= 450.0 for own in returns) >= 8, returns


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_ppo_swings_the_pendulum_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("gymnasium:Pendulum-v1", "--algo", "ppo", "--worlds", "8", "--seeds", "5")
    returns = trained(tmp_path, capsys, *words, best=False)
    assert np.median(returns) > -250.0, returns
    assert sum(own > -250.0 for own in returns) >= 4, returns
