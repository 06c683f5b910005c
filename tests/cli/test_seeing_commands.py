"""`eval` and `curve`: what a run's agents do, and how they learnt."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_agents.cli.onlookers import Shown
from parallel_agents.cli.target import load_target
from parallel_agents.tracking.metrics import read_metrics

Command = Callable[..., Any]
SMALL = ["experiment.max_turns=12", "model.learning_starts=8", "model.hidden=[8]", "parallel.train_interval=1"]


def trained(command: Command, *words: str) -> None:
    settings = [word for setting in (*SMALL, "experiment.record_period=0") for word in ("--set", setting)]
    ended = command("train", "commons_harvest", "--epochs", "3", "--out", "run", "--quiet", *words, *settings)
    assert ended.code == 0, ended.err


def test_eval_tells_means_intervals_and_what_it_means_for_the_group(command: Command) -> None:
    trained(command, "--seeds", "3")
    ended = command("eval", "run", "--episodes", "4", "--json")
    assert ended.code == 0, ended.err
    told = ended.json
    assert told["interval_over"] == "seeds"
    assert [own["seed"] for own in told["replicas"]] == [0, 1, 2]
    assert told["mean_return"] == pytest.approx(np.mean([own["mean_return"] for own in told["replicas"]]))
    assert told["interval"][0] <= told["mean_return"] <= told["interval"][1]
    low, high = told["interquartile_interval"]
    assert low <= told["interquartile_mean"] <= high
    assert set(told["social"]) == {"efficiency", "equality", "sustainability", "peace"}
    assert told["social"]["efficiency"] * 12 == pytest.approx(6 * told["mean_return"], abs=1e-6)
    assert 0.0 < told["social"]["peace"] <= 6.0
    assert "the group: efficiency" in command("eval", "run", "--episodes", "4").out


def test_eval_films_an_episode(command: Command, tmp_path: Path) -> None:
    imageio = pytest.importorskip("imageio.v3")
    trained(command)
    ended = command("eval", "run", "--episodes", "2", "--gif", "films/one.gif", "--json")
    assert ended.code == 0, ended.err
    frames = imageio.imread(tmp_path / ended.json["gif"])
    assert len(frames) > 1
    assert frames.shape[2] == 20 * 16


def test_eval_shows_an_episode_on_stderr_where_stdout_is_for_json(command: Command) -> None:
    trained(command)
    ended = command("eval", "run", "--episodes", "2", "--watch", "--fps", "100", "--json")
    assert ended.code == 0, ended.err
    assert ended.json["episodes"] == 2
    assert "CommonsHarvest, turn 12" in ended.err


def test_a_terminal_is_shown_every_turn_at_the_pace_asked_for(own_path: None) -> None:
    game = load_target("coins")(config={"experiment": {"max_turns": 5}, "model": {"algorithm": "random"}})
    out, pauses = io.StringIO(), []
    with Shown(out, 4.0, sleep=pauses.append, terminal=True) as look:
        game.evaluate(2, onlooker=look)
    assert pauses == [0.25] * 5
    assert all(f"Coins, turn {turn}" in out.getvalue() for turn in range(1, 6))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--watch"], "--watch draws grid games, and Guess is none"),
        (["--gif", "a.gif"], "--gif draws grid games, and Guess is none"),
        (["--fps", "0"], "--fps 0: give a number of turns a second from 0.1 to 100"),
        (["--episodes", "0"], "--episodes 0: give a whole number of at least 1"),
    ],
)
def test_what_cannot_be_seen_is_refused_before_anything_is_played(
    command: Command, words: list[str], message: str
) -> None:
    assert command("train", "guess.py", "--out", "run", "--quiet", "--json").code == 0
    ended = command("eval", "run", *words, "--json")
    assert ended.code == 2
    assert message in ended.json["message"]


def test_a_film_is_a_gif(command: Command) -> None:
    trained(command)
    ended = command("eval", "run", "--gif", "film.mp4", "--json")
    assert ended.code == 2
    assert "give a file name that ends in .gif" in ended.json["message"]


def test_a_curve_has_its_interval_over_seeds_where_there_are_several(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    trained(command, "--seeds", "3")
    ended = command("curve", "run", "--out", "pictures/curve.png", "--json")
    assert ended.code == 0, ended.err
    assert ended.json == {"file": "pictures/curve.png", "runs": ["run"], "interval_over": ["seeds"]}
    assert (tmp_path / "pictures" / "curve.png").read_bytes().startswith(b"\x89PNG")
    metrics = read_metrics(tmp_path / "run")
    assert metrics.seeds().shape == (3, 3)
    assert np.allclose(metrics.seeds()[1], metrics.rewards()[6:12].mean(axis=0))
    assert "is not a run folder" in command("curve", "nowhere", "--json").json["message"]
    assert "no run to draw" in command("curve", "--json").json["message"]


def test_a_run_leaves_a_table_that_says_what_the_metrics_say(command: Command, tmp_path: Path) -> None:
    trained(command, "--seeds", "2")
    rows = list(csv.DictReader((tmp_path / "run" / "metrics.csv").read_text().splitlines()))
    assert len(rows) == 3 * 12
    metrics = read_metrics(tmp_path / "run")
    assert [float(row["reward"]) for row in rows[:12]] == metrics.epochs[0]["rewards"]
    assert [row["replica"] for row in rows[:12]] == ["0"] * 6 + ["1"] * 6
    assert rows[0]["loss"] == rows[0]["entropy"] == ""
    assert float(rows[-1]["loss"]) >= 0.0
    assert 0.0 < float(rows[-1]["epsilon"]) <= 1.0
    assert int(rows[-1]["updates"]) > 0
    assert rows[-1]["lag"] == "1"
