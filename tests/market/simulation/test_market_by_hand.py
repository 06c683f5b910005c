"""The market's arithmetic against numbers worked out by hand: budgets, delays, rivals' pacing, who is credited.

In these worlds every auction is won, every shown ad clicked and every click bought from, so whole numbers come out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from parallel_agents.market.simulation import MarketWorlds
from parallel_agents.market.worlds import World
from tests.market.builders import FIRST, SECOND, plain_world

NOBODY = {"competitors__participation": np.zeros(2)}
BOTH = pytest.mark.parametrize("fidelity", ["full", "fast"])


def lonely_world(**parts: Any) -> World:
    """A plain world without rivals: an ad is shown at the reserve price, or at our own bid where that is paid."""
    return plain_world(**NOBODY, **parts)


def after_two_days(shape: float = 400.0) -> dict[str, Any]:
    """Purchases 54 hours after the click, hardly sooner or later: in the fifth step of 12 hours, counting the click's."""
    return {"delay_hours": 54.0, "conversion_dynamics__delay_shape": np.full(1, shape)}


def played(market: MarketWorlds, bids: list[list[float]], what: str) -> list[list[float]]:
    """One figure of `info` by step and bidder, in world 0; `bids` by step and bidder, alike in all campaigns."""
    market.reset(0)
    found = []
    for offers in bids:
        market.step(np.repeat(np.array(offers)[:, None, None], market.campaigns, axis=2))
        found.append(market.info()[what][:, 0].tolist())
    return found


@BOTH
@pytest.mark.parametrize(
    ("mechanism", "budget", "paid"),
    [
        (SECOND, 2.2, [0.5, 0.5, 0.5, 0.5]),  # 0.2 are left, less than the reserve of 0.5: shown no more
        (FIRST, 2.75, [1.0, 1.0, 0.75]),  # the last bid is what is left, then nothing is
        (FIRST, 2.4, [1.0, 1.0]),  # 0.4 are left, less than the reserve
    ],
)
def test_after_the_budget_is_gone_nothing_is_shown(fidelity, mechanism, budget, paid):
    """20 auctions a step, a bid of 1, a reserve of 0.5 and no rival: the first step spends the budget, click by click."""
    world = lonely_world(mechanism=mechanism, market_state__reserve=np.array([0.5]))
    with MarketWorlds([world], steps=3, auctions_per_step=20, budget=budget, fidelity=fidelity, threads=1) as market:
        assert played(market, [[1.0]] * 3, "impressions") == [[len(paid)], [0.0], [0.0]]
        info = market.info(episode=True)
        assert info["auctions"].tolist() == [60]
        assert info["clicks"].tolist() == [[len(paid)]]
        assert info["cost"][0, 0] == pytest.approx(sum(paid), rel=1e-6)
        assert info["budget_left"][0, 0] == pytest.approx(budget - sum(paid), abs=1e-6)


@BOTH
def test_what_one_bidder_spent_is_not_missing_from_another(fidelity):
    """Both have 2: the first is out after two clicks at its bid of 1, the second, who bids later, has all of its own."""
    world = lonely_world(mechanism=FIRST)
    with MarketWorlds(
        [world], bidders=2, steps=2, auctions_per_step=9, budget=2.0, fidelity=fidelity, threads=1
    ) as market:
        assert played(market, [[1.0, 0.0], [1.0, 0.5]], "impressions") == [[2.0, 0.0], [0.0, 4.0]]


@BOTH
def test_a_purchase_comes_as_many_steps_later_as_its_delay_has(fidelity):
    """54 hours are 4.5 steps of 12 hours: clicks of step t are credited in step t + 4, and those of step 11 no more."""
    world = lonely_world(users__count=100_000, **after_two_days())  # so many that nobody clicks twice
    bids = [[1.0 if t in (0, 2, 3, 11) else 0.0] for t in range(14)]
    with MarketWorlds([world], steps=14, auctions_per_step=5, budget=1e6, fidelity=fidelity, threads=1) as market:
        expected = [[5.0 if t in (4, 6, 7) else 0.0] for t in range(14)]
        assert played(market, bids, "conversions") == expected
        np.testing.assert_allclose(played(market, bids, "revenue"), 3.0 * np.array(expected))  # each is worth 3
        info = market.info(episode=True)
        assert info["pending"][0] == pytest.approx([5.0, 15.0])


@BOTH
def test_delays_are_weibull(fidelity):
    """Scale 24 hours, shape 2: by the end of hour h 1 − exp(−(h / 24)²) have come, here at 12, 24 and 48 hours."""
    world = lonely_world(
        delay_hours=24.0, conversion_dynamics__delay_shape=np.array([2.0]), users__count=200_000,
        time_period__hours=48.0,
    )  # fmt: skip
    with MarketWorlds([world], steps=4, auctions_per_step=5_000, budget=1e6, fidelity=fidelity, threads=1) as market:
        come = np.cumsum(played(market, [[1.0], [0.0], [0.0], [0.0]], "conversions")) / 5_000
    # clicks of a step are held to be at its beginning: what waits less than 12 hours comes within it
    np.testing.assert_allclose(come, 1.0 - np.exp(-(np.array([0.5, 1.0, 1.5, 2.0]) ** 2)), atol=0.025)


def test_rivals_pace_by_proportional_integral_and_derivative_terms():
    """Gains 0.5, 0.1 and 0.2 on e = 1 − spend / running mean of the spend, by hand over four days.

    | spend | mean | e    | sum of e | 0.5 e | 0.1 sum | 0.2 (e − e before) |
    | 10    | 10   | 0    | 0        | 0     | 0       | 0                  |
    | 20    | 15   | −1/3 | −1/3     | −1/6  | −1/30   | −1/15              |
    | 0     | 10   | 1    | 2/3      | 1/2   | 1/15    | 4/15               |
    | 10    | 10   | 0    | 2/3      | 0     | 1/15    | −1/5               |
    """
    world = plain_world(competitors__pacing=np.array([[0.5, 0.1, 0.2], [0.0, 0.1, 0.0]]))
    with MarketWorlds([world], steps=7, auctions_per_step=1e-9, threads=1) as market:  # a day a step, no auction
        market.reset(0)
        shifts = []
        for spend in (10.0, 20.0, 0.0, 10.0):
            market.state.day_spend[0] = spend
            market.step(np.zeros((1, 1, 1)))
            shifts.append(market.state.shift[0].copy())
    np.testing.assert_allclose(
        shifts,
        [[0.0, 0.0], [-1 / 6 - 1 / 30 - 1 / 15, -1 / 30], [1 / 2 + 1 / 15 + 4 / 15, 1 / 15], [1 / 15 - 1 / 5, 1 / 15]],
        atol=1e-12,
    )


def test_a_rival_that_overspent_bids_less_until_it_is_made_up_for():
    """Integral gain 0.1 alone; the rival bids 2 and wins all: 10 auctions, then 30, then 10 a day.

    Day 1: it spends 20, the mean. Day 2: 60, of a mean of 40: e = −0.5, so it bids 2 exp(−0.05) = 1.9025.
    Day 3: 19.0246, of a mean of 33.0082: e = 0.42364, the sum is −0.07636, so it bids 2 exp(−0.007636).
    """
    volume = np.ones(168)
    volume[24:48] = 3.0
    world = plain_world(
        competitors__participation=np.array([1.0, 0.0]),
        competitors__level=np.log([[2.0], [0.5]]),
        competitors__spread=np.full(2, 1e-12),
        competitors__pacing=np.array([[0.0, 0.1, 0.0], [0.0, 0.0, 0.0]]),
        time_period__volume=volume,
    )
    with MarketWorlds([world], steps=7, auctions_per_step=10, threads=1) as market:
        market.reset(0)
        shifts = []
        for _ in range(3):
            market.step(np.zeros((1, 1, 1)))
            shifts.append(market.state.shift[0, 0])
    np.testing.assert_allclose(shifts, [0.0, -0.05, -0.007636], atol=1e-6)
    third = 20.0 * np.exp(-0.05)
    error = 1.0 - third / ((80.0 + third) / 3.0)
    assert shifts[2] == pytest.approx(0.1 * (error - 0.5), abs=1e-12)


def two_campaigns(**parts: Any) -> World:
    """A lonely world in which half of the auctions are for a second campaign."""
    pair = np.ones(2)
    world = lonely_world(
        competitors__level=np.array([[0.3, 0.3], [0.6, 0.6]]),
        market_state__mechanism=np.array([SECOND, SECOND]),
        market_state__slots=np.array([1, 1]),
        market_state__reserve=0.1 * pair,
        market_state__campaign_share=np.full((1, 2), 0.5),
        market_state__channel_factor=pair,
        market_state__usual_bid=pair,
        **parts,
    )
    return replace(world, campaigns=("one", "two"))


def test_conversions_belong_to_the_bidder_who_was_clicked():
    """Whoever of three bids highest wins every auction of a step, in both campaigns, and what is bought from it."""
    bids = [[1.0, 2.0, 3.0], [0.0, 2.0, 1.0], [3.0, 2.0, 1.0], [1.0, 2.0, 3.0]]
    with MarketWorlds([two_campaigns()], bidders=3, steps=4, auctions_per_step=8, budget=1e6, threads=1) as market:
        expected = [[0.0, 0.0, 8.0], [0.0, 8.0, 0.0], [8.0, 0.0, 0.0], [0.0, 0.0, 8.0]]
        assert played(market, bids, "conversions") == expected
        np.testing.assert_allclose(played(market, bids, "revenue"), 3.0 * np.array(expected))


def test_in_fast_mode_conversions_belong_to_the_bidder_who_was_clicked():
    """Each bidder alone faces the market: 4 auctions a step in each of two campaigns."""
    with MarketWorlds(
        [two_campaigns()], bidders=3, steps=3, auctions_per_step=8, budget=1e6, fidelity="fast", threads=1
    ) as market:
        bids = [[1.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 0.0, 1.0]]
        expected = [[8.0, 0.0, 0.0], [0.0, 8.0, 8.0], [0.0, 0.0, 8.0]]
        assert played(market, bids, "conversions") == expected
        np.testing.assert_allclose(played(market, bids, "revenue"), 3.0 * np.array(expected))


@pytest.mark.parametrize(
    ("attribution", "credited"),
    [("last_click", [0.0, 0.0, 3.0]), ("linear", [1.0, 1.0, 1.0]), ("position", [1.2, 0.6, 1.2])],
)
def test_a_conversion_is_the_last_clicked_bidder_s_though_others_are_credited(attribution, credited):
    """One user clicks once on each of three bidders' ads, 12 hours apart; one purchase of 3 follows the last click.

    It comes 4 steps after that click. By position the first and the last have 40 % each, those between share the rest.
    """
    world = two_campaigns(users__count=1, **after_two_days())
    bids = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], *[[0.0] * 3] * 11]
    with MarketWorlds(
        [world], bidders=3, steps=14, auctions_per_step=1, budget=1e6, attribution=attribution, threads=1
    ) as market:
        conversions = played(market, bids, "conversions")
        assert [t for t, own in enumerate(conversions) if any(own)] == [6]
        assert conversions[6] == [0.0, 0.0, 1.0]
        np.testing.assert_allclose(market.info(episode=True)["revenue"][:, 0], credited)
        assert market.info(episode=True)["superseded"][0, 0] == 2
