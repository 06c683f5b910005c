"""A process starts and ends quickly, and nothing is lost thereby."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from parallel_agents.core.process import import_quickly

LEAVES = """
import atexit, ctypes, sys, threading, time
from parallel_agents.core.process import leave

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
leave(3)
"""


def test_a_process_that_leaves_writes_all_files_and_waits_for_its_threads_but_removes_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LEAVES, tmp_path / "file"]
    ended = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60)
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
