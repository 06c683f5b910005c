"""Open an export, whatever its form, and bring it into one shape: tables `hits`, `ads` and `insights`.

Parquet and JSON-lines directories or files, DuckDB files and Arrow tables are accepted. Columns that an older
export lacks read as null; only time, event name and user are indispensable. DuckDB does the work.

Beside the events there may be an `ads` table (a row per date, campaign, creative and position: impressions, clicks,
cost, our bid per click, and the share of eligible auctions in which the campaign was shown) and an `auction_insights`
table (a row per date, campaign and competitor: the share of our auctions in which it took part, `overlap_rate`, and of
those the share in which it ranked above us, `position_above_rate`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallel_agents.errors import ConfigError
from parallel_agents.market.database import ATTACHED, connect, driver, files, identifier

if TYPE_CHECKING:
    import duckdb

__all__ = ["Export", "open_export"]

_REQUIRED = ("event_timestamp", "event_name", "user_pseudo_id")
_VALUE = "STRUCT(string_value VARCHAR, int_value BIGINT, float_value DOUBLE, double_value DOUBLE)"
_EVENT_COLUMNS = {  # the part of the GA4 schema that is read, for forms that carry no types of their own
    "event_timestamp": "BIGINT",
    "event_name": "VARCHAR",
    "user_pseudo_id": "VARCHAR",
    "event_params": f'STRUCT("key" VARCHAR, "value" {_VALUE})[]',
    "device": "STRUCT(category VARCHAR, operating_system VARCHAR)",
    "traffic_source": "STRUCT(name VARCHAR, medium VARCHAR, source VARCHAR)",
    "collected_traffic_source": "STRUCT(manual_campaign_name VARCHAR, manual_source VARCHAR, "
    "manual_medium VARCHAR, manual_content VARCHAR)",
    "ecommerce": "STRUCT(purchase_revenue_in_usd DOUBLE, purchase_revenue DOUBLE, transaction_id VARCHAR)",
    "event_value_in_usd": "DOUBLE",
}
_REPORTS = {
    "ads": ("date", "campaign", "channel", "creative", "position", "impressions", "clicks", "cost", "bid",
            "impression_share"),
    "auction_insights": ("date", "campaign", "competitor", "overlap_rate", "position_above_rate"),
}  # fmt: skip
_RANGES = {  # of the reports' columns
    "impressions": (0, None), "clicks": (0, None), "cost": (0, None), "bid": (0, None), "position": (1, None),
    "impression_share": (0, 1), "overlap_rate": (0, 1), "position_above_rate": (0, 1),
}  # fmt: skip


@dataclass(frozen=True)
class Export:
    """An open export: `hits` is always there, `ads` and `insights` where `reports` says so."""

    connection: duckdb.DuckDBPyConnection
    source: str
    reports: frozenset[str]
    absent: tuple[str, ...]  # columns of the schema that this export lacks

    def rows(self, query: str) -> dict[str, Any]:
        """A query's columns as numpy arrays; nulls become NaN, or masked entries."""
        return dict(self.connection.execute(query).fetchnumpy())


def open_export(source: str | Path | Mapping[str, Any]) -> Export:
    """Open an export directory, a file, a DuckDB database, or Arrow tables under the names of the files."""
    name = "tables in memory" if isinstance(source, Mapping) else str(source)
    try:
        connection, found = _attach(source)
        if "events" not in found:
            raise ConfigError(
                f"export {name} holds no events: expected events_YYYYMMDD.parquet, events_YYYYMMDD.jsonl, or a table "
                "'events' (views are not read)"
            )
        absent = _make_hits(connection, found["events"], name)
        reports = frozenset(report for report in _REPORTS if report in found)
        for report in reports:
            _make_report(connection, report, found[report])
    except driver().Error as error:
        cause = str(error).partition("\n")[0]
        raise ConfigError(f"export {name} cannot be read: {cause}; check that its files are whole") from error
    return Export(connection, name, reports, absent)


def _attach(source: str | Path | Mapping[str, Any]) -> tuple[duckdb.DuckDBPyConnection, dict[str, str]]:
    """Return a connection that can read the source, and where each table is, as something to select from."""
    if isinstance(source, Mapping):
        connection = connect()
        found = {name: f"given_{name}" for name in ("events", *_REPORTS) if name in source}
        for name, view in found.items():
            connection.register(view, source[name])
        return connection, found
    path = Path(source)
    if not path.exists():
        raise ConfigError(f"export {path} does not exist: give a directory, a file or a DuckDB database")
    if path.is_file() and path.suffix in (".duckdb", ".db"):
        connection = connect(database=path)
        return connection, _database(connection)
    tables = _files(path)
    return connect([file for own in tables.values() for file in own]), {t: _scan(own, t) for t, own in tables.items()}


def _database(connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
    query = (
        "SELECT table_name FROM duckdb_tables() WHERE database_name = ? AND schema_name = 'main' ORDER BY table_name"
    )
    names = [str(row[0]) for row in connection.execute(query, [ATTACHED]).fetchall()]
    table = {name: identifier(ATTACHED, "main", name) for name in names}
    found = {name: table[name] for name in _REPORTS if name in table}
    events = [table[n] for n in names if n == "events" or n.startswith("events_")]
    if events:
        found["events"] = "(" + " UNION ALL BY NAME ".join(f"SELECT * FROM {own}" for own in events) + ")"
    return found


def _files(path: Path) -> dict[str, list[Path]]:
    """Return the files of each table."""
    if path.is_file():
        return {"events": [path]}
    found = {}
    for form in ("parquet", "jsonl"):
        daily = sorted(path.glob(f"events_[0-9]*.{form}"))
        settled = {p.stem.removeprefix("events_") for p in daily}
        intraday = sorted(path.glob(f"events_intraday_*.{form}"))  # a day's table replaces them
        events = daily + [p for p in intraday if p.stem.removeprefix("events_intraday_") not in settled]
        if events:
            found["events"] = events
        found |= {r: [path / f"{r}.{form}"] for r in _REPORTS if (path / f"{r}.{form}").exists()}
    return found


def _scan(paths: list[Path], table: str) -> str:
    if paths[0].suffix == ".parquet":
        return f"read_parquet({files(paths)}, union_by_name = true, hive_partitioning = false)"
    if paths[0].suffix not in (".jsonl", ".ndjson", ".json"):
        raise ConfigError(f"{paths[0]} is of no known form: give .parquet, .jsonl or .duckdb")
    columns = ""
    if table == "events":
        columns = ", columns = {" + ", ".join(f"'{n}': '{t}'" for n, t in _EVENT_COLUMNS.items()) + "}"
    return f"read_json({files(paths)}, format = 'newline_delimited', hive_partitioning = false{columns})"


def _make_hits(connection: duckdb.DuckDBPyConnection, events: str, name: str) -> tuple[str, ...]:
    """One flat row per event. Returns the columns that were absent."""
    described = connection.execute(f"DESCRIBE SELECT * FROM {events}").fetchall()
    types = {row[0]: str(row[1]) for row in described}
    missing = [c for c in _REQUIRED if c not in types]
    if missing:
        raise ConfigError(f"export {name} lacks the columns {missing}: found {sorted(types)}; is it a GA4 export?")

    def part(column: str, field: str) -> str:
        present = column in types and f"{field} " in types[column].replace('"', "")
        return f"{column}.{field}" if present else "NULL"

    def param(key: str, kind: str) -> str:
        if "event_params" not in types:
            return "NULL"
        value = f"list_filter(event_params, lambda p: p.key = '{key}')[1].\"value\""
        kinds = {"BIGINT": ("int_value", "string_value"), "VARCHAR": ("string_value",)}
        options = kinds.get(kind, ("double_value", "float_value", "int_value", "string_value"))
        present = [o for o in options if o in types["event_params"]]
        tried = [f"TRY_CAST({value}.{o} AS {kind})" for o in present]
        return f"coalesce({', '.join(tried)})" if tried else "NULL"

    revenue = [part("ecommerce", "purchase_revenue_in_usd"), part("ecommerce", "purchase_revenue")]
    revenue += ["event_value_in_usd" if "event_value_in_usd" in types else "NULL", param("value", "DOUBLE")]
    first = f"CASE WHEN {param('ga_session_number', 'BIGINT')} = 1 THEN {{}} END"
    collected = "collected_traffic_source"

    def origin(own: str, key: str, user: str) -> str:
        return (
            f"coalesce({part(collected, own)}, {param(key, 'VARCHAR')}, {first.format(part('traffic_source', user))})"
        )

    connection.execute(f"""
        CREATE TABLE hits AS SELECT
            CAST(user_pseudo_id AS VARCHAR) AS "user", CAST(event_timestamp AS BIGINT) AS ts, event_name AS name,
            coalesce({param("ga_session_id", "BIGINT")}, 0) AS session,
            {param("page_location", "VARCHAR")} AS page,
            {param("engagement_time_msec", "DOUBLE")} AS engaged,
            {origin("manual_source", "source", "source")} AS source,
            {origin("manual_medium", "medium", "medium")} AS medium,
            {origin("manual_campaign_name", "campaign", "name")} AS campaign,
            coalesce({part(collected, "manual_content")}, {param("content", "VARCHAR")}) AS creative,
            lower({part("device", "operating_system")}) AS system, lower({part("device", "category")}) AS category,
            coalesce({", ".join(revenue)}) AS value,
            coalesce({part("ecommerce", "transaction_id")}, {param("transaction_id", "VARCHAR")}) AS transaction
        FROM {events} WHERE user_pseudo_id IS NOT NULL AND event_timestamp IS NOT NULL""")
    count, negative = connection.execute("SELECT count(*), count(*) FILTER (value < 0) FROM hits").fetchall()[0]
    if not count:
        raise ConfigError(f"export {name} is empty: its events hold no row with a user and a time")
    if negative:
        raise ConfigError(f"export {name} holds {negative} events of negative value: remove or correct them")
    return tuple(c for c in _EVENT_COLUMNS if c not in types)


def _make_report(connection: duckdb.DuckDBPyConnection, report: str, where: str) -> None:
    table = "insights" if report == "auction_insights" else report
    columns = [row[0] for row in connection.execute(f"DESCRIBE SELECT * FROM {where}").fetchall()]
    missing = [c for c in _REPORTS[report] if c not in columns]
    if missing:
        raise ConfigError(f"the {report} table lacks the columns {missing}: found {columns}")
    connection.execute(f"CREATE TABLE {table} AS SELECT * REPLACE (CAST(date AS DATE) AS date) FROM {where}")
    count = connection.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0]
    if not count:
        raise ConfigError(f"the {report} table is empty: leave it out, or fill it")
    for column, (low, high) in _RANGES.items():
        if column in columns:
            beyond = f"{column} < {low}" + (f" OR {column} > {high}" if high is not None else "")
            bad = connection.execute(f"SELECT count(*) FROM {table} WHERE {beyond}").fetchall()[0][0]
            if bad:
                span = f"{low} or more" if high is None else f"between {low} and {high}"
                raise ConfigError(f"the {report} table holds {bad} rows whose {column} is not {span}: correct them")
