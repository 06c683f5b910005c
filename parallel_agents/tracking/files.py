"""Every file of a run folder is opened here: no link is followed, and only regular files are read or written.

A run folder may have come from somebody else. Whoever names it may reach it by links, but below it each component is
opened relative to the descriptor of the one before (`openat`) with `O_NOFOLLOW`, so that `log.jsonl -> ~/.bashrc` or a
linked `checkpoints` folder is refused instead of written to. FIFOs, devices and sockets are refused before a byte is
read, files above their limit before memory is taken for them.

`write_atomically` replaces files all or nothing: after a crash at any moment the old file stands or the new one, never
half of either.
"""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = [
    "open_folder",
    "open_regular",
    "plain",
    "read_file",
    "read_json",
    "sweep",
    "unfinished",
    "write_atomically",
    "write_json",
]

_UNFINISHED = ".unfinished"
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


@contextmanager
def open_folder(path: Path, root: Path | None = None, *, create: bool = False) -> Iterator[int]:
    """Yield the descriptor of a folder; no component below `root` (by default the folder itself) may be a link.

    With `create`, components below `root` that are missing are made.
    """
    root = path if root is None else root
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in path.relative_to(root).parts:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=descriptor)
            try:
                below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
            except OSError as error:
                raise _as_link(error, path, descriptor, name) from error
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def open_regular(path: Path, flags: int = os.O_RDONLY, *, root: Path | None = None) -> int:
    """Return the descriptor of a regular file; links, FIFOs, devices and sockets raise an OSError that says so.

    A file that is opened for writing must have no second name either: by a hard link, another file would change.
    """
    with open_folder(path.parent, root) as folder:
        try:
            # O_NONBLOCK: opening a FIFO must not wait for somebody at its other end
            descriptor = os.open(path.name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666, dir_fd=folder)
        except OSError as error:
            raise _as_link(error, path, folder, path.name) from error
    found = os.fstat(descriptor)
    kind = _KINDS.get(stat.S_IFMT(found.st_mode))
    if kind is None and found.st_nlink > 1 and flags & (os.O_WRONLY | os.O_RDWR):
        kind = "a file with a second name (a hard link)"
    if kind is not None:
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"it is {kind}, which no run writes: remove it", str(path))
    return descriptor


def _as_link(error: OSError, path: Path, folder: int, name: str) -> OSError:
    """Return an error that says that the name is a link, a FIFO or the like, where that is why it cannot be opened."""
    with suppress(OSError):
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            told = "it is a link, and links in a run folder are not followed: remove it"
            return OSError(errno.ELOOP, told, str(path))
        if error.errno == errno.ENXIO:
            kind = _KINDS.get(stat.S_IFMT(mode), "no file")
            return OSError(errno.EINVAL, f"it is {kind}, which no run writes: remove it", str(path))
    return error


def read_file(path: Path, most: int, *, root: Path | None = None) -> bytes:
    """Return the bytes of a regular file; one of more than `most` bytes raises an OSError before it is read."""
    with os.fdopen(open_regular(path, root=root), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, at most {most:,} can be right", str(path))
        return file.read(size)


def read_json(path: Path, most: int, *, root: Path | None = None) -> Any:
    """Return what a JSON file holds; a ValueError where it is none, or nested beyond reason."""
    try:
        return json.loads(read_file(path, most, root=root))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def write_atomically(path: Path, chunks: Iterable[bytes], *, root: Path | None = None) -> None:
    """Replace `path` by these bytes: written aside, synced, renamed, and the folder synced.

    A link that stands there is replaced as well; what it points to stays as it is.
    """
    aside = f".{path.name}.{secrets.token_hex(4)}{_UNFINISHED}"
    with open_folder(path.parent, root) as folder:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(aside, flags, 0o666, dir_fd=folder), "wb") as file:
                for chunk in chunks:
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(aside, dir_fd=folder)
            raise
        os.fsync(folder)


def unfinished(name: str) -> bool:
    """Return whether a name is one of a file that `write_atomically` had not finished."""
    return name.startswith(".") and name.endswith(_UNFINISHED)


def sweep(path: Path, *, root: Path | None = None) -> list[str]:
    """Remove what killed `write_atomically` calls left in a folder; the names removed."""
    with open_folder(path, root) as folder:
        leftovers = sorted(name for name in os.listdir(folder) if unfinished(name))
        for name in leftovers:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
    return leftovers


def write_json(path: Path, value: Any, *, root: Path | None = None) -> None:
    """Replace `path` by `value` as readable JSON, all or nothing."""
    text = json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(path, [text.encode(), b"\n"], root=root)


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
