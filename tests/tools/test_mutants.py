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
TABLE = """
[[mutant]]
name = "adds the wrong way"
area = "learning"
file = "parallel_agents/sums.py"
old = "a + b"
new = "a - b"
tests = ["tests/test_sums.py::test_sum"]

[[mutant]]
name = "{name}"
area = "acting"
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


@pytest.mark.parametrize(
    ("row", "code", "told"),
    [
        (("adds nothing", "return a", "return 0 * a"), 0, "2 of 2 mutants were killed"),
        (("only words", "a sum", "the sum"), 1, "LIVED    acting       only words"),
        (("no Python", "def add", "def add("), 1, "BROKEN   acting       no Python"),
        (("not there", "a * b", "a"), 1, "its text stands 0 times in parallel_agents/sums.py, not once"),
        (("there twice", "a", "b"), 1, "times in parallel_agents/sums.py, not once"),
        (("none", "a + b", "a + b"), 1, "it changes nothing"),
    ],
    ids=lambda given: given[0] if isinstance(given, tuple) else "",
)
def test_the_tool_fails_unless_every_mutant_is_killed(
    row: tuple[str, str, str], code: int, told: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = project / "mutants.toml"
    table.write_text(TABLE.format(name=row[0], old=row[1], new=row[2]))
    assert main([], root=project, table=table, libraries=("pytest",)) == code
    assert told in "".join(capsys.readouterr())
    assert "a + b" in (project / "parallel_agents" / "sums.py").read_text()  # only the copy was changed


def test_tests_that_fail_by_themselves_kill_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = project / "mutants.toml"
    table.write_text(TABLE.format(name="adds nothing", old="return a", new="return 0 * a"))
    (project / "tests" / "test_sums.py").write_text("def test_sum():\n    assert False\n")
    assert main(["--name", "wrong way"], root=project, table=table, libraries=("pytest",)) == 1
    assert "without any mutant" in capsys.readouterr().err
