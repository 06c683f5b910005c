"""Runs killed at random moments and resumed each time end with the digest of the undisturbed run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.conftest import ROOT


def campaign(folder: Path, *words: object, timeout: float) -> tuple[int, int, str]:
    """Kills, kills during a checkpoint write, and everything that was printed."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.faults.campaign", "--folder", str(folder), *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr[-3000:]
    found = re.search(r"(\d+) kills, (\d+) of them during a checkpoint write", ended.stdout)
    assert found is not None
    return int(found[1]), int(found[2]), ended.stdout


def test_f25_f30_a_killed_run_is_resumed_exactly(tmp_path: Path) -> None:
    words = ("--kills", 3, "--algorithms", "mixed", "--backends", "thread", "--epochs", 40)
    kills, _, told = campaign(tmp_path / "c", *words, timeout=110)
    assert kills >= 3, told


@pytest.mark.nightly
@pytest.mark.timeout(10_000)
def test_f25_f30_three_hundred_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kills, in_write, told = campaign(tmp_path / "c", "--kills", 300, timeout=9_900)
    with capsys.disabled():
        sys.stdout.write(f"\n{told}")
    assert kills >= 300
    assert in_write >= 20, "kills during a checkpoint write must be there"


@pytest.mark.nightly
@pytest.mark.timeout(5_000)
def test_f51_a_second_writer_is_refused_fifty_times_and_the_digest_stays(tmp_path: Path) -> None:
    """Kills that strike before the first checkpoint have no rival: those that had one are counted."""
    words = ("--kills", 72, "--rivals", "--epochs", 100, "--algorithms", "dqn")
    _, _, told = campaign(tmp_path / "c", *words, timeout=4_900)
    assert told.count("a second writer was refused") >= 50, told
