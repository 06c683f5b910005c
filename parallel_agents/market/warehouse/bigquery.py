"""`BigQuerySink`: batches to BigQuery by the official client (extra `bigquery`).

The note that makes a batch exist is a row of the table `batches`, written last. Rows of a batch without its note, left
by a client that died in the middle, are deleted before the batch is sent again. Readers join with `batches`.
"""

from __future__ import annotations

import json
from typing import Any

from parallel_agents.errors import ConfigError, RunError
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
    """A dataset with the tables `episodes`, `steps` and `batches`.

    client: a `google.cloud.bigquery.Client`. deadline: seconds for one call.
    """

    def __init__(self, client: Any, dataset: str, *, deadline: float = 60.0) -> None:
        try:
            from google.cloud import bigquery
        except ImportError as error:
            raise ConfigError("BigQuery needs its client: install parallel-agents[bigquery]") from error
        self._bigquery, self._client, self._deadline = bigquery, client, deadline
        self.dataset = f"{client.project}.{dataset}"
        client.create_dataset(self.dataset, exists_ok=True, timeout=deadline)
        self._tables: set[str] = set()
        self._make("batches", {"batch": "string", "rows": "int64"})

    def has(self, batch_id: str) -> bool:
        """Whether the batch's note is there."""
        rows = self._query("SELECT COUNT(*) AS n FROM `{batches}` WHERE batch = @batch", batch_id)
        return bool(rows[0]["n"])

    def put(self, batch_id: str, tables: dict[str, Any]) -> None:
        """Remove what an earlier attempt left, insert all rows, count them, and only then write the note."""
        total = 0
        for name in (EPISODES, STEPS):
            table = tables[name]
            self._make(name, {field.name: str(field.type) for field in table.schema})
            self._query(f"DELETE FROM `{{{name}}}` WHERE batch = @batch", batch_id)
            self._insert(name, table.to_pylist())
            found = self._query(f"SELECT COUNT(*) AS n FROM `{{{name}}}` WHERE batch = @batch", batch_id)[0]["n"]
            if found != table.num_rows:
                raise RunError(f"{name} of batch {batch_id}: {table.num_rows} rows were sent, {found} are there")
            total += table.num_rows
        self._insert("batches", [{"batch": batch_id, "rows": total}])

    def _insert(self, name: str, rows: list[dict[str, Any]]) -> None:
        target = f"{self.dataset}.{name}"
        for first in range(0, len(rows), _CHUNK):
            part = rows[first : first + _CHUNK]
            errors = self._client.insert_rows_json(target, part, timeout=self._deadline)
            if errors:
                raise RunError(f"BigQuery refused rows of {target}: {json.dumps(errors[:1])[:300]}")

    def _query(self, sql: str, batch_id: str) -> list[Any]:
        names = {name: f"{self.dataset}.{name}" for name in (EPISODES, STEPS, "batches")}
        parameter = self._bigquery.ScalarQueryParameter("batch", "STRING", batch_id)
        config = self._bigquery.QueryJobConfig(query_parameters=[parameter])
        job = self._client.query(sql.format(**names), job_config=config, timeout=self._deadline)
        return list(job.result(timeout=self._deadline))

    def _make(self, name: str, types: dict[str, str]) -> None:
        """Create a table that is not there yet."""
        if name in self._tables:
            return
        field = self._bigquery.SchemaField
        schema = [
            field(column, _TYPES[kind[5:-1].removeprefix("item: ")], mode="REPEATED")
            if kind.startswith("list<")
            else field(column, _TYPES["string" if kind.startswith("dictionary") else kind])
            for column, kind in types.items()
        ]
        table = self._bigquery.Table(f"{self.dataset}.{name}", schema=schema)
        self._client.create_table(table, exists_ok=True, timeout=self._deadline)
        self._tables.add(name)
