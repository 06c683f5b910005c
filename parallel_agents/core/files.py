"""Open, read and write the files of run folders. Links are not followed and only regular files are accepted.

A run folder may come from somebody else. The path to the folder may contain links; below the folder, every component
is opened relative to the descriptor of its parent (`openat`) with `O_NOFOLLOW`. A `log.jsonl` that links to
`~/.bashrc`, or a linked `checkpoints` folder, is therefore refused. FIFOs, devices and sockets are refused before a
byte is read, and files above their limit before memory is allocated.

`write_atomically` replaces a whole file: after a crash, either the old or the new file is there, never a part of one.
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

_UNFINISHED = ".unfinished"
_DEEPEST = 100
"""Levels of nested values in a JSON file; ours have fewer than ten."""
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


@contextmanager
def open_folder(path: Path, root: Path | None = None, *, create: bool = False) -> Iterator[int]:
    """Yield the descriptor of a folder. No component below `root` (default: `path` itself) may be a link.

    With `create`, make missing components below `root`.
    """
    root = path if root is None else root
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in path.relative_to(root).parts:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=descriptor)
            try:
                child = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
            except OSError as error:
                _explain(error, path, descriptor, name)
                raise
            os.close(descriptor)
            descriptor = child
        yield descriptor
    finally:
        os.close(descriptor)


def open_regular(path: Path, flags: int = os.O_RDONLY, *, root: Path | None = None) -> int:
    """Return the descriptor of a regular file. Raise an OSError with the reason for links, FIFOs, devices and sockets.

    A file opened for writing must not have a second name (a hard link), since writing would change that file too.
    """
    with open_folder(path.parent, root) as folder:
        try:
            # O_NONBLOCK: opening a FIFO must not wait for a process at its other end
            descriptor = os.open(path.name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666, dir_fd=folder)
        except OSError as error:
            _explain(error, path, folder, path.name)
            raise
    status = os.fstat(descriptor)
    kind = _KINDS.get(stat.S_IFMT(status.st_mode))
    if kind is None and status.st_nlink > 1 and flags & (os.O_WRONLY | os.O_RDWR):
        kind = "a file with a second name (a hard link)"
    if kind is not None:
        os.close(descriptor)
        raise _wrong_kind(path, kind)
    return descriptor


def _explain(error: OSError, path: Path, folder: int, name: str) -> None:
    """Raise an error that says that `name` is a link or a FIFO if that is the reason for `error`."""
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except OSError:
        return
    if stat.S_ISLNK(mode):
        message = "it is a link, and links in a run folder are not followed: remove it"
        raise OSError(errno.ELOOP, message, str(path)) from error
    if error.errno == errno.ENXIO or (error.errno == errno.ENOTDIR and stat.S_IFMT(mode) in _KINDS):
        raise _wrong_kind(path, _KINDS.get(stat.S_IFMT(mode), "no file")) from error


def _wrong_kind(path: Path, kind: str) -> OSError:
    return OSError(errno.EINVAL, f"it is {kind}, which no run writes: remove it", str(path))


def read_file(path: Path, max_bytes: int, *, root: Path | None = None) -> bytes:
    """Return the bytes of a regular file. Raise an OSError, before reading, if it has more than `max_bytes`."""
    with os.fdopen(open_regular(path, root=root), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, at most {max_bytes:,} can be right", str(path))
        return file.read(size)


def read_json(path: Path, max_bytes: int, *, root: Path | None = None) -> Any:
    """Return the value of a JSON file. Raise a ValueError if it is not JSON or nested too deeply."""
    return parse_json(read_file(path, max_bytes, root=root))


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raise a ValueError if it is not JSON or nested too deeply."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    """Raise a ValueError if a value of JSON is nested so deeply that functions which call themselves may not end."""
    level = [value]
    for _ in range(_DEEPEST):
        inner = [own.values() if isinstance(own, dict) else own for own in level if isinstance(own, dict | list)]
        level = [own for values in inner for own in values]
        if not level:
            return
    raise ValueError(f"it is nested too deeply: more than {_DEEPEST} levels")


def write_atomically(path: Path, chunks: Iterable[bytes], *, root: Path | None = None, sync: bool = True) -> None:
    """Replace `path` with these bytes: write a temporary file, sync it, rename it, sync the folder.

    Without `sync`, a crash of the machine may lose the new file, which is enough for what is written anew all the time.

    A link at `path` is replaced too; the file it points to is not changed.
    """
    temporary = f".{path.name}.{secrets.token_hex(4)}{_UNFINISHED}"
    with open_folder(path.parent, root) as folder:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(temporary, flags, 0o666, dir_fd=folder), "wb") as file:
                for chunk in chunks:
                    file.write(chunk)
                file.flush()
                if sync:
                    os.fsync(file.fileno())
            os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
            raise
        if sync:
            os.fsync(folder)


def is_unfinished(name: str) -> bool:
    """Return whether this is the name of a temporary file of `write_atomically`."""
    return name.startswith(".") and name.endswith(_UNFINISHED)


def remove_unfinished(path: Path, *, root: Path | None = None) -> list[str]:
    """Remove the temporary files that killed calls of `write_atomically` left in a folder; return their names."""
    with open_folder(path, root) as folder:
        leftovers = sorted(name for name in os.listdir(folder) if is_unfinished(name))
        for name in leftovers:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
    return leftovers


def write_json(path: Path, value: Any, *, root: Path | None = None) -> None:
    """Replace `path` with `value` as indented JSON, atomically."""
    text = json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(path, [text.encode(), b"\n"], root=root)


def plain(value: Any) -> Any:
    """Return a value that JSON can hold: arrays become lists, NaN and infinity null, unknown objects their repr.

    >>> import numpy as np
    >>> plain({"loss": np.array([0.5, np.nan]), "out": Path("runs"), "sizes": (64, 64)})
    {'loss': [0.5, None], 'out': 'runs', 'sizes': [64, 64]}
    """
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | bool | int):
        return value
    if hasattr(value, "tolist") and not isinstance(value, type):  # an array; numpy itself is not imported for it
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
