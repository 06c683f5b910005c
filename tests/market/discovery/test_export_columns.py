"""Exports with other names and forms: columns are guessed or mapped, times and units understood, the rest explained."""

from __future__ import annotations

from pathlib import Path

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


def test_a_vocabulary_is_read_from_a_file(tmp_path):
    path = tmp_path / "words.toml"
    path.write_text('health = ["sleep"]\n[topics]\nurgent = ["now"]\n')
    words = Vocabulary.read(path)
    assert words.names == ("urgent", "general")
    assert (words.health, words.funnel) == (("sleep",), Vocabulary().funnel)
    path.write_text("health = 3\n")
    with pytest.raises(ConfigError, match="health = 3: give a list of words"):
        Vocabulary.read(path)
