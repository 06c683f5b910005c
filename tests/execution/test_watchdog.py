"""Workers that exceed their deadline are reported with all tracebacks, and interrupted where nobody waits for them."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from parallel_agents.core.errors import DeadlineError
from parallel_agents.execution.backend import Heartbeat, Monitored
from parallel_agents.execution.watchdog import Watchdog


def monitored(heartbeat: Heartbeat, **more: Any) -> Monitored:
    return Monitored("somebody", heartbeat, lambda beat: f"job {beat.job}", **more)


def until(condition: Any, seconds: float = 10.0) -> bool:
    give_up = time.monotonic() + seconds
    while not condition() and time.monotonic() < give_up:
        time.sleep(0.02)
    return bool(condition())


def test_a_heartbeat_says_what_is_done_and_since_when() -> None:
    heartbeat = Heartbeat()
    assert heartbeat.busy() is None
    assert heartbeat.remaining(4, 9.0) == 9.0
    heartbeat.beat(4, part=2)
    time.sleep(0.02)
    beat = heartbeat.busy()
    assert beat is not None
    assert (beat.job, beat.part) == (4, 2)
    assert 0.01 < beat.seconds < 5.0
    assert heartbeat.remaining(4, 9.0) < 9.0
    assert heartbeat.remaining(5, 9.0) == 9.0  # a job that has not begun
    heartbeat.rest()
    assert heartbeat.busy() is None


def test_a_hung_worker_is_reported_once_with_all_tracebacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heartbeat, release = Heartbeat(), threading.Event()

    def hang_here() -> None:
        release.wait(30.0)

    thread = threading.Thread(target=hang_here, name="somebody")
    thread.start()
    watchdog = Watchdog(lambda: [monitored(heartbeat, tracebacks=lambda: "of another process")], limit=0.3)
    watchdog.folder = tmp_path
    with watchdog:
        heartbeat.beat(7)
        began = time.monotonic()
        assert until(lambda: list(tmp_path.glob("stacks-*.txt")))
        assert time.monotonic() - began < 0.3 + 2.0
        time.sleep(0.6)
    release.set()
    thread.join()
    (written,) = tmp_path.glob("stacks-*.txt")
    text = written.read_text()
    assert text.startswith("somebody has been at job 7 for 0.")
    assert "hang_here" in text
    assert "is somebody" in text
    assert "of another process" in text
    assert capsys.readouterr().err.count("hung: worker somebody, at job 7") == 1
    assert not [thread for thread in threading.enumerate() if thread.name == "watchdog"]


def test_what_hangs_in_the_thread_of_the_loop_is_interrupted() -> None:
    heartbeat = Heartbeat()
    before = signal.getsignal(signal.SIGURG)
    began = time.monotonic()
    with Watchdog(lambda: [monitored(heartbeat, in_loop_thread=True)], limit=0.2):
        heartbeat.beat(3)
        with pytest.raises(DeadlineError, match=r"somebody has been at job 3 for more than 0\.2 s"):
            time.sleep(30.0)
        heartbeat.rest()
        os.kill(os.getpid(), signal.SIGURG)  # too late: it has returned
        time.sleep(0.01)
    assert time.monotonic() - began < 2.2
    assert signal.getsignal(signal.SIGURG) is before


def test_what_cannot_be_interrupted_is_passed_to_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parallel_agents.execution.watchdog.LAST_GRACE", 0.2)
    heartbeat, messages = Heartbeat(), list[str]()
    watchdog = Watchdog(lambda: [monitored(heartbeat, in_loop_thread=True)], limit=0.1)
    watchdog.give_up = messages.append

    def loop_elsewhere() -> None:  # not the main thread: no signal reaches it
        with watchdog:
            heartbeat.beat(1)
            until(lambda: messages)

    thread = threading.Thread(target=loop_elsewhere)
    thread.start()
    thread.join()
    assert messages[0] == "somebody hangs at job 1 and cannot be interrupted"


def test_an_ended_process_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    with Watchdog(lambda: [monitored(Heartbeat(), ended=lambda: "signal SIGKILL")], limit=1.0):
        time.sleep(0.8)
    assert capsys.readouterr().err == "worker_died: worker somebody, cause signal SIGKILL\n"
