"""The warehouse: experiences and metrics as tables, each batch once and whole.

parquet    `Warehouse`: Parquet files in a folder, queried with DuckDB; the default, embedded
stream     `Stream`: batches in order to any sink; what a dead sink did not take is sent again
bigquery   `BigQuerySink`: the same batches to BigQuery, by the official client
tables     what a batch looks like as rows
"""

from parallel_agents.market.warehouse.parquet import Warehouse
from parallel_agents.market.warehouse.stream import Sink, Stream
from parallel_agents.market.warehouse.tables import EPISODES, STEPS, batch_tables

__all__ = ["EPISODES", "STEPS", "Sink", "Stream", "Warehouse", "batch_tables"]
