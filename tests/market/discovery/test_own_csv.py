"""Someone's own CSV files, with their own column names, give the same worlds as the GA4 export of the same market."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from parallel_agents.market.discovery import discover
from parallel_agents.market.discovery.export_reader import read_column_map
from parallel_agents.market.discovery.profile import profile_of
from parallel_agents.market.worlds import create_world_variants

COLUMNS = (
    "visitor", "happened", "event", "visit id", "url", "engagement_time_msec", "utm_source", "utm_medium",
    "utm_campaign", "utm_content", "os", "device", "revenue", "order_id",
)  # fmt: skip
MAP = """
[events]
file = "web.csv"
user = "visitor"
time = "happened"
session = "visit id"

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


def test_own_files_go_from_profile_to_the_same_worlds(small_sample, small_patterns, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    write(folder / "web.csv", COLUMNS, [flat(row) for row in small_sample.events.to_pylist()])
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
    assert set(profile.tables) == {"events", "ads", "auction_insights", "ads_by_hour"}
    own = discover(folder, columns=columns)
    ours, theirs = own.estimates(), small_patterns.estimates()
    assert ours.keys() == theirs.keys()
    differing = [a for a, e in theirs.items() if ours[a].value != pytest.approx(e.value, rel=1e-3, abs=1e-3)]
    assert differing == []
    world = create_world_variants(own, 1)[0]
    assert world.campaigns == create_world_variants(small_patterns, 1)[0].campaigns
