"""Hostile exports: names of tables, columns, views and files are treated as data, or the export is refused."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet
import pytest

from parallel_agents.core.errors import ConfigError
from parallel_agents.market.discovery.export_reader import Export, open_export

SECRET = "do-not-read"


def events(users: list[str]) -> pa.Table:
    count = len(users)
    return pa.table({"event_timestamp": range(count), "event_name": ["page_view"] * count, "user_pseudo_id": users})


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of an export; beside it is only a file that must not be read."""
    folder = tmp_path / "export"
    folder.mkdir()
    (tmp_path / "secret.csv").write_text(f"event_timestamp,event_name,user_pseudo_id\n1,page_view,{SECRET}\n")
    monkeypatch.chdir(tmp_path)
    return folder


def database(room: Path, *statements: str, **tables: pa.Table) -> Path:
    path = room / "export.duckdb"
    with duckdb.connect(str(path)) as connection:
        for name, table in tables.items():
            connection.register(f"rows_{name}", table)
        for statement in statements:
            connection.execute(statement)
    return path


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def users(export: Export) -> list[str]:
    return sorted(export.rows('SELECT "user" FROM hits')["user"].tolist())


def untouched(room: Path) -> bool:
    """Return whether nothing was written outside of the export."""
    return sorted(os.listdir(room.parent)) == ["export", "secret.csv"]


HOSTILE = (
    "events_1; COPY (SELECT 1) TO 'out.csv'; --",
    "events_x\"; COPY (SELECT 1) TO 'out.csv'; --",
    "events_x) TO 'out.csv'; --",
    "events_1 UNION ALL BY NAME SELECT * FROM read_csv('secret.csv')",
    "events_,read_csv('secret.csv')",
    "events_'; ATTACH 'out.db' AS x; --",
    "events_\n; COPY (SELECT 1) TO 'out.csv'",
    "events_.main.other",
    'events_"',
    "events_ü \t%s {} \\",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_table_whose_name_is_a_statement_is_read_as_the_table_it_is(room, name):
    path = database(room, f"CREATE TABLE {quoted(name)} AS SELECT * FROM rows_own", own=events(["ann", "bob"]))
    assert users(open_export(path)) == ["ann", "bob"]
    assert untouched(room)


@pytest.mark.parametrize("name", [name.removeprefix("events_") for name in HOSTILE])
def test_columns_whose_names_are_statements_are_read_as_columns(room, name):
    made = [
        f'CREATE TABLE events AS SELECT *, 1 AS {quoted(name)}, 2 AS "event_params\'" FROM rows_own',
        f"CREATE TABLE ads AS SELECT DATE '2024-01-01' AS date, 'c' AS campaign, 's' AS channel, 'a' AS creative, "
        "1 AS position, 1 AS impressions, 1 AS clicks, 1.0 AS cost, 1.0 AS bid, 0.5 AS impression_share, "
        f"3 AS {quoted(name)}",
    ]
    export = open_export(database(room, *made, own=events(["ann"])))
    assert users(export) == ["ann"]
    assert export.rows("SELECT campaign FROM ads")["campaign"].tolist() == ["c"]  # other columns are left out
    assert untouched(room)


@pytest.mark.parametrize(
    "view",
    [
        "SELECT * FROM read_csv('secret.csv')",
        "SELECT 1 AS event_timestamp, 'x' AS event_name, content AS user_pseudo_id FROM read_text('secret.csv')",
        "SELECT * FROM sniff_csv('secret.csv')",
    ],
)
def test_views_are_not_read(room, view):
    """The database is made with external access allowed, as a sender of the file can do."""
    path = room / "export.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE other AS SELECT 1 AS a")
        connection.execute(f"CREATE VIEW events AS {view}")
    with pytest.raises(ConfigError, match=r"holds no events: .* \(views are not read\)"):
        open_export(path)
    assert untouched(room)


def test_macros_and_schemas_of_a_database_do_not_replace_ours(room):
    """Macros of the file are not in scope, and a schema with the name of our attachment is not mistaken for it."""
    made = (
        "CREATE TABLE events AS SELECT * FROM rows_own",
        "CREATE MACRO coalesce_(a, b) AS 'taken'",
        "CREATE MACRO lower(a) AS 'taken'",
        "CREATE SCHEMA given",
        "CREATE TABLE given.events AS SELECT * FROM rows_wrong",
    )
    path = database(room, *made, own=events(["ann"]), wrong=events(["wrong"]))
    assert users(open_export(path)) == ["ann"]


@pytest.mark.parametrize("form", ["database", "files", "memory"])
def test_the_connection_of_an_export_can_read_and_write_nothing_else(room, form):
    """A statement that got through could neither read, write or load anything, nor lift these limits."""
    if form == "database":
        source = database(room, "CREATE TABLE events AS SELECT * FROM rows_own", own=events(["ann"]))
    elif form == "files":
        pyarrow.parquet.write_table(events(["ann"]), room / "events_20240101.parquet")
        source = room
    else:
        source = {"events": events(["ann"]), "x; COPY (SELECT 1) TO 'out.csv'": events(["bob"])}
    export = open_export(source)
    assert users(export) == ["ann"]
    for statement in (
        "SELECT * FROM read_csv('secret.csv')",
        "SELECT * FROM 'secret.csv'",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM read_parquet('https://127.0.0.1:9/x.parquet')",
        "COPY (SELECT 1) TO 'out.csv'",
        "ATTACH 'out.db'",
        "EXPORT DATABASE 'out'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET allowed_directories = ['/']",
        "SET autoload_known_extensions = true",
    ):
        with pytest.raises(duckdb.Error, match=r"disabled|locked"):
            export.connection.execute(statement)
    if form == "database":
        with pytest.raises(duckdb.Error, match="read-only"):
            export.connection.execute("DROP TABLE given.main.events")
    local = events(["bob"])  # a variable of the caller, which DuckDB's Python would find by its name
    with pytest.raises(duckdb.Error, match="does not exist"):
        export.connection.execute("SELECT * FROM local")
    assert len(local) == 1
    assert untouched(room)


def test_a_file_of_another_database_is_refused_without_fetching_an_extension(room):
    import sqlite3

    with sqlite3.connect(room / "export.db") as connection:
        connection.execute("CREATE TABLE events (a)")
    connection.close()
    with pytest.raises(ConfigError, match=r"cannot be read: .*not a valid DuckDB database"):
        open_export(room / "export.db")


@pytest.mark.parametrize("name", ["events_2*.parquet", "events_2?.parquet", "events_2[01].parquet"])
def test_a_file_name_that_duckdb_would_expand_is_refused(room, name):
    """DuckDB would read `events_20.parquet` twice, or a file other than the named one."""
    pyarrow.parquet.write_table(events(["ann"]), room / "events_20.parquet")
    pyarrow.parquet.write_table(events(["bob"]), room / name)
    with pytest.raises(ConfigError, match="would be read as a pattern; rename"):
        open_export(room)
    with pytest.raises(ConfigError, match="would be read as a pattern; rename"):
        open_export(room / name)


def test_quotes_and_partition_keys_in_a_path_are_part_of_the_path(room):
    folder = room / "it's 'x'); --" / "event_name=purchase"
    folder.mkdir(parents=True)
    pyarrow.parquet.write_table(events(["ann"]), folder / "events_20240101.parquet")
    export = open_export(folder)
    assert users(export) == ["ann"]
    assert export.rows("SELECT name FROM hits")["name"].tolist() == ["page_view"]
    linked = room / "linked"
    linked.symlink_to(folder)
    assert users(open_export(linked)) == ["ann"]
    assert users(open_export(os.path.relpath(folder))) == ["ann"]


@pytest.mark.timeout(30)
def test_a_fifo_in_an_export_is_refused_before_it_is_read(room):
    os.mkfifo(room / "events.csv")
    with pytest.raises(ConfigError, match=r"events\.csv is a folder, a FIFO, a socket or a device"):
        open_export(room)
