"""Make records as a run would, and reset structlog around every test."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog

from parallel_agents.core.types import EpochStats, RoundStats, RunInfo

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _fresh_structlog() -> Iterator[None]:
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


@pytest.fixture
def full_disk() -> Iterator[None]:
    """Let no file grow while the test runs, as if the disk were full."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.fixture
def make_run() -> Callable[..., RunInfo]:
    def make(**changes: Any) -> RunInfo:
        fields: dict[str, Any] = {
            "run_id": "r1",
            "environment": "hunt",
            "agents": ("a", "b", "c"),
            "worlds": 1,
            "replicas": 1,
            "epochs": 10,
            "first_epoch": 1,
            "config": {"experiment": {"epochs": 10}},
            "fingerprint": {"cpu": "x"},
        }
        return RunInfo(**(fields | changes))

    return make


@pytest.fixture
def make_epoch() -> Callable[..., EpochStats]:
    def make(epoch: int, **changes: Any) -> EpochStats:
        fields: dict[str, Any] = {
            "turns": 100,
            "transitions": 300,
            "rewards": np.array([1.0, 2.0, 6.0]) * epoch,
            "version": epoch // 2,
            "lag": 1,
            "updates": 12 * epoch,
            "seconds": 0.5,
            "metrics": {"loss": np.array([0.1, np.nan, 1 / 3], np.float32)},
            "total_timesteps": 200 * epoch,
            "timesteps": 200,
            "wall_seconds": 0.5 * epoch,
            "episodes": np.array([[2.0, 0.0, 1.0], [6.0, 0.0, 3.0], [50.0, 0.0, 40.0]]),
        }
        return EpochStats(epoch, **(fields | changes))

    return make


@pytest.fixture
def make_round() -> Callable[..., RoundStats]:
    def make(number: int, **changes: Any) -> RoundStats:
        fields: dict[str, Any] = {
            "updates": np.array([4, 4, 3]),
            "rejected": np.array([0, 0, 1]),
            "metrics": {"loss": np.array([0.5, np.inf, 0.25])},
            "seconds": 0.2,
        }
        return RoundStats(number, **(fields | changes))

    return make


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs a script from a file in a new interpreter."""

    def run(source: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "script.py"
        script.write_text(source)
        command = [sys.executable, "-W", "error", str(script), *map(str, arguments)]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=60, env={"PYTHONPATH": str(ROOT), "PATH": ""}
        )

    return run
