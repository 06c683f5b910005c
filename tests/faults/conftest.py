"""What the tests of faults share: commands in processes of their own, and fixtures."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.execution.conftest import nothing_left as nothing_left

ROOT = Path(__file__).parents[2]
Ended = subprocess.CompletedProcess[str]


def begin(
    *words: object,
    folder: Path = ROOT,
    wrap: Callable[[list[str]], list[str]] = list,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """Start Python with these words, in a process group of its own. wrap: puts a command around it."""
    return subprocess.Popen(
        wrap([sys.executable, *map(str, words)]),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(*words: object, timeout: float = 100.0, **how: Any) -> Ended:
    """Run Python with these words to its end, as `begin` does."""
    process = begin(*words, **how)
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        process.kill()
    return Ended(process.args, process.returncode, out, err)


def output(*words: object, **how: Any) -> str:
    """Run Python with these words, and return what it printed; fail unless it ended well."""
    ended = run(*words, **how)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-3000:]
    return ended.stdout


def until(condition: Callable[[], object], seconds: float = 20.0) -> bool:
    """Wait until a condition holds; return False if it does not within the time."""
    give_up = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < give_up:
        time.sleep(0.01)
    return bool(holds)
