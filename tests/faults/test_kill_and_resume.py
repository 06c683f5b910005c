"""Runs killed at random moments and resumed each time end with the digest of the undisturbed run."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.faults.forked import module


def campaign(folder: Path, *words: object, timeout: float) -> tuple[int, int, str]:
    """Return the kills, those during a checkpoint write, and everything that was printed."""
    printed = module("tests.faults.campaign", "--folder", folder, *words, timeout=timeout)
    counts = re.search(r"(\d+) kills, (\d+) of them during a checkpoint write", printed)
    assert counts is not None
    return int(counts[1]), int(counts[2]), printed


def test_f25_f30_a_killed_run_is_resumed_exactly(tmp_path: Path) -> None:
    words = ("--kills", 3, "--algorithms", "mixed", "--backends", "thread", "--epochs", 40)
    kills, _, printed = campaign(tmp_path / "c", *words, timeout=110)
    assert kills >= 3, printed


@pytest.mark.nightly
@pytest.mark.timeout(10_000)
def test_f25_f30_three_hundred_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kills, in_write, printed = campaign(tmp_path / "c", "--kills", 300, timeout=9_900)
    with capsys.disabled():
        sys.stdout.write(f"\n{printed}")
    assert kills >= 300
    assert in_write >= 20, "kills during a checkpoint write must be there"


@pytest.mark.nightly
@pytest.mark.timeout(5_000)
def test_f51_a_second_writer_is_refused_fifty_times_and_the_digest_stays(tmp_path: Path) -> None:
    """Before the first checkpoint there is no second writer: only kills that had one are counted."""
    words = ("--kills", 72, "--rivals", "--epochs", 100, "--algorithms", "dqn")
    _, _, printed = campaign(tmp_path / "c", *words, timeout=4_900)
    assert printed.count("a second writer was refused") >= 50, printed
