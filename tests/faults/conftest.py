"""After any fault: no thread, process or piece of shared memory is left, and nothing half-written."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = ("learner", "slow-model", "supervisor", "world")


def shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm")) if Path("/dev/shm").is_dir() else set()


def _ours() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(OURS)]


@pytest.fixture
def nothing_left(tmp_path: Path) -> Iterator[None]:
    yield
    give_up = time.monotonic() + 2.0
    while (_ours() or multiprocessing.active_children()) and time.monotonic() < give_up:
        time.sleep(0.02)
    assert _ours() == []
    assert multiprocessing.active_children() == []
    assert not {name for name in shared_memory() if str(os.getpid()) in name}
    assert not list(tmp_path.rglob("*.unfinished"))


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a script in a folder of its own, in a process group of its own."""

    def run(script: str, *words: object, timeout: float = 100.0) -> subprocess.CompletedProcess[str]:
        (tmp_path / "script.py").write_text(script)
        return subprocess.run(
            [sys.executable, "script.py", *map(str, words)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            start_new_session=True,
        )

    return run
