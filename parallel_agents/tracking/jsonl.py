"""Append-only JSON lines files with rotation, for metrics and logs.

Several threads and processes may append to the same file without waiting for each other. After a kill, a reader finds
whole lines and at most one incomplete line, which it skips.
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

from parallel_agents.core.errors import ConfigError, RunError
from parallel_agents.core.files import open_regular

MIB = 2**20
_MAX_LINE_BYTES = 64 * MIB
_LAST_BYTES = 2**16
_MAX_PART_BYTES = 1024 * MIB
"""Largest part that a reader accepts: twice the largest `max_bytes`."""


class JsonlFile:
    """Append lines to `path`. Above `max_bytes`, rename it to `path.1` (`path.1` to `path.2` and so on) and start anew.

    At most `backups` older parts are kept, so that the total stays below (backups + 1) · max_bytes. Exceptions are a
    single line longer than `max_bytes`, and what other processes write during a rotation. A line that cannot be written
    (disk full, folder removed) is lost and counted; the function `report` gets one message when that begins and one
    when it ends. Write errors never end a run.
    """

    def __init__(
        self, path: Path, report: Callable[[str], None], *, max_bytes: int = 64 * MIB, backups: int = 3
    ) -> None:
        if not 1 <= max_bytes <= _MAX_PART_BYTES // 2 or backups < 1:
            raise ConfigError(
                f"rotation of {path.name} after {max_bytes} bytes with {backups} older parts is impossible: "
                f"give at least 1 of each, and at most {_MAX_PART_BYTES // 2} bytes"
            )
        self.path, self.max_bytes, self.backups = path, max_bytes, backups
        self.lost_lines = 0
        """Number of lines that could not be written."""
        self._report = report
        self._lost_since_error = 0
        self._closed = False
        self._rotating = False
        self._lock = threading.RLock()  # re-entrant: a signal handler may write while this thread is writing
        try:
            self._descriptor = self._open()
        except OSError as error:
            raise RunError(
                f"cannot open {path} for writing: {error.strerror}; choose another folder or repair this one"
            ) from error

    def write(self, line: str) -> None:
        """Append one line, given without its newline."""
        message = ""
        with self._lock:
            try:
                self._append(line.encode() + b"\n")
            except OSError as error:
                self.lost_lines += 1
                self._lost_since_error += 1
                if self._lost_since_error == 1:
                    message = f"cannot write {self.path}: {error.strerror}; its lines are lost until that is repaired"
            else:
                if self._lost_since_error:
                    message = f"{self.path} can be written again; {self._lost_since_error} lines were lost"
                self._lost_since_error = 0
        if message:
            self._report(message)

    def close(self) -> None:
        """Close the file; may be called twice. Later lines are reported as lost."""
        with self._lock:
            self._closed = True
            self._replace_descriptor(-1)

    def _open(self) -> int:
        return open_regular(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT)

    def _append(self, data: bytes) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "it is closed")
        if not self._is_current():
            self._replace_descriptor(self._open())
        size = os.fstat(self._descriptor).st_size
        if size and size + len(data) > self.max_bytes and not self._rotating:
            self._rotate()
            size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            data = b"\n" + data  # the last line is incomplete, after a kill or on a full disk: start a new line
        while data:
            data = data[os.write(self._descriptor, data) :]

    def _is_current(self) -> bool:
        """Return whether `path` still names the open file; another process may have renamed it."""
        try:
            return os.path.samestat(os.stat(self.path, follow_symlinks=False), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    def _replace_descriptor(self, descriptor: int) -> None:
        old, self._descriptor = self._descriptor, descriptor
        if old >= 0:
            os.close(old)

    def _rotate(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # another process is rotating: this line may still go into the part that is being renamed
        self._rotating = True
        try:
            if self._is_current():
                for number in range(self.backups - 1, 0, -1):
                    part = _part(self.path, number)
                    if part.exists():
                        part.replace(_part(self.path, number + 1))
                self.path.replace(_part(self.path, 1))
            self._replace_descriptor(self._open())  # closing the old file releases the lock
        finally:
            self._rotating = False


def _part(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a `JsonlFile`, oldest part first.

    Skip an incomplete last line in silence, since it may be completed yet. Skip other broken lines with a warning.
    """
    with ExitStack() as stack:
        for part in reversed(_open_parts(path, stack)):
            number = 0
            while line := part.readline(_MAX_LINE_BYTES):
                number += 1
                record = _parse(line)
                if record is not None:
                    yield record
                elif line.endswith(b"\n") and line.strip():
                    structlog.get_logger().warning("broken_line_skipped", file=str(path), line=number)


class JsonlTail:
    """Read a `JsonlFile` piece by piece, oldest part first, then whatever is appended; rotations are followed.

    `read` returns whole lines as they are in the file. It opens links and special files no more than the writer does.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.restarts = 0
        """How often another file has taken the place of this one, so that all was read anew."""
        self._file: BinaryIO | None = None
        self._newer: list[BinaryIO] = []
        """Parts to be read after this one, newest first."""
        self._rest = b""

    def read(self, max_bytes: int = 4 * MIB) -> bytes:
        """Return the next complete lines, of about `max_bytes`; empty if nothing new is there."""
        while True:
            if self._file is None and not self._follow():
                return b""
            assert self._file is not None
            data = self._file.read(max_bytes)
            if not data:
                if self._newer or not self._is_newest():
                    self._file.close()
                    self._file, self._rest = None, b""
                    continue
                return b""
            lines, newline, rest = (self._rest + data).rpartition(b"\n")
            self._rest = rest if len(rest) <= _MAX_LINE_BYTES else b""
            if newline:
                return lines + newline

    def close(self) -> None:
        """Close every open part; the next `read` would begin anew."""
        for file in (*self._newer, *([self._file] if self._file else [])):
            file.close()
        self._file, self._newer, self._rest = None, [], b""

    def remaining(self) -> int:
        """Return how many bytes are known and not read yet."""
        files = [*self._newer, *([self._file] if self._file else [])]
        return sum(max(0, os.fstat(file.fileno()).st_size - file.tell()) for file in files)

    def _is_newest(self) -> bool:
        assert self._file is not None
        here = os.fstat(self._file.fileno())
        try:
            there = os.stat(self.path, follow_symlinks=False)
        except FileNotFoundError:
            return True  # it was removed, or is being renamed: look again later
        if os.path.samestat(here, there):
            return here.st_size >= self._file.tell()
        with ExitStack() as stack:
            parts = _open_parts(self.path, stack)
            places = [n for n, part in enumerate(parts) if os.path.samestat(os.fstat(part.fileno()), here)]
            if not places:  # not a rotation, but another file
                return False
            stack.pop_all()
        self._newer = parts[: places[0]]
        for part in parts[places[0] :]:
            part.close()
        return not self._newer

    def _follow(self) -> bool:
        """Open the next part to read; return False if there is none."""
        if not self._newer:
            with ExitStack() as stack:
                self._newer = _open_parts(self.path, stack)
                stack.pop_all()
            if not self._newer:
                return False
            self.restarts += 1
        self._file = self._newer.pop()
        return True


def sample_jsonl(path: Path, count: int) -> list[bytes]:
    """Return about `count` lines at equal distances in all parts, oldest first, and the last ones, but no others."""
    lines: list[bytes] = []
    with ExitStack() as stack:
        parts = [(part, os.fstat(part.fileno()).st_size) for part in reversed(_open_parts(path, stack))]
        step = max(1, sum(size for _, size in parts) // count)
        for place, (part, size) in enumerate(parts, 1):
            for offset in range(0, size if place < len(parts) else size - _LAST_BYTES, step):
                part.seek(offset)
                if offset:
                    part.readline(_MAX_LINE_BYTES)  # the rest of a line that begins before
                line = part.readline(_MAX_LINE_BYTES)
                if line.endswith(b"\n"):
                    lines.append(line)
        if parts:
            part, size = parts[-1]
            part.seek(max(0, size - _LAST_BYTES))
            lines += part.read().splitlines(keepends=True)[1 if size > _LAST_BYTES else 0 :]
    return [line for line in dict.fromkeys(lines) if line.endswith(b"\n")]


def jsonl_size(path: Path) -> int:
    """Return the number of bytes in all parts."""
    with ExitStack() as stack:
        return sum(os.fstat(part.fileno()).st_size for part in _open_parts(path, stack))


def parse_lines(data: bytes) -> tuple[list[dict[str, Any]], int]:
    """Return the JSON objects of complete lines, and how many lines were broken.

    >>> parse_lines(b'{"epoch": 1}\\n{"epo\\n')
    ([{'epoch': 1}], 1)
    """
    lines = [line for line in data.split(b"\n") if line.strip()]
    try:
        records = json.loads(b"[" + b",".join(lines) + b"]")  # several times quicker than line by line
    except (ValueError, RecursionError):
        records = [_parse(line) for line in lines]
    kept = [record for record in records if isinstance(record, dict)]
    return kept, max(0, len(lines) - len(kept))


def _open_parts(path: Path, stack: ExitStack) -> list[BinaryIO]:
    """Return all parts, newest first. In this order, a rotation meanwhile shows a part twice but never hides one."""
    parts: list[BinaryIO] = []
    opened: set[tuple[int, int]] = set()
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
            if status.st_size > _MAX_PART_BYTES:
                raise OSError(errno.EFBIG, f"it has {status.st_size:,} bytes, which no run writes", str(part))
            if (status.st_dev, status.st_ino) not in opened:
                opened.add((status.st_dev, status.st_ino))
                parts.append(file)
        number += 1


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # the caller reports it with its line number
        return None
    return record if isinstance(record, dict) else None
