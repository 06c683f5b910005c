"""Exports of every form give the same history; broken ones raise errors that say what to do."""

from __future__ import annotations

from dataclasses import replace

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from parallel_agents.core.errors import ConfigError
from parallel_agents.market.discovery import Vocabulary, discover
from parallel_agents.market.discovery.click_history import History, read_history
from parallel_agents.market.discovery.export_reader import open_export
from parallel_agents.market.sample import Sample, draw_sample, write_sample


@pytest.fixture(scope="module")
def small() -> Sample:
    return draw_sample(users=250, days=21, seed=9)


def history(source, **options) -> History:
    return read_history(open_export(source), Vocabulary(), **options)


def same(one: History, other: History) -> bool:
    return all(
        np.array_equal(a, b, equal_nan=True)
        if isinstance(a, np.ndarray) and a.dtype.kind == "f"
        else np.array_equal(a, b)
        for a, b in zip(vars(one).values(), vars(other).values(), strict=True)
    )


@pytest.fixture(scope="module")
def whole(small) -> History:
    return history({"events": small.events})


def test_every_form_of_an_export_gives_the_same_history(small, whole, tmp_path):
    assert same(history(write_sample(tmp_path / "parquet", small)), whole)
    assert same(history(write_sample(tmp_path / "lines", small, form="jsonl")), whole)
    database = tmp_path / "export.duckdb"
    with duckdb.connect(str(database)) as connection:
        connection.register("rows", small.events)
        connection.execute("CREATE TABLE events_20240101 AS SELECT * FROM rows WHERE event_date < '20240110'")
        connection.execute("CREATE TABLE events_20240110 AS SELECT * FROM rows WHERE event_date >= '20240110'")
    assert same(history(database), whole)


def test_the_history_equals_the_journeys_of_the_sample(small, whole):
    j = small.journeys
    assert len(whole.user) == len(j.user)
    assert whole.clicks.sum() == len(j.user)
    assert whole.converted.sum() == len(j.bought_click)
    np.testing.assert_allclose(
        np.sort(whole.delay[np.isfinite(whole.delay)]), np.sort((j.bought_time - j.time[j.bought_click]) / 3.6e9)
    )
    np.testing.assert_allclose(np.sort(whole.value), np.sort(j.bought_value))
    np.testing.assert_array_equal(whole.topic_pages.sum(axis=0), np.bincount(j.page_topic, minlength=4))
    assert whole.health_pages.sum() == j.page_health.sum()
    assert whole.days == 21
    assert whole.periods == 3


def test_absent_columns_read_as_null(small, whole):
    """The old public sample has no collected traffic source: origins come from event parameters or the first touch."""
    old = small.events.drop_columns(["collected_traffic_source", "is_active_user", "event_value_in_usd"])
    export = open_export({"events": old})
    assert set(export.absent) == {"collected_traffic_source", "event_value_in_usd"}
    found = read_history(export, Vocabulary())
    assert len(found.clicks) == len(whole.clicks)
    assert len(found.user) < len(whole.user)  # only first sessions keep their origin
    np.testing.assert_allclose(np.sort(found.value), np.sort(whole.value))
    bare = open_export({"events": small.events.select(["event_timestamp", "event_name", "user_pseudo_id"])})
    with pytest.raises(ConfigError, match="no session with a known origin"):
        read_history(bare, Vocabulary())


def test_numbers_written_as_text_are_read_as_numbers(small, whole, tmp_path):
    import json

    lines = []
    for row in small.events.to_pylist():
        row["event_timestamp"] = str(row["event_timestamp"])
        for p in row["event_params"]:
            p["value"] = {k: str(v) for k, v in p["value"].items() if v is not None}
        lines.append(json.dumps(row))
    (tmp_path / "events_20240101.jsonl").write_text("\n".join(lines))
    assert same(history(tmp_path), whole)


def test_the_intraday_file_of_a_complete_day_is_left_out(small, whole, tmp_path):
    target = write_sample(tmp_path / "both", small)
    day = next(target.glob("events_2024*.parquet"))
    (target / day.name.replace("events_", "events_intraday_")).write_bytes(day.read_bytes())
    assert same(history(target), whole)


def test_repeated_transactions_count_once(small, whole):
    rows = pa.concat_tables(
        [small.events, small.events.filter(pa.compute.equal(small.events["event_name"], "purchase"))]
    )
    found = history({"events": rows})
    np.testing.assert_array_equal(np.sort(found.value), np.sort(whole.value))


def test_users_without_consent_are_left_out(small, whole):
    ids = small.events.column("user_pseudo_id").to_pylist()
    gone = ids[0]
    column = pa.array([None if i == gone else i for i in ids])
    events = small.events.set_column(small.events.schema.get_field_index("user_pseudo_id"), "user_pseudo_id", column)
    assert len(history({"events": events}).clicks) == len(whole.clicks) - 1


def test_hours_follow_the_utc_offset(small, whole):
    found = history({"events": small.events}, utc_offset_hours=-6.0)
    late = (found.time % 24).astype(int)
    assert (
        np.bincount(late, minlength=24).argmax()
        == (np.bincount((whole.time % 24).astype(int), minlength=24).argmax() - 6) % 24
    )


def test_broken_exports_raise_an_error_that_says_what_to_do(small, tmp_path):
    with pytest.raises(ConfigError, match="does not exist: give a directory"):
        open_export(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="holds no events: expected events_YYYYMMDD"):
        open_export(tmp_path)
    (tmp_path / "events.xls").write_text("a,b")
    with pytest.raises(ConfigError, match="has an unknown format"):
        open_export(tmp_path / "events.xls")
    torn = write_sample(tmp_path / "torn", small)
    file = next(torn.glob("events_2024*.parquet"))
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(ConfigError, match=r"cannot be read: .*; check that its files are complete"):
        open_export(torn)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "events_20240101.jsonl").write_text('{"event_timestamp": 1, "event')
    with pytest.raises(ConfigError, match="cannot be read"):
        open_export(tmp_path / "bad")
    (tmp_path / "no.duckdb").write_text("this is no database")
    with pytest.raises(ConfigError, match="cannot be read"):
        open_export(tmp_path / "no.duckdb")


def test_empty_and_impossible_tables_are_refused(small):
    with pytest.raises(ConfigError, match="is empty: its events hold no row"):
        open_export({"events": small.events.slice(0, 0)})
    with pytest.raises(ConfigError, match=r"lacks the columns \['user_pseudo_id'\]"):
        open_export({"events": small.events.drop_columns(["user_pseudo_id"])})
    with pytest.raises(ConfigError, match="the ads table is empty"):
        open_export({"events": small.events, "ads": small.ads.slice(0, 0)})
    with pytest.raises(ConfigError, match=r"the ads table lacks the columns \['cost'\]"):
        open_export({"events": small.events, "ads": small.ads.drop_columns(["cost"])})
    negative = small.ads.set_column(
        small.ads.schema.get_field_index("cost"), "cost", pa.array(-np.ones(len(small.ads)))
    )
    with pytest.raises(ConfigError, match="rows whose cost is not 0 or more: correct them"):
        open_export({"events": small.events, "ads": negative})
    rates = small.insights
    rates = rates.set_column(
        rates.schema.get_field_index("overlap_rate"), "overlap_rate", pa.array(np.full(len(rates), 1.5))
    )
    with pytest.raises(ConfigError, match="rows whose overlap_rate is not between 0 and 1"):
        open_export({"events": small.events, "auction_insights": rates})
    value = small.events.schema.get_field_index("event_value_in_usd")
    bad = small.events.set_column(value, "event_value_in_usd", pa.array(-np.ones(len(small.events)))).drop_columns(
        ["ecommerce"]
    )
    with pytest.raises(ConfigError, match="events of negative value"):
        open_export({"events": bad})


def test_too_little_data_raises_an_error_that_says_how_much_is_needed(small):
    week = draw_sample(users=300, days=7, seed=2)
    with pytest.raises(ConfigError, match="spans 7 days: at least 14 are needed"):
        discover({"events": week.events})
    from parallel_agents.market.sample import HiddenMarket

    alike = HiddenMarket()
    alike = replace(alike, topic_share=np.tile(alike.topic_share[:1], (4, 1)), engagement=np.full(4, 3.0))
    with pytest.raises(ConfigError, match="only one segment was found among 600 users"):
        discover({"events": draw_sample(alike, users=600, days=21, seed=1).events})
    shy = replace(HiddenMarket(), conversion=np.full(4, 1e-4), value=np.full(4, 50.0))
    with pytest.raises(ConfigError, match="purchases follow a click: at least 10 are needed"):
        discover({"events": draw_sample(shy, users=600, days=21, seed=1).events})


def test_vocabulary_words_may_hold_quotes_and_impossible_offsets_are_refused(small, whole):
    spoken = Vocabulary(health=("what's wrong", "teen-ANXIETY"))
    found = read_history(open_export({"events": small.events}), spoken)
    assert found.health_pages.sum() == whole.health_pages.sum()
    with pytest.raises(ConfigError, match="utc_offset_hours 99 is not a time zone"):
        history({"events": small.events}, utc_offset_hours=99)


def test_an_export_that_hardly_shows_how_a_rival_bids_is_discovered(small):
    """One rival can be fitted, and none in some deviations of what is taken as given: these say nothing of its errors."""
    found = discover(small.tables)
    assert list(found.competition.competitors) == ["carelink"]
    assert sum("to tell how it bids" in note for note in found.not_identified) == 5
