"""A process starts and ends quickly and loses nothing; memory that is left; calls in threads of their own."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from parallel_agents.core import system
from parallel_agents.core.system import BackgroundThread, available_bytes, free_memory, import_quickly, in_background

LEAVES = """
import atexit, ctypes, gc, sys, threading, time
from parallel_agents.core.system import leave

class World:
    def __init__(self):
        self.itself = self  # only the collector would remove it
        self.file = open(sys.argv[1], "w")
        self.file.write("written")

    def __del__(self):
        print("removed")

def work():
    time.sleep(0.2)
    print("worked")

world = World()
closed = open(sys.argv[1])
closed.close()
atexit.register(print, "at exit")
threading.Thread(target=work).start()
ctypes.CDLL(None).puts(b"by C")
print("left", end=" ")
gc.freeze()
leave(3)
"""


def test_a_process_that_leaves_writes_all_files_and_waits_for_its_threads_but_removes_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LEAVES, tmp_path / "file"]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    ended = subprocess.run(
        command, cwd=Path(__file__).parents[2], env=buffered, capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (3, "")
    assert ended.stdout.split("\n") == ["left worked", "at exit", "by C", ""]
    assert (tmp_path / "file").read_text() == "written"


@pytest.mark.parametrize("collecting", [True, False])
def test_the_collector_pauses_while_a_module_is_imported(
    collecting: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_quickly.py").write_text("import gc\ncollecting = gc.isenabled()\n")
    (tmp_path / "not_imported.py").write_text("raise ValueError('broken')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "imported_quickly", raising=False)
    before = gc.isenabled()
    try:
        (gc.enable if collecting else gc.disable)()
        assert import_quickly("imported_quickly").collecting is False
        assert gc.isenabled() is collecting
        with pytest.raises(ValueError, match="broken"):
            import_quickly("not_imported")
        assert gc.isenabled() is collecting
    finally:
        (gc.enable if before else gc.disable)()


def test_free_memory_is_a_share_and_available_memory_is_bytes() -> None:
    assert 0.0 < free_memory() <= 1.0
    assert available_bytes() > 2**20


def test_a_background_thread_makes_calls_in_order_and_ends_when_closed() -> None:
    made: list[int] = []
    thread = BackgroundThread("worker of a test")
    futures = [thread.submit(lambda n=n: made.append(n) or threading.current_thread().name) for n in range(20)]  # type: ignore[func-returns-value, misc]
    assert {future.result(5.0) for future in futures} == {"worker of a test"}
    assert made == list(range(20))
    assert thread.thread.daemon
    thread.close()
    thread.thread.join(5.0)
    assert not thread.thread.is_alive()


def test_a_call_that_raises_gives_its_error_and_the_next_call_is_made() -> None:
    thread = BackgroundThread("worker of a test")
    failed, fine = thread.submit(lambda: 1 / 0), thread.submit(lambda: 2)
    with pytest.raises(ZeroDivisionError):
        failed.result(5.0)
    assert fine.result(5.0) == 2
    thread.close()


def test_without_a_thread_the_call_is_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(system, "BackgroundThread", fail)
    assert in_background(threading.current_thread, "nobody").result(0.0) is threading.current_thread()
