"""BigQuery, by its official client (extra `bigquery`): read a GA4 export, and write batches of experiences.

Batches are only ever appended, as streamed rows cannot be deleted for a while. Every attempt to send a batch has a name
of its own. A row of the table `batches`, written last, makes the batch exist and names the attempt that counts. Rows of
attempts that failed halfway have no such note, and `BigQuerySink.rows` leaves them out.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from datetime import date
from typing import Any

from parallel_agents.core.errors import ConfigError, RunError
from parallel_agents.market.database import bigquery_path, load_library, load_pyarrow
from parallel_agents.market.discovery.export_reader import EVENT_COLUMNS, REPORTS
from parallel_agents.market.warehouse import TABLES, Sink

PREFIX = "bigquery:"
"""Start of the address of a dataset, where the command line takes an export."""
_DAY = re.compile(r"events_[0-9]{8}")
_TYPES = {
    "string": "STRING", "int64": "INT64", "int32": "INT64", "int16": "INT64", "float": "FLOAT64", "double": "FLOAT64",
}  # fmt: skip
_CHUNK = 500  # rows of one insert: well below the limits of a request


def bigquery_tables(
    client: Any,
    dataset: str,
    *,
    first_day: date | None = None,
    last_day: date | None = None,
    deadline: float = 600.0,
) -> dict[str, Any]:
    """Return a GA4 export in BigQuery as the Arrow tables that `discover` takes.

    These are the `events_YYYYMMDD` of a dataset from `first_day` to `last_day` as one table, and the reports that
    exist, of the same days. Only columns that discovery reads are transferred: a GA4 table has a hundred others.

    client: a `google.cloud.bigquery.Client`; deadline: seconds for one call.

        discover(bigquery_tables(client, "analytics_123456", first_day=date(2024, 1, 1)))
    """
    bigquery_path(client.project, dataset)
    pyarrow = load_pyarrow("reading from BigQuery", "bigquery")
    names = sorted(table.table_id for table in client.list_tables(dataset, timeout=deadline))
    every = [name for name in names if _DAY.fullmatch(name)]
    if not every:
        raise ConfigError(f"dataset {dataset} holds no events_YYYYMMDD: found {names[:5]}; is it a GA4 export?")
    low, high = (f"events_{day:%Y%m%d}" if day else end for day, end in ((first_day, every[0]), (last_day, every[-1])))
    days = [name for name in every if low <= name <= high]
    if not days:
        raise ConfigError(f"dataset {dataset} holds {every[0]} to {every[-1]}: no day from {first_day} to {last_day}")

    def read(name: str) -> Any:
        reference = bigquery_path(client.project, dataset, name)
        table = client.get_table(reference, timeout=deadline)
        if name in REPORTS:
            bounds = ((">=", first_day), ("<=", last_day))
            wanted = [f"date {sign} DATE '{day:%Y-%m-%d}'" for sign, day in bounds if day is not None]
            sql = f"SELECT * FROM `{reference}`" + (f" WHERE {' AND '.join(wanted)}" if wanted else "")
            rows = client.query(sql, timeout=deadline).result(timeout=deadline)
        else:
            fields = [field for field in table.schema if field.name in EVENT_COLUMNS]
            rows = client.list_rows(table, selected_fields=fields, timeout=deadline)
        return rows.to_arrow(create_bqstorage_client=False)

    events = pyarrow.concat_tables([read(name) for name in days], promote_options="permissive")
    return {"events": events} | {name: read(name) for name in REPORTS if name in names}


def open_bigquery(address: str) -> tuple[Any, str]:
    """Return a client and the dataset of an address `bigquery:project.dataset`.

    The client uses Google's default credentials, or an emulator at `BIGQUERY_EMULATOR_HOST`.
    """
    project, dot, dataset = address.removeprefix(PREFIX).rpartition(".")
    if not dot:
        raise ConfigError(f"{address!r} names no dataset: give {PREFIX}project.dataset")
    bigquery_path(project, dataset)
    bigquery = load_library("google.cloud.bigquery", "BigQuery", "bigquery")
    emulator = os.environ.get("BIGQUERY_EMULATOR_HOST")
    if emulator is None:
        return bigquery.Client(project=project), dataset
    nobody = load_library("google.auth.credentials", "BigQuery", "bigquery").AnonymousCredentials()
    return bigquery.Client(project=project, credentials=nobody, client_options={"api_endpoint": emulator}), dataset


class BigQuerySink(Sink):
    """A dataset with the tables `episodes`, `steps` and `batches`.

    client: a `google.cloud.bigquery.Client`. deadline: seconds for one call.
    """

    def __init__(self, client: Any, dataset: str, *, deadline: float = 60.0) -> None:
        self.dataset = bigquery_path(client.project, dataset)
        self._bigquery = load_library("google.cloud.bigquery", "BigQuery", "bigquery")
        self._client, self._deadline = client, deadline
        client.create_dataset(self.dataset, exists_ok=True, timeout=deadline)
        self._created: set[str] = set()
        self._create_table("batches", {"batch": "string", "attempt": "string", "rows": "int64"})

    def has(self, batch_id: str) -> bool:
        """Return whether the batch's note exists."""
        return self._count("batches", batch_id) > 0

    def put(self, batch_id: str, tables: dict[str, Any]) -> None:
        """Append all rows under a new attempt, count them, and only then write the note."""
        attempt, total = secrets.token_hex(8), 0
        for name in TABLES:
            table = tables[name]
            self._create_table(name, {"attempt": "string", **{field.name: str(field.type) for field in table.schema}})
            self._insert(name, [{"attempt": attempt, **row} for row in table.to_pylist()])
            count = self._count(name, batch_id, attempt)
            if count != table.num_rows:
                raise RunError(f"{name} of batch {batch_id}: {table.num_rows} rows were sent, {count} are there")
            total += table.num_rows
        self._insert("batches", [{"batch": batch_id, "attempt": attempt, "rows": total}])

    def rows(self, name: str) -> str:
        """Return the SQL of a table to select from: the rows of whole batches, each once."""
        if name not in TABLES:
            raise ConfigError(f"there is no table {name!r}: give {TABLES[0]!r} or {TABLES[1]!r}")
        return (
            f"(SELECT t.* FROM `{self.dataset}.{name}` AS t JOIN `{self.dataset}.batches` AS b "
            "ON t.batch = b.batch AND t.attempt = b.attempt)"
        )

    def _insert(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Append rows to a table, a chunk at a time."""
        target = f"{self.dataset}.{name}"
        for first in range(0, len(rows), _CHUNK):
            errors = self._client.insert_rows_json(target, rows[first : first + _CHUNK], timeout=self._deadline)
            if errors:
                raise RunError(f"BigQuery refused rows of {target}: {json.dumps(errors[:1])[:300]}")

    def _count(self, name: str, batch_id: str, attempt: str | None = None) -> int:
        """Return the number of rows of a batch in a table, of all attempts or of one."""
        parameters = {"batch": batch_id} | ({} if attempt is None else {"attempt": attempt})
        conditions = " AND ".join(f"{column} = @{column}" for column in parameters)
        config = self._bigquery.QueryJobConfig(
            query_parameters=[
                self._bigquery.ScalarQueryParameter(column, "STRING", value) for column, value in parameters.items()
            ]
        )
        sql = f"SELECT COUNT(*) AS n FROM `{self.dataset}.{name}` WHERE {conditions}"
        job = self._client.query(sql, job_config=config, timeout=self._deadline)
        return int(next(iter(job.result(timeout=self._deadline)))["n"])

    def _create_table(self, name: str, types: dict[str, str]) -> None:
        """Create a table with columns of Arrow types, unless it exists."""
        if name in self._created:
            return
        schema = [self._bigquery.SchemaField(column, *_field(kind)) for column, kind in types.items()]
        table = self._bigquery.Table(f"{self.dataset}.{name}", schema=schema)
        self._client.create_table(table, exists_ok=True, timeout=self._deadline)
        self._created.add(name)


def _field(kind: str) -> tuple[str, str]:
    """Return BigQuery's type and mode for the name of an Arrow type.

    >>> _field("double"), _field("list<element: float>"), _field("dictionary<values=string, indices=int32, ordered=0>")
    (('FLOAT64', 'NULLABLE'), ('FLOAT64', 'REPEATED'), ('STRING', 'NULLABLE'))
    """
    if kind.startswith("list<"):
        return _TYPES[kind.removesuffix(">").rpartition(": ")[2]], "REPEATED"
    return _TYPES["string" if kind.startswith("dictionary<values=string") else kind], "NULLABLE"
