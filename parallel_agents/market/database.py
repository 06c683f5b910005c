"""SQL that names from data cannot change, and DuckDB connections that reach no file but those they were given.

Every name, path and word that comes from data or from a user goes into a statement through `identifier`, `text` or
`files`. A connection of `connect` can read what it was opened with and nothing else: no other file, no network, no
extension, no way to undo that. So a table whose name is a statement, or a view over `/etc/passwd`, does nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallel_agents.errors import ConfigError

if TYPE_CHECKING:
    import duckdb

__all__ = ["ATTACHED", "bigquery_path", "connect", "driver", "files", "identifier", "text"]

ATTACHED = "given"  # the name under which `connect` attaches a database
_NO_EXTENSIONS = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
_PROJECT = re.compile(r"[a-z][a-z0-9.:-]{0,126}")  # may begin with a domain: example.com:project
_BIGQUERY_NAME = re.compile(r"[A-Za-z0-9_]{1,1024}")


def driver() -> Any:
    """Return the `duckdb` module, or raise an error that says what to install."""
    try:
        import duckdb
    except ImportError as error:
        raise ConfigError("an export or a warehouse needs DuckDB: install parallel-agents[data]") from error
    return duckdb


def identifier(*names: str) -> str:
    """Return a name, or the parts of a dotted one, quoted for SQL.

    >>> identifier("main", 'x"; DROP TABLE y')
    '"main"."x""; DROP TABLE y"'
    """
    if any("\0" in name for name in names):
        raise ConfigError(f"the name {'.'.join(names)!r} holds a zero byte: rename it")
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def text(value: str) -> str:
    """Return a string as a literal of SQL.

    >>> text("what's wrong")
    "'what''s wrong'"
    """
    if "\0" in value:
        raise ConfigError(f"{value!r} holds a zero byte: leave it out")
    return "'" + value.replace("'", "''") + "'"


def files(paths: Iterable[Path]) -> str:
    """Return paths as a list in SQL, each meaning exactly one file: DuckDB would take * ? [ as a pattern of names."""
    for path in paths:
        if any(mark in _absolute(path) for mark in "*?["):
            raise ConfigError(f"{path}: a path with * ? or [ would be read as a pattern; rename the file or folder")
    return "[" + ", ".join(text(_absolute(path)) for path in paths) + "]"


def connect(readable: Sequence[Path] = (), *, database: Path | None = None) -> duckdb.DuckDBPyConnection:
    """Open a DuckDB in memory that can read the given files, and a database attached as `ATTACHED`, and no more."""
    connection: duckdb.DuckDBPyConnection = driver().connect(config=_NO_EXTENSIONS)
    try:
        if database is not None:  # its type is named: DuckDB would fetch an extension for a file of another database
            connection.execute(f"ATTACH {text(_absolute(database))} AS {ATTACHED} (READ_ONLY, TYPE duckdb)")
        connection.execute(f"SET allowed_paths = {files(readable)}")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
    except BaseException:
        connection.close()
        raise
    return connection


def bigquery_path(project: str, dataset: str, *table: str) -> str:
    """Return a dotted path of BigQuery, which cannot quote what stands in it: names of any other form are refused.

    >>> bigquery_path("my-project", "analytics_1", "events_20240101")
    'my-project.analytics_1.events_20240101'
    """
    if not _PROJECT.fullmatch(project):
        raise ConfigError(f"{project!r} is no BigQuery project: give its id, such as my-project")
    for name in (dataset, *table):
        if not _BIGQUERY_NAME.fullmatch(name):
            raise ConfigError(
                f"{name!r} is no BigQuery dataset or table: only letters, digits and _ can be in its name"
            )
    return ".".join((project, dataset, *table))


def _absolute(path: Path) -> str:
    return os.path.abspath(path)
