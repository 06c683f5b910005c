"""Break the package in small, named ways and check that tests fail: `python -m tools.mutants [--area A] [--name N]`.

`mutants.toml` holds the table. Each row has a file, a text that occurs in it exactly once, its replacement, and the
tests that must fail with it. Each mutant is written into a copy of the repository, and only its tests are run there.
The command fails if a mutant lives, if a text does not occur exactly once, or if the tests fail without a mutant.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Mutant", "main", "read_table", "try_mutant"]

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_suffix(".toml")
COPIED = (
    "parallel_agents",
    "tests",
    "examples",
    "benchmarks",
    "tools",
    "docs",
    "conftest.py",
    "pyproject.toml",
    "README.md",
)
TIMEOUT = 300.0
"""Seconds for the tests of one mutant; a mutant that makes them wait for ever is killed too."""
TOO_LONG = -1
LIBRARIES = ("numpy", "torch", "numba", "gymnasium", "structlog", "pytest")
FORKING = """
import importlib, json, os, signal, sys, time
for name in sys.argv[1:]:
    importlib.import_module(name)
for line in sys.stdin:
    timeout, *tests = json.loads(line)
    child = os.fork()
    if child == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        import pytest
        os._exit(int(pytest.main(["-x", "-q", "-n", "0", "-m", "not nightly", *tests])))
    end, status = time.monotonic() + timeout, None
    while status is None and time.monotonic() < end:
        time.sleep(0.05)
        ended, code = os.waitpid(child, os.WNOHANG)
        status = code if ended else None
    if status is None:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    print(-1 if status is None else os.waitstatus_to_exitcode(status), flush=True)
"""
KILLED, LIVED, BROKEN = "killed", "LIVED", "BROKEN"


@dataclass(frozen=True)
class Mutant:
    """One change of one file, and the tests that must fail with it."""

    name: str
    area: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def fault(self, root: Path) -> str | None:
        """Return what is wrong with this row of the table; None if nothing is."""
        path = root / self.file
        if not path.is_file():
            return f"{self.file} does not exist"
        count = path.read_text(encoding="utf-8").count(self.old)
        if count != 1:
            return f"its text stands {count} times in {self.file}, not once"
        missing = [test for test in self.tests if not (root / test.partition("::")[0]).is_file()]
        if missing or not self.tests:
            return f"these tests do not exist: {missing}" if missing else "it names no test"
        return "it changes nothing" if self.old == self.new else None


def read_table(path: Path = TABLE) -> list[Mutant]:
    """Return all mutants, in the order of the table."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**{**row, "tests": tuple(row["tests"])}) for row in rows]


def copy_repository(root: Path, into: Path) -> Path:
    """Copy the files of a repository that tests need; return the copy."""
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc", "runs", "results")
    for name in COPIED:
        if (root / name).is_dir():
            shutil.copytree(root / name, into / name, ignore=ignored)
        elif (root / name).is_file():
            shutil.copy2(root / name, into / name)
    return into


class Runner:
    """Run tests in forks of a process that has imported the libraries: importing torch takes longer than most tests."""

    def __init__(self, checkout: Path, cache: Path, libraries: Sequence[str] = LIBRARIES) -> None:
        # no bytecode: Python compares size and time of sources, and two mutants may have the same of both
        variables = {"PYTHONPATH": str(checkout), "NUMBA_CACHE_DIR": str(cache), "PYTHONDONTWRITEBYTECODE": "1"}
        variables["MKL_CBWR"] = "AUTO"  # as the package sets it before anything imports torch
        command = [sys.executable, "-c", FORKING, *libraries]
        self._process = subprocess.Popen(
            command,
            cwd=checkout,
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, tests: Sequence[str], timeout: float = TIMEOUT) -> int:
        """Run tests; return pytest's exit code, or `TOO_LONG` if they did not end in time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([timeout, *tests]) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate(timeout=10.0)


def try_mutant(mutant: Mutant, checkout: Path, runner: Runner) -> str:
    """Apply one mutant to a copy, run its tests and undo it; return whether it was killed."""
    path = checkout / mutant.file
    original = path.read_text(encoding="utf-8")
    path.write_text(original.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        code = runner.run(mutant.tests)
    finally:
        path.write_text(original, encoding="utf-8")
    if code in (1, TOO_LONG):
        return KILLED
    return LIVED if code == 0 else BROKEN  # 2 and more: no test was run


def _outcomes(mutants: Sequence[Mutant], checkout: Path, runner: Runner) -> list[str]:
    """Try one mutant after the other and print each outcome; return none if the tests fail without a mutant."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    if runner.run(tests, timeout=TIMEOUT * len(tests)) != 0:
        print("the tests fail, or do not end, without any mutant: fix them first", file=sys.stderr)
        return []
    outcomes = []
    for mutant in mutants:
        start = time.monotonic()
        outcomes.append(try_mutant(mutant, checkout, runner))
        print(f"{outcomes[-1]:8} {mutant.area:12} {mutant.name} ({time.monotonic() - start:.0f} s)", flush=True)
    return outcomes


def main(
    arguments: Sequence[str] | None = None,
    root: Path = ROOT,
    table: Path = TABLE,
    libraries: Sequence[str] = LIBRARIES,
) -> int:
    """Try the chosen mutants and print each outcome; return 1 unless all were killed."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("--area", help="only the mutants of this area")
    parser.add_argument("--name", help="only the mutants whose name contains this")
    parser.add_argument("--list", action="store_true", help="show the table and check it, run nothing")
    options = parser.parse_args(arguments)
    mutants = [
        mutant
        for mutant in read_table(table)
        if options.area in (None, mutant.area) and (options.name is None or options.name in mutant.name)
    ]
    faults = {mutant.name: fault for mutant in mutants if (fault := mutant.fault(root)) is not None}
    for name, fault in faults.items():
        print(f"{name}: {fault}", file=sys.stderr)
    if options.list or faults or not mutants:
        for mutant in mutants:
            print(f"{mutant.area:12} {mutant.name:60} {', '.join(mutant.tests)}")
        return 1 if faults or not mutants else 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        checkout = copy_repository(root, Path(folder, "checkout"))
        runner = Runner(checkout, Path(folder, "cache"), libraries)
        try:
            outcomes = _outcomes(mutants, checkout, runner)
        finally:
            runner.close()
    killed = outcomes.count(KILLED)
    print(f"{killed} of {len(mutants)} mutants were killed")
    return 0 if killed == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
