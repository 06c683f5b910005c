"""What must not be left running after a test."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

THREADS = ("learner", "slow-model", "watchdog", "world")


def shared_memory() -> set[str]:
    """Return the names of all pieces of shared memory of the machine."""
    return set(os.listdir("/dev/shm")) if Path("/dev/shm").is_dir() else set()


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has just ended
            found += map(int, path.read_text().split())
    return found


def command_line(pid: int) -> bytes:
    """Return the command line of a process; nothing if it has just ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def worker_processes(pid: int) -> list[int]:
    """Return the workers that the fork server of a process has forked."""
    servers = [child for child in children(pid) if b"forkserver" in command_line(child)]
    return [worker for server in servers for worker in children(server)]


def _running() -> list[str]:
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith(THREADS)]
    return [*threads, *map(str, multiprocessing.active_children()), *map(str, worker_processes(os.getpid()))]


@pytest.fixture
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """Fail if a worker thread, a child process, shared memory of ours or a half-written file remains."""
    yield
    give_up = time.monotonic() + 2.0
    while _running() and time.monotonic() < give_up:
        time.sleep(0.02)
    assert _running() == []
    assert not {name for name in shared_memory() if str(os.getpid()) in name}
    assert not list(tmp_path.rglob("*.unfinished"))
