"""The chances that rivals are fitted by, against played auctions, what creatives wear, and what reports do not show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parallel_agents.market.discovery import Vocabulary
from parallel_agents.market.discovery.click_history import read_history
from parallel_agents.market.discovery.competition import AdHistory, fit_creatives, read_ad_history
from parallel_agents.market.discovery.day_levels import our_shocks
from parallel_agents.market.discovery.export_reader import open_export
from parallel_agents.market.discovery.rivals import Auctions, Rivals, _chances, _top

PLAYED = 200_000


def read_ads(tables) -> AdHistory:
    export = open_export(tables)
    return read_ad_history(export, read_history(export, Vocabulary(), utc_offset_hours=0.0))


@pytest.fixture(scope="module")
def ads(sample) -> AdHistory:
    return read_ads(sample.tables)


def test_the_chance_to_rank_above_us_is_that_of_played_auctions(rng):
    """A rival's bids follow the hours; both of us enter only above the reserve, one of our creatives never does."""
    wave = np.array([[0.6, -0.6, 0.0]])
    hours, offers = np.array([[0.5, 0.3, 0.2]]), np.array([[0.1, -0.5, -2.0]])
    live, reserve, level, spread = np.array([[0.4, 0.3, 0.0]]), np.array([-0.8]), np.array([-0.4]), 0.5
    first, ours = np.zeros(1, np.int64), (live[None], offers[None], reserve)
    chance, enters = _chances(first, first, level, spread, wave, hours, *ours)
    hour, creative = rng.choice(3, PLAYED, p=hours[0]), rng.choice(3, PLAYED, p=[0.4, 0.3, 0.3])
    bid = level[0] + wave[0, hour] + spread * rng.standard_normal(PLAYED)
    both = (creative < 2) & (bid >= reserve[0])
    assert enters[0] == pytest.approx(both.mean(), abs=0.005)
    assert chance[0, 0] == pytest.approx((bid > offers[0, creative])[both].mean(), abs=0.006)
    for i, (moved, wider) in enumerate([(1e-6, 1.0), (0.0, np.exp(1e-6))], start=1):
        near, _ = _chances(first, first, level + moved, spread * wider, wave, hours, *ours)
        assert chance[0, i] == pytest.approx((near[0, 0] - chance[0, 0]) / 1e-6, rel=1e-4)


def test_our_chance_to_be_on_top_is_that_of_played_auctions(rng):
    level, spread, enters = np.array([[0.2, -0.3]]), np.array([0.4, 0.8]), np.array([[0.9, 0.5]])
    offer, live = np.array([[0.3, -0.1]]), np.array([[0.5, 0.5]])
    chance, slope = _top(level, spread, enters, offer, live)
    bids = np.where(rng.random((PLAYED, 2)) < enters, level + spread * rng.standard_normal((PLAYED, 2)), -np.inf)
    ours = offer[0, rng.integers(0, 2, PLAYED)]
    assert chance[0] == pytest.approx((bids.max(axis=1) < ours).mean(), abs=0.005)
    near, _ = _top(level + 1e-6, spread, enters, offer, live)
    assert slope[0] == pytest.approx((near[0] - chance[0]) / 1e-6, rel=1e-4)


def test_auctions_are_not_lost_where_we_won_no_impression(ads):
    """Rivals bid most at the hours and on the days that show no impression of ours."""
    unseen = ~np.isfinite(ads.log_bid)
    assert unseen.any()
    assert (ads.auctions > 0.0).all()
    usual = ads.auctions.mean(axis=0)
    assert (np.abs(np.log(ads.auctions / usual))[unseen] < 0.5).all()
    by_hour = ads.hourly_auctions.sum(axis=1)
    assert (ads.hourly_auctions[:, :, 0][~unseen[:, 0]] > 0.0).all()
    np.testing.assert_allclose(by_hour[~unseen], ads.auctions[~unseen], rtol=0.15)


def test_rows_that_do_not_say_how_often_we_were_shown_or_which_rival_we_met_are_left_out(sample, ads):
    tables = dict(sample.tables)
    for name, column in (("ads_by_hour", "impressions"), ("auction_insights", "competitor")):
        values, place = tables[name][column].to_pylist(), tables[name].column_names.index(column)
        values = [None if row % 7 == 0 else value for row, value in enumerate(values)]
        tables[name] = tables[name].set_column(place, column, [values])
    found = read_ads(tables)
    assert np.isfinite(found.hourly_auctions).all()
    assert found.rivals == ads.rivals


def test_variants_in_which_only_other_rivals_can_be_fitted_say_nothing(ads):
    auctions = Auctions(ads, fit_creatives(ads), np.full(len(ads.campaigns), 0.05), None)
    rivals = Rivals.of(auctions, np.zeros(ads.days, np.int64))
    (first, one), (second, other) = list(rivals.bidding.items())[:2]
    alone, shifted = replace(rivals, bidding={first: one}), replace(one, centre=one.centre + 0.1)
    variants = [replace(rivals, bidding={first: shifted}), replace(rivals, bidding={second: other})]
    found, expected = alone.widened(variants), alone.widened(variants[:1])
    np.testing.assert_allclose(found.common, 0.01)
    np.testing.assert_array_equal(found.common, expected.common)


def test_fatigue_is_covered_however_well_the_export_tells_how_long_users_remember(ads, rng):
    """With thirty times the impressions, the likely memories are closer together than any fixed steps."""
    shown, fatigue, held = 30.0 * ads.impressions, 0.3, []
    worn = np.exp(-fatigue * ads.remembered(0.823)[ads.day, ads.creative])
    for _ in range(20):
        clicks = rng.poisson(shown * 0.05 * worn).astype(np.float64)
        found = fit_creatives(replace(ads, impressions=shown, clicks=clicks)).fatigue
        assert found.high - found.low < 0.05
        held.append(found.low < fatigue < found.high)
    assert np.mean(held) > 0.75


def test_bids_of_days_without_an_impression_follow_from_how_often_rivals_were_above_us(ads):
    """Bids that are known are hidden: they are found again, the low ones too."""
    creatives, reserve = fit_creatives(ads), np.full(len(ads.campaigns), 0.05)
    landscape = np.arange(ads.days) // 14
    rivals = Rivals.of(Auctions(ads, creatives, reserve, None), landscape)
    hidden = np.isfinite(ads.log_bid) & (np.arange(ads.days) % 4 == 0)[:, None]
    partly = replace(ads, log_bid=np.where(hidden, np.nan, ads.log_bid))
    found = our_shocks(replace(rivals.auctions, ads=partly), rivals.bidding)
    truth = ads.log_bid - np.nanmean(ads.log_bid, axis=0)
    off = (found - truth)[hidden] - np.median((found - truth)[hidden])
    assert hidden.sum() > 40
    assert np.median(np.abs(off)) < 0.15
    assert np.corrcoef(found[hidden], truth[hidden])[0, 1] > 0.9
    never = ~np.isfinite(ads.log_bid)
    assert never.sum() > 20
    assert found[never].mean() < -0.3  # unseen bids were low


def test_errors_of_the_quality_of_creatives_follow_the_directions_of_its_variants(ads, rng):
    """Fatigue and memory are uncertain together: what no variant explains is less than the price of a click is rounded."""
    truth, rounding, distance = -0.3 * ads.remembered(0.823), 0.005, []
    for _ in range(12):
        clicks = rng.poisson(ads.impressions * 0.05 * np.exp(truth[ads.day, ads.creative])).astype(np.float64)
        found = fit_creatives(replace(ads, clicks=clicks))
        apart = np.array([(own.quality - found.quality).ravel() for own in found.variants()])
        off = (found.quality - truth).ravel()
        unexplained = np.linalg.inv(apart.T @ apart + rounding**2 * np.eye(len(off)))
        distance.append(off @ unexplained @ off)
    assert np.median(distance) < 2.0 * len(apart)
