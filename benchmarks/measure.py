"""How everything here is measured: alternating repeats in one run, medians, one torch thread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

Row = dict[str, Any]


def row(name: str, ratio: float, goal: float | None, unit: str, repeats: int, **detail: Any) -> Row:
    """One line of `results/latest.json`."""
    return {"name": name, "ratio": round(ratio, 3), "goal": goal, "unit": unit, "repeats": repeats, "detail": detail}


def medians(ways: Mapping[str, Callable[[], Any]], *, repeats: int = 5, calls: int = 1) -> dict[str, float]:
    """Median seconds of one call of each way, measured in turn so that noise meets all alike."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    for _ in range(repeats):
        for name, way in ways.items():
            began = time.perf_counter()
            for _ in range(calls):
                way()
            times[name].append((time.perf_counter() - began) / calls)
    return {name: statistics.median(values) for name, values in times.items()}
