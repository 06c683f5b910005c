"""Gymnasium environments as our environments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from parallel_agents.cli import main
from parallel_agents.core.errors import ConfigError, TargetError
from parallel_agents.env.adapters.gymnasium import gymnasium_environment

SMALL: dict[str, Any] = {
    "experiment": {"epochs": 3, "max_turns": 20, "worlds": 2},
    "model": {"algorithm": "ppo", "hidden": (8,)},
}


def test_steps_equal_those_of_the_original_environment() -> None:
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


def test_episodes_cross_epochs_and_restarts_take_a_turn() -> None:
    game = gymnasium_environment("CartPole-v1")(config=SMALL)
    summary = game.run_experiment()
    assert summary["turns"] == 60
    assert summary["transitions"] < 120  # each episode's end costs its world a turn


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
def test_environments_with_every_kind_of_space_are_trained(name: str) -> None:
    assert gymnasium_environment(name)(config=SMALL).run_experiment()["updates"] > 0


def test_load_state_restores_the_observations() -> None:
    game = gymnasium_environment("Pendulum-v1")(config=SMALL)
    game.run_experiment()
    state = {name: array.copy() for name, array in game.state().items()}
    seen = game.observe().copy()
    other = gymnasium_environment("Pendulum-v1")(config=SMALL)
    other.load_state(state)
    assert np.array_equal(other.observe(), seen)


def test_an_unknown_environment_or_an_unsuitable_algorithm_raises() -> None:
    with pytest.raises(TargetError, match="gymnasium:Nothing-v0 is not a registered environment"):
        gymnasium_environment("Nothing-v0")
    with pytest.raises(ConfigError, match="use 'ppo' instead"):
        gymnasium_environment("Pendulum-v1")(config={"model": {"algorithm": "dqn"}})


def test_train_and_eval_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_vector_environment_gives_the_steps_of_gymnasium_and_has_no_state() -> None:
    config = {**SMALL, "world": {"vector": True}, "experiment": {"epochs": 3, "max_turns": 40, "worlds": 3}}
    game = gymnasium_environment("CartPole-v1")(config=config)
    game.begin_epoch(1)
    game.reset()
    alone = gymnasium.make_vec("CartPole-v1", num_envs=3)
    seen, _ = alone.reset(seed=game.envs.episodes[0].seed)
    for turn in range(30):
        assert np.array_equal(game.observe()[0], seen)
        actions = np.array([turn % 2, 1, 0])
        rewards = game.apply_actions(actions[None])
        seen, earned, terminated, *_ = alone.step(actions)
        game.active = ~game.dones()[0][0]
        assert np.array_equal(rewards[0], earned) or not game.active.all()
        assert np.array_equal(game.dones()[0][0], terminated)
    summary = gymnasium_environment("CartPole-v1")(config=config).run_experiment()
    assert summary["updates"] > 0
    assert not game.has_state
    with pytest.raises(ConfigError, match=r"world\.vector and world\.workers are both set"):
        gymnasium_environment("CartPole-v1")(config={"world": {"vector": True, "workers": 2}})


def test_worker_processes_give_the_same_digest(nothing_left: None) -> None:
    digests = set()
    for workers in (0, 2):
        game = gymnasium_environment("CartPole-v1")(config={**SMALL, "world": {"workers": workers}})
        digests.add(game.run_experiment()["digest"])
        game.close()
    assert len(digests) == 1


def test_text_in_observations_is_left_out_with_a_warning() -> None:
    made = gymnasium_environment("minigrid:MiniGrid-Empty-5x5-v0")
    with pytest.warns(UserWarning, match="agents do not see mission"):
        game = made(config=SMALL)
    assert game.envs.agents[0].observation.shape == (4 + 7 * 7 * 3,)
    assert game.run_experiment()["updates"] > 0
