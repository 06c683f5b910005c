"""Gymnasium environments as worlds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from parallel_agents.adapters.gymnasium import gymnasium_environment
from parallel_agents.cli import main
from parallel_agents.errors import ConfigError, TargetError

SMALL: dict[str, Any] = {
    "experiment": {"epochs": 3, "max_turns": 20, "worlds": 2},
    "model": {"algorithm": "ppo", "hidden": (8,)},
}


def test_steps_are_those_of_the_environment_itself() -> None:
    game = gymnasium_environment("CartPole-v1")(config=SMALL)
    game.begin_epoch(1)
    game.reset_worlds(np.array([True, True]))
    alone = gymnasium.make("CartPole-v1")
    seen, _ = alone.reset(seed=int(game.state()["seeds"][1]))
    assert np.array_equal(game.observe()[0, 1], seen)
    for action in (0, 1, 1, 0):
        rewards = game.apply_actions(np.array([[1 - action, action]]))
        seen, reward, *_ = alone.step(action)
        assert np.array_equal(game.observe()[0, 1], seen)
        assert rewards[0, 1] == reward


def test_episodes_cross_epochs_and_ends_are_told_apart() -> None:
    game = gymnasium_environment("CartPole-v1")(config=SMALL)
    summary = game.run_experiment()
    assert summary["turns"] == 60
    assert summary["transitions"] < 120  # each episode's end costs its world a turn


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
def test_spaces_of_every_supported_kind(name: str) -> None:
    assert gymnasium_environment(name)(config=SMALL).run_experiment()["updates"] > 0


def test_a_state_leads_back_to_where_it_was() -> None:
    game = gymnasium_environment("Pendulum-v1")(config=SMALL)
    game.run_experiment()
    state = {name: array.copy() for name, array in game.state().items()}
    seen = game.observe().copy()
    other = gymnasium_environment("Pendulum-v1")(config=SMALL)
    other.load_state(state)
    assert np.array_equal(other.observe(), seen)


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(TargetError, match="gymnasium:Nothing-v0 is not a registered environment"):
        gymnasium_environment("Nothing-v0")
    with pytest.raises(ConfigError, match="use 'ppo' instead"):
        gymnasium_environment("Pendulum-v1")(config={"model": {"algorithm": "dqn"}})


def test_trained_and_evaluated_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    words = [
        "gymnasium:CartPole-v1",
        "--algo",
        "ppo",
        "--worlds",
        "2",
        "--epochs",
        "2",
        "--out",
        str(out),
        "--json",
        "--quiet",
    ]
    assert main(["train", *words]) == 0
    assert json.loads(capsys.readouterr().out)["epochs"] == 2
    assert main(["eval", str(out), "--episodes", "5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["episodes"] == 5
    assert found["interval"][0] <= found["mean_return"] <= found["interval"][1]
    assert found["mean_return"] > 5
