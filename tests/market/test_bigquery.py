"""The BigQuery sink against a local emulator: set BIGQUERY_EMULATOR to its address, such as http://127.0.0.1:9050.

The emulator (bqemulator) needs another version of DuckDB than the library allows, hence a process of its own; see
docs/market.md.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from datetime import date
from urllib.parse import urlparse
from uuid import uuid4

import pytest

from parallel_agents.market.montecarlo import EpisodeSetting, MonteCarloSimulator
from parallel_agents.market.strategies import Strategy
from parallel_agents.market.warehouse import Stream

pytestmark = pytest.mark.bigquery
ADDRESS = os.environ.get("BIGQUERY_EMULATOR", "")


@pytest.fixture(scope="module")
def client():
    if not ADDRESS:
        pytest.skip("no emulator: set BIGQUERY_EMULATOR to the address of a local one")
    if urlparse(ADDRESS).hostname not in ("127.0.0.1", "localhost", "::1"):
        pytest.fail(f"BIGQUERY_EMULATOR is {ADDRESS}: these tests speak to this machine only")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the client's own imports
        bigquery = pytest.importorskip("google.cloud.bigquery")
        from google.auth.credentials import AnonymousCredentials
    made = bigquery.Client(project="test", credentials=AnonymousCredentials(), client_options={"api_endpoint": ADDRESS})
    yield made
    made.close()


@pytest.fixture(scope="module")
def batches(patterns):
    setting = EpisodeSetting(steps=4, auctions_per_step=50.0, threads=1)
    with MonteCarloSimulator(3, None, 3, 1000, patterns=patterns, setting=setting) as simulator:
        return [asyncio.run(simulator.run_episode_batch(Strategy(9))) for _ in range(3)]


def test_batches_arrive_once_although_the_connection_fails_in_the_middle(client, batches, tmp_path, monkeypatch):
    from parallel_agents.market.bigquery import BigQuerySink

    sink = BigQuerySink(client, f"market_{uuid4().hex[:8]}")
    stream = Stream(tmp_path, sink, attempts=1)
    real, calls = client.insert_rows_json, []

    def dying(table, rows, **options):
        calls.append(table)
        if len(calls) == 5:  # the steps of the second batch: its episodes are in already, its note is not
            raise ConnectionError("the connection was lost")
        return real(table, rows, **options)

    monkeypatch.setattr(client, "insert_rows_json", dying)
    for number, batch in enumerate(batches):
        stream.write(f"batch-{number}", batch)
    stream.close()
    assert any("the connection was lost" in error for error in stream.errors)
    for table, rows in (("episodes", 9), ("steps", 36)):
        found = next(iter(client.query(f"SELECT COUNT(*) AS n FROM {sink.rows(table)}").result(timeout=60)))
        assert found["n"] == rows, table
    raw = next(iter(client.query(f"SELECT COUNT(*) AS n FROM `{sink.dataset}.episodes`").result(timeout=60)))
    assert raw["n"] == 12  # what the dead attempt left is there, and is not counted
    total = next(iter(client.query(f"SELECT SUM(reward) AS r FROM {sink.rows('episodes')}").result(timeout=60)))
    assert total["r"] == pytest.approx(sum(e.total_reward for batch in batches for e in batch))
    again = Stream(tmp_path, BigQuerySink(client, sink.dataset.split(".")[1]))
    assert again.pending() == []


def test_an_export_in_bigquery_gives_the_same_hits_as_one_in_memory(client):
    from google.cloud import bigquery

    from parallel_agents.core.errors import ConfigError
    from parallel_agents.market.bigquery import bigquery_tables
    from parallel_agents.market.discovery.export_reader import open_export
    from parallel_agents.market.sample import draw_sample

    field = bigquery.SchemaField
    name = f"analytics_{uuid4().hex[:8]}"
    client.create_dataset(f"test.{name}")
    with pytest.raises(ConfigError, match="holds no events_YYYYMMDD"):
        bigquery_tables(client, name)
    value = [field("string_value", "STRING"), field("int_value", "INT64"), field("double_value", "FLOAT64")]
    params = [field("key", "STRING"), field("value", "RECORD", fields=value)]
    schema = [
        field("event_timestamp", "INT64"),
        field("event_name", "STRING"),
        field("user_pseudo_id", "STRING"),
        field("event_params", "RECORD", mode="REPEATED", fields=params),
        field("device", "RECORD", fields=[field("category", "STRING"), field("operating_system", "STRING")]),
    ]
    events = draw_sample(users=40, days=14, seed=2).events
    kept = [
        {
            "event_timestamp": row["event_timestamp"],
            "event_name": row["event_name"],
            "user_pseudo_id": row["user_pseudo_id"],
            "event_params": [
                {
                    "key": p["key"],
                    "value": {k: p["value"].get(k) for k in ("string_value", "int_value", "double_value")},
                }
                for p in row["event_params"]
            ],
            "device": {k: row["device"][k] for k in ("category", "operating_system")},
        }
        for row in events.slice(0, 300).to_pylist()
    ]
    for day, rows in (("20240101", kept[:150]), ("20240102", kept[150:])):
        client.create_table(bigquery.Table(f"test.{name}.events_{day}", schema=schema))
        assert not client.insert_rows_json(f"test.{name}.events_{day}", rows)
    found = open_export(bigquery_tables(client, name)).rows("SELECT * FROM hits ORDER BY ts, name, page")
    same = open_export({"events": events.slice(0, 300)}).rows("SELECT * FROM hits ORDER BY ts, name, page")
    assert len(found["ts"]) == 300
    for column in ("user", "ts", "name", "session", "page", "system"):
        assert found[column].tolist() == same[column].tolist(), column
    second = bigquery_tables(client, name, first_day=date(2024, 1, 2), last_day=date(2024, 1, 31))["events"]
    assert second.num_rows == 150
    with pytest.raises(ConfigError, match="no day from 2025-01-01"):
        bigquery_tables(client, name, first_day=date(2025, 1, 1))
