"""Budgets, delays, rivals' pacing and attribution against numbers worked out by hand.

In these worlds every auction is won, every shown ad is clicked and every click leads to a purchase.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from parallel_agents.market.simulation import MarketWorlds
from parallel_agents.market.worlds import World
from tests.market.builders import FIRST, SECOND, plain_world

NO_RIVALS = {"competitors__participation": np.zeros(2)}


def world_without_rivals(**parts: Any) -> World:
    """Return a plain world without rivals: a click costs the reserve, or our bid in a first-price auction."""
    return plain_world(**NO_RIVALS, **parts)


def after_two_days(shape: float = 400.0) -> dict[str, Any]:
    """Purchases 54 hours after the click, hardly sooner or later: in the fifth step of 12 hours, counting the click's."""
    return {"delay_hours": 54.0, "conversion_dynamics__delay_shape": np.full(1, shape)}


def figures(market: MarketWorlds, bids: list[list[float]], what: str) -> list[list[float]]:
    """Return one entry of `info` by step and bidder, in world 0; `bids` are by step and bidder, for all campaigns."""
    market.reset(0)
    entries = []
    for offers in bids:
        market.step(np.repeat(np.array(offers)[:, None, None], market.campaigns, axis=2))
        entries.append(market.info()[what][:, 0].tolist())
    return entries


@pytest.mark.parametrize(
    ("mechanism", "budget", "paid"),
    [
        (SECOND, 2.2, [0.5, 0.5, 0.5, 0.5]),  # 0.2 are left, less than the reserve of 0.5: shown no more
        (FIRST, 2.75, [1.0, 1.0, 0.75]),  # the last bid is what is left, then nothing is
        (FIRST, 2.4, [1.0, 1.0]),  # 0.4 are left, less than the reserve
    ],
)
def test_nothing_is_shown_after_the_budget_is_spent(mechanism, budget, paid):
    """20 auctions a step, a bid of 1, a reserve of 0.5 and no rival: the first step spends the budget, click by click."""
    world = world_without_rivals(mechanism=mechanism, market_state__reserve=np.array([0.5]))
    with MarketWorlds([world], steps=3, auctions_per_step=20, budget=budget, threads=1) as market:
        assert figures(market, [[1.0]] * 3, "impressions") == [[len(paid)], [0.0], [0.0]]
        info = market.info(episode=True)
        assert info["auctions"].tolist() == [60]
        assert info["clicks"].tolist() == [[len(paid)]]
        assert info["cost"][0, 0] == pytest.approx(sum(paid), rel=1e-6)
        assert info["budget_left"][0, 0] == pytest.approx(budget - sum(paid), abs=1e-6)


def test_bidders_have_separate_budgets():
    """Both have 2: the first spends it with two clicks at 1; the second, which bids later, still has all of its budget."""
    world = world_without_rivals(mechanism=FIRST)
    with MarketWorlds([world], bidders=2, steps=2, auctions_per_step=9, budget=2.0, threads=1) as market:
        assert figures(market, [[1.0, 0.0], [1.0, 0.5]], "impressions") == [[2.0, 0.0], [0.0, 4.0]]


def test_a_purchase_arrives_after_the_steps_of_its_delay():
    """54 hours are 4.5 steps of 12 hours: clicks of step t are credited in step t + 4, those of step 11 at the end."""
    world = world_without_rivals(users__count=100_000, **after_two_days())  # so many that nobody clicks twice
    bids = [[1.0 if t in (0, 2, 3, 11) else 0.0] for t in range(14)]
    with MarketWorlds([world], steps=14, decisions_per_day=2, auctions_per_step=5, budget=1e6, threads=1) as market:
        expected = [[5.0 if t in (4, 6, 7, 13) else 0.0] for t in range(14)]
        assert figures(market, bids, "conversions") == expected
        np.testing.assert_allclose(figures(market, bids, "revenue"), 3.0 * np.array(expected))  # each is worth 3
        info = market.info(episode=True)
        assert info["pending"][0] == pytest.approx([0.0, 0.0])


def test_delays_are_weibull():
    """Scale 24 hours, shape 2: by the end of hour h 1 − exp(−(h / 24)²) have come, here at 12, 24 and 48 hours."""
    world = world_without_rivals(
        delay_hours=24.0, conversion_dynamics__delay_shape=np.array([2.0]), users__count=200_000
    )
    with MarketWorlds([world], steps=5, decisions_per_day=2, auctions_per_step=5_000, budget=1e6, threads=1) as market:
        come = np.cumsum(figures(market, [[1.0], *[[0.0]] * 4], "conversions"))[:4] / 5_000
    # clicks of a step are held to be at its beginning: what waits less than 12 hours comes within it
    np.testing.assert_allclose(come, 1.0 - np.exp(-(np.array([0.5, 1.0, 1.5, 2.0]) ** 2)), atol=0.025)


def test_rivals_pace_by_proportional_integral_and_derivative_terms():
    """Gains 0.5, 0.1 and 0.2 on e = 1 − spend / running mean of the spend, by hand; at one step a day, over four days.

    | spend | mean | e    | sum of e | 0.5 e | 0.1 sum | 0.2 (e − e before) |
    | 10    | 10   | 0    | 0        | 0     | 0       | 0                  |
    | 20    | 15   | −1/3 | −1/3     | −1/6  | −1/30   | −1/15              |
    | 0     | 10   | 1    | 2/3      | 1/2   | 1/15    | 4/15               |
    | 10    | 10   | 0    | 2/3      | 0     | 1/15    | −1/5               |
    """
    pacing = {"competitors__pacing": np.array([[0.5, 0.1, 0.2], [0.0, 0.1, 0.0]])}
    world = world_without_rivals(**pacing)
    with MarketWorlds([world], steps=7, decisions_per_day=1, auctions_per_step=1, threads=1) as market:
        market.reset(0)
        shifts = []
        for spend in (10.0, 20.0, 0.0, 10.0):
            market.state.step_spend[0] = spend
            market.step(np.zeros((1, 1, 1)))
            shifts.append(market.state.shift[0].copy())
    np.testing.assert_allclose(
        shifts,
        [[0.0, 0.0], [-1 / 6 - 1 / 30 - 1 / 15, -1 / 30], [1 / 2 + 1 / 15 + 4 / 15, 1 / 15], [1 / 15 - 1 / 5, 1 / 15]],
        atol=1e-12,
    )


def two_campaigns(**parts: Any) -> World:
    """Return a world without rivals in which half of the auctions are for a second campaign."""
    pair = np.ones(2)
    world = world_without_rivals(
        competitors__level=np.array([[0.3, 0.3], [0.6, 0.6]]),
        market_state__mechanism=np.array([SECOND, SECOND]),
        market_state__slots=np.array([1, 1]),
        market_state__reserve=0.1 * pair,
        market_state__campaign_share=np.full((1, 2), 0.5),
        market_state__channel_factor=pair,
        market_state__usual_bid=pair,
        market_state__predicted_value=pair,
        market_state__hour_price=np.zeros((24, 2)),
        conversion_dynamics__hour_factor=np.ones((24, 2)),
        **parts,
    )
    return replace(world, campaigns=("one", "two"))


def test_conversions_belong_to_the_bidder_who_was_clicked():
    """Whoever of three bids highest wins every auction of a step, in both campaigns, and what is bought from it."""
    bids = [[1.0, 2.0, 3.0], [0.0, 2.0, 1.0], [3.0, 2.0, 1.0], [1.0, 2.0, 3.0]]
    with MarketWorlds([two_campaigns()], bidders=3, steps=4, auctions_per_step=8, budget=1e6, threads=1) as market:
        expected = [[0.0, 0.0, 8.0], [0.0, 8.0, 0.0], [8.0, 0.0, 0.0], [0.0, 0.0, 8.0]]
        assert figures(market, bids, "conversions") == expected
        np.testing.assert_allclose(figures(market, bids, "revenue"), 3.0 * np.array(expected))


@pytest.mark.parametrize(
    ("attribution", "credited"),
    [("last_click", [0.0, 0.0, 3.0]), ("linear", [1.0, 1.0, 1.0]), ("position", [1.2, 0.6, 1.2])],
)
def test_a_conversion_counts_for_the_last_click_and_credit_follows_the_attribution(attribution, credited):
    """One user clicks once on each of three bidders' ads, 12 hours apart; one purchase of 3 follows the last click.

    It comes 4 steps after that click. By position the first and the last have 40 % each, those between share the rest.
    """
    world = two_campaigns(users__count=1, **after_two_days())
    bids = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], *[[0.0] * 3] * 11]
    with MarketWorlds(
        [world], bidders=3, steps=14, decisions_per_day=2, auctions_per_step=1, budget=1e6, attribution=attribution,
        threads=1,
    ) as market:  # fmt: skip
        conversions = figures(market, bids, "conversions")
        assert [t for t, row in enumerate(conversions) if any(row)] == [6]
        assert conversions[6] == [0.0, 0.0, 1.0]
        np.testing.assert_allclose(market.info(episode=True)["revenue"][:, 0], credited)
        assert market.info(episode=True)["superseded"][0, 0] == 2
