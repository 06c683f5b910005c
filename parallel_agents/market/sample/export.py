"""From journeys and reports to files: a GA4-shaped export, an ads table and an auction-insights table.

A sample directory holds `events_YYYYMMDD.parquet` (or `.jsonl`) by day, `ads` and `auction_insights`. The hidden
truth is not in it; `truth.json` is written only on request.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from parallel_agents.errors import ConfigError
from parallel_agents.market.sample.auctions import AdReports, draw_reports
from parallel_agents.market.sample.events import arrow, render_events, take
from parallel_agents.market.sample.hidden import LANDSCAPES, HiddenMarket
from parallel_agents.market.sample.journeys import Calendar, Journeys, draw_journeys

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Sample", "draw_sample", "write_sample"]


@dataclass(frozen=True, eq=False)
class Sample:
    """One sample in memory: what is exported (`events`, `ads`, `insights`), and what is hidden."""

    market: HiddenMarket
    journeys: Journeys
    reports: AdReports
    events: pa.Table
    ads: pa.Table
    insights: pa.Table

    def truth(self) -> dict[str, Any]:
        """Everything hidden, as plain values: parameters, what discovery should find, and each day's landscape."""
        calendar = self.journeys.calendar
        months = tuple(int(m) + 1 for m in np.unique(calendar.months))
        rates = calendar.over_weeks(self.market, calendar.conversion)
        values = calendar.over_weeks(self.market, calendar.conversion * np.exp(calendar.value))
        return {
            "market": self.market.as_dict(),
            "estimates": self.market.truth(months, rates, values),
            "landscape_of_day": [LANDSCAPES[i] for i in self.reports.landscape],
        }


def draw_sample(
    market: HiddenMarket | None = None,
    *,
    users: int = 3_000,
    days: int = 70,
    first_day: str = "2024-01-01",
    seed: int = 0,
) -> Sample:
    """A sample in memory, from the given hidden market or from one drawn by the seed."""
    market = HiddenMarket.draw(seed) if market is None else market
    journeys = draw_journeys(market, users=users, first_day=first_day, days=days, seed=seed)
    reports = draw_reports(market, journeys, seed=seed)
    events = render_events(market, journeys)
    ads, insights = _render_reports(market, journeys.calendar, reports)
    return Sample(market, journeys, reports, events, ads, insights)


def write_sample(
    directory: str | Path,
    sample: Sample,
    *,
    form: Literal["parquet", "jsonl"] = "parquet",
    ads: bool = True,
    truth: bool = False,
) -> Path:
    """Write a sample as an export directory, one events file a day; the directory must be new or empty."""
    if form not in ("parquet", "jsonl"):
        raise ConfigError(f"form {form!r} is unknown: give 'parquet' or 'jsonl'")
    target = Path(directory)
    if target.exists() and any(target.iterdir()):
        raise ConfigError(f"{target} is not empty: give a new or empty directory for the sample")
    target.mkdir(parents=True, exist_ok=True)
    dates = sample.events.column("event_date").to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(np.append(True, dates[1:] != dates[:-1]))
    parts: dict[str, pa.Table] = {}
    for start, stop in zip(starts, np.append(starts[1:], len(dates)), strict=True):
        parts[f"events_{dates[start]}"] = sample.events.slice(start, stop - start)
    if ads:
        parts |= {"ads": sample.ads, "auction_insights": sample.insights}
    if form == "parquet":
        for name, table in parts.items():
            arrow().parquet.write_table(table, target / f"{name}.parquet", compression="zstd")
    else:
        _write_lines(parts, target)
    if truth:
        (target / "truth.json").write_text(json.dumps(sample.truth(), indent=1))
    return target


def _write_lines(parts: dict[str, pa.Table], target: Path) -> None:
    for name, table in parts.items():
        with (target / f"{name}.jsonl").open("w") as file:
            for row in table.to_pylist():
                file.write(json.dumps(row, separators=(",", ":")) + "\n")


def _render_reports(market: HiddenMarket, calendar: Calendar, reports: AdReports) -> tuple[pa.Table, pa.Table]:
    pa = arrow()
    dates = [str(calendar.first_day + i) for i in range(calendar.days)]
    words = {
        "day": dates,
        "campaign": market.campaigns.names,
        "creative": market.campaigns.creatives,
        "competitor": market.rivals.names,
    }

    def table(columns: dict[str, NDArray[Any]]) -> Any:
        out = {n: take(words[n], c) if n in words else pa.array(c) for n, c in columns.items()}
        out["channel"] = take(market.campaigns.channels, columns["campaign"])
        return pa.table(out).rename_columns(["date" if n == "day" else n for n in out])

    return table(reports.ads), table(reports.insights)
