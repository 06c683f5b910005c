"""`train`: its output, its files and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command

PRINTED = {
    "digest", "epochs", "turns", "transitions", "updates", "failures", "wall_seconds", "turns_per_second",
    "updates_per_second", "mean_reward", "run_dir", "config", "fingerprint", "reproducible", "recomputed_share",
    "digests",
}  # fmt: skip


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_json_is_exactly_one_object_with_the_documented_keys(command: Command) -> None:
    ended = command("train", "guess.py", "--seed", "3", "--json", "--set", "parallel.backend=thread")
    assert ended.code == 0, ended.err
    assert set(ended.json) >= PRINTED
    assert (ended.json["epochs"], ended.json["turns"]) == (4, 20)
    assert ended.json["transitions"] == 4 * 5 * 2
    assert ended.json["updates"] == 4 * 2 * 2
    assert ended.json["config"]["experiment"]["seed"] == 3
    assert len(ended.json["digest"]) == 64
    assert Path(ended.json["run_dir"]).parent.name == "runs"
    assert "epoch 4/4" in ended.err


def test_the_digest_depends_on_the_problem_and_not_on_the_backend(command: Command) -> None:
    def digest(*words: str) -> Any:
        ended = command("train", "guess.py", "--json", "--quiet", *words)
        assert ended.code == 0, ended.err
        return ended.json["digest"]

    base = digest()
    assert digest("--backend", "inline") == base
    assert digest("--set", "parallel.enabled=false") == base
    assert digest("--seed", "1") != base
    assert digest("--set", "parallel.policy_lag=0") != base


def test_later_sources_of_options_win(command: Command, tmp_path: Path) -> None:
    (tmp_path / "options.toml").write_text("[experiment]\nepochs = 9\nmax_turns = 2\n[model]\nlr = 0.5\n")
    words = ["--config", "options.toml", "--epochs", "3", "--agents", "4", "--worlds", "2", "--algo", "dqn"]
    ended = command("train", "guess.py", *words, "--set", "model.gamma=0.5", "--json", "--quiet")
    assert ended.code == 0, ended.err
    config = ended.json["config"]
    assert config["experiment"] | {"epochs": 3, "max_turns": 2, "worlds": 2} == config["experiment"]
    assert config["model"] | {"lr": 0.5, "gamma": 0.5, "algorithm": "dqn"} == config["model"]
    assert config["world"]["agents"] == 4
    assert ended.json["transitions"] == 3 * 2 * 4 * 2


def test_every_replica_has_the_digest_of_its_single_run(command: Command) -> None:
    several = command("train", "guess.py", "--seed", "5", "--seeds", "2", "--json", "--quiet").json
    single = [command("train", "guess.py", "--seed", seed, "--json", "--quiet").json["digest"] for seed in ("5", "6")]
    assert several["digests"] == single
    assert several["digest"] not in single


def test_without_json_a_few_lines_are_printed(command: Command) -> None:
    ended = command("train", "guess.py", "--quiet")
    assert ended.code == 0
    assert ended.out.startswith("4 epochs, 20 timesteps")
    assert "digest " in ended.out
    assert "run folder " in ended.out
    assert ended.err == ""
    asap = command("train", "guess.py", "--quiet", "--set", "parallel.publish=asap")
    assert 'digest none: parallel.publish is "asap"' in asap.out


def test_a_run_that_ends_before_its_first_round_says_that_nothing_was_learned(command: Command) -> None:
    told = "nothing was learned: fewer epochs than parallel.train_interval = 4\n"
    words = ("train", "guess.py", "--quiet", "--set", "parallel.train_interval=4", "--epochs")
    assert told in command(*words, "3").out
    assert "nothing was learned" not in command(*words, "4").out


def test_the_run_folder_holds_config_metrics_log_trace_and_summary(command: Command, tmp_path: Path) -> None:
    ended = command("train", "guess.py", "--out", "mine", "--json", "--quiet", "--backend", "thread")
    folder = tmp_path / "mine"
    assert ended.json["run_dir"] == str(folder)
    assert json.loads((folder / "config.json").read_text()) == ended.json["config"]
    assert json.loads((folder / "summary.json").read_text()) == ended.json
    assert json.loads((folder / "fingerprint.json").read_text()) == ended.json["fingerprint"]

    metrics = records(folder / "metrics.jsonl")
    assert [line["epoch"] for line in metrics if line["kind"] == "epoch"] == [1, 2, 3, 4]
    assert [line["round"] for line in metrics if line["kind"] == "round"] == [1, 2, 3]
    logs = records(folder / "log.jsonl")
    conductor = [line for line in logs if line["role"] == "conductor"]
    assert [line["event"] for line in conductor] == ["run_started", "run_ended"]
    learner = [line for line in logs if line["role"] == "learner"]
    assert [line["round"] for line in learner] == [1, 2, 3, 4]
    assert {line["thread"] for line in learner} == {"learner-0"}
    for line in logs:
        assert {"run", "role", "agent", "thread", "process", "version", "time", "level"} <= set(line)
        assert line["run"] == metrics[0]["run"], "the same id in log and metrics"

    trace = json.loads((folder / "trace.json").read_text())
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    names = {
        "collect",
        "boundary",
        "snapshot",
        "hand over",
        "learn",
        "wait",
        "publish",
        "checkpoint",
        "write checkpoint",
    }
    assert {event["name"] for event in spans} == names
    assert sum(event["name"] == "learn" for event in spans) == 4
    assert len({event["tid"] for event in spans if event["name"] in ("collect", "learn")}) == 2
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in spans)


def test_a_run_folder_is_never_overwritten(command: Command, tmp_path: Path) -> None:
    assert command("train", "guess.py", "--out", "mine", "--quiet").code == 0
    before = {path: path.read_bytes() for path in (tmp_path / "mine").rglob("*") if path.is_file()}
    again = command("train", "guess.py", "--out", "mine", "--quiet")
    assert again.code == 2
    assert "already holds a run" in again.err
    assert {path: path.read_bytes() for path in (tmp_path / "mine").rglob("*") if path.is_file()} == before


# -- bad input -----------------------------------------------------------------------------------------------

TWO = "class Second(Guess):\n    pass\n"
FILES = {
    "none.py": "x = 1\n",
    "raises.py": "raise ValueError('not today')\n",
    "leaves.py": "import sys\nsys.exit(5)\n",
    "broken.py": "def (:\n",
    "imports.py": "from guess import Guess\n",
}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["guess.py", "--set", "parallel.train_intervall=2"], "did you mean parallel.train_interval?"),
        (["guess.py", "--set", "wordl.agents=2"], "unknown section wordl; did you mean world?"),
        (["guess.py", "--set", "world.agentz=2"], "did you mean world.agents?"),
        (["guess.py", "--set", "parallel.train_interval=0"], "parallel.train_interval is 0"),
        (["guess.py", "--set", "parallel.num_workers=-1"], "parallel.num_workers is -1"),
        (
            ["guess.py", "--set", "parallel.num_workers=two"],
            "parallel.num_workers is 'two' (str): allowed is int, None",
        ),
        (["guess.py", "--set", "epochs"], "write section.key=value"),
        (["guess.py", "--epochs", "0"], "experiment.epochs is 0"),
        (["guess.py", "--epochs", "2", "--set", "experiment.epochs=3"], "experiment.epochs is given twice"),
        (
            ["guess.py", "--backend", "ray", "--set", "parallel.address=here"],
            "parallel.address is 'here': write host:port",
        ),
        (["guess.py", "--algo", "sarsa"], "model.algorithm is 'sarsa'"),
        (["guess.py", "--config", "absent.toml"], "cannot read the configuration absent.toml: No such file"),
        (["absent.py"], "no file absent.py: give a Python file that holds one environment"),
        (["gues.py"], "no file gues.py; did you mean guess.py?"),
        (["elsewhere/tag.py"], "no file elsewhere/tag.py; the game that comes with the package is trained by its name"),
        (["guess"], "no game 'guess'; did you mean the file guess.py?"),
        (["treasure_hnt"], "no game 'treasure_hnt'; did you mean treasure_hunt?"),
        (["qqq"], "no game 'qqq': give a game of `parallel-agents games`"),
        (["none.py"], "must define exactly one subclass of ParallelEnvironment; found none"),
        (["two.py"], "found Guess, Second. Name one with two.py:Class"),
        (["imports.py"], "found none"),
        (["raises.py"], "raises.py raised while it was loaded: ValueError: not today"),
        (["leaves.py"], "leaves.py raised while it was loaded: SystemExit: 5"),
        (["broken.py"], "broken.py raised while it was loaded: SyntaxError"),
        (["no_such_module:Guess"], "cannot import no_such_module"),
        (["raises:Guess"], "cannot import raises: ValueError: not today"),
        (["json:loads"], "json:loads is not a subclass of ParallelEnvironment"),
        (["json:Guess"], "module json has no Guess: name a class"),
        (["guess:Gues"], "module guess has no Gues; did you mean guess:Guess?"),
    ],
)
def test_bad_usage_exits_with_2_and_writes_nothing(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    for name, text in {**FILES, "two.py": (tmp_path / "guess.py").read_text() + TWO}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = sorted(tmp_path.iterdir())
    ended = command("train", *words, "--json")
    assert ended.code == 2, ended.err
    assert message in ended.json["message"]
    assert ended.json["error"] in ("ConfigError", "TargetError")
    assert f"error: {ended.json['message']}" in ended.err
    assert "Traceback" not in ended.err
    assert [path for path in sorted(tmp_path.iterdir()) if path.name != "__pycache__"] == before


@pytest.mark.parametrize("words", [[], ["fly"], ["train"], ["train", "guess.py", "--epochs", "many"]])
def test_invalid_commands_exit_with_2(command: Command, tmp_path: Path, words: list[str]) -> None:
    ended = command(*words)
    assert ended.code == 2
    assert ended.err
    assert [path.name for path in tmp_path.iterdir()] == ["guess.py"]


@pytest.mark.parametrize("spoil", ["shared model", "shared buffer"])
def test_shared_models_and_buffers_exit_with_1_before_anything_is_written(
    command: Command, tmp_path: Path, spoil: str
) -> None:
    ended = command("train", "guess.py", "--json", "--set", f"world.spoil={spoil}")
    assert ended.code == 1
    assert ended.json["error"] == "SharingError"
    assert f"agent_0 and agent_1 hold the same {spoil.split()[1]}" in ended.json["message"]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("spoil", "kind", "message"),
    [
        ("shape", "ShapeError", "the observation of agent_0 has shape (1, 1), wanted is (worlds, *obs) = (1, 2)"),
        ("nan", "NonFiniteError", "the observation of agent_0 in world 0 holds NaN or infinity"),
        ("reward", "NonFiniteError", "the reward of agent_0 in world 0 is nan (epoch 1, turn 1)"),
        ("action", "ActionError", "agent_0 chose action [3], but its actions are 0 to 2"),
        ("raise", "WorldError", "Guess raised ZeroDivisionError: the world has come to an end in epoch 1, turn 1"),
    ],
)
def test_a_failed_run_exits_with_1_and_reports_the_cause(
    command: Command, tmp_path: Path, spoil: str, kind: str, message: str
) -> None:
    ended = command("train", "guess.py", "--json", "--quiet", "--out", "mine", "--set", f"world.spoil={spoil}")
    assert ended.code == 1
    assert ended.json["error"] == kind
    assert message in ended.json["message"]
    assert f"error: {message}" in ended.err
    assert ("Traceback" in ended.err) == (spoil == "raise"), "a traceback is shown if code of the user fails"
    files = {path.name for path in (tmp_path / "mine").rglob("*") if path.is_file()}
    assert "summary.json" not in files
    assert {"config.json", "log.jsonl", "metrics.jsonl", "trace.json"} <= files


def test_an_interrupted_run_exits_with_130(command: Command) -> None:
    ended = command("train", "guess.py", "--quiet", "--json", "--set", "world.spoil=interrupt")
    assert ended.code == 130
    assert ended.json["error"] == "Interrupted"
    assert ended.json["message"].startswith("stopped after epoch 2")


def test_a_resumed_run_that_is_stopped_names_the_epochs_that_it_was_asked_for(command: Command, tmp_path: Path) -> None:
    assert command("train", "guess.py", "--out", "mine", "--epochs", "1", "--set", "world.spoil=interrupt").code == 0
    ended = command("resume", "mine", "--epochs", "6")
    assert ended.code == 130
    assert ended.err.count("go on with") == 1, "it is said once"
    assert ended.err.endswith(f"go on with: parallel-agents resume {tmp_path / 'mine'} --epochs 6\n")
    again = command("resume", "mine", "--json")
    assert (again.code, again.json["epochs"]) == (0, 2)
    assert "epoch 2 is reached already: a larger --epochs goes on" in again.err
    assert "no epoch left to train" in again.err
    assert "epoch 2/2" in again.err
