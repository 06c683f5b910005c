"""The record of a run: what was run, by which command, from which source, on which machine.

`record.json` in the run folder holds it, and `source/` copies of the files that the target and the algorithm came from.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from parallel_agents.cli.target import load_algorithm, load_target, source_file
from parallel_agents.core import __version__
from parallel_agents.core.config import MAX_CONFIG_BYTES, Config
from parallel_agents.core.errors import ConfigError, TargetError
from parallel_agents.core.files import plain, read_json, write_atomically
from parallel_agents.engine.run import RunSummary
from parallel_agents.env import Environment
from parallel_agents.execution.resources import cores
from parallel_agents.tracking.run_folder import RunFolder

RECORD = "record.json"
SOURCES = "source"
_MAX_SOURCE_BYTES = 2**20
_MAX_SUMMARY_BYTES = 2**24


def write_record(folder: RunFolder, environment: Environment) -> None:
    """Write the record of a new run and copy its sources."""
    algorithm = str(environment.config.model.get("algorithm", ""))
    names = {"target": folder.environment, "algorithm": algorithm}
    files = {what: file for what, name in names.items() if (file := source_file(name)) is not None}
    folder.write(
        RECORD,
        {
            "version": __version__,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": sys.argv,
            "folder": os.getcwd(),
            "target": folder.environment,
            "class": type(environment).__qualname__,
            "sources": {what: _copy(folder, what, file) for what, file in files.items()},
            "git": _git_state(files["target"].parent if "target" in files else Path.cwd()),
            "models": resolved_models(environment),
            "machine": {"platform": platform.platform(), "python": platform.python_version(), "cores": cores()},
            "fingerprint": environment.prepare().fingerprint,
        },
    )


def resolved_models(environment: Environment) -> dict[str, Any]:
    """Return every option of the agents' models by agent, defaults too; agents with equal models share one entry."""
    groups: dict[str, Any] = {}
    for agent in environment.agents:
        options = getattr(agent.model, "options", None)
        found = {"class": type(agent.model).__name__, "options": plain(options) if options is not None else {}}
        name = next((names for names, other in groups.items() if other == found), None)
        groups[f"{name}, {agent.name}" if name else str(agent.name)] = groups.pop(name) if name else found
    return groups


def _copy(folder: RunFolder, what: str, file: Path) -> dict[str, str | None]:
    """Copy a source file into the run folder; return where it came from and where the copy is."""
    copied = None
    if file.stat().st_size <= _MAX_SOURCE_BYTES:
        copied = f"{SOURCES}/{what}/{file.name}"
        (folder.path / copied).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(folder.path / copied, [file.read_bytes()])
    return {"path": str(file.resolve()), "copy": copied}


def _git_state(folder: Path) -> dict[str, Any] | None:
    """Return commit and dirty state of the repository of a folder; None if it is in none."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(folder), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "--", "."))}
    except (OSError, subprocess.SubprocessError):
        return None


def read_record(folder: RunFolder) -> dict[str, Any]:
    """Return the record of a run; empty if it has none."""
    try:
        record = read_json(folder.path / RECORD, MAX_CONFIG_BYTES)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {folder.path / RECORD}: {error}") from error
    return dict(record) if isinstance(record, Mapping) else {}


def read_config(folder: RunFolder) -> Config:
    """Return the configuration that a run was started with."""
    path = folder.path / "config.json"
    try:
        return Config.build(read_json(path, MAX_CONFIG_BYTES))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def read_summary(path: Path) -> RunSummary:
    """Return the summary of a run folder; empty if the run has not finished."""
    try:
        summary: RunSummary = read_json(path / "summary.json", _MAX_SUMMARY_BYTES)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path / 'summary.json'}: {error}") from error
    return summary if isinstance(summary, dict) else {}


def open_environment(folder: RunFolder, target: str | None = None, config: Config | None = None) -> Environment:
    """Return the environment of a run as it was started, from any current folder.

    target: the environment, if it has moved. Otherwise it is the one that was given, at its place then; where that file
    is gone, the copy of its source in the run folder.
    """
    config = config or read_config(folder)
    sources = read_record(folder).get("sources", {})
    if ":" in str(config.model.get("algorithm", "")):
        load_algorithm(config.as_dict(), _place(folder, sources, "algorithm", "the file back to its place"))
    if target is not None:
        return load_target(target)(config=config)
    return load_target(folder.environment, _place(folder, sources, "target", "--target"))(config=config)


def _place(folder: RunFolder, sources: Any, what: str, option: str) -> Path | None:
    """Return the file that a target or algorithm was loaded from, or its copy if that is gone; None: no file."""
    match sources:
        case {**entries} if isinstance(entry := entries.get(what), Mapping):
            path, copied = Path(str(entry.get("path"))), entry.get("copy")
        case _:
            return None
    if path.is_file():
        return path
    if not isinstance(copied, str) or ".." in copied or not (folder.path / copied).is_file():
        raise TargetError(f"{path}, from which the {what} of this run came, is gone: give {option}")
    sys.stderr.write(f"{path} is gone: using the copy {folder.path / copied}; or give {option}\n")
    return folder.path / copied
