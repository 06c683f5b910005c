"""Nodes of a Ray cluster are killed while runs go on, and no digest changes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def kill_nodes(kills: int, timeout: float, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Kill nodes of a cluster of this machine, print how many, and return what came of it."""
    command = [sys.executable, "-m", "tests.faults.ray_kills", "--kills", str(kills)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    with capsys.disabled():
        sys.stdout.write(f"\n{found['kills']} nodes killed in {found['runs']} runs, {found['recovered']} recoveries\n")
    return found


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_f79_runs_whose_nodes_are_killed_end_with_the_same_digest(capsys: pytest.CaptureFixture[str]) -> None:
    found = kill_nodes(3, 1000.0, capsys)
    assert found["kills"] == 3
    assert found["recovered"] > 0
    assert found["digests"] == [found["wanted"]]


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_f79_thirty_killed_nodes_change_no_digest(capsys: pytest.CaptureFixture[str]) -> None:
    found = kill_nodes(30, 7000.0, capsys)
    assert found["kills"] >= 30
    assert set(found["moments"]) == {"round", "collection", "checkpoint"}
    assert found["digests"] == [found["wanted"]]
