"""`eval`, `curve` and `export`: evaluate the agents of a run, draw its curves, save weights."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path

import numpy as np
import pytest

from parallel_agents.cli.results import _samples
from parallel_agents.cli.target import load_target
from parallel_agents.cli.viewers import TerminalViewer
from parallel_agents.tracking.metrics import Metrics, read_metrics
from tests.cli.conftest import ROOT, Command, settings

SMALL = settings(
    "experiment.max_turns=12", "model.learning_starts=8", "model.hidden=[8]", "parallel.train_interval=1",
    "experiment.record_period=0",
)  # fmt: skip
QUIET = ("--json", "--quiet")


def train_harvest(command: Command, *words: str) -> None:
    ended = command("train", "commons_harvest", "--epochs", "3", "--out", "run", "--quiet", *words, *SMALL)
    assert ended.code == 0, ended.err


def train_guess(command: Command, *words: str) -> None:
    ended = command("train", "guess.py", "--out", "run", *words, *QUIET)
    assert ended.code == 0, ended.err


def test_eval_gives_means_intervals_and_social_metrics(command: Command) -> None:
    train_harvest(command, "--seeds", "3")
    ended = command("eval", "run", "--episodes", "4", "--json")
    assert ended.code == 0, ended.err
    result = ended.json
    assert result["interval_over"] == "seeds"
    assert [row["seed"] for row in result["replicas"]] == [0, 1, 2]
    assert result["mean_return"] == pytest.approx(np.mean([row["mean_return"] for row in result["replicas"]]))
    assert result["interval"][0] <= result["mean_return"] <= result["interval"][1]
    low, high = result["interquartile_interval"]
    assert low <= result["interquartile_mean"] <= high
    assert set(result["social"]) == {"efficiency", "equality", "sustainability", "peace"}
    assert result["social"]["efficiency"] * 12 == pytest.approx(6 * result["mean_return"], abs=1e-6)
    assert 0.0 < result["social"]["peace"] <= 6.0
    assert "the group: efficiency" in command("eval", "run", "--episodes", "4").out


def test_eval_writes_an_episode_as_a_gif(command: Command, tmp_path: Path) -> None:
    imageio = pytest.importorskip("imageio.v3")
    train_harvest(command)
    ended = command("eval", "run", "--episodes", "2", "--gif", "pictures/one.gif", "--json")
    assert ended.code == 0, ended.err
    frames = imageio.imread(tmp_path / ended.json["gif"])
    assert len(frames) > 1
    assert frames.shape[2] == 20 * 16


def test_eval_with_json_shows_the_episode_on_stderr(command: Command) -> None:
    train_harvest(command)
    ended = command("eval", "run", "--episodes", "2", "--watch", "--fps", "100", "--json")
    assert ended.code == 0, ended.err
    assert ended.json["episodes"] == 2
    assert "CommonsHarvest, turn 12" in ended.err


def test_a_terminal_shows_every_turn_with_pauses_of_the_given_rate(own_path: None) -> None:
    game = load_target("coins")(config={"experiment": {"max_turns": 5}, "model": {"algorithm": "random"}})
    out, pauses = io.StringIO(), []
    with TerminalViewer(out, 4.0, sleep=pauses.append, terminal=True) as show:
        game.evaluate(2, on_turn=show)
    assert pauses == [0.25] * 5
    assert all(f"Coins, turn {turn}" in out.getvalue() for turn in range(1, 6))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--watch"], "--watch draws grid games, and Guess is none"),
        (["--gif", "a.gif"], "--gif draws grid games, and Guess is none"),
        (["--fps", "0"], "--fps 0: give a number of turns a second from 0.1 to 100"),
        (["--exploration", "2"], "--exploration 2: give 0 (the best actions) to 1 (random ones)"),
        (["--episodes", "0"], "--episodes 0: give a whole number of at least 1"),
    ],
)
def test_eval_refuses_impossible_options(command: Command, words: list[str], message: str) -> None:
    train_guess(command)
    ended = command("eval", "run", *words, "--json")
    assert ended.code == 2
    assert message in ended.json["message"]


def test_an_animation_must_have_a_name_that_ends_in_gif_or_mp4(command: Command) -> None:
    train_harvest(command)
    ended = command("eval", "run", "--gif", "episode.avi", "--json")
    assert ended.code == 2
    assert "give a file name that ends in .gif or .mp4" in ended.json["message"]
    ended = command("eval", "run", "--gif", "episode.gif", "--seen-by", "nobody", "--json")
    assert ended.code == 2
    assert "--seen-by nobody: this run has agent_0" in ended.json["message"]


def test_a_curve_has_its_interval_over_seeds_if_there_are_several(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    train_harvest(command, "--seeds", "3")
    ended = command("curve", "run", "--out", "pictures/curve.png", "--json")
    assert ended.code == 0, ended.err
    assert {name: ended.json[name] for name in ("file", "runs", "interval_over")} == {
        "file": "pictures/curve.png", "runs": ["run"], "interval_over": ["seeds"],
    }  # fmt: skip
    assert (tmp_path / "pictures" / "curve.png").read_bytes().startswith(b"\x89PNG")
    metrics = read_metrics(tmp_path / "run")
    assert metrics.seeds().shape == (3, 3)
    assert np.allclose(metrics.seeds()[1], metrics.rewards()[6:12].mean(axis=0))
    assert "is not a run folder" in command("curve", "nowhere", "--json").json["message"]
    assert "no run to draw" in command("curve", "--json").json["message"]


def test_a_run_writes_a_csv_table_that_equals_its_metrics(command: Command, tmp_path: Path) -> None:
    train_harvest(command, "--seeds", "2")
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


def test_exported_weights_of_an_agent_start_another_run(command: Command) -> None:
    train_guess(command)
    ended = command("export", "run", "--agent", "agent_1", "--out", "w.safetensors", "--json")
    assert ended.code == 0, ended.err
    assert ended.json == {"agent": "agent_1", "seed": 0, "replica": 0, "epoch": 4, "out": "w.safetensors"}
    again = command("export", "run", "--agent", "agent_0", "--out", "other")
    assert "weights of agent_0 (seed 0, epoch 4) written to other" in again.out
    words = ("--agents", "1", "--epochs", "1", "--set", "parallel.train_interval=2")
    with_them = command("train", "guess.py", *words, "--set", "model.weights=w.safetensors", *QUIET)
    assert with_them.code == 0, with_them.err
    without = command("train", "guess.py", *words, *QUIET)
    assert with_them.json["digest"] != without.json["digest"]
    mismatch = command("train", "guess.py", "--set", "model.weights=w.safetensors", "--set", "model.hidden=[5]", *QUIET)
    assert mismatch.code == 1
    assert "holds weights of MLP(inputs=2, hidden=(4,)" in mismatch.err


def test_export_writes_the_best_weights_of_a_replica(command: Command) -> None:
    train_guess(command, "--seeds", "2", "--set", "experiment.eval_every=1", "--set", "experiment.eval_episodes=3")
    ended = command("export", "run", "--agent", "agent_0", "--out", "w", "--replica", "1", "--best", "--json")
    assert ended.code == 0, ended.err
    assert (ended.json["seed"], ended.json["replica"]) == (1, 1)
    evaluated = command("eval", "run", "--episodes", "3", "--best", "--json").json
    assert evaluated["replicas"][1]["epoch"] == ended.json["epoch"]
    assert [row["seed"] for row in evaluated["replicas"]] == [0, 1]
    means = [row["mean_return"] for row in evaluated["replicas"]]
    assert evaluated["mean_return"] == sum(means) / 2
    assert "seed 1" in command("eval", "run", "--episodes", "3").out


def test_export_reports_unknown_agents_and_replicas_and_missing_best_weights(command: Command) -> None:
    train_guess(command)
    agent = command("export", "run", "--agent", "agent_7", "--out", "w")
    assert (agent.code, "--agent agent_7: this run has agent_0, agent_1" in agent.err) == (2, True)
    replica = command("export", "run", "--agent", "agent_0", "--replica", "3", "--out", "w")
    assert (replica.code, "--replica 3: this run has replicas 0 to 0" in replica.err) == (2, True)
    best = command("export", "run", "--agent", "agent_0", "--best", "--out", "w")
    assert (best.code, "knows no best weights" in best.err) == (1, True)


def test_an_episode_of_a_gymnasium_environment_is_drawn(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("pygame")
    small = settings("experiment.max_turns=8")
    command("train", "gymnasium:CartPole-v1", "--algo", "ppo", "--epochs", "1", "--out", "run", "--quiet", *small)
    plain = command("eval", "run", "--episodes", "2", "--json").json
    drawn = command("eval", "run", "--episodes", "2", "--gif", "cart.gif", "--json").json
    assert (tmp_path / "cart.gif").read_bytes().startswith(b"GIF")
    assert drawn["mean_return"] == plain["mean_return"]


def test_a_world_that_takes_no_render_mode_is_named_without_a_traceback(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs" / "pettingzoo.md").read_text()
    (tmp_path / "meeting.py").write_text(text.partition('```python title="meeting.py"\n')[2].partition("```")[0])
    monkeypatch.syspath_prepend(str(tmp_path))
    assert command("train", "pettingzoo:meeting", "--epochs", "1", "--out", "run", "--quiet").code == 0
    ended = command("eval", "run", "--gif", "one.gif")
    assert ended.code == 2
    assert "error: meeting cannot be made with a render_mode, so it draws no pictures" in ended.err
    assert "Traceback" not in ended.err
    monkeypatch.delitem(sys.modules, "meeting")


def test_a_curve_shows_episode_returns_by_steps_or_time_and_by_setting(command: Command, tmp_path: Path) -> None:
    command("train", "guess.py", "--out", "run", "--quiet", "--sweep", "model.lr=0.1,0.001")
    drawn = command("curve", "run", "--out", "curve.pdf", "--x", "steps", "--smooth", "2", "--json").json
    assert drawn["runs"] == ["run model.lr=0.1", "run model.lr=0.001"], "settings are curves of their own"
    assert (tmp_path / "curve.pdf").read_bytes().startswith(b"%PDF")
    returns = read_metrics(tmp_path / "run").episode_returns()
    assert drawn["last"]["run model.lr=0.1"] == pytest.approx(returns[0, -2:].mean())
    assert command("curve", "run", "--x", "time", "--out", "curve.svg").code == 0
    assert "give a file name that ends in .png, .svg or .pdf" in command("curve", "run", "--out", "curve.txt").err
    assert command("curve", "run", "--smooth", "0").code == 2


def test_epochs_without_a_finished_episode_keep_the_return_before(tmp_path: Path) -> None:
    lines = [{"epoch": k + 1, "rewards": [0.0], "episodes": [n], "episode_returns": [r]} for k, (n, r) in
             enumerate([(0, None), (1, 5.0), (0, None), (2, 9.0)])]  # fmt: skip
    metrics = Metrics({"agents": ["a"], "replicas": 1}, lines, [])
    assert _samples(metrics, each=1).tolist() == [[5.0, 5.0, 5.0, 9.0]]
