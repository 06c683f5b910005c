"""Files that are replaced, all or nothing: configuration, summary, traces, pictures.

After a crash at any moment the old file stands or the new one, never half of either.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["plain", "sweep", "write_atomically", "write_json"]

_UNFINISHED = ".unfinished"


def write_atomically(path: Path, chunks: Iterable[bytes]) -> None:
    """Replace `path` by these bytes: written aside, synced, renamed, and the folder synced."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_UNFINISHED}")
    try:
        with aside.open("xb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def sweep(folder: Path) -> list[str]:
    """Remove what killed `write_atomically` calls left in a folder; the names removed."""
    leftovers = sorted(folder.glob(f".*{_UNFINISHED}"))
    for leftover in leftovers:
        leftover.unlink(missing_ok=True)
    return [leftover.name for leftover in leftovers]


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by `value` as readable JSON, all or nothing."""
    text = json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(path, [text.encode(), b"\n"])


def plain(value: Any) -> Any:
    """A value as JSON knows it: arrays are lists, NaN and infinity null, what JSON cannot say is its repr.

    >>> plain({"loss": np.array([0.5, np.nan]), "out": Path("runs"), "sizes": (64, 64)})
    {'loss': [0.5, None], 'out': 'runs', 'sizes': [64, 64]}
    """
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, set | frozenset):
        return [plain(entry) for entry in sorted(value, key=repr)]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return str(value) if isinstance(value, os.PathLike) else repr(value)
