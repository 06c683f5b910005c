"""The table of mutants fits the package, and the tool tells the killed from those that live."""

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


def test_every_mutant_stands_once_in_its_file_and_names_tests_that_exist() -> None:
    table = read_table()
    assert {own.name: fault for own in table if (fault := own.fault(ROOT)) is not None} == {}
    missing = [
        test
        for own in table
        for test in own.tests
        if "::" in test
        and not re.search(rf"def {test.partition('::')[2]}\(", (ROOT / test.partition("::")[0]).read_text())
    ]
    assert missing == []


def test_there_are_enough_of_every_area_and_no_two_are_alike() -> None:
    table = read_table()
    assert len(table) >= 60
    assert {own.area for own in table} == AREAS
    assert [name for name, count in Counter(own.name for own in table).items() if count > 1] == []
    changes = Counter((own.file, own.old, own.new) for own in table)
    assert [change for change, count in changes.items() if count > 1] == []


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A package of one function with one test."""
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


def told_of(rows: dict[str, tuple[str, str]], project: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code of the tool for mutants of the one function, and what it printed."""
    table = project / "mutants.toml"
    table.write_text("".join(ROW.format(name=name, old=old, new=new) for name, (old, new) in rows.items()))
    code = main([], root=project, table=table, libraries=("pytest",))
    assert "a + b" in (project / "parallel_agents" / "sums.py").read_text()  # only the copy was changed
    return code, "".join(capsys.readouterr())


def test_the_tool_passes_if_every_mutant_is_killed(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = told_of({"subtracts": ("a + b", "a - b")}, project, capsys)
    assert (code, "1 of 1 mutants were killed" in told) == (0, True)


def test_the_tool_names_those_that_live_and_those_that_are_no_program(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {"subtracts": ("a + b", "a - b"), "words": ("a sum", "the sum"), "no Python": ("def add", "def add(")}
    code, told = told_of(rows, project, capsys)
    assert code == 1
    assert "LIVED    learning     words" in told
    assert "BROKEN   learning     no Python" in told


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("a * b", "a"), "its text stands 0 times in parallel_agents/sums.py, not once"),
        (("a", "b"), "times in parallel_agents/sums.py, not once"),
        (("a + b", "a + b"), "it changes nothing"),
    ],
)
def test_the_tool_refuses_a_table_that_no_longer_fits(
    change: tuple[str, str], said: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = told_of({"odd": change}, project, capsys)
    assert (code, said in told) == (1, True)


def test_tests_that_fail_by_themselves_kill_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "tests" / "test_sums.py").write_text("def test_sum():\n    assert False\n")
    code, told = told_of({"subtracts": ("a + b", "a - b")}, project, capsys)
    assert (code, "without any mutant" in told) == (1, True)
