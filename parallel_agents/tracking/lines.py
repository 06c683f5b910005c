"""Files that grow line by line: metrics and logs.

Any number of threads and processes may append to the same file; none ever waits for another. After a kill a
reader finds whole lines and at most one torn one, which it skips.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import structlog

from parallel_agents.errors import ConfigError, RunError
from parallel_agents.tracking.files import open_regular

__all__ = ["MIB", "LineFile", "read_lines"]

MIB = 2**20
_LONGEST_LINE = 64 * MIB
_LARGEST_PART = 1024 * MIB
"""Bytes of a part above which it is not one: twice the largest `max_bytes`."""


class LineFile:
    """Appends whole lines to `path`; past `max_bytes` it moves on: `path.1` is the part before, and so on.

    At most `backups` older parts are kept: the whole stays below (backups + 1) · max_bytes, but for one line
    too long for any part and what other processes write while one of them rotates. A line that cannot be
    written (disk full, folder gone) is lost and counted, and `report` is told when that begins and when it is
    over: a sink never ends a run, and never fails in silence.
    """

    def __init__(
        self, path: Path, report: Callable[[str], None], *, max_bytes: int = 64 * MIB, backups: int = 3
    ) -> None:
        if not 1 <= max_bytes <= _LARGEST_PART // 2 or backups < 1:
            raise ConfigError(
                f"rotation of {path.name} after {max_bytes} bytes with {backups} older parts is impossible: "
                f"give at least 1 of each, and at most {_LARGEST_PART // 2} bytes"
            )
        self.path, self.max_bytes, self.backups = path, max_bytes, backups
        self._report = report
        self._lost = 0
        self.lost_lines = 0
        """In all."""
        self._closed = False
        self._rotating = False
        self._lock = threading.RLock()  # re-entrant: a signal handler may write while this thread is writing
        try:
            self._descriptor = self._open()
        except OSError as error:
            raise RunError(
                f"cannot open {path} for writing: {error.strerror}; choose another folder or mend this one"
            ) from error

    def write(self, line: str) -> None:
        """Append one line, given without its newline."""
        with self._lock:
            try:
                self._append(line.encode() + b"\n")
            except OSError as error:
                self._lost += 1
                self.lost_lines += 1
                news = f"cannot write {self.path}: {error.strerror}; its lines are lost until that is mended"
                news = news if self._lost == 1 else ""
            else:
                lost, self._lost = self._lost, 0
                news = f"{self.path} can be written again; {lost} lines were lost" if lost else ""
        if news:
            self._report(news)

    def close(self) -> None:
        """Close the file; may be called twice. A line that comes later is reported as lost."""
        with self._lock:
            self._closed = True
            self._swap(-1)

    def _open(self) -> int:
        return open_regular(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT)

    def _append(self, data: bytes) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "it is closed")
        if not self._is_current():
            self._swap(self._open())
        size = os.fstat(self._descriptor).st_size
        if size and size + len(data) > self.max_bytes and not self._rotating:
            self._rotate()
            size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            data = b"\n" + data  # a killed writer or a full disk left half a line: fence it off
        while data:
            data = data[os.write(self._descriptor, data) :]

    def _is_current(self) -> bool:
        """Whether `path` still names the open file: another process may have rotated it away."""
        try:
            return os.path.samestat(os.stat(self.path, follow_symlinks=False), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    def _swap(self, descriptor: int) -> None:
        old, self._descriptor = self._descriptor, descriptor
        if old >= 0:
            os.close(old)

    def _rotate(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # another process is rotating: this line may still join the part that is leaving
        self._rotating = True
        try:
            if self._is_current():
                for number in range(self.backups - 1, 0, -1):
                    part = _part(self.path, number)
                    if part.exists():
                        part.replace(_part(self.path, number + 1))
                self.path.replace(_part(self.path, 1))
            self._swap(self._open())  # closing the old file gives the lock back
        finally:
            self._rotating = False


def _part(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a `LineFile`, oldest part first.

    A torn last line is skipped: it may yet be finished. A broken line elsewhere is skipped with a warning.
    """
    with ExitStack() as stack:
        for part in reversed(_open_parts(path, stack)):
            number = 0
            while line := part.readline(_LONGEST_LINE):
                number += 1
                record = _parse(line)
                if record is not None:
                    yield record
                elif line.endswith(b"\n") and line.strip():
                    structlog.get_logger().warning("broken_line_skipped", file=str(path), line=number)


def _open_parts(path: Path, stack: ExitStack) -> list[BinaryIO]:
    """All parts, newest first. In that order a rotation meanwhile shows a part twice, and never hides one."""
    parts: list[BinaryIO] = []
    seen: set[tuple[int, int]] = set()
    number = 0
    while True:
        part = _part(path, number) if number else path
        try:
            file = stack.enter_context(os.fdopen(open_regular(part), "rb"))
        except FileNotFoundError:
            if number:
                return parts
        else:
            status = os.fstat(file.fileno())
            if status.st_size > _LARGEST_PART:
                raise OSError(errno.EFBIG, f"it has {status.st_size:,} bytes, which no run writes", str(part))
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                parts.append(file)
        number += 1


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # the caller reports it, with its place
        return None
    return record if isinstance(record, dict) else None
