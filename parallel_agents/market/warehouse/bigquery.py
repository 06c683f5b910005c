"""`BigQuerySink`: batches to BigQuery by the official client (extra `bigquery`).

Rows are only ever appended, as streamed rows cannot be deleted for a while. Every attempt to send a batch has a name of
its own; the note that makes a batch exist is a row of the table `batches`, written last, and says which attempt counts.
Rows of attempts that died in the middle have no note, and `rows` leaves them out.
"""

from __future__ import annotations

import json
import secrets
from typing import Any

from parallel_agents.errors import ConfigError, RunError
from parallel_agents.market.database import bigquery_path
from parallel_agents.market.warehouse.tables import EPISODES, STEPS

__all__ = ["BigQuerySink"]

_TYPES = {
    "string": "STRING",
    "int64": "INT64",
    "int32": "INT64",
    "int16": "INT64",
    "float": "FLOAT64",
    "double": "FLOAT64",
}
_CHUNK = 500  # rows of one insert: well below the limits of a request


class BigQuerySink:
    """A dataset with the tables `episodes`, `steps` and `batches`; a `Sink` of a `Stream`.

    client: a `google.cloud.bigquery.Client`. deadline: seconds for one call.
    """

    def __init__(self, client: Any, dataset: str, *, deadline: float = 60.0) -> None:
        self.dataset = bigquery_path(client.project, dataset)
        try:
            from google.cloud import bigquery
        except ImportError as error:
            raise ConfigError("BigQuery needs its client: install parallel-agents[bigquery]") from error
        self._bigquery, self._client, self._deadline = bigquery, client, deadline
        client.create_dataset(self.dataset, exists_ok=True, timeout=deadline)
        self._tables: set[str] = set()
        self._make("batches", {"batch": "string", "attempt": "string", "rows": "int64"})

    def has(self, batch_id: str) -> bool:
        """Whether the batch's note is there."""
        return self._count(f"`{self.dataset}.batches`", batch_id) > 0

    def put(self, batch_id: str, tables: dict[str, Any]) -> None:
        """Append all rows under a new attempt, count them, and only then write the note."""
        attempt, total = secrets.token_hex(8), 0
        for name in (EPISODES, STEPS):
            table = tables[name]
            self._make(name, {"attempt": "string", **{field.name: str(field.type) for field in table.schema}})
            self._insert(name, [{"attempt": attempt, **row} for row in table.to_pylist()])
            found = self._count(f"`{self.dataset}.{name}`", batch_id, attempt)
            if found != table.num_rows:
                raise RunError(f"{name} of batch {batch_id}: {table.num_rows} rows were sent, {found} are there")
            total += table.num_rows
        self._insert("batches", [{"batch": batch_id, "attempt": attempt, "rows": total}])

    def rows(self, name: str) -> str:
        """A table to select from, in SQL: the rows of whole batches, each once."""
        if name not in (EPISODES, STEPS):
            raise ConfigError(f"there is no table {name!r}: give {EPISODES!r} or {STEPS!r}")
        return (
            f"(SELECT t.* FROM `{self.dataset}.{name}` AS t JOIN `{self.dataset}.batches` AS b "
            "ON t.batch = b.batch AND t.attempt = b.attempt)"
        )

    def _insert(self, name: str, rows: list[dict[str, Any]]) -> None:
        target = f"{self.dataset}.{name}"
        for first in range(0, len(rows), _CHUNK):
            errors = self._client.insert_rows_json(target, rows[first : first + _CHUNK], timeout=self._deadline)
            if errors:
                raise RunError(f"BigQuery refused rows of {target}: {json.dumps(errors[:1])[:300]}")

    def _count(self, table: str, batch_id: str, attempt: str | None = None) -> int:
        scalar = self._bigquery.ScalarQueryParameter
        parameters = [scalar("batch", "STRING", batch_id)]
        sql = f"SELECT COUNT(*) AS n FROM {table} WHERE batch = @batch"
        if attempt is not None:
            parameters.append(scalar("attempt", "STRING", attempt))
            sql += " AND attempt = @attempt"
        config = self._bigquery.QueryJobConfig(query_parameters=parameters)
        job = self._client.query(sql, job_config=config, timeout=self._deadline)
        return int(next(iter(job.result(timeout=self._deadline)))["n"])

    def _make(self, name: str, types: dict[str, str]) -> None:
        """Create a table that is not there yet."""
        if name in self._tables:
            return
        schema = [self._bigquery.SchemaField(column, *_field(kind)) for column, kind in types.items()]
        table = self._bigquery.Table(f"{self.dataset}.{name}", schema=schema)
        self._client.create_table(table, exists_ok=True, timeout=self._deadline)
        self._tables.add(name)


def _field(kind: str) -> tuple[str, str]:
    """BigQuery's type and mode for a type of Arrow, by its name.

    >>> _field("double"), _field("list<element: float>"), _field("dictionary<values=string, indices=int32, ordered=0>")
    (('FLOAT64', 'NULLABLE'), ('FLOAT64', 'REPEATED'), ('STRING', 'NULLABLE'))
    """
    if kind.startswith("list<"):
        return _TYPES[kind.removesuffix(">").rpartition(": ")[2]], "REPEATED"
    return _TYPES["string" if kind.startswith("dictionary<values=string") else kind], "NULLABLE"
