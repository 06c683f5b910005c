"""Exports with other names and forms: columns are guessed or mapped, times and units understood, the rest explained."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import numpy as np
import pytest

from parallel_agents.core.errors import ConfigError
from parallel_agents.market.discovery import Vocabulary
from parallel_agents.market.discovery.export_reader import ColumnMap, open_export, read_column_map
from parallel_agents.market.discovery.profile import profile_of

MOMENTS = ("2024-01-05 10:00:00", "2024-01-06 11:30:00", "2024-01-19 12:00:00")
SECONDS = (1704448800, 1704540600, 1705665600)


def write(folder: Path, times, header: str = "visitor_id,created_at,event,utm_source,utm_medium,url,amount") -> Path:
    folder.mkdir(exist_ok=True)
    rows = [
        f"a,{times[0]},page_view,google,cpc,/help-now,",
        f"a,{times[1]},Purchase,,,/thank-you,80",
        f"b,{times[2]},page_view,,,/home,",
    ]
    (folder / "clickstream.csv").write_text("\n".join([header, *rows]) + "\n")
    return folder


@pytest.mark.parametrize("times", [MOMENTS, SECONDS, [1000 * s for s in SECONDS], [10**6 * s for s in SECONDS]])
def test_flat_csv_events_are_read_with_any_time_unit(tmp_path, times):
    export = open_export(write(tmp_path / "data", times))
    rows = export.rows('SELECT "user", ts, name, value FROM hits ORDER BY ts')
    assert rows["user"].tolist() == ["a", "a", "b"]
    assert rows["ts"].tolist() == [1_000_000 * s for s in SECONDS]
    assert rows["name"].tolist() == ["page_view", "purchase", "page_view"]
    assert np.ma.filled(rows["value"], 0.0).tolist() == [0.0, 80.0, 0.0]
    assert export.columns["events"]["page"] == "url"
    assert "session" in export.absent


def test_a_map_names_files_and_columns_and_survives_the_round_trip(tmp_path):
    folder = write(tmp_path / "data", MOMENTS, "who,moment,what,utm_source,utm_medium,url,amount")
    (folder / "clickstream.csv").rename(folder / "site.csv")
    with pytest.raises(ConfigError, match="holds no events: expected events_YYYYMMDD"):
        open_export(folder)
    given = tmp_path / "map.toml"
    given.write_text('[events]\nfile = "site.csv"\nuser = "who"\n')
    with pytest.raises(
        ConfigError, match=r"lacks the columns \['time', 'name'\]: found .* \[events\], time = \"\.\.\.\""
    ):
        open_export(folder, read_column_map(given))
    given.write_text('[events]\nfile = "site.csv"\nuser = "who"\ntime = "moment"\nname = "what"\n')
    profile = profile_of(folder, read_column_map(given))
    assert profile.tables["events"].rows == 3
    again = tmp_path / "again.toml"
    again.write_text(profile.columns_toml())
    assert read_column_map(again).columns["events"]["user"] == "who"
    for text, message in (
        ("[pages]\n", r"\[pages\] is not a table"),
        ('[events]\nspeed = "x"\n', "events.speed"),
        ("[events", "cannot read the column map"),
    ):
        given.write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_column_map(given)
    with pytest.raises(ConfigError, match="the column map names nobody of events"):
        open_export(folder, ColumnMap({"events": "site.csv"}, {"events": {"user": "nobody"}}))


def with_ads(folder: Path, header: str, *rows: str) -> Path:
    write(folder, MOMENTS)
    (folder / "campaigns.csv").write_text("\n".join([header, *rows]) + "\n")
    return folder


def test_reports_in_percent_and_micros_with_gaps_are_understood(tmp_path):
    folder = with_ads(
        tmp_path / "data",
        "Day,Campaign,Impr.,Clicks,cost_micros,Search impr. share",
        "2024-01-05,one,1000,40,2500000,45.5%",
        "2024-01-06,one,10,0,0, --",
    )
    export = open_export(folder)
    rows = export.rows("SELECT cost, impression_share, bid, position FROM ads ORDER BY date")
    assert rows["cost"].tolist() == [2.5, 0.0]
    assert rows["impression_share"][0] == pytest.approx(0.455)
    assert np.ma.getmaskarray(rows["impression_share"])[1]  # unknown, not 1
    assert np.ma.getmaskarray(rows["bid"]).all()
    assert any("micros" in note for note in export.notes)
    profile = profile_of(folder)
    assert "campaign 'one' of the ads table has no event of its name" in profile.odd
    assert any(line.startswith("rivals: auction insights and our own bids") for line in profile.cannot)
    assert any(line.startswith("position effects") for line in profile.cannot)
    assert "cannot be discovered: delays" in profile.text()


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ("2024-01-05,one,10,40,1,0.5", "more clicks than impressions"),
        ("soon,one,10,4,1,0.5", "1 rows without a date that can be read"),
        ("2024-01-05,one,10,4,-1,0.5", "rows whose cost is not 0 or more"),
    ],
)
def test_impossible_reports_are_explained(tmp_path, row, text):
    header = "date,campaign,impressions,clicks,cost,impression_share"
    with pytest.raises(ConfigError, match=text):
        open_export(with_ads(tmp_path / "data", header, row))


REPORT = "date,campaign,impressions,clicks,cost,bid"


@pytest.mark.parametrize("value", ["355,03", "1.234,56", "0,500", "80,00 €", "1,2345"])
def test_decimal_commas_are_refused_instead_of_being_read_as_thousands(tmp_path, value):
    folder = with_ads(tmp_path / "data", REPORT, f'2024-01-05,one,1000,40,"{value}",1')
    with pytest.raises(ConfigError, match=f"ads: 1 values of 'cost' .* such as '{value}': write .* decimal point"):
        open_export(folder)
    (folder / "campaigns.csv").unlink()
    events = (folder / "clickstream.csv").read_text().replace("thank-you,80", f'thank-you,"{value}"')
    (folder / "clickstream.csv").write_text(events)
    with pytest.raises(ConfigError, match=f"events: 1 values of 'amount' .* such as '{value}'"):
        open_export(folder)


def test_commas_between_thousands_are_read(tmp_path):
    rows = ['2024-01-05,one,"12,345",40,"1,234,567.89",1', "2024-01-06,one,1000,40,355.03,1"]
    export = open_export(with_ads(tmp_path / "data", REPORT, *rows))
    assert export.rows("SELECT cost FROM ads ORDER BY date")["cost"].tolist() == [1234567.89, 355.03]
    assert export.rows("SELECT max(impressions) AS most FROM ads")["most"].tolist() == [12345.0]
    assert export.odd == ()


def test_numbers_that_cannot_be_read_are_counted_and_are_no_values_of_purchases(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    rows = [f"a,{MOMENTS[0]},purchase,{price}.00 €" for price in range(10, 30)]
    (folder / "hits.csv").write_text("\n".join(["user_id,time,event,price", *rows]) + "\n")
    profile = profile_of(folder)
    assert any("20 values of 'price' count as empty" in note and "'10.00 €'" in note for note in profile.odd)
    assert profile.tables["events"].nulls == {"value": 1.0}  # columns that the file lacks are no gaps
    assert "100% of value is empty" in profile.text()
    assert "delays, rates and values of purchases" not in profile.can
    assert any("0 of 20 purchases have a value" in note for note in profile.cannot)


def test_all_columns_with_gaps_are_shown(tmp_path):
    header = "visitor_id,created_at,event,utm_source,utm_medium,amount,campaign,creative,os,device"
    rows = [f"a,{moment},page_view,,,,,,," for moment in MOMENTS]
    (tmp_path / "hits.csv").write_text("\n".join([header, *rows]) + "\n")
    assert profile_of(tmp_path).text().count("is empty") == 7


def test_rows_without_a_readable_time_are_counted(tmp_path):
    folder = write(tmp_path / "data", [MOMENTS[0], "31.01.2024 10:00", ""])
    profile = profile_of(folder)
    assert profile.tables["events"].rows == 1
    note = (
        "2 of 3 rows are left out: their 'created_at' is empty or cannot be read as a time, such as '31.01.2024 10:00'"
    )
    assert f"events: {note}" in profile.odd
    assert f"odd: events: {note}" in profile.text()


def test_times_none_of_which_can_be_read_are_shown(tmp_path):
    folder = write(tmp_path / "data", ["31.01.2024 10:00"] * 3)
    expected = "none of 3 values of 'created_at' could be read as a time, such as '31.01.2024 10:00'"
    with pytest.raises(ConfigError, match=expected):
        open_export(folder)


@pytest.mark.parametrize("mapped", [False, True])
def test_flat_json_lines_are_read_under_their_own_names(tmp_path, mapped):
    names = ("event_timestamp", "what", "who") if mapped else ("created_at", "event", "visitor_id")
    rows = [dict(zip((*names, "amount"), (moment, "purchase", "a", 80), strict=True)) for moment in MOMENTS]
    path = tmp_path / "events.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    columns = ColumnMap({}, {"events": {"name": "what", "user": "who"}}) if mapped else None
    found = open_export(path, columns).rows('SELECT "user", ts, value FROM hits ORDER BY ts')
    assert found["ts"].tolist() == [1_000_000 * s for s in SECONDS]
    assert found["user"].tolist() == ["a"] * 3
    assert found["value"].tolist() == [80.0] * 3


def test_files_that_are_not_recognised_are_named(tmp_path):
    folder = write(tmp_path / "data", MOMENTS)
    (folder / "Google Ads report.csv").write_text("a\n1\n")
    assert any("not used: Google Ads report.csv" in note for note in profile_of(folder).odd)
    (folder / "clickstream.csv").rename(folder / "web log.csv")
    with pytest.raises(ConfigError, match=r"hits, .* found Google Ads report.csv, web log.csv; rename .* --columns"):
        open_export(folder)


def test_tables_that_are_not_recognised_are_named(tmp_path):
    path = tmp_path / "export.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE visits AS SELECT 1 AS a")
    with pytest.raises(ConfigError, match=r"holds no events: .* found visits; rename"):
        open_export(path)


def test_a_vocabulary_is_read_from_a_file(tmp_path):
    path = tmp_path / "words.toml"
    path.write_text('health = ["sleep"]\n[topics]\nurgent = ["now"]\n')
    words = Vocabulary.read(path)
    assert words.names == ("urgent", "general")
    assert (words.health, words.funnel) == (("sleep",), Vocabulary().funnel)
    path.write_text("health = 3\n")
    with pytest.raises(ConfigError, match="health = 3: give a list of words"):
        Vocabulary.read(path)
