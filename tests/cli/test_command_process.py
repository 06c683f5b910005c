"""The command as a process of its own: how quick `--help` is, and how it ends on a signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.guess_game import GAME

HEAVY = ("torch", "numba", "numpy", "gymnasium", "pettingzoo", "matplotlib")
HELP = f"""
import sys
from parallel_agents.cli import main
try:
    main({{words}})
except SystemExit as leaving:
    assert not leaving.code, leaving.code
heavy = [name for name in {HEAVY!r} if name in sys.modules]
assert not heavy, heavy
"""


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"]])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", HELP.format(words=words)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "parallel-agents" in ended.stdout


def test_help_is_quick() -> None:
    """Processor time of the process itself, since the machine may be busy; the goal is 0.3 s."""
    before = os.times()
    subprocess.run([sys.executable, "-c", HELP.format(words=["--help"])], capture_output=True, timeout=60, check=True)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    assert used < 1.0


START = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # as from a terminal
from parallel_agents.cli import main
sys.exit(main())
"""
COMMAND = [sys.executable, "-c", START]
ENDLESS = ["train", "guess.py", "--epochs", "1000000", "--quiet", "--json", "--out", "mine"]


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_run_in_order(tmp_path: Path, sent: int, code: int) -> None:
    (tmp_path / "guess.py").write_text(GAME)
    backend = "process" if sent == signal.SIGTERM else "thread"
    started = subprocess.Popen(
        [*COMMAND, *ENDLESS, "--backend", backend],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = tmp_path / "mine" / "metrics.jsonl"
    until = time.monotonic() + 60
    while not (metrics.exists() and '"round":2' in metrics.read_text()) and time.monotonic() < until:
        assert started.poll() is None, started.communicate()
        time.sleep(0.05)
    children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
    started.send_signal(sent)
    out, err = started.communicate(timeout=30)
    assert started.returncode == code, err
    told = json.loads(out)
    assert told["error"] == "Interrupted"
    assert told["message"] in err
    assert json.loads((tmp_path / "mine" / "trace.json").read_text())["traceEvents"]
    assert (backend == "thread") or children, "there was a worker process to end"
    until = time.monotonic() + 10
    while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{child}").exists() for child in children)
