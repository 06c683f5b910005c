"""Open an export of any form and load it into one shape: tables `hits`, `ads` and `insights` in DuckDB.

Parquet, CSV and JSON-lines directories or files, DuckDB files and Arrow tables are accepted, events in GA4's nested
schema or flat, with any column names. Columns that an export lacks read as null; only time, event name and user are
required.

Beside the events there may be an `ads` table (a row per date, campaign, creative and position: impressions, clicks,
cost, our bid per click, and the share of eligible auctions in which the campaign was shown) and an `auction_insights`
table (a row per date, campaign and competitor: the share of our auctions in which it took part, `overlap_rate`, and of
those the share in which it ranked above us, `position_above_rate`).

Other names of tables and columns are guessed from synonyms, or given as a map in TOML:

    [events]                      # a flat table of events; GA4's nested schema needs no map
    file = "clickstream.csv"      # the file, or the table of a database
    user = "visitor_id"
    time = "created_at"
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.types import Floats
from parallel_agents.market.database import ATTACHED, connect, explained, identifier, path_list
from parallel_agents.market.discovery.export_values import Column, Remarks

if TYPE_CHECKING:
    import duckdb

_REQUIRED = ("event_timestamp", "event_name", "user_pseudo_id")
_VALUE = "STRUCT(string_value VARCHAR, int_value BIGINT, float_value DOUBLE, double_value DOUBLE)"
EVENT_COLUMNS = {  # the part of the GA4 schema that is read, with types for JSON lines, which have none
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
REPORTS = ("ads", "auction_insights", "ads_by_hour")
_RANGES = {  # lowest and highest value of the reports' numbers; 0 to 1 are shares
    "impressions": (0, None), "clicks": (0, None), "cost": (0, None), "bid": (0, None), "position": (1, None),
    "impression_share": (0, 1), "overlap_rate": (0, 1), "position_above_rate": (0, 1),
    "hour": (0, 23), "top_impression_share": (0, 1),
}  # fmt: skip
_MONEY = ("cost", "bid")
_MOST_NAMED = 10
_REST = 30  # minutes without a hit after which another session begins
_LONGEST_LINE = 2**24  # bytes; DuckDB reads no longer one

REQUIRED = {
    "events": ("user", "time", "name"),
    "ads": ("date", "campaign", "impressions", "clicks", "cost"),
    "auction_insights": ("date", "campaign", "competitor", "overlap_rate", "position_above_rate"),
    "ads_by_hour": ("date", "hour", "campaign", "impressions", "impression_share", "top_impression_share"),
}
"""Columns that a table must have."""
OPTIONAL = {
    "events": ("session", "page", "engaged", "source", "medium", "campaign", "creative", "system", "category", "value",
               "transaction"),
    "ads": ("channel", "creative", "position", "bid", "impression_share"),
    "auction_insights": ("impression_share",),
    "ads_by_hour": ("clicks", "cost"),
}  # fmt: skip
"""Columns that read as null if they are absent."""
SYNONYMS = {
    "user": (
        "userpseudoid",
        "userid",
        "visitorid",
        "clientid",
        "customerid",
        "householdid",
        "uid",
        "cookie",
        "ipinyouid",
    ),
    "time": ("eventtimestamp", "timestamp", "ts", "createdat", "datetime", "eventtime", "transactiontimestamp"),
    "name": ("eventname", "event", "eventtype", "action", "type"),
    "session": ("sessionid", "gasessionid", "visitid"),
    "page": ("pagelocation", "url", "pageurl", "path"),
    "engaged": ("engagementtimemsec", "timeonpage", "dwell"),
    "source": ("utmsource", "trafficsource"),
    "medium": ("utmmedium",),
    "campaign": ("campaignname", "utmcampaign", "campaignid", "advertiserid", "marketingcampaign"),
    "creative": ("creativeid", "adname", "ad", "utmcontent", "adid", "creativename"),
    "system": ("operatingsystem", "os", "devicesystem"),
    "category": ("devicecategory", "device", "platform"),
    "value": ("revenue", "purchaserevenue", "salesvalue", "amount", "price", "conversionvalue"),
    "transaction": ("transactionid", "orderid", "basketid", "conversionid"),
    "date": ("day", "segmentsdate", "reportdate"),
    "hour": ("hourofday", "segmentshour"),
    "impressions": ("impr", "metricsimpressions", "views", "shown"),
    "clicks": ("metricsclicks", "linkclicks"),
    "cost": ("spend", "amountspent", "metricscostmicros", "costmicros", "costusd"),
    "channel": ("network", "channeltype", "advertisingchanneltype"),
    "position": ("avgposition", "averageposition", "slot"),
    "bid": ("maxcpc", "cpcbid", "cpcbidmicros", "bidprice", "defaultmaxcpc"),
    "impression_share": ("searchimprshare", "imprshare", "searchimpressionshare", "metricssearchimpressionshare"),
    "top_impression_share": ("searchabstopis", "absolutetopimpressionshare", "searchabsolutetopimpressionshare"),
    "competitor": ("domain", "displayurldomain", "advertiser"),
    "overlap_rate": ("overlap",),
    "position_above_rate": ("positionabove", "abovedrate"),
}
FILES = {
    "events": ("events", "clickstream", "hits", "sessions", "web"),
    "ads": ("ads", "campaignreport", "campaigns", "adsreport", "adperformance", "spend"),
    "auction_insights": ("auctioninsights", "insights", "competition"),
    "ads_by_hour": ("adsbyhour", "hourly", "hourofday"),
}
"""Words of a file's or table's name by which a table is found; the first that fits."""
DIRECT = """coalesce(medium, '(none)') IN ('(none)', '(not set)', '')
    AND coalesce(source, '(direct)') IN ('(direct)', '(not set)', '')"""
"""The SQL condition that hits or sessions have no known origin."""


@dataclass(frozen=True)
class Export:
    """An open export: table `hits` always exists, `ads` and `insights` only if `reports` names them."""

    connection: duckdb.DuckDBPyConnection
    source: str
    reports: frozenset[str]
    absent: tuple[str, ...]  # columns of the schema that this export lacks
    columns: Mapping[str, Mapping[str, str | None]]  # of each table with a map: their name of each of our columns
    notes: tuple[str, ...] = ()  # how columns were understood
    odd: tuple[str, ...] = ()  # values that could not be read
    unused: tuple[str, ...] = ()  # files or tables that hold none of ours

    def rows(self, query: str) -> dict[str, Any]:
        """Return the columns of a query as numpy arrays; nulls become NaN or masked entries."""
        return dict(self.connection.execute(query).fetchnumpy())


def known(column: Any) -> Floats:
    """Return a column of a query as floats, NaN where it is null."""
    return np.asarray(np.ma.filled(np.ma.asarray(column).astype(np.float64), np.nan))


def plain_name(name: str) -> str:
    """Return a name in lower case, letters and digits only.

    >>> plain_name("Search impr. share")
    'searchimprshare'
    """
    return re.sub(r"[^a-z0-9]", "", name.lower())


@dataclass(frozen=True)
class ColumnMap:
    """Our tables and columns, and the names that an export gives them."""

    files: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def table_for(self, table: str, names: Sequence[str]) -> str | None:
        """Return which of some files or tables holds a table of ours."""
        if table in self.files:
            wanted = self.files[table]
            found = next((name for name in names if name in (wanted, Path(wanted).stem)), None)
            if found is None:
                raise ConfigError(f"the column map finds {table} in {wanted!r}: there are {', '.join(names)}")
            return found
        plain = {plain_name(name): name for name in reversed(names)}
        return next((plain[word] for word in FILES[table] if word in plain), None)

    def match(self, table: str, there: Sequence[str]) -> dict[str, str | None]:
        """Return the column of theirs for each of ours, None where there is none."""
        given = self.columns.get(table, {})
        unknown = [theirs for theirs in given.values() if theirs not in there]
        if unknown:
            raise ConfigError(
                f"the column map names {', '.join(unknown)} of {table}: its columns are {', '.join(there)}"
            )
        free = {plain_name(name): name for name in reversed(there)}
        free = {plain: name for plain, name in free.items() if name not in given.values()}
        found: dict[str, str | None] = {}
        for ours in (*REQUIRED[table], *OPTIONAL[table]):
            words = (plain_name(ours), *SYNONYMS.get(ours, ()))
            found[ours] = given.get(ours, next((free[word] for word in words if word in free), None))
        return found


def read_column_map(path: Path) -> ColumnMap:
    """Return the map of a TOML file."""
    try:
        data = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read the column map {path}: {error}") from error
    files: dict[str, str] = {}
    columns: dict[str, dict[str, str]] = {}
    for table, entries in data.items():
        if table not in REQUIRED or not isinstance(entries, dict):
            raise ConfigError(f"{path}: [{table}] is not a table: give {', '.join(f'[{t}]' for t in REQUIRED)}")
        allowed = (*REQUIRED[table], *OPTIONAL[table])
        for ours, theirs in entries.items():
            if not isinstance(theirs, str) or (ours != "file" and ours not in allowed):
                raise ConfigError(f"{path}: {table}.{ours} = {theirs!r}: give a name for one of {', '.join(allowed)}")
        files |= {table: entries["file"]} if "file" in entries else {}
        columns[table] = {ours: theirs for ours, theirs in entries.items() if ours != "file"}
    return ColumnMap(files, columns)


def column_map_toml(columns: Mapping[str, Mapping[str, str | None]]) -> str:
    """Return a map as TOML, whose strings are written as those of JSON; a column that was not found is a comment."""
    lines = []
    for table, entries in columns.items():
        lines.append(f"[{table}]")
        for ours, theirs in entries.items():
            needed = "needed" if ours in REQUIRED[table] else "optional"
            found = f"{ours} = {json.dumps(theirs, ensure_ascii=False)}"
            lines.append(f"# {ours} = ...  # {needed}, not found" if theirs is None else found)
        lines.append("")
    return "\n".join(lines)


# -- opening ---------------------------------------------------------------------------------------------------------


def open_export(source: str | Path | Mapping[str, Any], columns: ColumnMap | None = None) -> Export:
    """Open an export directory, a file, a DuckDB database, or Arrow tables under the names of the files."""
    name = "tables in memory" if isinstance(source, Mapping) else str(source)
    chosen = columns or ColumnMap()
    with explained(f"export {name} cannot be read: {{}}; check that its files are complete"):
        connection, tables, unused = _attach(source, chosen)
        if "events" not in tables:
            raise ConfigError(
                f"export {name} holds no events: expected events_YYYYMMDD.parquet (or .jsonl, .csv), or a file or "
                f"table of the name {', '.join(FILES['events'])} (views are not read); found "
                f"{some_of(unused) or 'no other file or table'}; rename it, or name it in a column map for --columns, "
                'a TOML file with the lines [events], file = "..."'
            )
        matched: dict[str, Mapping[str, str | None]] = {}
        remarks = Remarks()
        types = _columns_of(connection, tables["events"])
        if {"event_timestamp", "event_name"} <= set(types) and not chosen.columns.get("events"):
            hits = _nested_hits(types, name)
            absent = tuple(column for column in EVENT_COLUMNS if column not in types)
        else:
            matched["events"] = found = chosen.match("events", list(types))
            hits = _flat_hits(connection, tables["events"], name, found, types, remarks)
            absent = tuple(ours for ours in OPTIONAL["events"] if found[ours] is None)
        _make_hits(connection, tables["events"], name, hits)
        if "events" in matched and matched["events"]["session"] is None:
            _make_sessions(connection, remarks)
        reports = frozenset(report for report in REPORTS if report in tables)
        for report in sorted(reports):
            matched[report] = _make_report(connection, report, tables[report], chosen, remarks)
    notes, odd = tuple(remarks.understood), tuple(remarks.odd)
    return Export(connection, name, reports, absent, matched, notes, odd, unused)


def some_of(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are.

    >>> some_of(["a.csv", "b.csv"])
    'a.csv, b.csv'
    """
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _columns_of(connection: duckdb.DuckDBPyConnection, table: str) -> dict[str, str]:
    """Return the columns of a table with their types."""
    return {row[0]: str(row[1]) for row in connection.execute(f"DESCRIBE SELECT * FROM {table}").fetchall()}


def _attach(
    source: str | Path | Mapping[str, Any], columns: ColumnMap
) -> tuple[duckdb.DuckDBPyConnection, dict[str, str], tuple[str, ...]]:
    """Return a connection that can read the source, for each table the SQL to select from, and names left out."""
    if isinstance(source, Mapping):
        connection = connect()
        views = {name: f"given_{name}" for name in REQUIRED if name in source}
        for name, view in views.items():
            connection.register(view, source[name])
        return connection, views, tuple(name for name in source if name not in views)
    path = Path(source)
    if not path.exists():
        raise ConfigError(f"export {path} does not exist: give a directory, a file or a DuckDB database")
    if path.is_file() and path.suffix in (".duckdb", ".db"):
        connection = connect(database=path)
        names = _database_tables(connection, columns)
        unused = _left_out(_names_in(connection), names)
        return connection, {table: _together(each) for table, each in names.items()}, unused
    files = _table_files(path, columns)
    connection = connect([file for paths in files.values() for file in paths])
    there = [] if path.is_file() else sorted(p.name for p in path.iterdir() if not p.name.startswith("."))
    unused = _left_out(there, {table: [file.name for file in paths] for table, paths in files.items()})
    return (
        connection,
        {t: _scan(p, guess=t == "events" and not columns.columns.get(t)) for t, p in files.items()},
        unused,
    )


def _left_out(names: Sequence[str], used: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the names that no table uses."""
    taken = {name for each in used.values() for name in each}
    return tuple(name for name in names if name not in taken)


def _database_tables(connection: duckdb.DuckDBPyConnection, columns: ColumnMap) -> dict[str, list[str]]:
    """Return which tables of the attached database hold each table of ours; views are left out."""
    names = _names_in(connection)
    found = {table: columns.table_for(table, names) for table in REQUIRED}
    tables = {table: [name] for table, name in found.items() if name is not None}
    events = [n for n in names if n == "events" or n.startswith("events_")]
    if events and "events" not in columns.files:
        tables["events"] = events
    return tables


def _names_in(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Return the names of the tables of the attached database."""
    query = (
        "SELECT table_name FROM duckdb_tables() WHERE database_name = ? AND schema_name = 'main' ORDER BY table_name"
    )
    return [str(row[0]) for row in connection.execute(query, [ATTACHED]).fetchall()]


def _together(names: Sequence[str]) -> str:
    """Return the SQL of all rows of some tables of the attached database."""
    quoted = [identifier(ATTACHED, "main", name) for name in names]
    return "(" + " UNION ALL BY NAME ".join(f"SELECT * FROM {table}" for table in quoted) + ")"


def _table_files(path: Path, columns: ColumnMap) -> dict[str, list[Path]]:
    """Return the files of each table; an intraday file is left out once the file of its day is there."""
    if path.is_file():
        return {"events": [path]}
    forms = ("parquet", "jsonl", "csv")
    there = {file.name: file for file in sorted(path.iterdir()) if file.suffix.lstrip(".") in forms}
    stems = {file.stem: file for file in reversed(there.values())}
    found = {table: columns.table_for(table, [*there, *stems]) for table in REQUIRED}
    files = {table: [there.get(name) or stems[name]] for table, name in found.items() if name is not None}
    for form in forms:
        daily = sorted(path.glob(f"events_[0-9]*.{form}"))
        complete = {p.stem.removeprefix("events_") for p in daily}
        intraday = sorted(path.glob(f"events_intraday_*.{form}"))
        events = daily + [p for p in intraday if p.stem.removeprefix("events_intraday_") not in complete]
        if events and "events" not in columns.files:
            files["events"] = events
    return files


def _scan(paths: list[Path], *, guess: bool) -> str:
    """Return the SQL that reads the files of a table; with `guess`, JSON lines may be events in GA4's schema."""
    form = paths[0].suffix
    if form == ".parquet":
        return f"read_parquet({path_list(paths)}, union_by_name = true, hive_partitioning = false)"
    if form == ".csv":
        return f"read_csv({path_list(paths)}, union_by_name = true, header = true, hive_partitioning = false)"
    if form not in (".jsonl", ".ndjson", ".json"):
        raise ConfigError(f"{paths[0]} has an unknown format: give .parquet, .csv, .jsonl or .duckdb")
    files, columns = path_list(paths), ""
    if guess and _is_nested(paths[0]):
        columns = ", columns = {" + ", ".join(f"'{n}': '{t}'" for n, t in EVENT_COLUMNS.items()) + "}"
    return f"read_json({files}, format = 'newline_delimited', hive_partitioning = false{columns})"


def _is_nested(path: Path) -> bool:
    """Return whether the first of some JSON lines is an event in GA4's schema."""
    with path.open("rb") as file:
        return b'"event_timestamp"' in file.readline(_LONGEST_LINE)


def _flat_hits(
    connection: duckdb.DuckDBPyConnection,
    events: str,
    name: str,
    matched: Mapping[str, str | None],
    types: Mapping[str, str],
    remarks: Remarks,
) -> dict[str, str]:
    """Return the SQL of the columns of `hits`, from a flat table of events."""
    missing = [ours for ours in REQUIRED["events"] if matched[ours] is None]
    if missing:
        lines = ", ".join(f'{ours} = "..."' for ours in missing)
        raise ConfigError(
            f"export {name} lacks the columns {missing}: found {sorted(types)}; if it is no GA4 export, name them "
            f"in a column map for --columns, a TOML file with the lines [events], {lines}"
        )
    hits = {}
    for ours, column in matched.items():
        if column is None:
            hits[ours] = "NULL"
        elif ours in ("engaged", "value"):
            hits[ours] = Column(connection, "events", events, column, types[column]).number(remarks)
        else:
            hits[ours] = f"TRY_CAST({identifier(column)} AS VARCHAR)"
    time = str(matched["time"])
    hits["time"] = Column(connection, "events", events, time, types[time]).microseconds(remarks)
    hits["session"] = f"hash(coalesce({hits['session']}, '')) % 9007199254740992"
    return hits | {ours: f"lower({hits[ours]})" for ours in ("name", "system", "category")}


def _nested_hits(types: Mapping[str, str], name: str) -> dict[str, str]:
    """Return the SQL of the columns of `hits`, from a table of events in GA4's schema."""
    missing = [c for c in _REQUIRED if c not in types]
    if missing:
        raise ConfigError(f"export {name} lacks the columns {missing}: found {sorted(types)}; is it a GA4 export?")

    def nested(column: str, field: str) -> str:
        present = column in types and f"{field} " in types[column].replace('"', "")
        return f"{column}.{field}" if present else "NULL"

    def param(key: str, kind: str) -> str:
        if "event_params" not in types:
            return "NULL"
        value = f"list_filter(event_params, lambda p: p.key = '{key}')[1].\"value\""
        kinds = {"BIGINT": ("int_value", "string_value"), "VARCHAR": ("string_value",)}
        options = kinds.get(kind, ("double_value", "float_value", "int_value", "string_value"))
        casts = [f"TRY_CAST({value}.{o} AS {kind})" for o in options if o in types["event_params"]]
        return f"coalesce({', '.join(casts)})" if casts else "NULL"

    def origin(collected: str, key: str, first_touch: str) -> str:
        first_session = f"CASE WHEN {param('ga_session_number', 'BIGINT')} = 1 THEN {first_touch} END"
        return f"coalesce({nested('collected_traffic_source', collected)}, {param(key, 'VARCHAR')}, {first_session})"

    revenue = [nested("ecommerce", "purchase_revenue_in_usd"), nested("ecommerce", "purchase_revenue")]
    revenue += ["event_value_in_usd" if "event_value_in_usd" in types else "NULL", param("value", "DOUBLE")]
    return {
        "user": "CAST(user_pseudo_id AS VARCHAR)",
        "time": "CAST(event_timestamp AS BIGINT)",
        "name": "event_name",
        "session": f"coalesce({param('ga_session_id', 'BIGINT')}, 0)",
        "page": param("page_location", "VARCHAR"),
        "engaged": param("engagement_time_msec", "DOUBLE"),
        "source": origin("manual_source", "source", nested("traffic_source", "source")),
        "medium": origin("manual_medium", "medium", nested("traffic_source", "medium")),
        "campaign": origin("manual_campaign_name", "campaign", nested("traffic_source", "name")),
        "creative": f"coalesce({nested('collected_traffic_source', 'manual_content')}, {param('content', 'VARCHAR')})",
        "system": f"lower({nested('device', 'operating_system')})",
        "category": f"lower({nested('device', 'category')})",
        "value": f"coalesce({', '.join(revenue)})",
        "transaction": f"coalesce({nested('ecommerce', 'transaction_id')}, {param('transaction_id', 'VARCHAR')})",
    }


def _make_hits(connection: duckdb.DuckDBPyConnection, events: str, name: str, hits: Mapping[str, str]) -> None:
    """Create table `hits`, one flat row per event; raise if there is none, or one of negative value."""
    columns = ", ".join(f"{sql} AS {'ts' if ours == 'time' else identifier(ours)}" for ours, sql in hits.items())
    connection.execute(f"""
        CREATE TABLE hits AS SELECT {columns} FROM {events}
        WHERE {hits["user"]} IS NOT NULL AND ({hits["time"]}) IS NOT NULL""")
    count, negative = connection.execute("SELECT count(*), count(*) FILTER (value < 0) FROM hits").fetchall()[0]
    if not count:
        raise ConfigError(f"export {name} is empty: its events hold no row with a user and a time")
    if negative:
        raise ConfigError(f"export {name} holds {negative} events of negative value: remove or correct them")


def _make_sessions(connection: duckdb.DuckDBPyConnection, remarks: Remarks) -> None:
    """Number the sessions of each user by its hits: another begins after a rest, or at an origin not yet its own.

    A session that has an origin begins with it, so no purchase before a click belongs to that click.
    """
    remarks.understood.append(
        f"events: there is no column of sessions; one begins at a hit of another source, medium or campaign, and after "
        f"{_REST} minutes without a hit"
    )
    by_time = 'PARTITION BY "user" ORDER BY ts, origin NULLS LAST'
    connection.execute(f"""
        CREATE OR REPLACE TABLE hits AS
        WITH known AS (SELECT *, CASE WHEN NOT ({DIRECT}) THEN hash(source, medium, campaign) END AS origin FROM hits),
        paused AS (SELECT *, coalesce(ts - lag(ts) OVER ({by_time}) > {_REST * 60_000_000}, false) AS rested
                   FROM known),
        visited AS (SELECT *, count(*) FILTER (rested) OVER ({by_time}) AS visit FROM paused),
        arrived AS (SELECT *, origin IS NOT NULL AND origin IS DISTINCT FROM lag(origin IGNORE NULLS)
                    OVER (PARTITION BY "user", visit ORDER BY ts, origin NULLS LAST) AS came FROM visited)
        SELECT * EXCLUDE (origin, rested, visit, came)
            REPLACE (count(*) FILTER (rested OR came) OVER ({by_time}) AS session)
        FROM arrived""")


def _make_report(
    connection: duckdb.DuckDBPyConnection, report: str, source: str, columns: ColumnMap, remarks: Remarks
) -> dict[str, str | None]:
    """Create table `ads`, `insights` or `ads_by_hour`; raise if columns are missing or hold impossible values."""
    table, types = "insights" if report == "auction_insights" else report, _columns_of(connection, source)
    matched = columns.match(report, list(types))
    missing = [ours for ours in REQUIRED[report] if matched[ours] is None]
    if missing:
        raise ConfigError(
            f"the {report} table lacks the columns {missing}: found {list(types)}; name them in a column map"
        )
    selected = []
    for ours, theirs in matched.items():
        if theirs is None:
            selected.append(f"CAST(NULL AS {'DOUBLE' if ours in _RANGES else 'VARCHAR'}) AS {ours}")
        else:
            given = Column(connection, report, source, theirs, types[theirs])
            selected.append(f"{_understood(given, ours, remarks)} AS {ours}")
    connection.execute(f"CREATE TABLE {table} AS SELECT {', '.join(selected)} FROM {source}")
    if not connection.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0]:
        raise ConfigError(f"the {report} table is empty: leave it out, or fill it")
    wrong = {"date IS NULL": "without a date that can be read: use 2024-01-31"}
    for column, (low, high) in _RANGES.items():
        if matched.get(column) is not None:
            beyond = f"{column} < {low}" + (f" OR {column} > {high}" if high is not None else "")
            span = f"{low} or more" if high is None else f"between {low} and {high}"
            wrong[beyond] = f"whose {column} is not {span}: correct them"
    if report == "ads":
        wrong["clicks > impressions"] = (
            "with more clicks than impressions: are these columns exchanged, or are clicks of another kind counted? "
            "Give clicks on the ads that were shown"
        )
    for condition, what in wrong.items():
        bad = connection.execute(f"SELECT count(*) FROM {table} WHERE {condition}").fetchall()[0][0]
        if bad:
            raise ConfigError(f"the {report} table holds {bad} rows {what}")
    return matched


def _understood(column: Column, ours: str, remarks: Remarks) -> str:
    """Return the SQL of a report's column: dates, shares in percent, money in micros, words."""
    if ours == "date":
        return f"TRY_CAST({identifier(column.name)} AS DATE)"
    if ours not in _RANGES:
        return f"CAST({identifier(column.name)} AS VARCHAR)"
    number = column.number(remarks)
    if _RANGES[ours] == (0, 1):
        largest = column.connection.execute(f"SELECT max({number}) FROM {column.rows}").fetchall()[0][0]
        if largest is not None and 2.0 < largest <= 100.0:  # up to 2 it is rather a wrong share than tiny percents
            remarks.understood.append(f"{column.table}: {column.name!r} is read as percent")
            return f"({number} / 100)"
    if ours in _MONEY and "micros" in column.name.lower():
        remarks.understood.append(f"{column.table}: {column.name!r} is read as micros")
        return f"({number} / 1e6)"
    return number
