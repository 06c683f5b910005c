"""The command as a process of its own: how quick `--help` is."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

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
