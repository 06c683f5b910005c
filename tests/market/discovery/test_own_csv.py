"""Someone's own CSV files, with their own column names, give the same worlds as the GA4 export of the same market."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from parallel_agents.market.discovery import discover
from parallel_agents.market.discovery.click_history import Vocabulary, read_history
from parallel_agents.market.discovery.export_reader import ColumnMap, open_export, read_column_map
from parallel_agents.market.discovery.profile import profile_of
from parallel_agents.market.sample import Sample
from parallel_agents.market.worlds import create_world_variants

COLUMNS = (
    "visitor", "happened", "event", "visit id", "url", "engagement_time_msec", "utm_source", "utm_medium",
    "utm_campaign", "utm_content", "os", "device", "revenue", "order_id",
)  # fmt: skip
SESSION = "visit id"
MAP = """
[events]
file = "web.csv"
user = "visitor"
time = "happened"

[ads]
file = "Campaign report.csv"

[auction_insights]
file = "rivals.csv"
"""


def flat(row: dict) -> list:
    """Return a GA4 event as a row of COLUMNS."""
    params = {p["key"]: next((v for v in p["value"].values() if v is not None), None) for p in row["event_params"]}
    origin, bought = row["collected_traffic_source"], row["ecommerce"]
    moment = np.datetime64(row["event_timestamp"], "us")
    return [
        row["user_pseudo_id"], moment, row["event_name"], params["ga_session_id"], params["page_location"],
        params.get("engagement_time_msec"), origin["manual_source"], origin["manual_medium"],
        origin["manual_campaign_name"], origin["manual_content"], row["device"]["operating_system"],
        row["device"]["category"], bought["purchase_revenue"], bought["transaction_id"],
    ]  # fmt: skip


def write(path: Path, header: tuple[str, ...], rows: list[list]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def write_events(path: Path, sample: Sample, *, sessions: bool) -> None:
    """Write the events of a sample as a flat table, with or without its column of sessions."""
    kept = [i for i, column in enumerate(COLUMNS) if sessions or column != SESSION]
    rows = [flat(row) for row in sample.events.to_pylist()]
    write(path, tuple(COLUMNS[i] for i in kept), [[row[i] for i in kept] for row in rows])


@pytest.mark.parametrize(("sessions", "close"), [(True, 1e-3), (False, 3e-2)])
def test_own_files_go_from_profile_to_the_same_worlds(small_sample, small_patterns, tmp_path, sessions, close):
    """The map names no sessions; with a column of them they are as in the sample, without one nearly so."""
    folder = tmp_path / "mine"
    folder.mkdir()
    write_events(folder / "web.csv", small_sample, sessions=sessions)
    names = {"date": "Day", "impressions": "Impr.", "bid": "Max CPC", "impression_share": "Search impr. share"}
    for table, file in (
        (small_sample.ads, "Campaign report.csv"),
        (small_sample.insights, "rivals.csv"),
        (small_sample.hours, "hourly.csv"),
    ):
        rows = [list(row.values()) for row in table.to_pylist()]
        write(folder / file, tuple(names.get(name, name) for name in table.column_names), rows)
    (tmp_path / "map.toml").write_text(MAP)
    columns = read_column_map(tmp_path / "map.toml")
    profile = profile_of(folder, columns)
    assert profile.cannot == ()
    assert profile.columns["events"]["session"] == (SESSION if sessions else None)
    assert sessions != any("there is no column of sessions" in note for note in profile.understood)
    assert set(profile.tables) == {"events", "ads", "auction_insights", "ads_by_hour"}
    own = discover(folder, columns=columns)
    ours, theirs = own.estimates(), small_patterns.estimates()
    assert ours.keys() == theirs.keys()
    differing = [a for a, e in theirs.items() if ours[a].value != pytest.approx(e.value, rel=close, abs=close)]
    assert differing == []
    world = create_world_variants(own, 1)[0]
    assert world.campaigns == create_world_variants(small_patterns, 1)[0].campaigns


def test_without_sessions_clicks_and_delays_are_nearly_those_with_them(small_sample, tmp_path):
    write_events(tmp_path / "web.csv", small_sample, sessions=False)
    columns = ColumnMap({}, {"events": {"user": "visitor", "time": "happened"}})
    own = read_history(open_export(tmp_path / "web.csv", columns), Vocabulary())
    same = read_history(open_export(small_sample.tables), Vocabulary())
    assert len(own.time) == pytest.approx(len(same.time), rel=0.005)
    seen, known = own.delay[own.converted > 0], same.delay[same.converted > 0]
    assert len(seen) == len(known)
    assert np.sort(seen) == pytest.approx(np.sort(known), rel=0.01, abs=0.5)
    assert own.worth.sum() == pytest.approx(same.worth.sum())


def test_a_session_begins_at_a_new_origin_and_after_a_rest(tmp_path):
    hits = (
        ("2024-01-01 10:00", "purchase", "", "5"),  # before the click of the same visit: it does not belong to it
        ("2024-01-01 10:10", "page_view", "cpc", ""),
        ("2024-01-01 10:35", "page_view", "cpc", ""),
        ("2024-01-01 10:40", "page_view", "", ""),
        ("2024-01-01 10:45", "page_view", "(none)", ""),
        ("2024-01-01 10:50", "page_view", "email", ""),
        ("2024-01-01 11:00", "page_view", "cpc", ""),
        ("2024-01-02 10:00", "page_view", "cpc", ""),
        ("2024-01-02 12:00", "purchase", "", "7"),
    )
    header = ("visitor", "happened", "event", "utm_medium", "revenue")
    write(tmp_path / "web.csv", header, [["ann", *hit] for hit in hits])
    export = open_export(tmp_path / "web.csv", ColumnMap({}, {"events": {"user": "visitor", "time": "happened"}}))
    assert export.rows("SELECT session FROM hits ORDER BY ts")["session"].tolist() == [0, 1, 1, 1, 1, 2, 3, 4, 5]
    history = read_history(export, Vocabulary())
    assert history.time == pytest.approx([10 + 1 / 6, 10 + 5 / 6, 11.0, 34.0])
    assert history.delay[history.converted > 0].tolist() == [2.0]
    assert history.worth.sum() == 7.0
