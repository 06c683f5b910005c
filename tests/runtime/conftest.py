"""What must not be left running."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest


def _shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm")) if Path("/dev/shm").is_dir() else set()


def _learners() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(("learner", "slow-model"))]


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """After the test no learner thread, no child process and no piece of shared memory remains."""
    before = _shared_memory()
    yield
    assert _learners() == []
    assert multiprocessing.active_children() == []
    ours = {name for name in _shared_memory() - before if name.startswith(f"torch_{os.getpid()}")}
    assert ours == set()
