"""Every game of `examples/`: trained from the command line, equal however it is run, whatever the number of worlds."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_agents.cli import main
from parallel_agents.cli.target import load_target
from parallel_agents.config import merge
from parallel_agents.games import GridEnvironment, play, random_player

ROOT = Path(__file__).parents[2]
NAMES = (
    "treasure_hunt",
    "cleanup",
    "commons_harvest",
    "stag_hunt",
    "tag",
    "coins",
    "prisoners_dilemma",
    "iowa",
)
pytestmark = pytest.mark.usefixtures("own_path")
TINY: dict[str, Any] = {
    "experiment": {"epochs": 4, "max_turns": 12, "worlds": 2, "seed": 5},
    "model": {"hidden": (8,), "batch_size": 8, "updates_per_round": 2, "learning_starts": 8, "buffer_size": 200},
    "parallel": {"train_interval": 2, "policy_lag": 1, "backend": "inline"},
}


def game_class(name: str) -> type[GridEnvironment]:
    found = load_target(str(ROOT / "examples" / f"{name}.py"))
    assert issubclass(found, GridEnvironment)
    return found


def run(name: str, *layers: dict[str, Any]) -> dict[str, Any]:
    return dict(game_class(name)(config=merge(TINY, *layers)).run_experiment())


def test_no_game_is_forgotten() -> None:
    files = {path.stem for path in (ROOT / "examples").glob("*.py") if "(GridEnvironment)" in path.read_text()}
    assert files == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_game_is_one_short_file_with_a_parallel_section_and_scripted_players(name: str) -> None:
    text = (ROOT / "examples" / f"{name}.py").read_text()
    assert len(text.splitlines()) <= 150
    cls = game_class(name)
    assert "parallel" in cls.default_config
    assert hasattr(importlib.import_module(cls.__module__), "sensible")


def test_the_game_of_the_tutorial_runs_and_trains(tmp_path: Path) -> None:
    (text,) = re.findall(r"```python title=\"berries.py\"\n(.*?)```", (ROOT / "docs" / "tutorial.md").read_text(), re.S)
    assert len(text.splitlines()) < 120
    path = tmp_path / "berries.py"
    path.write_text(text)
    ended = subprocess.run([sys.executable, path.name], capture_output=True, text=True, cwd=tmp_path, timeout=100)
    assert ended.returncode == 0, ended.stderr
    earned = float(ended.stdout.split("earn ")[1].split()[0])
    assert earned > 0.5
    game = load_target(str(path))(config={"experiment": {"epochs": 8, "record_period": 0}})
    assert game.run_experiment()["updates"] > 0


@pytest.mark.parametrize("name", NAMES)
def test_it_trains_from_the_command_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", str(ROOT / "examples" / f"{name}.py"), "--epochs", "3", "--worlds", "2", "--out", str(tmp_path)]
    small = ["experiment.max_turns=20", "parallel.train_interval=1", "model.learning_starts=16", "model.hidden=[8]"]
    for setting in (*small, "model.updates_per_round=2", "experiment.record_period=0"):
        words += ["--set", setting]
    code = main([*words, "--json", "--quiet"])
    told = capsys.readouterr()
    assert code == 0, told.err
    summary = json.loads(told.out)
    assert summary["epochs"] == 3
    assert summary["updates"] > 0
    assert summary["failures"] == 0


@pytest.mark.parametrize("order", ["simultaneous", "sequential"])
@pytest.mark.parametrize("name", NAMES)
def test_how_it_is_run_never_changes_the_bytes(name: str, order: str) -> None:
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


def made(name: str, worlds: int, observation: str = "onehot") -> Any:
    config = {"experiment": {"worlds": worlds, "max_turns": 25}, "world": {"observation": observation}}
    return game_class(name)(config=merge(config, {"model": {"algorithm": "random"}}))


@pytest.mark.parametrize("name", NAMES)
def test_a_world_does_not_depend_on_how_many_there_are(name: str) -> None:
    few, many = (made(name, worlds) for worlds in (3, 6))
    one, other = (play(game, random_player) for game in (few, many))
    assert one.rewards[:, :, 2].tobytes() == other.rewards[:, :, 2].tobytes()
    assert one.free[:, :, 2].tobytes() == other.free[:, :, 2].tobytes()
    assert few.grid.padded[2].tobytes() == many.grid.padded[2].tobytes()
    assert few.observe()[:, 2].tobytes() == many.observe()[:, 2].tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_acting_one_by_one_is_acting_in_list_order(name: str) -> None:
    together, apart = made(name, 3), made(name, 3)
    for game in (together, apart):
        game.begin_epoch(1)
        game.reset()
    for turn in range(1, 40):
        for game in (together, apart):
            game.turn = turn
            game.begin_turn()
        actions = random_player(together)
        total = np.zeros(actions.shape, np.float32)
        for n, own in enumerate(actions):
            earned = apart.apply_agent(n, own)
            if earned.ndim == 1:
                total[n] += earned
            else:
                total += earned
        assert np.allclose(together.apply_actions(actions), total, atol=1e-6)
        assert together.grid.padded.tobytes() == apart.grid.padded.tobytes()


@pytest.mark.parametrize("observation", ["onehot", "rgb"])
@pytest.mark.parametrize("name", NAMES)
def test_both_kinds_of_observation(name: str, observation: str) -> None:
    game = made(name, 2, observation)
    channels = len(game.grid.field.kinds) if observation == "onehot" else 3
    side = 2 * game.rules.radius + 1
    seen = game.observe()
    assert seen.shape == (len(game.agents), 2, channels * side * side)
    assert seen.min() >= 0.0
    assert seen.max() <= 1.0
    assert seen.any(axis=-1).all()
