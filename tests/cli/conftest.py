"""Run the command line in this process or in another one, in a folder that holds a small game."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from parallel_agents.cli import main
from tests.cli.guess_game import GAME

ROOT = Path(__file__).parents[2]


class Result(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        (line,) = self.out.splitlines()
        values: dict[str, Any] = json.loads(line)
        return values


Command = Callable[..., Result]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """Return a function that runs a command in this process, in a folder that holds the game as guess.py."""
    (tmp_path / "guess.py").write_text(GAME)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # loading a target adds its folder

    def run(*words: str) -> Result:
        capfd.readouterr()
        try:
            code = main(list(words))
        except SystemExit as error:
            code = int(error.code or 0)
        return Result(code, *capfd.readouterr())

    yield run
    for name in [name for name in sys.modules if name.startswith("parallel_agents_target_")]:
        del sys.modules[name]


def settings(*texts: str) -> list[str]:
    """Return `--set` options."""
    return [word for text in texts for word in ("--set", text)]


def run_process(
    *words: str, folder: Path | None = None, env: dict[str, str] | None = None, timeout: float = 100
) -> Result:
    """Run a program, by default with the package on its path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    ended = subprocess.run(
        words,
        cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT)} if env is None else env,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Result(ended.returncode, ended.stdout, ended.stderr)
