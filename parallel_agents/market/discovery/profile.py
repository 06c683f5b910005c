"""A profile of an export before anything is fitted: how it was understood, and what can and cannot be discovered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from parallel_agents.market.discovery.conversion import FEWEST_PURCHASES
from parallel_agents.market.discovery.discover import FEWEST_DAYS
from parallel_agents.market.discovery.export_reader import (
    DIRECT,
    FILES,
    ColumnMap,
    Export,
    column_map_toml,
    open_export,
    some_of,
)

_MOST_SHOWN = 5


@dataclass(frozen=True)
class TableProfile:
    """Rows, days, days without any row, and the share of nulls of every column that was found and has any."""

    rows: int
    first_day: str
    last_day: str
    days: int
    empty_days: int
    nulls: Mapping[str, float]


@dataclass(frozen=True)
class Profile:
    """What an export holds: tables, columns as they were understood, oddities, and what follows for discovery."""

    source: str
    tables: Mapping[str, TableProfile]
    columns: Mapping[str, Mapping[str, str | None]]
    understood: tuple[str, ...]
    odd: tuple[str, ...]
    can: tuple[str, ...]
    cannot: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self)

    def columns_toml(self) -> str:
        """Return the column map as it was understood."""
        return column_map_toml(self.columns)

    def text(self) -> str:
        """Return the profile as a page of text."""
        lines = [f"{self.source}"]
        for name, t in self.tables.items():
            gaps = f", {t.empty_days} days without any row" if t.empty_days else ""
            lines.append(f"  {name:<17} {t.rows:>9,} rows, {t.first_day} to {t.last_day} ({t.days} days{gaps})")
            worst = sorted(t.nulls.items(), key=lambda item: -item[1])
            lines += [f"      {share:4.0%} of {column} is empty" for column, share in worst]
        for table, matched in self.columns.items():
            found = ", ".join(f"{ours} = {theirs}" for ours, theirs in matched.items() if theirs not in (None, ours))
            lines += [f"  {table}: {found}"] if found else []
        lines += [f"  understood: {note}" for note in self.understood]
        lines += [f"  odd: {note}" for note in self.odd]
        lines += [f"  can be discovered: {note}" for note in self.can]
        lines += [f"  cannot be discovered: {note}" for note in self.cannot]
        return "\n".join(lines) + "\n"


def profile_of(source: str | Path | Mapping[str, Any], columns: ColumnMap | None = None) -> Profile:
    """Return the profile of an export."""
    export = open_export(source, columns)
    tables = {"events": _table(export, "events", "hits", "make_timestamp(ts)")}
    for report in sorted(export.reports):
        tables[report] = _table(export, report, "insights" if report == "auction_insights" else report, "date")
    can, cannot = _discoverable(export, tables)
    return Profile(export.source, tables, export.columns, export.notes, tuple(_oddities(export)), can, cannot)


def _one(export: Export, query: str) -> Any:
    return export.connection.execute(query).fetchall()[0]


def _table(export: Export, ours: str, table: str, day: str) -> TableProfile:
    """Return the profile of one of our tables, which the export holds as `table`."""
    rows, first, last, days, filled = _one(
        export,
        f"SELECT count(*), CAST(min({day}) AS DATE), CAST(max({day}) AS DATE), "
        f"datediff('day', min({day}), max({day})) + 1, count(DISTINCT CAST({day} AS DATE)) FROM {table}",
    )
    names = [row[0] for row in export.connection.execute(f"DESCRIBE {table}").fetchall()]
    counts = _one(export, "SELECT " + ", ".join(f'count("{name}")' for name in names) + f" FROM {table}")
    matched = export.columns.get(ours, {})
    nulls = {
        name: 1.0 - count / rows
        for name, count in zip(names, counts, strict=True)
        if count < rows and matched.get(name, name) is not None
    }
    return TableProfile(int(rows), str(first), str(last), int(days), max(int(days) - int(filled), 0), nulls)


def _oddities(export: Export) -> list[str]:
    """Return what looks wrong but can be read."""
    odd = list(export.odd)
    if export.unused:
        odd.append(f"not used: {some_of(export.unused)}; if one holds {', '.join(FILES)}, name it in a column map")
    repeated = _one(export, 'SELECT count(*) - count(DISTINCT hash("user", ts, name, page, transaction)) FROM hits')[0]
    if repeated:
        odd.append(f"{repeated:,} events occur more than once with the same user, time, name and page")
    largest, median = _one(export, "SELECT max(value), median(value) FROM hits WHERE name = 'purchase' AND value > 0")
    if largest is not None and largest > 100 * median:
        odd.append(f"the largest purchase ({largest:,.2f}) is more than 100 times the median ({median:,.2f})")
    if "ads" in export.reports:
        free = _one(export, "SELECT count(*) FROM ads WHERE clicks > 0 AND coalesce(cost, 0) = 0")[0]
        if free:
            odd.append(f"{free:,} rows of the ads table have clicks but no cost")
        price = _one(export, "SELECT sum(cost) / nullif(sum(clicks), 0) FROM ads")[0]
        if price is not None and price > 10_000:
            odd.append(f"a click costs {price:,.0f} on average: is cost in micros? Then name its column …micros")
        names = export.connection.execute(
            "SELECT DISTINCT campaign FROM ads ANTI JOIN hits USING (campaign)"
        ).fetchall()
        odd += [f"campaign {row[0]!r} of the ads table has no event of its name" for row in names[:_MOST_SHOWN]]
    return odd


def _discoverable(export: Export, tables: Mapping[str, TableProfile]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what can and what cannot be discovered, and why; nothing can where `discover` refuses the export."""
    views, purchases, valued, origins = _one(
        export,
        "SELECT count(*) FILTER (name = 'page_view' AND page IS NOT NULL), count(*) FILTER (name = 'purchase'), "
        f"count(*) FILTER (name = 'purchase' AND value > 0), count(*) FILTER (NOT ({DIRECT})) FROM hits",
    )
    days = tables["events"].days
    known = dict.fromkeys(("bid", "impression_share", "position"), 0)
    clicks = 0
    if "ads" in export.reports:
        counts = ", ".join(f"count({name})" for name in known)
        clicks, *filled = _one(export, f"SELECT count(*) FILTER (clicks > 0), {counts} FROM ads WHERE impressions > 0")
        known = dict(zip(known, filled, strict=True))
    priced = known["bid"] > 0 and known["impression_share"] > 0 and clicks > 0
    needed = "our own bids, impression shares and clicks are needed in the ads table"
    whole = (
        ("segments of users", views > 0, "there are no page views with an address"),
        ("clicks and their channels", origins > 0, "no event has a source or medium other than direct"),
        (
            "delays, rates and values of purchases",
            valued >= FEWEST_PURCHASES,
            f"{valued} of {purchases} purchases have a value above 0 that can be read: at least {FEWEST_PURCHASES} are "
            "needed",
        ),
        ("seasons", days >= FEWEST_DAYS, f"{days} days are too few: at least {FEWEST_DAYS} are needed"),
    )
    parts = (
        ("creatives and prices", priced, needed if "ads" in export.reports else "there is no ads table"),
        ("number of auctions", known["impression_share"] > 0, "no row of the ads table has an impression share"),
        ("position effects", priced and known["position"] > 0, f"positions, {needed}"),
        ("rivals", priced and "auction_insights" in export.reports, f"auction insights and {needed}"),
        ("prices by hour", priced and "ads_by_hour" in export.reports, f"a report by hour and {needed}"),
    )
    checks = (*whole, *parts)
    cannot = tuple(f"{what}: {why}" for what, there, why in checks if not there)
    refused = [what for what, there, _ in whole if not there]
    if refused:
        return (), (f"anything: discover refuses the whole export for want of {', '.join(refused)}", *cannot)
    return tuple(what for what, there, _ in checks if there), cannot
