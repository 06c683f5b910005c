"""`games` and `new`: the games of the package, and the start of a new one. `check` has tests in tests/testing."""

from __future__ import annotations

import io
import re
import runpy
import sys
import tomllib
import zipfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from parallel_agents.cli.target import shipped_games
from tests.cli.conftest import ROOT, Command, run_process, settings

SMALL = ["--quiet", *settings("experiment.max_turns=10", "experiment.record_period=0")]


def test_every_game_is_listed_with_a_description_and_a_command_that_runs(command: Command) -> None:
    ended = command("games", "--json")
    assert ended.code == 0
    rows = ended.json["games"]
    assert len(rows) == 8
    assert all(row["about"].endswith(".") and Path(row["file"]).is_file() for row in rows)
    text = command("games").out
    assert all(row["train"] in text and row["about"] in text for row in rows)
    coins = next(row for row in rows if row["name"] == "coins")
    words = coins["train"].split()[1:]
    trained = command(*words, "--epochs", "2", "--json", *SMALL)
    assert trained.code == 0, trained.err
    assert trained.json["epochs"] == 2
    assert Path(trained.json["run_dir"]).name.startswith("coins-")


def test_a_wheel_contains_every_game() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    for name in shipped_games():
        assert f'"examples/{name}.py" = "parallel_agents/examples/{name}.py"' in project


@pytest.mark.slow
@pytest.mark.timeout(900)  # a new package compiles its kernels
def test_an_installed_package_trains_its_games(tmp_path: Path) -> None:
    build = run_process(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path), folder=ROOT)
    assert build.code == 0, build.err
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")

    def run(*words: str) -> dict[str, Any]:
        start = f"import sys; sys.path[0] = {str(tmp_path / 'installed')!r}; from parallel_agents.cli import main; "
        script = start + "sys.exit(main())"
        ended = run_process(sys.executable, "-c", script, *words, "--json", folder=tmp_path, env={}, timeout=400)
        assert ended.code == 0, ended.err
        return ended.json

    rows = run("games")["games"]
    assert {row["name"] for row in rows} == set(shipped_games())
    assert all(str(tmp_path) in row["file"] for row in rows)
    assert run("train", "tag", "--epochs", "2", "--out", str(tmp_path / "run"), *SMALL)["epochs"] == 2
    assert run("new", "berries")["file"] == "berries.py"


def test_a_new_game_can_be_trained_and_watched(command: Command, tmp_path: Path) -> None:
    made = command("new", "berry_hunt", "--json")
    assert made.code == 0, made.err
    text = (tmp_path / made.json["file"]).read_text()
    assert "class BerryHunt(GridEnvironment)" in text
    assert "my_game" not in text.lower()
    assert len(text.splitlines()) < 120
    ruff = str(Path(sys.executable).with_name("ruff"))
    assert run_process(ruff, "format", "--check", "--isolated", "--line-length", "120", "berry_hunt.py").code == 0
    with redirect_stdout(io.StringIO()) as printed:
        runpy.run_path("berry_hunt.py", run_name="__main__")
    assert float(printed.getvalue().split("earn ")[1].split()[0]) > 5.0
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
def test_an_invalid_name_is_refused_and_nothing_is_written(
    command: Command, tmp_path: Path, name: str, message: str
) -> None:
    before = {path: path.read_text() for path in tmp_path.iterdir()}
    ended = command("new", name, "--json")
    assert ended.code == 2
    assert message in ended.json["message"]
    assert {path: path.read_text() for path in tmp_path.iterdir()} == before


def test_an_error_that_many_checks_meet_is_printed_once(command: Command) -> None:
    ended = command("check", "guess.py", "--set", 'world.spoil="raise"')
    assert ended.code == 1
    assert ended.out.count("the world has come to an end") == 1
    assert "buffers: same error as above (shapes)\n" in ended.out


def test_doctor_reports_versions_and_equal_bytes(command: Command) -> None:
    result = command("doctor", "--json").json
    assert result["equal_bytes"] is True
    assert result["numeric_problem"] is None
    assert result["packages"]["torch"] in result["fingerprint"]["torch"]
    assert result["cores"] >= 1
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    needed = {
        re.split(r"[>\[]", text)[0] for name, texts in extras.items() if name not in ("docs", "dev") for text in texts
    }
    assert needed - {"parallel-agents"} | {"onnx", "onnxscript"} <= result["packages"].keys()
    text = command("doctor")
    assert text.code == 0
    assert "equal bytes    yes" in text.out
