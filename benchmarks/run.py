"""Run the benchmarks, print and store their rows, and exit with 1 if a row failed, missed its goal or became slower.

python -m benchmarks.run                all of them; also writes results/latest.json
python -m benchmarks.run engine market  only those of engine_bench.py and market_bench.py
python -m benchmarks.run kernels --rows "whole loop"   only the rows whose names contain these words
python -m benchmarks.run --quick        no repeats and shorter runs: shows that every row works, and judges no goal
python -m benchmarks.run engine --accept   these rows are what later runs are compared with (`benchmarks/guard.py`)

A benchmark that was measured whole writes its rows to `results/rows/NAME.json` as soon as it has ended: the figures of
the documentation come from there. Rows of another processor are kept beside them. `latest.json` is one run of all
benchmarks on one commit. Quick runs and runs of some rows write `partial.json` instead and change nothing else. Each
row says where it was measured. Every run that is not quick adds its costs to the trend (`results/trend.jsonl`),
which `python -m benchmarks.guard` shows.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from benchmarks import guard
from benchmarks.measure import Effort, Row
from parallel_agents.execution.resources import cores

HERE = Path(__file__).parent
RESULTS = HERE / "results"

Bench = Callable[[], Iterable[Row]]
"""A function that measures one or several rows."""
Record = dict[str, Any]
"""A row as it is stored, with the commit, machine and versions it was measured with."""


def main(arguments: Sequence[str] | None = None, *, results: Path = RESULTS) -> int:
    """Run the requested benchmarks; return the exit code."""
    names = sorted(path.stem.removesuffix("_bench") for path in HERE.glob("*_bench.py"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmarks", nargs="*", metavar="NAME", help=f"some of: {', '.join(names)}; all by default")
    parser.add_argument("--quick", action="store_true", help="no repeats: shows that every row works")
    parser.add_argument("--rows", metavar="WORDS", default="", help="only the rows whose names contain these words")
    parser.add_argument("--accept", action="store_true", help="make the speed of these rows the baseline")
    options = parser.parse_args(arguments)
    if options.quick and options.accept:
        parser.error("a quick run is no baseline: leave out --quick or --accept")
    if unknown := set(options.benchmarks) - set(names):
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}: choose from {', '.join(names)}")
    torch.set_num_threads(1)  # with more, small kernels of torch depend on the load of the machine
    partial = bool(options.rows or options.quick)
    where = provenance() | {"quick": options.quick, "partial": partial}
    records: list[Record] = []
    for name in options.benchmarks or names:
        own = run((pair for pair in load(name, Effort(options.quick)) if options.rows in pair[0]), where)
        records += own
        if own and not partial:
            store_whole(own, results / "rows", name)
    if partial or not options.benchmarks:
        store(records, results / ("partial.json" if partial else "latest.json"))
    bad = sum(not record["good"] for record in records)
    skipped = sum(record["skipped"] is not None for record in records)
    slower = 0
    if not options.quick:
        slower = guarded(records, results / "baseline.json", accept=options.accept)
        guard.keep(records, results / guard.TREND.name)
    sys.stdout.write(f"{len(records)} rows: {bad} not good, {skipped} skipped, {slower} slower than the baseline\n")
    return 1 if bad or slower or not records else 0


def guarded(records: Sequence[Record], baseline: Path, *, accept: bool) -> int:
    """Print and count the rows that became slower than the baseline, or make these rows the baseline."""
    if accept:
        guard.store(records, baseline)
        return 0
    slower = list(guard.slower(records, guard.load(baseline)))
    sys.stdout.writelines(f"    SLOWER {sentence}\n" for sentence in slower)
    return len(slower)


def load(name: str, effort: Effort) -> Iterator[tuple[str, Bench]]:
    """Return the benches of a module, each with a name to report if it fails."""
    return iter(importlib.import_module(f"benchmarks.{name}_bench").benches(effort))


def run(benches: Iterable[tuple[str, Bench]], where: Record) -> list[Record]:
    """Measure every bench, print its rows, and return them as they are stored."""
    records: list[Record] = []
    for name, bench in benches:
        before, reference = os.getloadavg(), guard.reference_seconds()
        rows = measured(name, bench)
        load: Record = {"load_start": round(before[0], 2), "load_end": round(os.getloadavg()[0], 2)}
        load["reference"] = [reference, guard.reference_seconds()]
        for row in rows:
            good = row.failed is None if where["quick"] else row.good  # the goals do not apply to a quick run
            sys.stdout.write(line(row, good) + "\n")
            sys.stdout.flush()
            records.append(asdict(row) | {"good": good} | where | load)
    return records


def store(records: Sequence[Record], target: Path) -> None:
    """Write rows to a file, one a line."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("[\n" + ",\n".join(json.dumps(record) for record in records) + "\n]\n")


def store_whole(records: Sequence[Record], folder: Path, name: str) -> None:
    """Store the rows of a whole benchmark; those of another processor stay in a file beside them."""
    target, cpu = folder / f"{name}.json", records[0]["machine"]["cpu"]
    if target.exists() and (before := json.loads(target.read_text())[0]["machine"]["cpu"]) != cpu:
        target.rename(folder / _aside(name, before))
    store(records, target)
    (folder / _aside(name, cpu)).unlink(missing_ok=True)


def _aside(name: str, cpu: str) -> str:
    """Return the name of the file for rows that were measured on another processor than the last ones.

    >>> _aside("kernels", "Intel(R) Xeon(R) Processor")
    'kernels@intel-r-xeon-r-processor.json'
    """
    return f"{name}@{re.sub('[^a-z0-9]+', '-', cpu.lower()).strip('-')}.json"


def measured(name: str, bench: Bench) -> list[Row]:
    """Return the rows of a bench, with a failed row for an exception."""
    rows: list[Row] = []
    try:
        rows.extend(bench())
    except Exception as error:  # the other benches still run; the exit code is 1
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}"
        rows.append(Row(name=name, ratio=None, goal=None, unit="", repeats=0, failed=reason))
    return rows


def line(row: Row, good: bool) -> str:
    """Return a row as it is printed."""
    if row.skipped is not None:
        return f"   SKIPPED {row.name}: {row.skipped}"
    if row.ratio is None:
        return f"    FAILED {row.name}: {row.failed}"
    goal = "" if row.goal is None else f"  (goal: {'at most' if row.at_most else 'at least'} {row.goal:g})"
    below = "" if good else "  MISSED"
    return f"{row.ratio:>10.2f} {row.unit:<24} {row.name}{goal}{below}"


def provenance() -> Record:
    """Return the commit, date, machine and versions of a measurement."""
    packages = ("torch", "numpy", "numba")
    return {
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain", "--", ".", ":!benchmarks/results")),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpu": _cpu(), "cores": cores(), "system": platform.platform(terse=True)},
        "versions": {"python": platform.python_version()} | {name: version(name) for name in packages},
    }


def _git(*arguments: str) -> str:
    """Return the output of a git command; without git there is no commit to name, and no benchmark."""
    done = subprocess.run(["git", *arguments], cwd=HERE.parent, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def _cpu() -> str:
    """Return the name of the processor."""
    info = Path("/proc/cpuinfo")  # says more than `platform`, where it exists
    lines = info.read_text().splitlines() if info.exists() else []
    names = [text.partition(":")[2].strip() for text in lines if text.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.exit(main())
