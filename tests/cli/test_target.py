"""Targets: modules of the current folder are imported only if the target is code of that folder."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from parallel_agents.cli import COMMANDS
from parallel_agents.cli.target import load_target
from parallel_agents.core.errors import TargetError
from tests.cli.conftest import ROOT, Result, run_process, settings
from tests.cli.guess_game import GAME

HOSTILE = (
    "fileinput", "random", "socket", "pickle", "multiprocessing", "tempfile", "secrets", "signal", "copyreg", "tyro",
    "rich", "sitecustomize", "gymnasium", "pettingzoo", "numpy", "torch", "numba", "cloudpickle", "safetensors",
    "structlog", "examples", "tests",
)  # fmt: skip
LAUNCHER = "import sys\nfrom parallel_agents.cli import main\nsys.exit(main())\n"  # as pip writes `parallel-agents`


def hostile(folder: Path, *names: str) -> Path:
    """Fill a folder with modules that write a file when they are imported."""
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / f"{name}.py").write_text(
            f"open({str(folder / 'ran')!r}, 'a').write('{name} ')\nraise SystemExit(77)\n"
        )
    return folder


def run_python(folder: Path, *words: str) -> Result:
    return run_process(sys.executable, *words, folder=folder)


def test_foreign_targets_and_workers_import_nothing_from_the_current_folder(tmp_path: Path) -> None:
    """Checks the command, the foreign package, a worker process and the helper process that Python starts for it."""
    launcher = tmp_path / "bin" / "parallel-agents"
    launcher.parent.mkdir()
    launcher.write_text(LAUNCHER)
    folder = hostile(tmp_path / "here", *HOSTILE)
    sets = settings("world.workers=1", "experiment.max_turns=4", "model.algorithm=random")
    words = ("train", "gymnasium:CartPole-v1", "--epochs", "1", "--worlds", "1", "--out", "run", "--json", "--quiet")
    ended = run_python(folder, str(launcher), *words, *sets)
    ran = (folder / "ran").read_text() if (folder / "ran").exists() else "nothing"
    assert (ended.code, ran) == (0, "nothing"), ended.err


@pytest.mark.parametrize("target", ["gymnasium:CartPole-v1", "gymnasium:minigrid:MiniGrid-Empty-5x5-v0",
                                    "pettingzoo:mpe2.simple_spread_v3", "treasure_hunt",
                                    "parallel_agents.workflows.defence:NetworkDefence"])  # fmt: skip
def test_targets_of_packages_do_not_put_the_current_folder_on_the_path(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(ROOT / "examples"))])
    monkeypatch.chdir(hostile(tmp_path / "here", "fileinput"))
    load_target(target)
    assert str(Path.cwd()) not in sys.path
    assert "" not in sys.path


@pytest.mark.parametrize("target", ["gymnasium:mine:Some-v0", "pettingzoo:mine"])
def test_a_foreign_environment_in_the_current_folder_is_refused_with_advice(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = hostile(tmp_path / "here", "mine")
    monkeypatch.chdir(folder)
    with pytest.raises(TargetError, match="on PYTHONPATH, the current folder is not searched"):
        load_target(target)
    assert not (folder / "ran").exists()


def test_a_target_can_import_modules_of_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may be in any folder; a module is found in the current folder."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    games = tmp_path / "games"
    games.mkdir()
    (games / "beside_the_guess.py").write_text("ROUNDS = 3\n")
    (games / "guess_beside.py").write_text("from beside_the_guess import ROUNDS\n" + GAME)
    monkeypatch.chdir(tmp_path)
    try:
        assert load_target("games/guess_beside.py").__name__ == "Guess"
        monkeypatch.chdir(games)
        monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(games)])
        assert load_target("guess_beside:Guess").__name__ == "Guess"
    finally:
        for name in ("beside_the_guess", "guess_beside", "parallel_agents_target_guess_beside"):
            sys.modules.pop(name, None)


def test_python_dash_m_drops_the_current_folder_before_the_command_runs(tmp_path: Path) -> None:
    """Until then Python itself looks there; modules that a command imports later come from elsewhere."""
    folder = hostile(tmp_path / "here", "gymnasium", "torch", "numba", "pettingzoo")
    ended = run_python(folder, "-m", "parallel_agents", "eval", "nowhere")
    assert ended.code == 2, ended.err
    assert not (folder / "ran").exists()


def test_the_security_page_names_every_command_that_runs_a_target() -> None:
    running_code = {
        name for name, command in COMMANDS.items() if "target" in getattr(command, "__dataclass_fields__", {})
    }
    listed = re.search(r"Commands that run a target's code: (.+?)\.", (ROOT / "SECURITY.md").read_text(), re.S)
    assert listed is not None
    assert set(re.findall(r"`([a-z]+)`", listed[1])) == running_code
