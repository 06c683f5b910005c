"""`parallel-agents export`, and `eval` and `train` with what it wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Command = Callable[..., Any]
QUIET = ("--json", "--quiet")


def trained(command: Command, *words: str) -> None:
    ended = command("train", "guess.py", "--out", "run", *words, *QUIET)
    assert ended.code == 0, ended.err


def test_weights_of_one_agent_start_another_run(command: Command) -> None:
    trained(command)
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
    misfit = command("train", "guess.py", "--set", "model.weights=w.safetensors", "--set", "model.hidden=[5]", *QUIET)
    assert misfit.code == 1
    assert "holds weights of MLP(inputs=2, hidden=(4,)" in misfit.err


def test_the_best_weights_of_a_replica(command: Command) -> None:
    trained(command, "--seeds", "2", "--set", "experiment.eval_every=1", "--set", "experiment.eval_episodes=3")
    ended = command("export", "run", "--agent", "agent_0", "--out", "w", "--replica", "1", "--best", "--json")
    assert ended.code == 0, ended.err
    assert (ended.json["seed"], ended.json["replica"]) == (1, 1)
    judged = command("eval", "run", "--episodes", "3", "--best", "--json").json
    assert judged["replicas"][1]["epoch"] == ended.json["epoch"]
    assert [own["seed"] for own in judged["replicas"]] == [0, 1]
    means = [own["mean_return"] for own in judged["replicas"]]
    assert judged["mean_return"] == sum(means) / 2
    assert "seed 1" in command("eval", "run", "--episodes", "3").out


def test_what_is_not_there_is_said(command: Command) -> None:
    trained(command)
    nobody = command("export", "run", "--agent", "agent_7", "--out", "w")
    assert (nobody.code, "--agent agent_7: this run has agent_0, agent_1" in nobody.err) == (2, True)
    other = command("export", "run", "--agent", "agent_0", "--replica", "3", "--out", "w")
    assert (other.code, "--replica 3: this run has replicas 0 to 0" in other.err) == (2, True)
    worst = command("export", "run", "--agent", "agent_0", "--best", "--out", "w")
    assert (worst.code, "knows no best weights" in worst.err) == (1, True)
