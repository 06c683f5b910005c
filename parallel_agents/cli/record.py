"""The record of a run: what was run, by which command, from which source, on which machine; and its log.

`record.json` in the run folder holds it, and `source/` copies of the files that the target and the algorithm came from.
If a run fails, the last record of its log says why and where.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog

from parallel_agents.cli.target import is_packaged, load_algorithm, load_target, source_files
from parallel_agents.core import __version__
from parallel_agents.core.config import MAX_CONFIG_BYTES, Config
from parallel_agents.core.errors import (
    CheckpointError,
    ConfigError,
    ContractError,
    DeadlineError,
    Interrupted,
    LearnerError,
    TargetError,
    WorkerDied,
    WorldError,
)
from parallel_agents.core.files import open_folder, plain, read_file, read_json, write_atomically
from parallel_agents.engine.run import Run, RunSummary
from parallel_agents.env import Environment
from parallel_agents.execution.resources import cores
from parallel_agents.tracking.logs import bind, configure_logs
from parallel_agents.tracking.run_folder import RunFolder, flat

RECORD = "record.json"
SOURCES = "source"
_OTHER_COMMANDS = {
    "workflow-order": ("workflow train --order", "workflow train --resume"),
    "workflow-search": ("workflow search", "workflow search --out"),
}
"""What makes folders that hold no run, and what goes on with them."""
_MAX_SOURCE_BYTES = 2**20
_MAX_SUMMARY_BYTES = 2**24


def write_record(folder: RunFolder, environment: Environment) -> None:
    """Write the record of a new run and copy its sources."""
    algorithm = str(environment.config.model.get("algorithm", ""))
    names = {"target": folder.environment, "algorithm": algorithm}
    files = {what: found for what, name in names.items() if (found := source_files(name))}
    own = "target" in files and not is_packaged(folder.environment)
    folder.write(
        RECORD,
        {
            "version": __version__,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": sys.argv,
            "folder": os.getcwd(),
            "target": folder.environment,
            "class": type(environment).__qualname__,
            "sources": {what: _copy(folder, what, found) for what, found in files.items()},
            "git": _git_state(next(iter(files["target"].values())).parent if own else Path.cwd()),
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


def _copy(folder: RunFolder, what: str, files: Mapping[str, Path]) -> dict[str, str | None]:
    """Copy source files into the run folder; return where the first of them came from and where its copy is."""
    for place, file in files.items():
        if file.stat().st_size <= _MAX_SOURCE_BYTES:
            copied = folder.path / SOURCES / what / place
            with open_folder(copied.parent, folder.path, create=True):
                write_atomically(copied, [file.read_bytes()], root=folder.path)
    place, file = next(iter(files.items()))
    found = (folder.path / SOURCES / what / place).is_file()
    return {"path": str(file.resolve()), "copy": f"{SOURCES}/{what}/{place}" if found else None}


def _git_state(folder: Path) -> dict[str, Any] | None:
    """Return commit and dirty state of the repository of a folder; None if it is in none."""

    def git(*words: str) -> str:
        # git would take the lock of the repository to note what it has seen, and leave it there if it is killed
        command = ["git", "--no-optional-locks", "-C", str(folder), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "--", "."))}
    except (OSError, subprocess.SubprocessError):
        return None


def read_record(folder: RunFolder) -> dict[str, Any]:
    """Return the record of a run; empty if it has none."""
    record: dict[str, Any] = _read(folder.path / RECORD, MAX_CONFIG_BYTES)
    return record


def read_summary(folder: RunFolder) -> RunSummary:
    """Return the summary of a run; empty if the run has not finished."""
    summary: RunSummary = _read(folder.path / "summary.json", _MAX_SUMMARY_BYTES)
    return summary


def _read(path: Path, max_bytes: int) -> Any:
    """Return a JSON object of a run folder; empty if it is absent."""
    try:
        found = read_json(path, max_bytes)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    return found if isinstance(found, dict) else {}


def read_config(folder: RunFolder) -> Config:
    """Return the configuration that a run was started with."""
    path = folder.path / "config.json"
    if command := _OTHER_COMMANDS.get(folder.environment):
        raise ConfigError(
            f"{folder.path} is a folder of `{command[0]}`, not of `train`: "
            f"go on with it by `parallel-agents {command[1]} {folder.path}`"
        )
    try:
        return Config.build(read_json(path, MAX_CONFIG_BYTES))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def flat_config(folder: RunFolder) -> dict[str, Any]:
    """Return the configuration that a run was started with as plain values by `section.key`."""
    return dict(flat(plain(read_config(folder).as_dict())))


def compared_configs(*folders: RunFolder) -> list[dict[str, Any]]:
    """Return the configurations of runs to compare: with the epochs that were run, without empty tables.

    A run may have been resumed to more epochs than it was started with. What only another run sets of its learner has
    the learner's default.
    """
    found = []
    for folder in folders:
        config = {key: value for key, value in flat_config(folder).items() if value != {}}
        config["experiment.epochs"] = read_summary(folder).get("epochs", config["experiment.epochs"])
        found.append(config)
    given = {key for config in found for key in config}
    for folder, config in zip(folders, found, strict=True):
        options = _learner_options(folder)
        config |= {key: options[key] for key in given & options.keys() - config.keys()}
    return found


def _learner_options(folder: RunFolder) -> dict[str, Any]:
    """Return the options of a run's learner by `model.key`, defaults too; empty if it has several."""
    models = read_record(folder).get("models", {})
    if len(models) != 1 or read_config(folder).experiment.sweep:
        return {}
    (model,) = models.values()
    return dict(flat({"model": model["options"]}))


def differences(*values: Mapping[str, Any]) -> list[str]:
    """Return a line for each key whose values differ.

    >>> differences({"seed": 1, "epochs": 9}, {"seed": 2, "epochs": 9})
    ['seed: 1 | 2']
    """
    keys = dict.fromkeys(key for each in values for key in each)
    rows = {key: [each.get(key) for each in values] for key in keys}
    return [f"{key}: {' | '.join(map(str, row))}" for key, row in rows.items() if any(one != row[0] for one in row)]


def setting_name(setting: Mapping[str, Any]) -> str:
    """Return the values of one setting of a sweep as a text; empty if nothing is swept."""
    return " ".join(f"{key}={value}" for key, value in setting.items())


def open_environment(folder: RunFolder, target: type[Environment] | str | None = None) -> Environment:
    """Return the environment of a run as it was started, from any current folder.

    target: the environment, if it has moved. Otherwise it is the one that was given, at its place then; where that file
    is gone, the copy of its source in the run folder.
    """
    config = read_config(folder)
    sources = read_record(folder).get("sources", {})
    algorithm = str(config.model.get("algorithm", ""))
    if ":" in algorithm:
        place = None if is_packaged(algorithm) else _place(folder, sources, "algorithm", "the file back to its place")
        load_algorithm(config.as_dict(), place)
    if target is not None:
        return load_target(target)(config=config)
    if is_packaged(folder.environment):
        return load_target(folder.environment)(config=config)
    return load_target(folder.environment, _place(folder, sources, "target", "--target"))(config=config)


def _place(folder: RunFolder, sources: Any, what: str, option: str) -> Path | None:
    """Return the file that a target or algorithm was loaded from, or its copy if that is gone; None: no file."""
    match sources:
        case {**entries} if isinstance(entry := entries.get(what), Mapping):
            path, copied = Path(str(entry.get("path"))), entry.get("copy")
        case _:
            return None
    if path.is_file():
        if isinstance(copied, str) and (changed := _changed(folder, Path(SOURCES) / what, path, Path(copied))):
            sys.stderr.write(
                f"{changed} has changed since this run was started; to use it as it was then, give {option}: "
                f"{folder.path / copied}\n"
            )
        return path
    if not isinstance(copied, str) or str(Path(copied)) not in source_copies(folder):
        raise TargetError(f"{path}, from which the {what} of this run came, is gone: give {option}")
    sys.stderr.write(f"{path} is gone: using the copy {folder.path / copied}; or give {option}\n")
    return folder.path / copied


def _changed(folder: RunFolder, copies: Path, path: Path, copied: Path) -> Path | None:
    """Return the first file that differs from its copy; None: none does. path, copied: of one of them."""
    depth = len(copied.parts) - 3  # below source/target
    for name, copy in source_copies(folder).items():
        if copies in Path(name).parents:
            file = path.parents[depth] / Path(name).relative_to(copies)
            if file.is_file() and file.read_bytes() != copy:
                return file
    return None


def source_copies(folder: RunFolder) -> dict[str, bytes]:
    """Return the copied sources of a run by their places in its folder; raise if one is a link or no regular file."""
    root = folder.path / SOURCES
    try:
        paths = [Path(parent, name) for parent, _, names in os.walk(root) for name in names if name.endswith(".py")]
        return {
            str(path.relative_to(folder.path)): read_file(path, _MAX_SOURCE_BYTES, root=folder.path)
            for path in sorted(paths)
        }
    except OSError as error:
        raise ConfigError(f"cannot read the sources of the run: {error}") from error


# -- the log ---------------------------------------------------------------------------------------------------------

_ADVICE: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], str], ...] = (
    ((WorldError, ContractError), "fix the environment at that place"),
    (LearnerError, "--backend inline runs the same round in this process, for a debugger"),
    (WorkerDied, "if the system ran out of memory, give fewer workers (parallel.num_workers) or smaller buffers"),
    (
        DeadlineError,
        "stacks-NN.txt in the run folder says where every thread was; if it was only slow, raise "
        "parallel.world_deadline or parallel.round_deadline",
    ),
    ((ConfigError, TargetError, CheckpointError), "do what the message says"),
    (MemoryError, "give fewer worlds, agents or workers, or smaller buffers"),
    (OSError, "free space on the disk, or repair it"),
    (Exception, "fix the code at that place"),
)
_MAX_MESSAGE = 4000


@dataclass
class RunLog:
    """The open log of a run folder; `run` is set as soon as the run exists."""

    folder: RunFolder
    run: Run | None = None
    epochs: int | None = None
    """How many epochs were asked for; a resumed run may have been asked for more than its configuration."""

    @property
    def resume_command(self) -> str:
        """Return the command that goes on to the epoch that was asked for."""
        usual = self.epochs is None or self.run is None or self.epochs == self.run.config.experiment.epochs
        return f"parallel-agents resume {self.folder.path}{'' if usual else f' --epochs {self.epochs}'}"

    def log_failure(self, kind: str, message: str, advice: str, **place: Any) -> None:
        """Write the last record: why the run failed and what to do."""
        place |= self.run.position() if self.run is not None and self.run.loop.epoch else {}
        advice = "; ".join(part for part in (advice, self.resume_hint()) if part)
        structlog.get_logger().error("run_failed", error=kind, message=message[:_MAX_MESSAGE], **place, advice=advice)

    def resume_hint(self) -> str:
        """Return the command that goes on with the run, and from where; empty if there is none."""
        checkpointer = self.run.checkpointer if self.run is not None else None
        if checkpointer is None:
            return ""
        epochs = checkpointer.written()
        start = f"after epoch {epochs[-1]}" if epochs else "from its first epoch"
        return f"`{self.resume_command}` goes on {start}"


@contextmanager
def open_run_log(folder: RunFolder, *, quiet: bool) -> Iterator[RunLog]:
    """Write the log of a run folder during the block; if the block raises, log why last."""
    with configure_logs(folder.log, run=folder.run_id, console=not quiet), bind(role="conductor"):
        log = RunLog(folder)
        try:
            yield log
        except Interrupted as error:
            structlog.get_logger().info("run_stopped", message=str(error), advice=log.resume_hint())
            raise
        except BaseException as error:
            advice = next((text for kinds, text in _ADVICE if isinstance(error, kinds)), "")
            log.log_failure(type(error).__name__, str(error), advice, place=_origin(error))
            raise


def _origin(error: BaseException) -> str:
    """Return file, line and function in which the first cause of an error was raised."""
    seen = [error]
    while (cause := error.__cause__) is not None and not any(cause is known for known in seen):  # `raise e from e`
        error = cause
        seen.append(error)
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}()" if frames else ""
