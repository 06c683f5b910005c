"""Lock a folder so that only one process writes into it.

The lock is an operating system lock (`flock`) on the file `run.lock` in the folder. It ends with the process that holds
it, however that ends. The holder writes its process id, host and command into the file, for the error message that the
next process gets. The file is not removed on release: otherwise two processes could lock two files of the same name.
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

from parallel_agents.core.errors import FolderInUse, RunError
from parallel_agents.core.files import open_regular

LOCK_NAME = "run.lock"
_MAX_BYTES = 4096
_TIMEOUT = 0.3
"""Seconds to wait for a lock. `require_unlocked` holds a lock for a moment, which is no reason to fail."""
_UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


class FolderLock:
    """Hold the lock of a folder until `release` is called or the process ends.

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
        self.release = weakref.finalize(self, os.close, descriptor)
        """Releases the lock; may be called twice, and is called if the object is collected."""
        try:
            _lock(descriptor, folder, fcntl.LOCK_EX)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, _describe_this_process().encode(), 0)
        except BaseException:
            self.release()
            raise
        _locks.add(self)

    @property
    def held(self) -> bool:
        """False after `release`."""
        return self.release.alive

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def lock_folder(folder: str | Path | None) -> AbstractContextManager[FolderLock | None]:
    """Return a context manager that makes a folder if needed and holds its lock; without a folder it does nothing."""
    if folder is None:
        return nullcontext()
    Path(folder).mkdir(parents=True, exist_ok=True)
    return FolderLock(Path(folder))


def require_unlocked(folder: Path) -> None:
    """Raise `FolderInUse` if a process holds the lock of a folder; change nothing in the folder."""
    try:
        descriptor = open_regular(folder / LOCK_NAME)
    except OSError:
        return  # no lock file: the folder was never locked
    try:
        _lock(descriptor, folder, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """Return whether a process holds the lock of a folder, without waiting."""
    try:
        descriptor = open_regular(folder / LOCK_NAME)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # this file system knows no locks
    finally:
        os.close(descriptor)
    return False


def _lock(descriptor: int, folder: Path, kind: int) -> None:
    deadline = time.monotonic() + _TIMEOUT
    try:
        while True:
            try:
                return fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
    except BlockingIOError as error:
        holder = os.pread(descriptor, _MAX_BYTES, 0).decode(errors="replace")
        raise FolderInUse(
            f"{folder} is being written to by {_describe_holder(holder)}: wait until that has ended, or end it first"
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


def _describe_this_process() -> str:
    since = datetime.now().astimezone().isoformat(timespec="seconds")
    command = shlex.join(sys.argv)[:1000]
    return json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "command": command, "since": since})


def _describe_holder(text: str) -> str:
    with suppress(ValueError, RecursionError):  # a process that has just taken the lock has not written its id yet
        match json.loads(text):
            case {"pid": int(pid), "host": str(host), "command": str(command), "since": str(since)}:
                return f"process {pid} on {host} since {since} ({command})"
    return "another process"


_locks: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _release_in_child() -> None:
    """Close the copies that a forked child has: a lock must end with the process that took it."""
    for lock in list(_locks):
        lock.release()


os.register_at_fork(after_in_child=_release_in_child)
