"""Safe SQL: quote names and values that come from data, and open DuckDB connections that can read only given files.

Every name, path and string that comes from data or from a user goes into a statement through `identifier`, `literal`
or `path_list`. A connection of `connect` can read the files and the database it was opened with and nothing else: no
other file, no network, no extension. It cannot lift these limits. So a table whose name is a statement, or a view over
a file of the machine, does no harm.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallel_agents.core.errors import ConfigError

if TYPE_CHECKING:
    import duckdb

ATTACHED = "given"  # the name under which `connect` attaches a database
_NO_EXTENSIONS = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
_PROJECT = re.compile(r"[a-z][a-z0-9.:-]{0,126}")  # may begin with a domain: example.com:project
_BIGQUERY_NAME = re.compile(r"[A-Za-z0-9_]{1,1024}")


def load_library(name: str, user: str, extra: str = "data") -> Any:
    """Import and return a module; raise an error that names its `user` and the extra to install if it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"{user} needs {name}: install parallel-agents[{extra}]") from error


def load_pyarrow(user: str, extra: str = "data") -> Any:
    """Import and return `pyarrow`, with its module of Parquet files."""
    pyarrow = load_library("pyarrow", user, extra)
    load_library("pyarrow.parquet", user, extra)
    return pyarrow


@contextmanager
def explained(message: str) -> Iterator[None]:
    """Turn an error of DuckDB into a ConfigError: `message` with the first line of the error in place of {}."""
    try:
        yield
    except load_library("duckdb", "a query").Error as error:
        raise ConfigError(message.replace("{}", str(error).partition("\n")[0])) from error


def identifier(*names: str) -> str:
    """Return a name, or the parts of a dotted name, quoted for SQL.

    >>> identifier("main", 'x"; DROP TABLE y')
    '"main"."x""; DROP TABLE y"'
    """
    if any("\0" in name for name in names):
        raise ConfigError(f"the name {'.'.join(names)!r} holds a zero byte: rename it")
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def literal(value: str) -> str:
    """Return a string as an SQL literal.

    >>> literal("what's wrong")
    "'what''s wrong'"
    """
    if "\0" in value:
        raise ConfigError(f"{value!r} holds a zero byte: leave it out")
    return "'" + value.replace("'", "''") + "'"


def path_list(paths: Iterable[Path]) -> str:
    """Return paths as an SQL list of exact, regular files; refuse * ? and [, which DuckDB would expand as a pattern."""
    absolute = [os.path.abspath(path) for path in paths]
    for path in absolute:
        if os.path.exists(path) and not os.path.isfile(path):  # DuckDB would wait for the other end of a FIFO
            raise ConfigError(f"{path} is a folder, a FIFO, a socket or a device: give a regular file")
        if any(mark in path for mark in "*?["):
            raise ConfigError(f"{path}: a path with * ? or [ would be read as a pattern; rename the file or folder")
    return "[" + ", ".join(map(literal, absolute)) + "]"


def connect(readable: Sequence[Path] = (), *, database: Path | None = None) -> duckdb.DuckDBPyConnection:
    """Open a DuckDB in memory that can read only the given files and a database attached read-only as `ATTACHED`."""
    library = load_library("duckdb", "an export or a warehouse")
    connection: duckdb.DuckDBPyConnection = library.connect(config=_NO_EXTENSIONS)
    try:
        if database is not None:  # its type is named: DuckDB would fetch an extension for a file of another database
            path = literal(os.path.abspath(database))
            connection.execute(f"ATTACH {path} AS {ATTACHED} (READ_ONLY, TYPE duckdb)")
        connection.execute(f"SET allowed_paths = {path_list(readable)}")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
    except BaseException:
        connection.close()
        raise
    return connection


def bigquery_path(project: str, dataset: str, *table: str) -> str:
    """Return a dotted BigQuery path; refuse names that BigQuery does not allow, since such a path cannot be quoted.

    >>> bigquery_path("my-project", "analytics_1", "events_20240101")
    'my-project.analytics_1.events_20240101'
    """
    if not _PROJECT.fullmatch(project):
        raise ConfigError(f"{project!r} is not a BigQuery project: give its id, such as my-project")
    for name in (dataset, *table):
        if not _BIGQUERY_NAME.fullmatch(name):
            raise ConfigError(
                f"{name!r} is not a BigQuery dataset or table: only letters, digits and _ can be in its name"
            )
    return ".".join((project, dataset, *table))
