"""Find rows that became slower than a stored baseline, on any machine, and keep the trend of their costs.

python -m benchmarks.guard              show the trend, and exit with 1 if the cost of a row drifts upwards
python -m benchmarks.guard trend.jsonl  the same for another file

A row's cost is the seconds of its last side, ours, in units of a reference: a fixed loop, no part of the package, that
runs before and after every row. What slows down the whole machine slows down both, and leaves the cost as it is. Where
a row's seconds are processor time, so are those of the reference.

Every run of `benchmarks.run` that is not quick adds a line to `results/trend.jsonl`. A row drifts if its last costs,
taken together, exceed the earlier ones of the same processor by more than these differ among themselves: one noisy run
is no drift, and neither is another machine.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import njit

Record = Mapping[str, Any]
"""A row as it is stored, with the `reference` before and after it: seconds, and seconds of the processor."""

FLOOR, OTHER_CPU = 0.1, 0.5
"""Share by which costs may differ beyond what was seen as noise: always, and if the processor is another one, whose
vectors and caches suit the row and the reference differently."""
RECENT, EARLIER, FEWEST = 3, 20, 4
"""Runs whose costs are judged, runs before them that they are judged by, and how many of those there must be."""
TREND = Path(__file__).parent / "results" / "trend.jsonl"


class Cost(NamedTuple):
    """What a row cost, and how sure that is."""

    cost: float
    """Seconds of a call over seconds of the reference."""
    noise: float
    """Share by which calls differed from the quickest, and the reference before the row from that after it."""
    cpu: str
    commit: str


def cost_of(record: Record) -> Cost | None:
    """Return the cost of a row; None if it was not timed."""
    if record["ratio"] is None or not record["sides"] or not record["sides"][-1]["lowest"]:
        return None
    side = record["sides"][-1]
    reference = [own[side["processor_time"]] for own in record["reference"]]
    noise = side["seconds"] / side["lowest"] - 1 + max(reference) / min(reference) - 1
    return Cost(side["seconds"] / statistics.fmean(reference), noise, record["machine"]["cpu"], record["commit"])


def slower(records: Sequence[Record], baseline: Mapping[str, Cost]) -> Iterator[str]:
    """Return a sentence for every row that costs more than in the baseline, by more than the noise of both."""
    for record in records:
        before, now = baseline.get(record["name"]), cost_of(record)
        if before is None or now is None:
            continue
        allowed = 1 + FLOOR + before.noise + now.noise + (OTHER_CPU if before.cpu != now.cpu else 0.0)
        if now.cost > allowed * before.cost:
            yield (
                f"{record['name']}: {now.cost / before.cost:.2f} times the cost at commit {before.commit[:10]}, "
                f"where noise explains {allowed:.2f}"
            )


def load(path: Path) -> dict[str, Cost]:
    """Return the stored baseline; empty if there is none."""
    return {name: Cost(**own) for name, own in json.loads(path.read_text()).items()} if path.exists() else {}


def store(records: Sequence[Record], path: Path) -> None:
    """Make the costs of these rows the baseline; other rows keep theirs."""
    costs = load(path) | {record["name"]: own for record in records if (own := cost_of(record)) is not None}
    lines = (f"{json.dumps(name)}: {json.dumps(own._asdict())}" for name, own in sorted(costs.items()))
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def keep(records: Sequence[Record], path: Path) -> None:
    """Add the costs of the rows of a run to the trend; a run without timed rows adds nothing."""
    costs = {record["name"]: round(own.cost, 4) for record in records if (own := cost_of(record)) is not None}
    if costs:
        where = {key: records[0][key] for key in ("date", "commit", "dirty")} | {"cpu": records[0]["machine"]["cpu"]}
        with path.open("a") as file:
            file.write(json.dumps(where | {"costs": costs}) + "\n")


def read(path: Path) -> list[Record]:
    """Return the runs of a trend, the oldest first; none if it was not begun."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def trend(runs: Sequence[Record]) -> Iterator[tuple[str, bool]]:
    """Return a line of text for every row on every processor, and whether the row drifts."""
    costs: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        for name, cost in run["costs"].items():
            costs.setdefault((run["cpu"], name), []).append(cost)
    for (cpu, name), own in sorted(costs.items()):
        recent, earlier = statistics.median(own[-RECENT:]), own[-RECENT - EARLIER : -RECENT]
        if len(earlier) < FEWEST:
            yield f"{name} ({cpu}): {recent:.3g}; {len(own)} runs, {RECENT + FEWEST} are needed for a trend", False
            continue
        low, before, high = statistics.quantiles(earlier)
        allowed = 1 + FLOOR + (high - low) / before
        drifts = recent > allowed * before
        word = "DRIFTS, " if drifts else ""
        yield (
            f"{name} ({cpu}): {word}{recent:.3g}, {recent / before:.2f} times that of {len(earlier)} earlier runs, "
            f"whose spread explains {allowed:.2f}",
            drifts,
        )


def main(arguments: Sequence[str]) -> int:
    """Show a trend; return the exit code."""
    path = Path(arguments[0]) if arguments else TREND
    lines = list(trend(read(path)))
    print("\n".join(text for text, _ in lines) or f"{path} holds no runs yet: `make trend` adds one")
    return 1 if any(drifts for _, drifts in lines) else 0


def reference_seconds() -> tuple[float, float]:
    """Return seconds, and processor seconds, of the reference: about 0.1, so that it is interrupted as rows are."""
    numbers, steps = np.ones(2**13, np.float32), np.full(2**13, 0.001, np.float32)
    _work(numbers, steps, 1)  # compiles at the first call
    start, used = time.perf_counter(), time.thread_time()
    _work(numbers, steps, 20_000)
    return time.perf_counter() - start, time.thread_time() - used


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _work(numbers: Any, steps: Any, rounds: int) -> int:
    """Multiply and add in vectors, and draw integers one after the other: arithmetic, and what an interpreter does."""
    state = np.uint64(88172645463325252)
    for _ in range(rounds):
        for i in range(len(numbers)):
            numbers[i] = numbers[i] * np.float32(0.999) + steps[i]
        for _ in range(2_000):
            state ^= state << np.uint64(13)
            state ^= state >> np.uint64(7)
            state ^= state << np.uint64(17)
    return np.int64(state >> np.uint64(1))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
