"""A GA4 export in BigQuery as the Arrow tables that `discover` takes, by the official client (extra `bigquery`)."""

from __future__ import annotations

import re
from typing import Any

from parallel_agents.errors import ConfigError
from parallel_agents.market.database import bigquery_path

__all__ = ["bigquery_tables"]

_DAY = re.compile(r"events_[0-9]{8}")
_REPORTS = ("ads", "auction_insights")


def bigquery_tables(client: Any, dataset: str, *, deadline: float = 600.0) -> dict[str, Any]:
    """Tables by name: all `events_YYYYMMDD` of a dataset as one, and `ads` and `auction_insights` where they are.

    client: a `google.cloud.bigquery.Client`; deadline: seconds for one call.

        discover(bigquery_tables(client, "analytics_123456"))
    """
    bigquery_path(client.project, dataset)
    try:
        import pyarrow
    except ImportError as error:
        raise ConfigError("reading from BigQuery needs pyarrow: install parallel-agents[bigquery]") from error
    names = sorted(table.table_id for table in client.list_tables(dataset, timeout=deadline))
    days = [name for name in names if _DAY.fullmatch(name)]
    if not days:
        raise ConfigError(f"dataset {dataset} holds no events_YYYYMMDD: found {names[:5]}; is it a GA4 export?")

    def read(name: str) -> Any:
        reference = bigquery_path(client.project, dataset, name)
        return client.list_rows(client.get_table(reference, timeout=deadline), timeout=deadline).to_arrow(
            create_bqstorage_client=False
        )

    found = {"events": pyarrow.concat_tables([read(name) for name in days], promote_options="permissive")}
    return found | {name: read(name) for name in _REPORTS if name in names}
