"""A run folder has one writer: an OS lock on a file in it, which ends with the process that holds it.

The holder writes into the file who it is, so that the next one can be told. The file stays when the lock is given
back: removing it would let two processes lock two files of the same name.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shlex
import socket
import sys
import time
import weakref
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import datetime
from pathlib import Path

import structlog

from parallel_agents.errors import FolderInUse, RunError
from parallel_agents.tracking.files import open_regular

__all__ = ["LOCK_NAME", "FolderLock", "locked", "refuse_if_held"]

LOCK_NAME = "run.lock"
_LONGEST = 4096
_PATIENCE = 0.3
"""Seconds: whoever only looks whether a folder is in use holds its lock for a moment."""
_UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


class FolderLock:
    """Holds the lock of a folder until `release`, or until the process ends, however it ends.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with FolderLock(folder):
    ...     try:
    ...         FolderLock(folder)
    ...     except FolderInUse as error:
    ...         f"process {os.getpid()}" in str(error)
    True
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            descriptor = open_regular(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise RunError(f"cannot lock {folder}: {error.strerror} ({folder / LOCK_NAME})") from error
        try:
            _lock(descriptor, folder, fcntl.LOCK_EX)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, _own_name().encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = [descriptor]
        self._finalizer = weakref.finalize(self, _close, self._descriptor)
        _held.add(self)

    @property
    def held(self) -> bool:
        """False once it was released."""
        return bool(self._descriptor)

    def release(self) -> None:
        """Let others write into the folder; may be called twice."""
        _close(self._descriptor)

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def locked(folder: str | Path | None) -> AbstractContextManager[FolderLock | None]:
    """Hold the lock of a folder, made if need be, while a `with` block lasts; without a folder, hold nothing."""
    if folder is None:
        return nullcontext()
    Path(folder).mkdir(parents=True, exist_ok=True)
    return FolderLock(Path(folder))


def refuse_if_held(folder: Path) -> None:
    """Raise `FolderInUse` where some process holds the lock of a folder; nothing is made or changed."""
    try:
        descriptor = open_regular(folder / LOCK_NAME)
    except OSError:
        return  # nobody ever locked it
    try:
        _lock(descriptor, folder, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path, kind: int) -> None:
    give_up = time.monotonic() + _PATIENCE
    try:
        while True:
            try:
                return fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.02)
    except BlockingIOError as error:
        holder = os.pread(descriptor, _LONGEST, 0).decode(errors="replace")
        raise FolderInUse(
            f"{folder} is being written to by {_spoken(holder)}: wait until that has ended, or end it first"
        ) from error
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        structlog.get_logger().warning(
            "folder_not_locked",
            folder=str(folder),
            cause=error.strerror,
            advice="this file system knows no locks: see to it that only one process writes here",
        )


def _own_name() -> str:
    since = datetime.now().astimezone().isoformat(timespec="seconds")
    own = {"pid": os.getpid(), "host": socket.gethostname(), "command": shlex.join(sys.argv)[:1000], "since": since}
    return json.dumps(own)


def _spoken(holder: str) -> str:
    with suppress(ValueError, RecursionError):  # it has just got the lock and not written its name yet
        match json.loads(holder):
            case {"pid": int(pid), "host": str(host), "command": str(command), "since": str(since)}:
                return f"process {pid} on {host} since {since} ({command})"
    return "another process"


def _close(descriptor: list[int]) -> None:
    while descriptor:
        os.close(descriptor.pop())


_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _forget_in_child() -> None:
    """Close a forked child's copies: the lock must end with the process that took it."""
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_forget_in_child)
