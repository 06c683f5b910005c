"""A user's script without a main guard works with processes, and the workers do not run it again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.environment.line_worlds import Line, tiny

SCRIPT = """
import json, pathlib, threading
print("started")
with open("runs.txt", "a") as file:
    file.write("once\\n")
from tests.environment.line_worlds import Line, tiny
summary = Line(config=tiny(parallel={"backend": "process", "num_workers": 1})).run_experiment()
print(json.dumps({"digest": summary["digest"], "backend": summary["backend"]}))
"""


def test_a_script_without_a_main_guard_works_with_processes(tmp_path: Path) -> None:
    (tmp_path / "experiment.py").write_text(SCRIPT)
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    ended = subprocess.run(
        [sys.executable, "-W", "error", "experiment.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    started, result = ended.stdout.splitlines()
    assert started == "started"
    assert (tmp_path / "runs.txt").read_text() == "once\n"
    assert json.loads(result) == {"digest": Line(config=tiny()).run_experiment()["digest"], "backend": "process"}
