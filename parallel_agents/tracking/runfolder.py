"""The run folder: one place for everything a run leaves behind.

The folder of a run of `treasure_hunt`, unless another place was asked for:

    runs/treasure_hunt-20250131-142501-k3f9a1/
        run.json           id and environment; this file makes a folder a run folder
        config.json        the resolved configuration
        fingerprint.json   CPU, libraries and numeric mode that equal bytes are promised for
        metrics.jsonl      one line per epoch and round
        log.jsonl          structured log
        trace.json         timeline, for Perfetto
        summary.json       written last: what `--json` prints
        run.lock           who writes into the folder; locked while somebody does
        checkpoints/       see `runtime.checkpoints`
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

from parallel_agents.errors import ConfigError, RunError
from parallel_agents.tracking.files import read_json, sweep, unfinished, write_json
from parallel_agents.tracking.locks import LOCK_NAME, FolderLock, refuse_if_held
from parallel_agents.tracking.metrics import FILE_NAME

__all__ = ["RunFolder"]

_MARK = "run.json"
_LARGEST_MARK = 2**16


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A folder that belongs to one run; used as `with RunFolder.create(…) as folder` where it is written to."""

    path: Path
    run_id: str
    environment: str
    lock: FolderLock | None = field(default=None, compare=False)
    """Held by whoever writes; None: the folder is only read."""

    @classmethod
    def create(cls, environment: str, out: Path | None = None, *, root: Path = Path("runs")) -> RunFolder:
        """Make a fresh folder and hold its lock: `out` if given, else `root/<environment>-<time>-<id>`."""
        run_id = secrets.token_hex(3)
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        path = root / f"{_slug(environment)}-{stamp}-{run_id}" if out is None else out
        _refuse_if_taken(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            folder = cls(path.absolute(), run_id, environment, FolderLock(path.absolute()))
            with folder._held_on_success():
                _refuse_if_taken(path, locked=True)  # another process may have been quicker
                write_json(path / _MARK, {"run_id": run_id, "environment": environment})
        except OSError as error:
            raise RunError(
                f"cannot make the run folder {path}: {error.strerror}; choose another folder or mend this one"
            ) from error
        return folder

    @classmethod
    def open(cls, path: Path, *, write: bool = False) -> RunFolder:
        """Return an existing run folder; to `write`, its lock is held and leftovers of a killed writer are swept."""
        try:
            mark = _read_mark(path / _MARK)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{path} is not a run folder: its {_MARK} is absent or unreadable ({error}); "
                "give the folder that `train` printed as run_dir"
            ) from error
        lock = FolderLock(path.absolute()) if write else None
        folder = cls(path.absolute(), mark["run_id"], mark["environment"], lock)
        if write:
            with folder._held_on_success():
                sweep(path)
        return folder

    def close(self) -> None:
        """Let others write into the folder."""
        if self.lock is not None:
            self.lock.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _held_on_success(self) -> Iterator[None]:
        """Give the lock back if the block raises."""
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

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write the resolved configuration."""
        self._write("config.json", config)

    def write_fingerprint(self, fingerprint: Mapping[str, str]) -> None:
        """Write what the promise of equal bytes depends on."""
        self._write("fingerprint.json", fingerprint)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the result of the run."""
        self._write("summary.json", summary)

    def _write(self, name: str, value: Mapping[str, Any]) -> None:
        try:
            write_json(self.path / name, value)
        except OSError as error:
            raise RunError(
                f"cannot write {self.path / name}: {error.strerror}; what stood there before still stands"
            ) from error


def _refuse_if_taken(path: Path, *, locked: bool = False) -> None:
    """Raise where a folder holds something already; a live run is told by who conducts it."""
    if not path.exists():
        return
    if not path.is_dir():
        raise ConfigError(f"the run folder {path} is a file: give a folder that is new or empty")
    if not locked:
        refuse_if_held(path)
    if os.path.lexists(path / _MARK):
        raise ConfigError(
            f"{path} already holds a run: go on with it by `parallel-agents resume {path}`, or give --out a folder "
            "that is new or empty"
        )
    found = next((name for name in sorted(os.listdir(path)) if name != LOCK_NAME and not unfinished(name)), None)
    if found is not None:
        raise ConfigError(
            f"{path} is not empty and not a run folder (it holds {found!r}): give a folder that is new or empty"
        )


def _read_mark(path: Path) -> dict[str, str]:
    match read_json(path, _LARGEST_MARK):
        case {"run_id": str(run_id), "environment": str(environment)}:
            return {"run_id": run_id, "environment": environment}
    raise ValueError("it names no run_id and environment")


def _slug(environment: str) -> str:
    """A folder name, whatever the target was called."""
    return re.sub(r"[^\w.]+", "-", environment, flags=re.ASCII).strip("-._") or "run"
