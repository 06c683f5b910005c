"""The folder that holds all files of a run.

A run of `treasure_hunt` without `--out` has the folder:

    runs/treasure_hunt-20250131-142501-k3f9a1/
        run.json           id and environment; a folder with this file is a run folder
        config.json        the resolved configuration
        fingerprint.json   CPU, libraries and numeric mode; equal bytes are promised for equal fingerprints
        metrics.jsonl      one line per epoch and round
        log.jsonl          structured log
        trace.json         timeline, for Perfetto
        summary.json       written last: what `--json` prints
        run.lock           locked while a process writes into the folder
        checkpoints/       see `parallel_agents.checkpoint`
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from parallel_agents.core.errors import ConfigError, RunError
from parallel_agents.core.files import is_unfinished, read_json, remove_unfinished, write_json
from parallel_agents.core.folder_lock import LOCK_NAME, FolderLock, require_unlocked
from parallel_agents.tracking.metrics import FILE_NAME

_RUN_FILE = "run.json"
_MAX_RUN_FILE_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run. To write into it, use `with RunFolder.create(…) as folder`."""

    path: Path
    run_id: str
    environment: str
    lock: FolderLock | None = field(default=None, compare=False)
    """The lock of the folder; None if the folder was opened for reading."""

    @classmethod
    def create(cls, environment: str, out: Path | None = None, *, root: Path = Path("runs")) -> RunFolder:
        """Make a new folder, `out` or `root/<environment>-<time>-<id>`, and hold its lock."""
        run_id = secrets.token_hex(3)
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        path = root / f"{_slug(environment)}-{stamp}-{run_id}" if out is None else out
        _require_empty(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            folder = cls(path.absolute(), run_id, environment, FolderLock(path.absolute()))
            with folder._release_on_error():
                _require_empty(path, locked=True)  # another process may have taken it in between
                write_json(path / _RUN_FILE, {"run_id": run_id, "environment": environment})
        except OSError as error:
            raise RunError(
                f"cannot make the run folder {path}: {error.strerror}; choose another folder or repair this one"
            ) from error
        return folder

    @classmethod
    def open(cls, path: Path, *, write: bool = False) -> RunFolder:
        """Open an existing run folder. With `write`, hold its lock and remove unfinished files of a killed process."""
        try:
            run_id, environment = _read_run_file(path / _RUN_FILE)
        except (OSError, ValueError) as error:
            reason = f"its {_RUN_FILE} is absent or unreadable ({error})"
            if not path.exists():
                reason = "there is no such folder"
            elif inner := sorted(folder.parent for folder in path.glob(f"*/{_RUN_FILE}")):
                reason = f"it holds run folders, such as {inner[0]}"
            raise ConfigError(f"{path} is not a run folder: {reason}; give the folder that `train` printed") from error
        lock = FolderLock(path.absolute()) if write else None
        folder = cls(path.absolute(), run_id, environment, lock)
        if write:
            with folder._release_on_error():
                remove_unfinished(path)
        return folder

    def close(self) -> None:
        """Release the lock, so that others may write into the folder."""
        if self.lock is not None:
            self.lock.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _release_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    @property
    def metrics(self) -> Path:
        return self.path / FILE_NAME

    @property
    def log(self) -> Path:
        return self.path / "log.jsonl"

    @property
    def trace(self) -> Path:
        return self.path / "trace.json"

    def write(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a JSON file, such as `config.json`, atomically."""
        try:
            write_json(self.path / name, value)
        except OSError as error:
            raise RunError(
                f"cannot write {self.path / name}: {error.strerror}; what stood there before still stands"
            ) from error


def _require_empty(path: Path, *, locked: bool = False) -> None:
    """Raise if a folder holds anything. If a run is writing into it, the error names the process."""
    if not path.exists():
        return
    if not path.is_dir():
        raise ConfigError(f"the run folder {path} is a file: give a folder that is new or empty")
    if not locked:
        require_unlocked(path)
    if os.path.lexists(path / _RUN_FILE):
        raise ConfigError(
            f"{path} already holds a run: go on with it by `parallel-agents resume {path}`, or give --out a folder "
            "that is new or empty"
        )
    names = sorted(name for name in os.listdir(path) if name != LOCK_NAME and not is_unfinished(name))
    if names:
        raise ConfigError(
            f"{path} is not empty and not a run folder (it holds {names[0]!r}): give a folder that is new or empty"
        )


def _read_run_file(path: Path) -> tuple[str, str]:
    match read_json(path, _MAX_RUN_FILE_BYTES):
        case {"run_id": str(run_id), "environment": str(environment)}:
            return run_id, environment
    raise ValueError("it names no run_id and environment")


def _slug(environment: str) -> str:
    """Return a valid folder name for any target.

    >>> _slug("games/berries.py:Berries")
    'games-berries-Berries'
    """
    name = re.sub(r"\.py(?=:|$)", "", environment)
    return re.sub(r"[^\w.]+", "-", name, flags=re.ASCII).strip("-._") or "run"


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested dictionaries, such as those of `config.json`, by `section.key`.

    >>> dict(flat({"model": {"lr": 0.1, "options": {}}}))
    {'model.lr': 0.1, 'model.options': {}}
    """
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
