"""The table of faults is true: every row names a test that exists, and every fault has a row."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys

import pytest

from tests.faults.conftest import ROOT

ROWS = re.findall(
    r"^\| (F\d\d) \| (.+?) \| (.+?) \| `(.+?)::(.+?)` \|$", (ROOT / "docs" / "faults.md").read_text(), re.M
)


def test_every_fault_has_a_row() -> None:
    assert [row[0] for row in ROWS] == [f"F{number:02d}" for number in range(1, len(ROWS) + 1)]
    assert len(ROWS) >= 50


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_every_row_names_a_test_that_exists_and_carries_its_id(row: tuple[str, ...]) -> None:
    fault, _, promise, file, name = row
    assert promise
    elsewhere = "/" in file  # a path below tests/
    tree = ast.parse((ROOT / "tests" / ("" if elsewhere else "faults") / file).read_text())
    assert name in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert elsewhere or fault.lower() in name.split("_")


def test_every_test_of_a_fault_is_named_by_its_id() -> None:
    for path in sorted((ROOT / "tests" / "faults").glob("test_*.py")):
        if path.name == "test_table.py":
            continue
        names = [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
        tests = [name for name in names if name.startswith("test_")]
        assert [name for name in tests if not re.match(r"test_f\d\d_", name)] == [], path.name


def test_the_security_page_names_files_that_exist() -> None:
    named = re.findall(r"`((?:tests|docs)/[\w/.]+)`", (ROOT / "SECURITY.md").read_text())
    assert len(named) >= 4
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_f34_nothing_listens() -> None:
    """Whatever opens a port must be bound to loopback; the words that open one are looked for in the sources."""
    opens = re.compile(r"HTTPServer\(|socketserver|\.listen\(|\.bind\(\s*\(|asyncio\.start_server|uvicorn")
    found = []
    for path in sorted((ROOT / "parallel_agents").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if opens.search(text) and not re.search(r"127\.0\.0\.1|localhost", text):
            found.append(str(path.relative_to(ROOT)))
    assert found == []


@pytest.mark.nightly
@pytest.mark.timeout(3_000)
def test_f45_the_tests_of_interleavings_pass_twenty_times() -> None:
    load = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        for _ in range(20):
            files = ["tests/execution/test_handover.py", "tests/replay/test_thread_safe_buffer.py"]
            ended = subprocess.run([sys.executable, "-m", "pytest", "-q", *files], cwd=ROOT, timeout=600, check=False)
            assert ended.returncode == 0
    finally:
        for process in load:
            process.kill()
            process.wait(timeout=10)
