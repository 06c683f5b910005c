"""A profile promises what `discover` does, and nothing that it refuses."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from parallel_agents.core.errors import ConfigError
from parallel_agents.market.discovery import discover
from parallel_agents.market.discovery.profile import profile_of
from parallel_agents.market.sample import Sample


def emptied(sample: Sample, column: str) -> dict[str, pa.Table]:
    """Return the tables of a sample whose ads have nothing in one column."""
    nulls = pa.nulls(len(sample.ads), pa.float64())
    return {**sample.tables, "ads": sample.ads.set_column(sample.ads.schema.get_field_index(column), column, nulls)}


def test_of_a_whole_sample_everything_can_be_discovered(small_sample):
    profile = profile_of(small_sample.tables)
    assert profile.cannot == ()
    assert {"segments of users", "seasons", "creatives and prices", "rivals", "prices by hour"} <= set(profile.can)


@pytest.mark.parametrize("lack", ["days", "page views"])
def test_nothing_can_be_discovered_where_discover_refuses_the_export(small_sample, lack):
    events = small_sample.events
    time = events.column("event_timestamp")
    kept = {
        "days": pc.less(time, pc.min(time).as_py() + 6 * 86_400_000_000),
        "page views": pc.not_equal(events.column("event_name"), "page_view"),
    }
    tables = {**small_sample.tables, "events": events.filter(kept[lack])}
    with pytest.raises(ConfigError):
        discover(tables)
    profile = profile_of(tables)
    wanted = {"days": "seasons", "page views": "segments of users"}[lack]
    assert profile.can == ()
    assert profile.cannot[0] == f"anything: discover refuses the whole export for want of {wanted}"


@pytest.mark.parametrize("column", ["bid", "impression_share"])
def test_prices_and_rivals_need_bids_and_impression_shares(small_sample, column):
    tables = emptied(small_sample, column)
    assert discover(tables).competition is None
    profile = profile_of(tables)
    assert not {"creatives and prices", "rivals", "position effects", "prices by hour"} & set(profile.can)
    assert "segments of users" in profile.can
