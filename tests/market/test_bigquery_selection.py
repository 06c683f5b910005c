"""Which columns and days are asked of BigQuery, with a stand-in for its client; see test_bigquery.py for the emulator."""

from __future__ import annotations

from datetime import date
from types import SimpleNamespace

import pyarrow as pa
import pytest

from parallel_agents.cli import main
from parallel_agents.core.errors import ConfigError
from parallel_agents.market.bigquery import bigquery_tables, open_bigquery

DAYS = ("events_20240101", "events_20240102", "events_20240103", "events_intraday_20240104", "ads", "other")
COLUMNS = ("event_timestamp", "event_name", "user_pseudo_id", "geo", "items", "user_properties")


class StandIn:
    """Answers with one row a table and keeps what was asked."""

    project = "my-project"

    def __init__(self):
        self.asked, self.queries = {}, []

    def list_tables(self, dataset, timeout):
        return [SimpleNamespace(table_id=name) for name in DAYS]

    def get_table(self, reference, timeout):
        return SimpleNamespace(name=reference, schema=[SimpleNamespace(name=c) for c in COLUMNS])

    def list_rows(self, table, selected_fields, timeout):
        names = [field.name for field in selected_fields]
        self.asked[table.name.rpartition(".")[2]] = names
        return self._answer({name: [1] for name in names})

    def query(self, sql, timeout):
        self.queries.append(sql)
        return SimpleNamespace(result=lambda timeout: self._answer({"date": [date(2024, 1, 2)]}))

    @staticmethod
    def _answer(columns):
        return SimpleNamespace(to_arrow=lambda create_bqstorage_client: pa.table(columns))


def test_only_columns_that_discovery_reads_and_days_in_range_are_transferred():
    client = StandIn()
    tables = bigquery_tables(client, "analytics_1", first_day=date(2024, 1, 2), last_day=date(2024, 1, 9))
    assert list(client.asked) == ["events_20240102", "events_20240103"]
    assert all(names == list(COLUMNS[:3]) for names in client.asked.values())
    assert tables["events"].num_rows == 2
    assert client.queries == [
        "SELECT * FROM `my-project.analytics_1.ads` WHERE date >= DATE '2024-01-02' AND date <= DATE '2024-01-09'"
    ]


def test_without_days_all_are_read():
    client = StandIn()
    assert bigquery_tables(client, "analytics_1")["events"].num_rows == 3
    assert client.queries == ["SELECT * FROM `my-project.analytics_1.ads`"]


def test_a_range_without_any_day_is_refused_with_what_there_is():
    with pytest.raises(ConfigError, match="holds events_20240101 to events_20240103: no day from 2025-01-01 to None"):
        bigquery_tables(StandIn(), "analytics_1", first_day=date(2025, 1, 1))


def test_the_command_line_refuses_what_it_cannot_mean(tmp_path, capsys):
    with pytest.raises(ConfigError, match="names no dataset"):
        open_bigquery("bigquery:analytics")
    out = str(tmp_path / "patterns.json")
    assert main(["market", "discover", str(tmp_path), "--out", out, "--first-day", "2024-01-01"]) != 0
    assert "other exports are read whole" in capsys.readouterr().err
    assert main(["market", "discover", "bigquery:p.d", "--out", out, "--last-day", "soon"]) != 0
    assert "give a day such as 2024-01-31" in capsys.readouterr().err
