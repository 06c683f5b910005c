"""Names from data in SQL are quoted where the language allows it and refused where it does not."""

from __future__ import annotations

from types import SimpleNamespace

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_agents.core.errors import ConfigError
from parallel_agents.market.bigquery import BigQuerySink, bigquery_tables
from parallel_agents.market.database import bigquery_path, identifier, literal

NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)


@pytest.fixture(scope="module")
def connection():
    with duckdb.connect() as own:
        yield own


@settings(max_examples=60, deadline=None)
@given(name=NAMES, word=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20))
def test_any_quoted_name_and_literal_is_read_back_unchanged(connection, name, word):
    connection.execute(f"CREATE TABLE {identifier(name)} AS SELECT {literal(word)} AS {identifier(name)}")
    assert connection.execute("SELECT table_name FROM duckdb_tables()").fetchall() == [(name,)]
    found = connection.execute(f"SELECT * FROM {identifier('memory', 'main', name)}")
    assert (found.description[0][0], found.fetchall()) == (name, [(word,)])
    connection.execute(f"DROP TABLE {identifier(name)}")


def test_a_zero_byte_is_refused():
    for quote in (identifier, literal):
        with pytest.raises(ConfigError, match="holds a zero byte"):
            quote("a\0b")


HOSTILE = ("x`; DROP TABLE y; --", "x.y", "a b", "", "x\n", "x-y", "ü", "x'", "x" * 1025)


@pytest.mark.parametrize("name", HOSTILE)
def test_an_invalid_dataset_name_is_refused_before_bigquery_is_called(name):
    client = SimpleNamespace(project="test")  # has no method that could be called
    for ask in (bigquery_tables, BigQuerySink):
        with pytest.raises(ConfigError, match="is not a BigQuery dataset or table"):
            ask(client, name)
    with pytest.raises(ConfigError, match="is not a BigQuery dataset or table"):
        bigquery_path("test", "dataset", name)


@pytest.mark.parametrize("project", ["x`y", "", "Test", "a b", "1a", "x\n", "a/b"])
def test_an_invalid_project_name_is_refused(project):
    with pytest.raises(ConfigError, match="is not a BigQuery project"):
        bigquery_tables(SimpleNamespace(project=project), "analytics_1")
    assert bigquery_path("example.com:my-project", "a_1", "t") == "example.com:my-project.a_1.t"
