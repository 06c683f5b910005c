"""What it costs to have the package: to import it, to ask it for help, and the room that an installation takes.

Seconds are processor time of a fresh interpreter, so that other processes do not count.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

from benchmarks.measure import Done, Effort, Measured, Row, Side, measure
from benchmarks.run import Bench

ROOT = Path(__file__).parents[1]
GIVEN = ("torch", "numpy")
"""Packages that whoever trains networks has already; they and what they need do not count as ours."""
EVERYTHING = "import parallel_agents as package; [getattr(package, name) for name in package.__all__]"


def benches(effort: Effort) -> Iterator[tuple[str, Bench]]:
    yield "start: import", partial(_import, "import parallel_agents", "import parallel_agents", 1.2, effort)
    yield "start: every public name", partial(_import, "import every public name", EVERYTHING, None, effort)
    yield "start: help", partial(_help, effort)
    yield "start: weight", _weight


def _import(name: str, code: str, goal: float | None, effort: Effort) -> Iterator[Row]:
    """Compare an import with that of torch."""
    theirs = "import torch"
    sides = [Side("torch", theirs, partial(_python, theirs)), Side("ours", code, partial(_python, code))]
    torch, ours = measure(sides, repeats=effort.repeats(7), clock=_children)
    yield Row(
        name=f"start: {name}, beside import torch",
        ratio=ours.seconds / torch.seconds,
        goal=goal,
        at_most=True,
        unit="times import torch",
        repeats=effort.repeats(7),
        sides=(torch, ours),
    )


def _help(effort: Effort) -> Iterator[Row]:
    """Measure how soon the command shows its help."""
    code = "from parallel_agents.cli import main; main(['--help'])"
    (ours,) = measure(
        [Side("ours", "parallel-agents --help", partial(_python, code))], repeats=effort.repeats(7), clock=_children
    )
    yield Row(
        name="start: parallel-agents --help",
        ratio=ours.seconds,
        goal=0.3,
        at_most=True,
        unit="CPU seconds",
        repeats=effort.repeats(7),
        sides=(ours,),
    )


def _weight() -> Iterator[Row]:
    """Add up the files of the package and of what it needs, without torch, numpy and what these need."""
    weights = {name: megabytes(name) for name in sorted(needed("parallel-agents") - {"parallel-agents"} - given())}
    sources = (path for path in (ROOT / "parallel_agents").rglob("*") if path.is_file() and path.suffix != ".pyc")
    weights["parallel_agents itself"] = sum(path.stat().st_size for path in sources) / 1e6
    words = "an installation without extras, without torch, numpy and what these need, and without bytecode"
    yield Row(
        name="start: installed beside torch and numpy",
        ratio=sum(weights.values()),
        goal=250.0,
        at_most=True,
        unit="MB",
        repeats=1,
        sides=(Measured("ours", words, {"packages": len(weights)}, 0.0, 0.0, 0.0),),
        detail=dict(sorted(weights.items(), key=lambda item: -item[1])),
    )


def given() -> set[str]:
    """Return torch, numpy, and all that they need."""
    return {name for package in GIVEN for name in needed(package)}


def needed(package: str) -> set[str]:
    """Return the names of a package and of all that it needs here, without extras."""
    found: set[str] = set()
    waiting = [package]
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            requirements = [Requirement(text) for text in distribution(name).requires or []]
        except PackageNotFoundError:
            continue  # needed on other systems, or left out by whoever installed it
        found.add(name)
        waiting += [own.name for own in requirements if own.marker is None or own.marker.evaluate({"extra": ""})]
    return found


def megabytes(package: str) -> float:
    """Return the size of an installed package, without bytecode."""
    files = [Path(str(file.locate())) for file in distribution(package).files or [] if file.suffix != ".pyc"]
    return sum(path.stat().st_size for path in files if path.exists()) / 1e6


def _python(code: str) -> Done:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [sys.executable, "-c", code]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT, env=environment, timeout=120)
    return Done({"interpreters": 1})


def _children() -> float:
    """Return the processor time of child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
