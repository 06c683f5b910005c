"""The table of mutants matches the package, and the tool finds mutants that no test notices."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tools.mutants import ROOT, main, read_table

AREAS = {
    "learning", "acting", "draws", "replay", "sampling", "endings", "checkpoints", "schedule", "games", "market",
    "workflows", "adapters",
}  # fmt: skip
ROW = """
[[mutant]]
name = "{name}"
area = "learning"
file = "parallel_agents/sums.py"
old = '''{old}'''
new = '''{new}'''
tests = ["tests/test_sums.py"]
"""


def test_every_mutant_matches_its_file_once_and_names_existing_tests() -> None:
    table = read_table()
    assert {mutant.name: fault for mutant in table if (fault := mutant.fault(ROOT)) is not None} == {}
    missing = [
        test
        for mutant in table
        for test in mutant.tests
        if "::" in test
        and not re.search(rf"def {test.partition('::')[2]}\(", (ROOT / test.partition("::")[0]).read_text())
    ]
    assert missing == []


def test_every_area_has_mutants_and_no_two_are_equal() -> None:
    table = read_table()
    assert len(table) >= 60
    assert {mutant.area for mutant in table} == AREAS
    assert [name for name, count in Counter(mutant.name for mutant in table).items() if count > 1] == []
    changes = Counter((mutant.file, mutant.old, mutant.new) for mutant in table)
    assert [change for change, count in changes.items() if count > 1] == []


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Make a package of one function with one test."""
    (tmp_path / "parallel_agents").mkdir()
    (tmp_path / "parallel_agents" / "__init__.py").write_text("")
    (tmp_path / "parallel_agents" / "sums.py").write_text("def add(a, b):\n    return a + b  # a sum\n")
    (tmp_path / "tests").mkdir()
    test = "from parallel_agents.sums import add\n\n\ndef test_sum():\n    assert add(2, 3) == 5\n"
    (tmp_path / "tests" / "test_sums.py").write_text(test)
    (tmp_path / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\naddopts = '-p no:cacheprovider'\nmarkers = ['nightly']\n"
    )
    return tmp_path


def run_tool(rows: dict[str, tuple[str, str]], project: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run the tool on mutants of that function; return its exit code and its output."""
    table = project / "mutants.toml"
    table.write_text("".join(ROW.format(name=name, old=old, new=new) for name, (old, new) in rows.items()))
    code = main([], root=project, table=table, libraries=("pytest",))
    assert "a + b" in (project / "parallel_agents" / "sums.py").read_text()  # only the copy is changed
    return code, "".join(capsys.readouterr())


def test_the_tool_passes_if_every_mutant_is_killed(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, output = run_tool({"subtracts": ("a + b", "a - b")}, project, capsys)
    assert (code, "1 of 1 mutants were killed" in output) == (0, True)


def test_the_tool_names_mutants_that_live_and_mutants_that_are_no_program(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {"subtracts": ("a + b", "a - b"), "words": ("a sum", "the sum"), "no Python": ("def add", "def add(")}
    code, output = run_tool(rows, project, capsys)
    assert code == 1
    assert "LIVED    learning     words" in output
    assert "BROKEN   learning     no Python" in output


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("a * b", "a"), "its text stands 0 times in parallel_agents/sums.py, not once"),
        (("a", "b"), "times in parallel_agents/sums.py, not once"),
        (("a + b", "a + b"), "it changes nothing"),
    ],
)
def test_the_tool_refuses_a_table_that_does_not_match(
    change: tuple[str, str], message: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, output = run_tool({"odd": change}, project, capsys)
    assert (code, message in output) == (1, True)


def test_the_tool_fails_if_the_tests_fail_without_a_mutant(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "tests" / "test_sums.py").write_text("def test_sum():\n    assert False\n")
    code, output = run_tool({"subtracts": ("a + b", "a - b")}, project, capsys)
    assert (code, "without any mutant" in output) == (1, True)
