"""The process that compiles kernels of agents: it compiles what a run calls, and never stands in the way of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import pytest

from parallel_agents.algorithms import DQN
from parallel_agents.core import PACKAGE
from parallel_agents.core.kernel_cache import HEAD
from parallel_agents.engine import precompile
from parallel_agents.engine.precompile import Precompiler

MISSED = """
import sys
from dataclasses import replace

from numba.core.dispatcher import Dispatcher
from parallel_agents.engine.precompile import precompile
from tests.env.line_worlds import Line, tiny

PACKAGES = tuple(f"parallel_agents.{name}" for name in ("algorithms", "kernels", "replay"))


def known():
    modules = [own for name, own in sys.modules.items() if name.startswith(PACKAGES)]
    kernels = {own for module in modules for own in vars(module).values() if isinstance(own, Dispatcher)}
    return {f"{own.__qualname__}{signature}" for own in kernels for signature in own.overloads}


for model in MODELS:
    environment = Line(config={**tiny(experiment={"worlds": 2}), "model": model})
    precompile(replace(environment.agents[0].model.spec, worlds=1))
    before = known()
    assert environment.run_experiment()["updates"]
    missed = {own for own in known() - before if not own.startswith("all_finite")}  # which looks at observations
    print(f"{model} missed {missed}")
"""
DQN_OPTIONS = {"hidden": (8,), "batch_size": 4, "updates_per_round": 2, "learning_starts": 4}
MODELS: tuple[dict[str, Any], ...] = (
    {**DQN_OPTIONS, "n_frames": 2, "n_step": 2, "dueling": True},
    {**DQN_OPTIONS, "priority_alpha": 0.5},
    {**DQN_OPTIONS, "normalize_observations": True, "normalize_rewards": True},
    {"algorithm": "iqn", "layer": 8, "batch_size": 4, "updates_per_round": 2, "learning_starts": 4},
    {"algorithm": "ppo", "hidden": (8,)},
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache without a trace of earlier runs, on a machine with two cores."""
    monkeypatch.setattr(precompile, "FOLDER", tmp_path)
    monkeypatch.setattr(precompile, "cores", lambda: 2)
    return tmp_path


def stacks(hidden: int = 8, **options: Any) -> list[Any]:
    """Return something with the specification of a DQN."""
    return [SimpleNamespace(spec=DQN((3,), 2, hidden=(hidden,), **options).spec, native=True)]


def start_instead(monkeypatch: pytest.MonkeyPatch, *command: str) -> list[subprocess.Popen[bytes]]:
    """Start another command instead of the process, and return where those that were started are listed."""
    starts: list[subprocess.Popen[bytes]] = []

    def popen(_: Any, **settings: Any) -> Any:
        starts.append(subprocess.Popen(command, **settings))
        return starts[-1]

    monkeypatch.setattr(precompile, "Popen", popen)
    return starts


def test_it_compiles_every_kernel_of_agents_that_a_run_calls() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", MISSED.replace("MODELS", repr(MODELS))],
        cwd=PACKAGE.parent, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [f"{model} missed set()" for model in MODELS]


def test_it_is_started_once_for_agents_of_a_kind_and_only_if_something_is_compiled(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = start_instead(monkeypatch, "true")
    with Precompiler(stacks()):
        pass
    assert not starts, "everything was cached"
    for kinds, own in ((1, stacks()), (1, stacks(hidden=256)), (2, stacks(double=False))):
        with Precompiler(own) as precompiler:
            for _ in range(2):
                numba.njit(lambda: 0)()
            if precompiler.process is not None:
                precompiler.process.wait(10)
        assert len(list(folder.iterdir())) == len(starts) == kinds


def test_a_process_that_hangs_ends_with_the_run_and_a_later_run_tries_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_instead(monkeypatch, "sleep", "100")
    for _ in range(2):
        with Precompiler(stacks()) as precompiler:
            precompiler.on_start(None)
            assert precompiler.process is not None
        assert precompiler.process.returncode
        assert not list(folder.iterdir())


def test_a_run_goes_on_if_no_process_can_be_started(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start_instead(monkeypatch, str(folder / "missing"))
    with Precompiler(stacks()) as precompiler:
        precompiler.on_start(None)
    assert precompiler.process is None
    assert not list(folder.iterdir())


def test_nothing_is_started_for_learners_of_users_or_on_a_single_core(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts, own = start_instead(monkeypatch, "true"), stacks()
    theirs: Any = SimpleNamespace(spec=SimpleNamespace(), native=True)  # of a module outside of the package
    with Precompiler([*own, theirs]) as precompiler:
        precompiler.on_start(None)
    monkeypatch.setattr(precompile, "cores", lambda: 1)
    with Precompiler(own) as precompiler:
        precompiler.on_start(None)
    assert not starts


@pytest.mark.slow
@pytest.mark.parametrize("writable", [True, False])
def test_a_first_start_has_the_digest_of_a_later_one_and_leaves_nothing_behind(tmp_path: Path, writable: bool) -> None:
    cache, temporary = tmp_path / "cache", tmp_path / "temporary"
    temporary.mkdir()
    if not writable:
        cache.write_text("a file where the folder should be")
    variables = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    variables |= {"XDG_CACHE_HOME": str(cache), "TMPDIR": str(temporary)}
    words = ["train", "treasure_hunt", "--agents", "2", "--epochs", "4", "--quiet", "--json", "--out"]
    digests = set()
    for number in range(2):
        run = [sys.executable, "-m", "parallel_agents", *words, str(tmp_path / f"run-{number}")]
        ended = subprocess.run(run, cwd=PACKAGE.parent, env=variables, capture_output=True, timeout=140, check=True)
        digests.add(json.loads(ended.stdout)["digest"])
        assert not list(temporary.iterdir())
    assert len(digests) == 1
    assert len(list(tmp_path.glob(f"cache/**/{HEAD}*/precompiled-*"))) == writable
