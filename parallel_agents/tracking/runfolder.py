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
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from parallel_agents.errors import ConfigError, RunError
from parallel_agents.tracking.files import sweep, write_json
from parallel_agents.tracking.metrics import FILE_NAME

__all__ = ["RunFolder"]

_MARK = "run.json"
_LARGEST_MARK = 2**16


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A folder that belongs to one run."""

    path: Path
    run_id: str
    environment: str

    @classmethod
    def create(cls, environment: str, out: Path | None = None, *, root: Path = Path("runs")) -> RunFolder:
        """A fresh folder: `out` if given, else `root/<environment>-<time>-<id>`."""
        run_id = secrets.token_hex(3)
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        path = root / f"{_slug(environment)}-{stamp}-{run_id}" if out is None else out
        _refuse_if_taken(path)
        folder = cls(path.absolute(), run_id, environment)
        try:
            path.mkdir(parents=True, exist_ok=True)
            write_json(path / _MARK, {"run_id": run_id, "environment": environment})
        except OSError as error:
            raise RunError(
                f"cannot make the run folder {path}: {error.strerror}; choose another folder or mend this one"
            ) from error
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run folder, to be resumed or read; leftovers of a killed writer are swept."""
        try:
            mark = _read_mark(path / _MARK)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{path} is not a run folder: its {_MARK} is absent or unreadable ({error}); "
                "give the folder that `train` printed as run_dir"
            ) from error
        sweep(path)
        return cls(path.absolute(), mark["run_id"], mark["environment"])

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


def _refuse_if_taken(path: Path) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        raise ConfigError(f"the run folder {path} is a file: give a folder that is new or empty")
    if (path / _MARK).exists():
        raise ConfigError(f"{path} already holds a run: resume it, or give a folder that is new or empty")
    found = next(path.iterdir(), None)
    if found is not None:
        raise ConfigError(
            f"{path} is not empty and not a run folder (it holds {found.name!r}): give a folder that is new or empty"
        )


def _read_mark(path: Path) -> dict[str, str]:
    with path.open("rb") as file:
        mark = json.loads(file.read(_LARGEST_MARK))
    match mark:
        case {"run_id": str(run_id), "environment": str(environment)}:
            return {"run_id": run_id, "environment": environment}
    raise ValueError("it names no run_id and environment")


def _slug(environment: str) -> str:
    """A folder name, whatever the target was called."""
    return re.sub(r"[^\w.]+", "-", environment, flags=re.ASCII).strip("-._") or "run"
