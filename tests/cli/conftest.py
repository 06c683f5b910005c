"""Small target files, and the command as a function."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from parallel_agents.cli import main
from tests.cli.guess_game import GAME


class Ended(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        (line,) = self.out.splitlines()
        found: dict[str, Any] = json.loads(line)
        return found


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Ended]]:
    """The command line in an empty folder that holds the game as guess.py."""
    (tmp_path / "guess.py").write_text(GAME)
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Ended:
        capfd.readouterr()
        try:
            code = main(list(words))
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        return Ended(code, *capfd.readouterr())

    yield run
    for name in [name for name in sys.modules if name.startswith("parallel_agents_target_")]:
        del sys.modules[name]
