"""Learners of users' own from the command line: digest, resume, evaluation, metrics, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from parallel_agents import load_run
from tests.cli.conftest import ROOT, Command, run_process, settings

TABLE = '''
"""A tabular learner of own draws; with GLOBAL it draws from numpy's global generator, without STATE it forgets."""
import numpy as np


class Table:
    def __init__(self, obs_shape, n_actions, rate=0.1):
        self.n_actions, self.rate = n_actions, rate
        self.values, self.seen, self.calls = np.zeros((3, n_actions)), [], []
        self.memory = self

    def place(self, *, seed, agent, worlds):
        self.draws = np.random.Generator(np.random.PCG64([seed, agent]))
        self.epsilon = None

    def set_epsilon(self, epsilon):
        self.epsilon = epsilon

    def take_action(self, state):
        if (0.5 if self.epsilon is None else self.epsilon) > DRAW:
            return int(self.draws.integers(self.n_actions))
        return int(self.values[int(state[0])].argmax())

    def add(self, state, action, reward, done, *, world, next_state):
        self.seen.append((int(state[0]), int(action), reward, world, int(next_state[0])))

    def train_step(self):
        for state, action, reward, *_ in self.seen:
            self.values[state, action] += self.rate * (reward - self.values[state, action])
        count, self.seen = len(self.seen), []
        return {"loss": float(np.abs(self.values).sum()), "updates": count}

    def STATE(self):
        return {"values": self.values, "draws": self.draws.bit_generator.state, "seen": self.seen}

    def load_state_dict(self, state):
        self.values, self.seen = state["values"], state["seen"]
        self.draws.bit_generator.state = state["draws"]
'''


def table(folder: Path, *, seeded: bool = True, stateful: bool = True) -> str:
    """Write the learner into a file and return its name as an algorithm."""
    text = TABLE.replace("DRAW", "self.draws.random()" if seeded else "np.random.random()")
    (folder / "table.py").write_text(text.replace("STATE", "state_dict" if stateful else "forget"))
    return "table.py:Table"


QUIET = ("--json", "--quiet")
PLAIN = settings("experiment.worlds=2", "world.agents=2")
DROP = ("model.hidden", "model.batch_size", "model.updates_per_round", "model.learning_starts", "model.buffer_size")


@pytest.fixture
def game(tmp_path: Path, command: Command) -> None:
    """Let the game leave the `model` section to the learner."""
    text = (tmp_path / "guess.py").read_text()
    start, end = text.index('"model": {'), text.index('"parallel"')
    (tmp_path / "guess.py").write_text(text[:start] + text[end:])


SCRIPT = """
from guess import Guess
from table import Table
from parallel_agents import load_run, train

class Mine(Table):
    pass

class Other(Guess):
    pass

GUARD
    train(Other, algo=Mine, out="run", progress=False)
    print(load_run("run").evaluate(episodes=2).mean_return)
"""


@pytest.mark.usefixtures("game")
@pytest.mark.parametrize("guard", ['if __name__ == "__main__":', "if True:"])
def test_a_script_can_load_its_own_run_and_so_can_a_command(guard: str, command: Command, tmp_path: Path) -> None:
    table(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT.replace("GUARD", guard))
    ended = run_process(sys.executable, "script.py", folder=tmp_path)
    assert ended.code == 0, ended.err
    copies = tmp_path / "run" / "source"
    for what in ("target", "algorithm"):
        assert {path.name for path in (copies / what).iterdir()} == {"script.py", "guess.py", "table.py"}
    found = command("eval", "run", "--episodes", "2", "--json")
    if guard == "if True:":
        assert found.code == 2
        assert "this file trains when it is loaded: put that below" in found.err
    else:
        assert found.json["mean_return"] == float(ended.out)


@pytest.mark.usefixtures("game")
def test_the_same_digest_twice_and_after_a_resume(command: Command, tmp_path: Path) -> None:
    algo = table(tmp_path)
    whole = [command("train", "guess.py", "--algo", algo, *PLAIN, *QUIET, "--out", name).json for name in ("a", "b")]
    assert whole[0]["digest"] == whole[1]["digest"] is not None
    half = command("train", "guess.py", "--algo", algo, *PLAIN, *QUIET, "--epochs", "2", "--out", "c")
    assert half.code == 0
    resumed = command("resume", "c", "--epochs", "4", *QUIET)
    assert resumed.json["digest"] == whole[0]["digest"]


@pytest.mark.usefixtures("game")
def test_updates_and_losses_are_counted_and_recorded(command: Command, tmp_path: Path) -> None:
    ended = command("train", "guess.py", "--algo", table(tmp_path), *PLAIN, *QUIET, "--out", "run")
    assert ended.json["updates"] == 4 * 5 * 2 * 2, "epochs, turns, worlds, agents"
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    rounds = [line for line in lines if line["kind"] == "round"]
    assert [line["round"] for line in rounds] == [1, 2, 3], "the lag is that of stacks: the last round is not due yet"
    assert rounds[0]["updates"] == [10, 10]
    assert rounds[-1]["metrics"]["loss"][0] > 0


@pytest.mark.usefixtures("game")
def test_worlds_and_next_states_reach_the_memory(command: Command, tmp_path: Path) -> None:
    config = settings("experiment.worlds=2", "parallel.train_interval=9", "parallel.policy_lag=0")
    assert command("train", "guess.py", "--algo", table(tmp_path), *config, *QUIET, "--out", "run").code == 0
    seen = load_run("run").agents[0].model.seen
    assert [world for *_, world, _ in seen] == [0, 1] * (len(seen) // 2)
    assert len(seen) == 4 * 5 * 2
    assert [number for *_, number in seen] == [number for number, *_ in seen], "the number stays within an epoch"


@pytest.mark.usefixtures("game")
def test_eval_equals_an_evaluation_in_this_process_and_changes_nothing(command: Command, tmp_path: Path) -> None:
    command("train", "guess.py", "--algo", table(tmp_path), *PLAIN, *QUIET, "--out", "run")
    run = load_run("run")
    before = run.agents[0].model.state_dict()
    inside = run.evaluate(6)
    assert repr(run.agents[0].model.state_dict()) == repr(before)
    outside = command("eval", "run", "--episodes", "6", "--json").json
    assert outside["mean_return"] == inside.mean_return
    assert command("eval", "run", "--episodes", "6", "--exploration", "1", "--json").json["mean_return"] != inside


@pytest.mark.usefixtures("game")
def test_draws_from_a_global_generator_leave_no_digest_and_check_finds_them(command: Command, tmp_path: Path) -> None:
    algo = table(tmp_path, seeded=False)
    ended = command("train", "guess.py", "--algo", algo, *QUIET, "--out", "run").json
    assert ended["digest"] is None
    assert "take_action() drew from the global random generator of numpy" in ended["no_digest"]
    checked = command("check", "guess.py", "--algo", algo, "--json")
    failed = {finding["check"]: finding for finding in checked.json["findings"] if finding["passed"] is False}
    assert "a learner from a generator of its own" in failed["global generators"]["advice"]
    assert "buffers" not in failed


@pytest.mark.usefixtures("game")
def test_check_passes_a_sound_learner_and_finds_half_of_a_generator(command: Command, tmp_path: Path) -> None:
    algo = table(tmp_path)
    checked = command("check", "guess.py", "--algo", algo, "--json")
    assert [finding for finding in checked.json["findings"] if not finding["passed"]] == []
    text = (tmp_path / "table.py").read_text()
    half = '{**self.draws.bit_generator.state, "state": state["draws"]["state"]}'  # the other half is in "uinteger"
    assert text.count('= state["draws"]') == 1
    (tmp_path / "half.py").write_text(text.replace('= state["draws"]', f"= {half}"))
    checked = command("check", "guess.py", "--algo", "half.py:Table", "--json")
    assert [finding["check"] for finding in checked.json["findings"] if not finding["passed"]] == ["exact resume"]


@pytest.mark.usefixtures("game")
def test_without_a_state_resume_and_eval_refuse_with_the_reason(command: Command, tmp_path: Path) -> None:
    ended = command("train", "guess.py", "--algo", table(tmp_path, stateful=False), *QUIET, "--out", "run")
    assert ended.json["digest"] is None
    assert "has no state_dict() and load_state_dict(state): write them" in ended.json["no_digest"]
    log = (tmp_path / "run" / "log.jsonl").read_bytes()
    for name in ("resume", "eval"):
        refused = command(name, "run")
        assert refused.code in (1, 2)
        assert refused.err.count("has no state_dict() and load_state_dict(state)") == 1, "once, not in a log as well"
    assert (tmp_path / "run" / "log.jsonl").read_bytes() == log, "a refused command is no failure of the run"
    out = command("train", "guess.py", "--algo", table(tmp_path, stateful=False), "--quiet", "--out", "other").out
    assert out.endswith(f"next: parallel-agents watch {tmp_path / 'other'}\n"), "eval would refuse"


def test_an_algorithm_that_cannot_apply_is_an_error(command: Command, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        (tmp_path / "guess.py").read_text().replace("self.make_model((2,), 3)", "TooMuch()")
    )
    refused = command("train", "own.py", "--algo", "ppo", "--out", "run")
    assert refused.code == 2
    assert "--algo ppo cannot apply: Guess.setup_agents() makes its own models (TooMuch)" in refused.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("algo", "message"),
    [
        ("nowhere.py:A", "no file nowhere.py"),
        ("guess.py:Gess", "module guess.py has no Gess; did you mean guess.py:Guess?"),
        ("guess.py:Guess", "Guess has no take_action(state), so it is no learner"),
    ],
)
def test_an_algorithm_that_cannot_be_loaded_is_an_error(command: Command, algo: str, message: str) -> None:
    refused = command("train", "guess.py", "--algo", algo)
    assert refused.code == 2
    assert message in refused.err


def test_a_section_that_an_own_learner_does_not_take_is_an_error(command: Command, tmp_path: Path) -> None:
    refused = command("train", "guess.py", "--algo", table(tmp_path))
    assert refused.code == 2
    assert "does not take this `model` section: got an unexpected keyword argument 'hidden'" in refused.err


@pytest.mark.parametrize(("name", "target"), [("a2c", "gymnasium:CartPole-v1"), ("sac", "gymnasium:Pendulum-v1")])
def test_the_templates_are_short_and_reproducible(command: Command, tmp_path: Path, name: str, target: str) -> None:
    template = (ROOT / "examples" / f"{name}.py").read_text()
    assert len(template.splitlines()) < 150
    (tmp_path / f"{name}.py").write_text(template)
    options = settings(
        "experiment.max_turns=16", *(["model.learning_starts=20", "model.updates_per_round=2"] if name == "sac" else [])
    )
    words = ("train", target, "--algo", f"{name}.py:{name.upper()}", "--worlds", "2", *options, *QUIET)
    whole = command(*words, "--epochs", "4", "--out", "whole").json
    command(*words, "--epochs", "2", "--out", "half")
    assert command("resume", "half", "--epochs", "4", *QUIET).json["digest"] == whole["digest"] is not None
    assert whole["updates"] > 0
    evaluated = command("eval", "half", "--episodes", "2", "--json").json["mean_return"]
    assert evaluated == load_run("whole").evaluate(2).mean_return
    assert np.isfinite(evaluated)
