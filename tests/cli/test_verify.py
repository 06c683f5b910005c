"""A run can be replayed and its digest confirmed; two runs are told apart; runs are listed and compared."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.conftest import ROOT, Command, run_process, settings
from tests.cli.guess_game import GAME

QUIET = ("--json", "--quiet")


def train(command: Command, name: str, *words: str) -> dict[str, Any]:
    return command("train", "guess.py", *QUIET, "--out", name, *words).json


def machine(**features: str) -> dict[str, str]:
    """Return the environment of a process whose libraries are told that they run on another CPU."""
    return os.environ | {"PYTHONPATH": str(ROOT)} | features


def test_a_run_is_confirmed_and_certified(command: Command, tmp_path: Path) -> None:
    digest = train(command, "run")["digest"]
    verified = command("verify", "run", *QUIET, "--certificate", "paper.json")
    assert verified.code == 0
    assert (verified.json["verified"], verified.json["digest"]) == (True, digest)
    certificate = json.loads((tmp_path / "paper.json").read_text())
    assert certificate["digest"] == digest
    assert certificate["config"]["experiment"]["epochs"] == 4
    assert list(certificate["sources"]) == ["source/target/guess.py"]
    assert command("verify", "paper.json", "--json").json["verified"] is True
    (tmp_path / "paper.json").write_text(json.dumps({**certificate, "epochs": 5}))
    changed = command("verify", "paper.json")
    assert changed.code == 1
    assert "was CHANGED after it was written" in changed.out


def test_a_changed_target_is_not_confirmed(command: Command, tmp_path: Path) -> None:
    train(command, "run")
    game = tmp_path / "guess.py"
    game.write_text(game.read_text().replace("self.epoch % 3", "(self.epoch + 1) % 3"))
    verified = command("verify", "run", "--quiet")
    assert verified.code == 1
    assert "NOT confirmed" in verified.out
    assert "the target, its data or the package have changed" in verified.out


def test_epochs_between_checkpoints_can_be_sampled(command: Command) -> None:
    train(command, "run", *settings("experiment.checkpoint_every=1"))
    verified = command("verify", "run", "--sample", "2", *QUIET).json
    assert [(step["from"], step["to"], step["equal"]) for step in verified["replayed"]] == [(2, 3, True), (3, 4, True)]
    train(command, "short")
    refused = command("verify", "short", "--sample", "1")
    assert refused.code == 2
    assert "fewer than two checkpoints" in refused.err


def test_a_run_without_a_digest_is_refused(command: Command) -> None:
    train(command, "run", *settings("parallel.publish=asap"))
    refused = command("verify", "run")
    assert refused.code == 2
    assert 'no digest that could be confirmed: parallel.publish is "asap"' in refused.err


def test_other_libraries_are_named(command: Command, tmp_path: Path) -> None:
    train(command, "run")
    path = tmp_path / "run" / "summary.json"
    summary = json.loads(path.read_text())
    path.write_text(json.dumps({**summary, "fingerprint": {**summary["fingerprint"], "torch": "1.0"}}))
    verified = command("verify", "run", "--quiet")
    assert verified.code == 0
    assert "  torch: 1.0 | " in verified.out


def test_a_torch_run_of_another_cpu_explains_itself(command: Command, tmp_path: Path) -> None:
    """torch is told to use no vector instructions, as on a machine that has none."""
    words = ("train", "guess.py", "--out", "run", *QUIET, *settings("model.kernels=torch", "model.hidden=[16]"))
    trained = run_process(
        sys.executable,
        "-m",
        "parallel_agents",
        *words,
        folder=tmp_path,
        env=machine(ATEN_CPU_CAPABILITY="default"),
        timeout=250,
    )
    assert trained.code == 0, trained.err
    verified = command("verify", "run", "--quiet")
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("this machine has no other vector instructions")
    assert verified.code == 1
    assert "epochs 0 to 4: DIFFERENT" in verified.out
    assert "  cpu_capability: DEFAULT | " in verified.out
    assert "torch computes its networks: replay it on a machine like that one" in verified.out


@pytest.mark.slow
@pytest.mark.timeout(900)  # kernels are compiled for another CPU
@pytest.mark.parametrize("portable", [True, False])
def test_a_native_run_of_another_cpu_is_confirmed(command: Command, tmp_path: Path, portable: bool) -> None:
    (tmp_path / "guess.py").write_text(GAME.replace("default_config", f"portable = {portable}\n    default_config", 1))
    other = machine(NUMBA_CPU_NAME="nehalem", NUMBA_CPU_FEATURES="", ATEN_CPU_CAPABILITY="default",
                    NUMBA_CACHE_DIR=str(tmp_path / "cache"))  # fmt: skip
    words = ("train", "guess.py", "--out", "run", *QUIET)
    trained = run_process(sys.executable, "-m", "parallel_agents", *words, folder=tmp_path, env=other, timeout=800)
    assert trained.code == 0, trained.err
    verified = command("verify", "run", *QUIET)
    assert verified.code == 0
    assert verified.json["digest"] == trained.json["digest"]
    named = {line.partition(":")[0] for line in verified.json["fingerprint_differences"]}
    assert named == (set() if portable else {"numba_cpu", "numba_features"})


def test_equal_runs_do_not_differ(command: Command) -> None:
    for name in ("one", "other"):
        train(command, name)
    found = command("diff", "one", "other", "--json")
    assert found.code == 0
    assert found.json["equal"] is True
    assert found.json["config"] == found.json["fingerprint"] == found.json["sources"] == []


def test_a_run_that_was_continued_differs_in_its_length_alone(command: Command) -> None:
    for name in ("one", "longer"):
        train(command, name)
    command("resume", "longer", "--epochs", "6", "--quiet")
    found = command("diff", "longer", "one", "--json")
    assert (found.code, found.json["epochs"]) == (1, [6, 4])
    assert found.json["config"] == ["experiment.epochs: 6 | 4"]
    assert found.json["first_metric"] is found.json["first_tensor"] is None
    assert (
        "nothing differs in the epochs and checkpoints that both have recorded" in command("diff", "longer", "one").out
    )


def test_the_first_epoch_agent_and_tensor_are_named(command: Command, tmp_path: Path) -> None:
    train(command, "one", *settings("experiment.checkpoint_every=1", "experiment.keep_last=9"))
    game = tmp_path / "guess.py"
    game.write_text(
        game.read_text().replace("return rewards *", "rewards[1] += self.epoch > 2\n        return rewards *")
    )
    train(command, "other", "--seed", "0", *settings("experiment.checkpoint_every=1", "experiment.keep_last=9"))
    found = command("diff", "one", "other", "--json")
    assert found.code == 1
    assert (found.json["first_metric"]["epoch"], found.json["first_metric"]["agent"]) == (3, "agent_1")
    assert (found.json["first_tensor"]["epoch"], found.json["first_tensor"]["agent"]) == (3, "agent_1")
    assert found.json["sources"][0].startswith("target/guess.py: ")
    text = command("diff", "one", "other").out
    assert "first recorded difference: epoch 3, agent_1, reward" in text
    assert "oldest common checkpoint that differs: epoch 3, agent_1, tensor " in text


def test_runs_are_listed_and_filtered(command: Command, tmp_path: Path) -> None:
    train(command, "runs/one")
    train(command, "runs/other", "--seed", "7")
    shutil.copytree(tmp_path / "runs" / "one", tmp_path / "runs" / "killed")
    (tmp_path / "runs" / "killed" / "summary.json").unlink()
    rows = {row["run"]: row for row in command("runs", "--json").json["runs"]}
    assert set(rows) == {"runs/one", "runs/other", "runs/killed"}
    assert (rows["runs/one"]["status"], rows["runs/killed"]["status"]) == ("done", "stopped")
    assert (rows["runs/one"]["epochs"], rows["runs/one"]["total_timesteps"]) == (4, 20)
    assert rows["runs/one"]["algo"] == "DQN"  # the class, where the configuration names no algorithm
    filtered = command("runs", "--match", "experiment.seed=7", "--json").json["runs"]
    assert [row["run"] for row in filtered] == ["runs/other"]
    assert "runs/other" in command("runs").out
    assert command("runs", "nowhere").code == 2


def test_runs_are_compared_by_setting_with_intervals_over_seeds(command: Command) -> None:
    train(command, "one", "--seeds", "3", "--sweep", "model.lr=0.1,0.001")
    train(command, "other", "--seeds", "2")
    result = command("compare", "one", "other", "--json").json
    assert sorted((row["run"], row["setting"], row["seeds"]) for row in result["rows"]) == [
        ("one", "model.lr=0.001", 3),
        ("one", "model.lr=0.1", 3),
        ("other", "", 2),
    ]
    for row in result["rows"]:
        assert row["low"] <= row["mean"] <= row["high"]
    assert any(line.startswith("experiment.seeds: 3 | 2") for line in result["config"])
    assert not any(line.endswith("{}") for line in result["config"]), "an empty table is nothing"
    assert "settings that differ, in one | other:\n" in command("compare", "one", "other").out


def test_a_default_of_the_learner_is_compared_with_what_another_run_sets(command: Command) -> None:
    train(command, "one", *settings("model.gamma=0.5"))
    train(command, "other", *settings("model.gamma=0.95"))
    train(command, "plain")
    for word in ("compare", "diff"):
        assert command(word, "one", "plain", "--json").json["config"] == ["model.gamma: 0.5 | 0.95"]
    assert command("compare", "other", "plain", "--json").json["config"] == []


def test_the_end_of_a_sweep_names_the_return_of_each_setting(command: Command, tmp_path: Path) -> None:
    out = command("train", "guess.py", "--quiet", "--out", "run", "--seeds", "2", "--sweep", "model.lr=0.1,0.001").out
    assert "ep_rew_mean of each setting, with its 95 % interval over seeds:\n" in out
    assert "(newest episodes)" not in out, "settings are not pooled"
    replicas = json.loads((tmp_path / "run" / "summary.json").read_text())["replicas"]
    for setting in ("model.lr=0.1", "model.lr=0.001"):
        found = [row["ep_rew_mean"] for row in replicas if f"model.lr={row['setting']['model.lr']}" == setting]
        assert f"  {setting}: {sum(found) / 2:.2f} [" in out


def test_a_resumed_run_is_compared_by_the_epochs_that_were_run(command: Command) -> None:
    train(command, "one")
    train(command, "other", "--epochs", "6")
    command("resume", "one", "--epochs", "6", "--quiet")
    assert command("compare", "one", "other", "--json").json["config"] == []
    assert command("diff", "one", "other", "--json").json["config"] == []


def test_a_sweep_with_one_seed_has_no_intervals(command: Command) -> None:
    out = command("train", "guess.py", "--quiet", "--out", "run", "--sweep", "model.lr=0.1,0.001").out
    assert "of each setting, with one seed (--seeds gives intervals)" in out
    assert "nan" not in out


def test_eval_never_pools_the_settings_of_a_sweep(command: Command) -> None:
    train(command, "run", "--seeds", "2", "--sweep", "model.lr=0.1,0.001")
    result = command("eval", "run", "--episodes", "4", "--json").json
    assert [len(row["replicas"]) for row in result["settings"]] == [2, 2]
    assert result["mean_return"] == result["settings"][0]["mean_return"] >= result["settings"][1]["mean_return"]
    assert "the best setting:" in command("eval", "run", "--episodes", "4").out


def test_eval_from_elsewhere_finds_the_target_or_its_copy(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(command, "run")
    here = command("eval", "run", "--episodes", "2", "--json").json
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert command("eval", "../run", "--episodes", "2", "--json").json["mean_return"] == here["mean_return"]
    (tmp_path / "guess.py").unlink()
    from_copy = command("eval", "../run", "--episodes", "2", "--json")
    assert from_copy.json["mean_return"] == here["mean_return"]
    assert "guess.py is gone: using the copy" in from_copy.err
    (tmp_path / "run" / "source" / "target" / "guess.py").unlink()
    refused = command("eval", "../run")
    assert refused.code == 2
    assert "is gone: give --target" in refused.err


@pytest.fixture
def forget_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Return a function that puts path and modules back as they were, as they are in a new process."""
    path, modules = [*sys.path], {*sys.modules}

    def forget() -> None:
        sys.path[:] = path
        for name in {*sys.modules} - modules:
            if name.partition(".")[0] in ("rules", "numbers_of", "guess_of", "mine", "duel"):
                del sys.modules[name]

    monkeypatch.setattr(sys, "path", [*path])
    yield forget
    forget()


OWN_TARGETS = {
    "guess_of.py": {"guess_of.py", "rules.py", "numbers_of/__init__.py", "numbers_of/more.py"},
    "guess_of:Guess": {"guess_of.py", "rules.py", "numbers_of/__init__.py", "numbers_of/more.py"},
    "mine.deep.guess:Guess": {"mine/__init__.py", "mine/deep/__init__.py", "mine/deep/guess.py", "mine/near.py"},
}


@pytest.mark.parametrize("target", OWN_TARGETS)
def test_a_run_holds_the_modules_that_its_target_imports(
    target: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget_modules: Callable[[], None]
) -> None:
    """So it can be evaluated where none of them is left; what the target does not import is not copied."""
    game, here = (tmp_path / "guess.py").read_text(), tmp_path / "here"
    for name, text in {
        "guess_of.py": f"import json\nimport numpy\nimport rules\nfrom rules import EPOCHS\n{game}",
        "rules.py": "from numbers_of.more import EPOCHS\n",
        "numbers_of/__init__.py": "",
        "numbers_of/more.py": "EPOCHS = 2\n",
        "numbers_of/unused.py": "",
        "mine/__init__.py": "",
        "mine/deep/__init__.py": "",
        "mine/deep/guess.py": f"from .. import near\nfrom . import __name__\n{game}",
        "mine/near.py": "",
    }.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(text)
    monkeypatch.chdir(here)
    command("train", target, "--out", "../run", "--quiet")
    copies = tmp_path / "run" / "source" / "target"
    assert {str(path.relative_to(copies)) for path in copies.rglob("*.py")} == OWN_TARGETS[target]
    expected = command("eval", "../run", "--episodes", "2", "--json").json["mean_return"]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    forget_modules()
    assert command("eval", "../run", "--episodes", "2", "--json").json["mean_return"] == expected
    shutil.rmtree(here)
    forget_modules()
    from_copy = command("eval", "../run", "--episodes", "2", "--json")
    assert from_copy.json["mean_return"] == expected
    assert "is gone: using the copy" in from_copy.err


DUEL = """
import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

class Duel(ParallelEnv):
    metadata = {"name": "duel"}
    possible_agents = ["a", "b"]

    def observation_space(self, agent):
        return Box(0, 1, (1,), np.float32)

    def action_space(self, agent):
        return Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.turn = ["a", "b"], 0
        return {name: np.zeros(1, np.float32) for name in self.agents}, {name: {} for name in self.agents}

    def step(self, actions):
        self.turn += 1
        names, self.agents = self.agents, self.agents if self.turn < 3 else []
        give = lambda value: {name: value for name in names}
        rewards = {name: float(actions[name]) for name in names}
        return give(np.zeros(1, np.float32)), rewards, give(False), give(self.turn == 3), give({})

def parallel_env():
    return Duel()
"""


def test_an_own_pettingzoo_module_is_found_from_elsewhere(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget_modules: Callable[[], None]
) -> None:
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "duel.py").write_text(DUEL)
    monkeypatch.syspath_prepend(tmp_path / "zoo")
    command("train", "pettingzoo:duel", "--epochs", "2", "--out", "run", "--quiet")
    (tmp_path / "zoo").rename(tmp_path / "gone")
    forget_modules()
    assert "using the copy" in command("eval", "run", "--episodes", "2").err


def test_a_game_of_the_package_is_recorded_and_loaded_from_the_package(command: Command, tmp_path: Path) -> None:
    command("train", "coins", "--epochs", "1", "--out", "run", "--quiet", "--set", "experiment.record_period=0")
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    copied = tmp_path / "run" / record["sources"]["target"]["copy"]
    assert copied.read_text() == Path(record["sources"]["target"]["path"]).read_text()
    record["sources"]["target"]["path"] = "/gone/coins.py"  # another installation
    (tmp_path / "run" / "record.json").write_text(json.dumps(record))
    assert "is gone" not in command("eval", "run", "--episodes", "1").err


def test_a_target_that_has_changed_since_is_told(command: Command, tmp_path: Path) -> None:
    """Otherwise an old run would play a new game without a word."""
    train(command, "run")
    assert "has changed" not in command("eval", "run", "--episodes", "1").err
    (tmp_path / "guess.py").write_text((tmp_path / "guess.py").read_text() + "# edited\n")
    copy = tmp_path / "run" / "source" / "target" / "guess.py"
    told = f"guess.py has changed since this run was started; to use it as it was then, give --target: {copy}\n"
    assert told in command("eval", "run", "--episodes", "1").err
    assert "has changed" not in command("eval", "run", "--episodes", "1", "--target", str(copy)).err


def test_the_record_says_what_was_run(command: Command, tmp_path: Path) -> None:
    train(command, "run")
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["target"] == "guess.py"
    assert record["sources"]["target"] == {"path": str(tmp_path / "guess.py"), "copy": "source/target/guess.py"}
    assert (tmp_path / "run" / "source" / "target" / "guess.py").read_text() == (tmp_path / "guess.py").read_text()
    (model,) = record["models"].values()
    assert model["class"] == "DQN"
    assert (model["options"]["hidden"], model["options"]["gamma"]) == ([4], 0.95), "defaults too"
    assert set(record) >= {"version", "command", "git", "machine", "fingerprint", "started"}


def test_config_names_the_origin_of_each_value(command: Command, tmp_path: Path) -> None:
    (tmp_path / "more.toml").write_text("[model]\ngamma = 0.5\n")
    words = ("config", "guess.py", "--config", "more.toml", "--seed", "3", "--set", "model.lr=0.2", "--json")
    rows = {row["key"]: (row["value"], row["origin"]) for row in command(*words).json["config"]}
    assert rows["model.gamma"] == (0.5, "more.toml")
    assert rows["experiment.seed"] == (3, "option")
    assert rows["model.lr"] == (0.2, "--set")
    assert rows["model.hidden"] == ([4], "Guess")
    assert rows["model.tau"] == (0.01, "default")
    assert not (tmp_path / "runs").exists()


def test_names_of_other_libraries_are_explained(command: Command) -> None:
    assert "here it is --set model.lr=VALUE" in command("train", "guess.py", "--learning-rate", "0.1").err
    assert "here it is --set experiment.max_turns=VALUE" in command("train", "guess.py", "--n-steps=8").err
    refused = command("train", "guess.py", "--set", "model.learning_rate=0.1")
    assert refused.code == 2
    assert "unknown key model.learning_rate; here it is model.lr." in refused.err
    other = command("train", "guess.py", "--set", "model.ent_coef=0.1").err
    assert "unknown key model.ent_coef; it is an option of another algorithm." in other


def test_the_version_is_printed(command: Command) -> None:
    assert command("--version").out == "parallel-agents 0.1.0\n"


LISTENER = """
from pathlib import Path
from parallel_agents.tracking.callbacks import BaseCallback

class Note(BaseCallback):
    def on_epoch(self, stats):
        with Path("noted.txt").open("a") as file:
            file.write(f"{stats.epoch} ")
"""


def test_a_listener_of_ones_own_is_called(command: Command, tmp_path: Path) -> None:
    (tmp_path / "listeners.py").write_text(LISTENER)
    train(command, "run", "--listener", "listeners.py:Note")
    assert (tmp_path / "noted.txt").read_text() == "1 2 3 4 "
    refused = command("train", "guess.py", "--listener", "Note")
    assert refused.code == 2
    assert "give module:Class or FILE.py:Class" in refused.err


PETTING = """
from pettingzoo import ParallelEnv

class Mine(ParallelEnv):
    pass
"""


def test_a_pettingzoo_class_is_recognised(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mypz.py").write_text(PETTING)
    refused = command("train", "mypz.py")
    assert refused.code == 2
    assert "Mine is a PettingZoo environment: give pettingzoo:mypz" in refused.err
