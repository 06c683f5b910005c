"""A run of many epochs: memory, descriptors and shared memory stay where they were after warm-up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import begin


def soaked(minutes: float, backend: str, folder: Path) -> subprocess.Popen[str]:
    words = ["--minutes", str(minutes), "--backend", backend, "--folder", str(folder)]
    return begin("-m", "tests.faults.soak", *words)


def held(found: dict[str, Any], share: float) -> None:
    assert found["growth_at_end"] <= share, found
    assert found["descriptors"][2] <= found["descriptors"][0], found
    assert found["shared_memory"][1] <= found["shared_memory"][0], found


def test_f36_f39_nothing_grows_in_a_few_seconds(tmp_path: Path) -> None:
    process = soaked(0.08, "thread", tmp_path)
    out, _ = process.communicate(timeout=110)
    assert process.returncode == 0
    held(json.loads(out), 0.05)


@pytest.mark.nightly
@pytest.mark.timeout(2_000)
def test_f36_f39_nothing_grows_in_twenty_minutes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    processes = [soaked(20.0, backend, tmp_path) for backend in ("thread", "process")]
    for process in processes:
        out, _ = process.communicate(timeout=1_900)
        assert process.returncode == 0
        with capsys.disabled():
            sys.stdout.write(out)
        held(json.loads(out), 0.02)
