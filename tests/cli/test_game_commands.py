"""`games`, `new`, and the command line's manners: completion, unknown commands."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parallel_agents.cli.games import shipped_games

Command = Callable[..., Any]
ROOT = Path(__file__).parents[2]
SMALL = ["--quiet", "--set", "experiment.max_turns=10", "--set", "experiment.record_period=0"]


def test_every_game_is_listed_with_a_line_and_a_command_that_runs(command: Command) -> None:
    ended = command("games", "--json")
    assert ended.code == 0
    rows = ended.json["games"]
    assert len(rows) == 8
    assert all(row["about"].endswith(".") and Path(row["file"]).is_file() for row in rows)
    told = command("games").out
    assert all(row["train"] in told and row["about"] in told for row in rows)
    coins = next(row for row in rows if row["name"] == "coins")
    words = coins["train"].split()[1:]
    trained = command(*words, "--epochs", "2", "--json", *SMALL)
    assert trained.code == 0, trained.err
    assert trained.json["epochs"] == 2
    assert Path(trained.json["run_dir"]).name.startswith("coins-")


def test_a_wheel_carries_every_game() -> None:
    settings = (ROOT / "pyproject.toml").read_text()
    for name in shipped_games():
        assert f'"examples/{name}.py" = "parallel_agents/examples/{name}.py"' in settings


@pytest.mark.slow
@pytest.mark.timeout(900)  # a fresh package compiles its kernels anew
def test_an_installed_package_trains_its_games(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=100)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")

    def run(*words: str) -> dict[str, Any]:
        start = f"import sys; sys.path[0] = {str(tmp_path / 'installed')!r}; from parallel_agents.cli import main; "
        ended = subprocess.run(
            [sys.executable, "-c", start + "sys.exit(main())", *words, "--json"],
            cwd=tmp_path,
            env={},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        found: dict[str, Any] = json.loads(ended.stdout)
        return found

    rows = run("games")["games"]
    assert {row["name"] for row in rows} == set(shipped_games())
    assert all(str(tmp_path) in row["file"] for row in rows)
    assert run("train", "tag", "--epochs", "2", "--out", str(tmp_path / "run"), *SMALL)["epochs"] == 2
    assert run("new", "berries")["file"] == "berries.py"


def test_a_new_game_trains_at_once_and_can_be_watched(command: Command, tmp_path: Path) -> None:
    made = command("new", "berry_hunt", "--json")
    assert made.code == 0, made.err
    text = (tmp_path / made.json["file"]).read_text()
    assert "class BerryHunt(GridEnvironment)" in text
    assert "my_game" not in text.lower()
    assert len(text.splitlines()) < 120
    ruff = [str(Path(sys.executable).with_name("ruff")), "format", "--check", "--isolated", "--line-length", "120"]
    assert subprocess.run([*ruff, "berry_hunt.py"], capture_output=True, timeout=60, check=False).returncode == 0
    alone = subprocess.run([sys.executable, "berry_hunt.py"], capture_output=True, text=True, timeout=100, check=True)
    assert float(alone.stdout.split("earn ")[1].split()[0]) > 5.0
    ended = command("train", "berry_hunt.py", "--epochs", "6", "--worlds", "4", "--out", "mine", "--json", "--quiet")
    assert ended.code == 0, ended.err
    assert ended.json["updates"] > 0
    assert command("eval", "mine", "--episodes", "2", "--watch", "--fps", "100").code == 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("guess", "guess.py is there already"),
        ("random", "random is the name of a Python module, which random.py would hide"),
        ("numpy", "numpy is the name of a Python module"),
        ("My Game", "give small letters, digits and underscores, for example my_game"),
        ("../berries", "a game cannot be called '../berries'"),
        ("class", "a game cannot be called 'class'"),
        ("2048", "a game cannot be called '2048'"),
    ],
)
def test_names_that_cannot_be_are_refused_and_nothing_is_written(
    command: Command, tmp_path: Path, name: str, message: str
) -> None:
    before = {path: path.read_text() for path in tmp_path.iterdir()}
    ended = command("new", name, "--json")
    assert ended.code == 2
    assert message in ended.json["message"]
    assert {path: path.read_text() for path in tmp_path.iterdir()} == before


def test_an_unknown_command_names_the_one_that_was_meant(command: Command) -> None:
    ended = command("trian", "guess.py", "--json")
    assert ended.code == 2
    assert "there is no command 'trian'; did you mean train? Commands: train, resume" in ended.json["message"]
    assert ended.json["message"] in ended.err
    assert "did you mean" not in command("zzz").err


def test_an_unknown_option_names_the_one_that_was_meant(command: Command) -> None:
    ended = command("train", "guess.py", "--epoch", "3", "--json")
    assert ended.code == 2
    assert "--epochs" in ended.err
    assert ended.json["error"] == "UsageError"


def test_help_teaches_the_first_steps(command: Command) -> None:
    ended = command("--help")
    assert ended.code == 0
    for step in ("parallel-agents games", "train treasure_hunt --worlds 8", "eval RUN --watch", "new berries"):
        assert step in ended.out
    for name in ("train", "resume", "eval", "curve", "games", "new", "doctor"):
        assert f"• {name}" in ended.out
    assert "gymnasium:CartPole-v1" in command("train", "--help").out


@pytest.mark.parametrize(
    ("typed", "expected"), [("tr", "train"), ("ga", "games"), ("train guess.py --wor", "--worlds")]
)
def test_tab_completes_commands_and_options_in_bash(
    command: Command, tmp_path: Path, typed: str, expected: str
) -> None:
    printed = command("--tyro-print-completion", "bash")
    assert printed.code == 0
    (tmp_path / "completion.sh").write_text(printed.out)
    words = ["parallel-agents", *typed.split()]
    quoted = " ".join(f'"{word}"' for word in words)
    script = (
        f"source completion.sh; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; "
        f'_tyro_parallel_agents; echo "${{COMPREPLY[@]}}"'
    )
    ended = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path, timeout=30, check=False
    )
    assert expected in ended.stdout.split(), ended


def test_a_reader_that_has_had_enough_is_no_failure() -> None:
    line = f"{sys.executable} -m parallel_agents.cli --tyro-print-completion bash | head -1"
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, timeout=60, check=False
    )
    assert "Traceback" not in ended.stderr
    assert ended.returncode == 0, ended.stderr
