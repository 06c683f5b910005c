"""Every game of `examples/`: it trains from the command line, and gives the same bytes however it is run."""

from __future__ import annotations

import importlib
import json
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_agents.cli import main
from parallel_agents.cli.target import load_target
from parallel_agents.core.config import merge
from parallel_agents.core.errors import ConfigError
from parallel_agents.games import GridEnvironment, play, random_policy

ROOT = Path(__file__).parents[2]
NAMES = ("treasure_hunt", "cleanup", "commons_harvest", "stag_hunt", "tag", "coins", "prisoners_dilemma", "iowa")
pytestmark = pytest.mark.usefixtures("own_path")
TINY: dict[str, Any] = {
    "experiment": {"epochs": 4, "max_turns": 12, "worlds": 2, "seed": 5},
    "model": {"hidden": (8,), "batch_size": 8, "updates_per_round": 2, "learning_starts": 8, "buffer_size": 200},
    "parallel": {"train_interval": 2, "policy_lag": 1, "backend": "inline"},
}


def game_class(name: str) -> type[GridEnvironment]:
    cls = load_target(str(ROOT / "examples" / f"{name}.py"))
    assert issubclass(cls, GridEnvironment)
    return cls


def run(name: str, *layers: dict[str, Any]) -> dict[str, Any]:
    return dict(game_class(name)(config=merge(TINY, *layers)).run_experiment())


def test_every_game_of_the_folder_is_tested() -> None:
    files = {path.stem for path in (ROOT / "examples").glob("*.py") if "(GridEnvironment)" in path.read_text()}
    assert files == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_game_is_one_short_file_with_a_parallel_section_and_scripted_players(name: str) -> None:
    text = (ROOT / "examples" / f"{name}.py").read_text()
    assert len(text.splitlines()) <= 150
    cls = game_class(name)
    assert "parallel" in cls.default_config
    assert hasattr(importlib.import_module(cls.__module__), "sensible")


def test_the_game_of_the_tutorial_runs_and_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (text,) = re.findall(r"```python title=\"berries.py\"\n(.*?)```", (ROOT / "docs" / "tutorial.md").read_text(), re.S)
    assert len(text.splitlines()) < 120
    path = tmp_path / "berries.py"
    path.write_text(text)
    runpy.run_path(str(path), run_name="__main__")
    assert float(capsys.readouterr().out.split("earn ")[1].split()[0]) > 0.5
    game = load_target(str(path))(config={"experiment": {"epochs": 8, "record_period": 0}})
    assert game.run_experiment()["updates"] > 0


@pytest.mark.parametrize("name", NAMES)
def test_a_game_trains_from_the_command_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", str(ROOT / "examples" / f"{name}.py"), "--epochs", "3", "--worlds", "2", "--out", str(tmp_path)]
    small = ["experiment.max_turns=20", "parallel.train_interval=1", "model.learning_starts=16", "model.hidden=[8]"]
    for setting in (*small, "model.updates_per_round=2", "experiment.record_period=0"):
        command += ["--set", setting]
    code = main([*command, "--json", "--quiet"])
    output = capsys.readouterr()
    assert code == 0, output.err
    summary = json.loads(output.out)
    assert summary["epochs"] == 3
    assert summary["updates"] > 0
    assert summary["failures"] == 0


@pytest.mark.parametrize("order", ["simultaneous", "sequential"])
@pytest.mark.parametrize("name", NAMES)
def test_the_plan_of_a_run_never_changes_the_bytes(name: str, order: str) -> None:
    in_order = {"parallel": {"turn_order": order}}
    inline = run(name, in_order)
    assert inline["updates"] > 0
    for plan in ({"enabled": False}, {"backend": "thread", "num_workers": 2}):
        assert run(name, in_order, {"parallel": plan})["digest"] == inline["digest"], plan


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_learners_in_processes_never_change_the_bytes(name: str) -> None:
    inline = run(name)
    for plan in ({"backend": "process", "num_workers": 2}, {"backend": "thread", "buffer_sync": "lock"}):
        assert run(name, {"parallel": plan})["digest"] == inline["digest"], plan


def make_random(name: str, worlds: int, observation: str = "onehot") -> Any:
    config = {"experiment": {"worlds": worlds, "max_turns": 25}, "world": {"observation": observation}}
    return game_class(name)(config=merge(config, {"model": {"algorithm": "random"}}))


@pytest.mark.parametrize("name", NAMES)
def test_a_world_does_not_depend_on_how_many_there_are(name: str) -> None:
    few, many = (make_random(name, worlds) for worlds in (3, 6))
    one, other = (play(game, random_policy) for game in (few, many))
    assert one.rewards[:, :, 2].tobytes() == other.rewards[:, :, 2].tobytes()
    assert one.free[:, :, 2].tobytes() == other.free[:, :, 2].tobytes()
    assert few.grid.padded[2].tobytes() == many.grid.padded[2].tobytes()
    assert few.observe()[:, 2].tobytes() == many.observe()[:, 2].tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_acting_one_by_one_is_acting_in_list_order(name: str) -> None:
    together, apart = make_random(name, 3), make_random(name, 3)
    for game in (together, apart):
        game.begin_epoch(1)
        game.reset()
    for turn in range(1, 40):
        for game in (together, apart):
            game.turn = turn
            game.begin_turn()
        actions = random_policy(together)
        total = np.zeros(actions.shape, np.float32)
        for n, row in enumerate(actions):
            rewards = apart.apply_agent(n, row)
            if rewards.ndim == 1:
                total[n] += rewards
            else:
                total += rewards
        assert np.allclose(together.apply_actions(actions), total, atol=1e-6)
        assert together.grid.padded.tobytes() == apart.grid.padded.tobytes()


@pytest.mark.parametrize("observation", ["onehot", "rgb"])
@pytest.mark.parametrize("name", NAMES)
def test_observations_are_numbers_from_0_to_1_in_both_encodings(name: str, observation: str) -> None:
    game = make_random(name, 2, observation)
    channels = len(game.grid.field.kinds) if observation == "onehot" else 3
    side = 2 * game.rules.radius + 1
    observations = game.observe()
    assert observations.shape == (len(game.agents), 2, channels * side * side)
    assert observations.min() >= 0.0
    assert observations.max() <= 1.0
    assert observations.any(axis=-1).all()


@pytest.mark.parametrize(
    ("name", "world", "message"),
    [
        ("cleanup", {"width": 8}, r"world\.width is 8: river and orchard need at least 9"),
        ("cleanup", {"barren_from": 2.0}, r"world\.barren_from is 2\.0: give a number from 0 to 1"),
        ("cleanup", {"beam_length": 0}, r"a beam of length 0"),
        ("coins", {"agents": 3}, r"world\.agents is 3: coins is for 2 players"),
        ("coins", {"coins": 0}, r"world\.coins is 0: give a whole number of at least 1"),
        ("commons_harvest", {"height": 7}, r"world\.height is 7: a patch needs at least 8"),
        ("commons_harvest", {"regrowth": (2.0,)}, r"apple grows with probabilities \[2\.0\]"),
        ("iowa", {"width": 7}, r"a room of 5 x 7: four decks need at least 4 x 9"),
        ("prisoners_dilemma", {"payoffs": (1.0,)}, r"world\.payoffs is \(1\.0,\): give four numbers"),
        ("prisoners_dilemma", {"tokens": 0}, r"world\.tokens is 0: give a whole number of at least 1"),
        ("stag_hunt", {"hunters": 0}, r"world\.hunters is 0: give a whole number of at least 1"),
        ("tag", {"agents": 1}, r"world\.agents is 1: tag needs at least 2"),
        ("treasure_hunt", {"spawn_probability": 2.0}, r"probability 2\.0: give a number from 0 to 1"),
        ("treasure_hunt", {"values": {"gold": 1.0}}, r"world\.values is .*: give a number for each of gem, food, bone"),
        ("treasure_hunt", {"colour": "red"}, r"unknown key world\.colour"),
    ],
)
def test_a_wrong_world_section_is_refused(name: str, world: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        game_class(name)(config={"world": world, "model": {"algorithm": "random"}})
