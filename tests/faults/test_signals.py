"""Ctrl-C ends every run in time and leaves its checkpoints whole, whatever the run does."""

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
from parallel_agents.core.errors import Interrupted
from tests.faults.forked import module


def test_f70_a_second_interrupt_ends_what_catches_every_exception_within_three_seconds(tmp_path: Path) -> None:
    """On inline, thread, process and auto, each with another kind of run that does not want to end."""
    words = ("--folder", tmp_path / "s", "--each", 1, "--kinds", "learner", "world", "hung", "base")
    assert "to 4 runs; each ended in time" in module("tests.faults.signals", *words, timeout=110.0)


def test_f70_processes_that_start_others_while_they_are_killed_leave_none_behind() -> None:
    """Each sleeper is orphaned at once, so that no list of the descendants of a process is complete for long."""
    script = """if True:
        import ctypes, os, subprocess, time
        from parallel_agents.cli.process_watchdog import _PR_SET_CHILD_SUBREAPER, _descendants, _kill_descendants
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        subprocess.Popen(["sh", "-c", "for i in $(seq 2000); do (setsid sleep 20 &); done"])
        while len(_descendants(os.getpid())) < 20:
            time.sleep(0.001)
        _kill_descendants(until=time.monotonic() + 10)
        print(len(_descendants(os.getpid())), "left")
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30.0)
    assert (done.stdout, done.stderr) == ("0 left\n", "")


@pytest.mark.nightly
@pytest.mark.timeout(10_000)
def test_f70_fifty_runs_on_each_backend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = module("tests.faults.signals", "--folder", tmp_path / "s", "--each", 50, timeout=9_900.0)
    with capsys.disabled():
        sys.stdout.write(f"\n{printed}")
    assert "to 200 runs; each ended in time" in printed


def test_f70_an_interruption_is_not_caught_by_except_exception() -> None:
    assert not issubclass(Interrupted, Exception)


def test_f70_the_first_signal_finishes_the_epoch_and_the_second_ends_the_run(capfd: pytest.CaptureFixture[str]) -> None:
    received: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    with Signals(), graceful_stop(received.append):
        os.kill(os.getpid(), signal.SIGINT)
        assert received == [signal.SIGINT]
        with pytest.raises(Interrupted) as left:
            os.kill(os.getpid(), signal.SIGTERM)
        assert left.value.exit_code == 143
    assert capfd.readouterr().err.count("finishing the epoch") == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_f70_a_signal_to_both_processes_counts_once_and_one_to_either_counts() -> None:
    """A terminal sends Ctrl-C to the command and to the process that does its work, and the command passes it on."""
    received: list[int] = []
    cells = [0, 0, 0]
    with Signals(cells), graceful_stop(received.append):
        os.kill(os.getpid(), signal.SIGINT)
        cells[PASSED_ON] = 1
        os.kill(os.getpid(), signal.SIGUSR2)
        assert (received, cells[DIRECT]) == ([signal.SIGINT], 1)
        cells[PASSED_ON] = 2
        with pytest.raises(Interrupted):
            os.kill(os.getpid(), signal.SIGUSR2)


def test_f70_a_signal_before_the_handlers_are_set_is_not_lost() -> None:
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
    received: list[int] = []
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BufferedWriter(Signalled()), write_through=True))
    with Signals(), graceful_stop(received.append):
        sys.stderr.write("a line\n")
        sys.stderr.flush()
    assert received == [signal.SIGINT]
    assert "finishing the epoch" in capfd.readouterr().err
