"""`parallel-agents games`, `new`, `check` and `doctor`: list games, start a new one, check one; check this machine."""

from __future__ import annotations

import importlib.util
import keyword
import platform
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallel_agents.cli.commands import Check, Doctor, Games, New
from parallel_agents.cli.output import print_result
from parallel_agents.cli.target import load_algorithm, load_target, shipped_games
from parallel_agents.core.config import Config, merge, parse_setting
from parallel_agents.core.errors import ConfigError

if TYPE_CHECKING:
    from parallel_agents.testing.conformance import Finding

_STARTER, _STARTER_CLASS = "my_game", "MyGame"
_PACKAGES = (
    "numpy", "torch", "numba", "gymnasium", "pettingzoo", "safetensors", "structlog", "matplotlib", "imageio",
    "imageio-ffmpeg", "duckdb", "pyarrow", "google-cloud-bigquery", "tensorboard", "ray", "mpe2", "minigrid", "onnx",
    "onnxscript",
)  # fmt: skip
_EXTRAS = {
    "matplotlib": "report", "imageio": "report", "imageio-ffmpeg": "video", "duckdb": "data", "pyarrow": "data",
    "google-cloud-bigquery": "bigquery", "tensorboard": "tensorboard", "ray": "ray", "mpe2": "zoo", "minigrid": "zoo",
}  # fmt: skip


def list_games(options: Games) -> None:
    """Print each game of the package with a command that trains it."""
    games = shipped_games().values()
    rows = [{"name": game.name, "about": game.about, "file": str(game.path), "train": game.command} for game in games]
    lines = [f"{game.name:<18} {game.about}\n{'':<18} {game.command}\n" for game in games]
    text = "\n".join(lines) + "\nWrite one of your own: parallel-agents new NAME\n"
    print_result({"games": rows}, text, as_json=options.json)


def new_game(options: New) -> None:
    """Write a small game into `NAME.py` and print the next commands."""
    name = options.name
    _check_name(name)
    path = Path(f"{name}.py")
    text = resources.files("parallel_agents.cli").joinpath("starter.txt").read_text(encoding="utf-8")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text.replace(_STARTER_CLASS, class_name(name)).replace(_STARTER, name))
    except FileExistsError as error:
        raise ConfigError(f"{path} is there already: choose another name, or move it away") from error
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; go to a folder that can be written to") from error
    steps = {
        "look at it": f"python {path}",
        "train it": f"parallel-agents train {path} --worlds 8",
        "watch it": "parallel-agents eval RUN --watch",
    }
    lines = "".join(f"  {step:<11} {command}\n" for step, command in steps.items())
    text = f"wrote {path}\n{lines}Its rules are in build() and settle(): change them, and train again.\n"
    print_result({"file": str(path), **steps}, text, as_json=options.json)


def class_name(name: str) -> str:
    """Return the name of the class of a game.

    >>> class_name("berry_hunt_2")
    'BerryHunt2'
    """
    return "".join(part.capitalize() for part in name.split("_"))


def _check_name(name: str) -> None:
    """Raise a ConfigError unless a game may have this name."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        valid = re.sub(r"\W+", "_", name.removesuffix(".py")).strip("_0123456789").lower()
        hint = f", for example {valid}" if valid and not keyword.iskeyword(valid) else ""
        raise ConfigError(f"a game cannot be called {name!r}: give small letters, digits and underscores{hint}")
    if not Path(f"{name}.py").exists() and importlib.util.find_spec(name) is not None:
        raise ConfigError(f"{name} is the name of a Python module, which {name}.py would hide: choose another name")


def check(options: Check) -> int:
    """Run the conformance checks on an environment; return 1 if a check failed or could not be made, else 0."""
    from parallel_agents.testing import check_environment  # imports torch, which the other commands do not need

    chosen = {} if options.algo is None else {"model": {"algorithm": options.algo}}
    config = merge(Config.read(options.config), chosen, *(parse_setting(text) for text in options.set))
    load_algorithm(config)
    backends = ("inline", "thread", "process") if options.processes else ("inline", "thread")
    findings = check_environment(load_target(options.target), config, epochs=options.epochs, backends=backends)
    passed = sum(finding.passed is True for finding in findings)
    skipped = sum(finding.passed is None for finding in findings)
    all_passed = passed == len(findings)
    result = {"target": options.target, "passed": all_passed, "findings": [asdict(finding) for finding in findings]}
    rest = f", {skipped} could not be made" if skipped else ""
    lines = "".join(f"{finding}\n" for finding in _without_repeated_errors(findings))
    text = f"{lines}{passed} of {len(findings)} checks passed{rest}\n"
    print_result(result, text, as_json=options.json)
    return 0 if all_passed else 1


def _without_repeated_errors(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the findings; of one that failed with the same error as an earlier one, only say so."""
    first: dict[str, str] = {}
    for finding in findings:
        if finding.passed is False and first.setdefault(finding.detail, finding.check) != finding.check:
            yield replace(finding, detail=f"same error as above ({first[finding.detail]})", advice="")
        else:
            yield finding


def examine() -> dict[str, Any]:
    """Return versions, resources and the numeric mode of this machine as plain values."""
    import torch

    from parallel_agents.algorithms import DQN
    from parallel_agents.core.errors import NumericsError
    from parallel_agents.engine.stacks import Stack
    from parallel_agents.execution.resources import cores
    from parallel_agents.nn import numerics

    problem = None
    try:
        numerics.require()
    except NumericsError as error:
        problem = str(error)
    models = [DQN((17,), 3, hidden=(33, 31)) for _ in range(5)]
    for agent, model in enumerate(models):
        model.place(seed=0, agent=agent, worlds=1)
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "cores": cores(),
        "cuda": torch.cuda.is_available(),
        "fingerprint": numerics.fingerprint(),
        "numeric_problem": problem,
        "equal_bytes": Stack(models, together=True).invariance.holds and problem is None,
        "process_start": "forkserver",
        "shared_memory_free": _free_bytes("/dev/shm"),
        "disk_free": _free_bytes("."),
    }


def doctor(options: Doctor) -> None:
    """Examine this machine and print the result."""
    result = examine()
    packages = ", ".join(f"{name} {version}" for name, version in result["packages"].items() if version)
    missing = [name for name, version in result["packages"].items() if not version]
    extras = {name: f" (extra '{extra}')" for name, extra in _EXTRAS.items()}
    absent = ", ".join(name + extras.get(name, "") for name in missing) or "nothing"
    disk, memory = (f"{result[name] / 1e9:.1f} GB" for name in ("disk_free", "shared_memory_free"))
    verdict = "yes: a stack of agents gives each the bytes it gets alone" if result["equal_bytes"] else "NO"
    text = (
        f"Python {result['python']} on {result['platform']}\n"
        f"packages       {packages}\n"
        f"not installed  {absent}\n"
        f"cores {result['cores']}, CUDA {'yes' if result['cuda'] else 'no'}\n"
        f"numeric mode   {', '.join(f'{key} {value}' for key, value in result['fingerprint'].items())}\n"
        f"equal bytes    {verdict}\n"
        + (f"problem        {result['numeric_problem']}\n" if result["numeric_problem"] else "")
        + f"free           {disk} on disk, {memory} shared memory\n"
    )
    print_result(result, text, as_json=options.json)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _free_bytes(path: str) -> int:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return 0
