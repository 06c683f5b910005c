"""Runs that do not want to end are ended by Ctrl-C all the same, in time and with their checkpoints whole."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from parallel_agents.cli.signals import DIRECT, PASSED_ON, Signals, graceful_stop
from parallel_agents.errors import Interrupted
from tests.faults.conftest import ROOT


def campaign(folder: Path, *words: object, timeout: float) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.faults.signals", "--folder", str(folder), *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr[-3000:]
    return ended.stdout


def test_f70_a_second_interrupt_ends_what_catches_every_exception_within_three_seconds(tmp_path: Path) -> None:
    """On inline, thread, process and auto, each in the way of another kind."""
    words = ("--each", 1, "--kinds", "learner", "world", "hung", "base")
    assert "to 4 runs; each ended in time" in campaign(tmp_path / "s", *words, timeout=110)


@pytest.mark.nightly
@pytest.mark.timeout(10_000)
def test_f70_fifty_runs_on_each_backend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = campaign(tmp_path / "s", "--each", 50, timeout=9_900)
    with capsys.disabled():
        sys.stdout.write(f"\n{told}")
    assert "to 200 runs; each ended in time" in told


def test_f70_an_interruption_is_no_exception_that_somebody_catches() -> None:
    assert not issubclass(Interrupted, Exception)


def test_f70_the_first_signal_finishes_and_the_second_leaves(capfd: pytest.CaptureFixture[str]) -> None:
    said: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    with Signals(), graceful_stop(said.append):
        os.kill(os.getpid(), signal.SIGINT)
        assert said == [signal.SIGINT]
        with pytest.raises(Interrupted) as left:
            os.kill(os.getpid(), signal.SIGTERM)
        assert left.value.exit_code == 143
    assert capfd.readouterr().err.count("finishing the epoch") == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_f70_a_signal_to_both_processes_counts_once_and_one_to_either_counts() -> None:
    """A terminal sends Ctrl-C to the command and to the process that does its work; the former passes it on."""
    said: list[int] = []
    cells = [0, 0, 0]
    with Signals(cells), graceful_stop(said.append):
        os.kill(os.getpid(), signal.SIGINT)
        cells[PASSED_ON] = 1
        os.kill(os.getpid(), signal.SIGUSR2)
        assert (said, cells[DIRECT]) == ([signal.SIGINT], 1)
        cells[PASSED_ON] = 2
        with pytest.raises(Interrupted):
            os.kill(os.getpid(), signal.SIGUSR2)


def test_f70_a_signal_before_anybody_listened_is_not_lost() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted), Signals([1, 0, signal.SIGINT]):
        raise AssertionError("not reached")
    assert signal.getsignal(signal.SIGINT) is before


class Signalled(io.RawIOBase):
    """A stream during whose writing a signal arrives."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return len(data)


def test_f70_a_signal_while_stderr_is_written_to_is_obeyed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The buffer of a stream refuses to be entered twice: a handler that writes there fails, and the signal is lost."""
    said: list[int] = []
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BufferedWriter(Signalled()), write_through=True))
    with Signals(), graceful_stop(said.append):
        sys.stderr.write("a line\n")
        sys.stderr.flush()
    assert said == [signal.SIGINT]
    assert "finishing the epoch" in capfd.readouterr().err
