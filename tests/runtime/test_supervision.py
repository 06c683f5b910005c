"""Whoever takes too long is named, with the stacks of everybody; the number of workers changes no result."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from parallel_agents.errors import DeadlineError
from parallel_agents.runtime.heartbeat import Heart
from parallel_agents.runtime.rounds import Rounds
from parallel_agents.runtime.staffing import WINDOW, Staffing, free_memory
from parallel_agents.runtime.supervision import Supervisor, Watched, left
from tests.runtime.stub_stacks import MarkStack, expected, same
from tests.runtime.test_rounds import conduct, make


def watched(heart: Heart, **more: Any) -> Watched:
    return Watched("somebody", heart, lambda beat: f"job {beat.job}", **more)


def until(condition: Any, seconds: float = 10.0) -> bool:
    give_up = time.monotonic() + seconds
    while not condition() and time.monotonic() < give_up:
        time.sleep(0.02)
    return bool(condition())


def test_a_heart_says_what_is_done_and_since_when() -> None:
    heart = Heart()
    assert heart.busy() is None
    assert left(heart, 4, 9.0) == 9.0
    heart.beat(4, part=2)
    time.sleep(0.02)
    beat = heart.busy()
    assert beat is not None
    assert (beat.job, beat.part) == (4, 2)
    assert 0.01 < beat.seconds < 5.0
    assert left(heart, 4, 9.0) < 9.0
    assert left(heart, 5, 9.0) == 9.0  # that one has not begun
    heart.rest()
    assert heart.busy() is None


def test_whoever_hangs_is_named_once_with_all_stacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heart, release = Heart(), threading.Event()

    def hang_here() -> None:
        release.wait(30.0)

    thread = threading.Thread(target=hang_here, name="somebody")
    thread.start()
    supervisor = Supervisor(lambda: [watched(heart, stacks=lambda: "of another process")], limit=0.3)
    supervisor.folder = tmp_path
    with supervisor:
        heart.beat(7)
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
    assert not [thread for thread in threading.enumerate() if thread.name == "supervisor"]


def test_what_hangs_in_the_conducting_thread_is_interrupted() -> None:
    heart = Heart()
    before = signal.getsignal(signal.SIGURG)
    began = time.monotonic()
    with Supervisor(lambda: [watched(heart, conducts=True)], limit=0.2):
        heart.beat(3)
        with pytest.raises(DeadlineError, match=r"somebody has been at job 3 for more than 0\.2 s"):
            time.sleep(30.0)
        heart.rest()
        os.kill(os.getpid(), signal.SIGURG)  # too late: it has gone on
        time.sleep(0.01)
    assert time.monotonic() - began < 2.2
    assert signal.getsignal(signal.SIGURG) is before


def test_what_cannot_be_interrupted_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parallel_agents.runtime.supervision.LAST_GRACE", 0.2)
    heart, said = Heart(), []
    supervisor = Supervisor(lambda: [watched(heart, conducts=True)], limit=0.1)
    supervisor.give_up = said.append

    def conduct_elsewhere() -> None:  # not the main thread: no signal reaches it
        with supervisor:
            heart.beat(1)
            until(lambda: said)

    thread = threading.Thread(target=conduct_elsewhere)
    thread.start()
    thread.join()
    assert said[0] == "somebody hangs at job 1 and cannot be interrupted"


def test_an_ended_process_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    with Supervisor(lambda: [watched(Heart(), ended=lambda: "signal SIGKILL")], limit=1.0):
        time.sleep(0.8)
    assert capsys.readouterr().err == "worker_died: worker somebody, cause signal SIGKILL\n"


# -- how many ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "waited", "busy", "memory", "wanted"),
    [
        (1, 0.5, 1.0, 0.5, 2),  # the collector waits
        (1, 0.5, 1.0, 0.01, 1),  # but memory is short
        (1, 0.1, 1.0, 0.5, 1),
        (3, 0.5, 1.0, 0.5, 3),  # there are no more to be had
        (2, 0.0, 0.1, 0.5, 1),  # one alone would be idle most of the time
        (2, 0.0, 0.9, 0.5, 2),
        (2, 0.5, 0.9, 0.01, 1),
    ],
)
def test_the_number_of_workers_follows_load_and_memory(
    workers: int, waited: float, busy: float, memory: float, wanted: int
) -> None:
    staff = Staffing(workers, most=3, memory=lambda: memory)
    for _ in range(WINDOW):
        assert staff.wanted(100) == workers  # not before there is something to judge by
        staff.note(interval=1.0, waited=waited, busy=busy)
    assert staff.wanted(100) == wanted
    assert staff.wanted(100) == wanted


def test_nobody_is_hired_for_the_last_rounds() -> None:
    staff = Staffing(1, most=3, memory=lambda: 0.5)
    for _ in range(WINDOW):
        staff.note(interval=1.0, waited=0.5, busy=1.0)
    assert staff.wanted(3) == 1


def test_the_system_says_how_much_memory_is_free() -> None:
    assert 0.0 < free_memory() <= 1.0


class Moody(Staffing):
    """Another number at every boundary."""

    def wanted(self, rounds_left: int) -> int:
        return (2, 3, 1)[rounds_left % 3]


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_results_do_not_depend_on_how_many_workers_come_and_go(lag: int, nothing_left: None) -> None:
    stacks = [MarkStack(4), MarkStack(2, first_agent=4)]
    rounds, told = make(stacks, lag=lag, backend="thread")
    rounds._staff = Moody(1, most=3)
    conduct(rounds, range(1, 9))
    changes = [(fields["from"], fields["to"]) for name, fields in told if name == "workers_changed"]
    assert len(changes) >= 6
    for stack in stacks:
        assert same(stack.settled[-1], expected(stack, 8))
    assert [version for version, _ in stacks[0].published] == list(range(1, 9 - lag))


def test_workers_are_counted_only_where_the_configuration_has_not() -> None:
    def staff(**flags: Any) -> Any:
        rounds: Rounds = make([MarkStack(4)], lag=1, **flags)[0]
        return rounds._staff

    assert staff(backend="thread") is not None
    assert staff(backend="process") is not None
    assert staff(backend="thread", num_workers=2) is None
    assert staff(backend="inline") is None
