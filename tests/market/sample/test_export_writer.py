"""Sample exports follow the GA4 schema and do not contain their hidden parameters."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parallel_agents.core.errors import ConfigError
from parallel_agents.market.sample import LANDSCAPES, HiddenMarket, draw_sample, write_sample
from parallel_agents.market.sample.user_journeys import draw_journeys, worth_of_segments


def test_events_have_the_export_schema(sample):
    schema = sample.events.schema
    assert pa.types.is_string(schema.field("event_date").type)
    assert schema.field("event_timestamp").type == pa.int64()
    params = schema.field("event_params").type
    assert pa.types.is_list(params)
    value = params.value_type.field("value").type
    assert [value.field(i).name for i in range(4)] == ["string_value", "int_value", "float_value", "double_value"]
    for column, inner in (
        ("device", "operating_system"),
        ("traffic_source", "medium"),
        ("ecommerce", "transaction_id"),
    ):
        assert schema.field(column).type.get_field_index(inner) >= 0
    row = sample.events.slice(0, 1).to_pylist()[0]
    assert {p["key"] for p in row["event_params"]} >= {"ga_session_id", "ga_session_number", "page_location"}
    stamps = sample.events.column("event_timestamp").to_numpy()
    assert (np.diff(stamps) >= 0).all()
    days = np.array(sample.events.column("event_date").to_pylist())
    assert (days == [str(np.datetime64(int(t), "us"))[:10].replace("-", "") for t in stamps]).all()


def test_the_seed_determines_the_sample():
    one, again, other = (draw_sample(users=300, days=14, seed=seed) for seed in (1, 1, 2))
    for name in ("events", "ads", "insights"):
        assert getattr(again, name).equals(getattr(one, name))
        assert not getattr(other, name).equals(getattr(one, name))


@pytest.fixture(scope="module")
def journeys():
    return draw_journeys(HiddenMarket(), users=20_000, first_day="2024-01-01", days=70, seed=3)


def test_crisis_parents_are_a_tenth_of_users_and_half_of_value():
    steady = replace(HiddenMarket(), week_mix=0.0, week_conversion=0.0, week_value=0.0, week_delay=0.0)
    j = draw_journeys(steady, users=40_000, first_day="2024-01-01", days=70, seed=3)
    assert np.mean(j.segment == 0) == pytest.approx(0.10, abs=0.01)
    worth = np.bincount(j.segment[j.user[j.bought_click]], j.bought_value)
    # a little more than half: of the others, who decide slowly, more click again before they buy
    assert worth[0] / worth.sum() == pytest.approx(0.53, abs=0.04)


def test_purchases_follow_the_last_click_after_a_delay_and_within_the_window(journeys):
    j, calendar = journeys, journeys.calendar
    wait = j.bought_time - j.time[j.bought_click]
    assert (wait >= 0).all()
    assert (j.bought_time < calendar.start + calendar.days * 86_400_000_000).all()
    following = np.append(j.time[1:], np.iinfo(np.int64).max)
    same = np.append(j.user[1:] == j.user[:-1], False)
    following[~same] = np.iinfo(np.int64).max
    assert (j.bought_time < following[j.bought_click]).all()
    hours = wait / 3.6e9
    slow, fast = (np.median(hours[j.segment[j.user[j.bought_click]] == k]) for k in (1, 0))
    assert slow > 5 * fast


def test_the_hidden_conversion_is_that_of_the_clicks_and_no_probability_is_above_1(journeys):
    """A good hour of a good week would make more than one purchase of a late visit of crisis parents."""
    market, segment = HiddenMarket(), journeys.segment[journeys.user]
    chance = journeys.conversion(market)
    assert (chance[segment == 0] == 1.0).mean() > 0.01
    assert chance.max() == 1.0
    conversion, value = worth_of_segments(market, journeys.calendar)
    for k in range(4):
        assert conversion[k] == pytest.approx(chance[segment == k].mean(), rel=0.02)
        assert value[k] == pytest.approx(market.value[k] * conversion[k], rel=0.2)  # weeks of higher value differ
    bought = np.bincount(segment[journeys.bought_click], minlength=4) / np.bincount(segment)
    assert 0.9 < bought[0] / conversion[0] < 1.0  # crisis parents decide within hours


def test_click_volume_follows_the_hidden_hour_factors(journeys):
    hour = (journeys.time - journeys.calendar.start) // 3_600_000_000 % 24
    counts = np.bincount(hour, minlength=24)
    assert np.corrcoef(counts, HiddenMarket().hour)[0, 1] > 0.99


def test_the_five_landscapes_come_in_order_and_shape_the_insights(sample):
    order = [LANDSCAPES[i] for i in sample.reports.landscape]
    assert list(dict.fromkeys(order)) == list(LANDSCAPES)
    rows = sample.insights.to_pylist()
    days = {
        str(day): name
        for day, name in zip(sample.journeys.calendar.first_day + np.arange(len(order)), order, strict=True)
    }

    def overlap(rival: str, landscape: str) -> float:
        return float(
            np.mean([r["overlap_rate"] for r in rows if r["competitor"] == rival and days[r["date"]] == landscape])
        )

    assert overlap("brightpath", "dominant_bidder") > 0.9
    assert overlap("novus", "rich_entrant") > 0.85
    assert overlap("novus", "dominant_bidder") < 0.1
    for rival in sample.market.rivals.names:
        assert overlap(rival, "pull_back") < 0.75 < overlap(rival, "price_war")


def test_clicks_are_charged_by_the_rule_of_their_campaign(sample):
    rows = sample.ads.to_pylist()
    assert all(r["clicks"] <= r["impressions"] for r in rows)
    for r in rows:
        if r["clicks"]:
            price = r["cost"] / r["clicks"]
            assert price <= r["bid"] * (1 + 1e-9)
            if r["campaign"] == "brand":
                assert price == pytest.approx(r["bid"])
    assert {r["position"] for r in rows if r["campaign"] == "guides"} == {1, 2, 3}
    assert {r["position"] for r in rows if r["campaign"] == "offers"} == {1}
    paid = (sample.journeys.campaign < 4).sum()
    assert 0.4 < sum(r["clicks"] for r in rows) / paid < 1.6


def test_the_truth_is_written_only_on_request(tmp_path):
    sample = draw_sample(users=150, days=14, seed=6)
    plain = write_sample(tmp_path / "plain", sample)
    assert not (plain / "truth.json").exists()
    names = sorted(p.name for p in plain.iterdir())
    assert names[:3] == ["ads.parquet", "ads_by_hour.parquet", "auction_insights.parquet"]
    assert names[3] == "events_20240101.parquet"
    assert len(names) == 17
    text = str(sample.events.to_pydict()) + str(sample.ads.to_pydict()) + str(sample.insights.to_pydict())
    for secret in (*sample.market.segments, *LANDSCAPES):
        assert secret not in text
    told = write_sample(tmp_path / "told", sample, truth=True, ads=False)
    assert not (told / "ads.parquet").exists()
    truth = json.loads((told / "truth.json").read_text())
    assert truth["estimates"]["segments/crisis_parent/share"] == pytest.approx(sample.market.share[0])
    assert len(truth["landscape_of_day"]) == 14


def test_both_forms_hold_the_same_rows(tmp_path):
    small = draw_sample(users=60, days=14, seed=5)
    parquet, lines = (write_sample(tmp_path / form, small, form=form) for form in ("parquet", "jsonl"))
    for file in sorted(parquet.iterdir()):
        rows = [json.loads(line) for line in (lines / f"{file.stem}.jsonl").read_text().splitlines()]
        assert rows == pq.read_table(file).to_pylist()


def test_bad_arguments_are_refused(sample, tmp_path):
    for arguments, text in (({"users": 0}, "users 0 is too few"), ({"days": 3}, "days 3 is too short")):
        with pytest.raises(ConfigError, match=text):
            draw_sample(**arguments)
    with pytest.raises(ConfigError, match="form 'csv' is unknown"):
        write_sample(tmp_path / "x", sample, form="csv")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        write_sample(tmp_path / "full", sample)
    with pytest.raises(ConfigError, match="add up to 1"):
        replace(HiddenMarket(), share=np.array([0.5, 0.5, 0.5, 0.5]))
    with pytest.raises(ConfigError, match=r"value_share 1\.5"):
        replace(HiddenMarket(), value_share=1.5)


def test_without_arrow_or_duckdb_the_error_says_what_to_install(sample, monkeypatch):
    import sys

    from parallel_agents.market.discovery.export_reader import open_export

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"needs pyarrow: install parallel-agents\[data\]"):
        draw_sample(users=10, days=7)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ConfigError, match=r"needs duckdb: install parallel-agents\[data\]"):
        open_export({"events": sample.events})
