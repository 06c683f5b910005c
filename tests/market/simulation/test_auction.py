"""Auctions worked out by hand: who is ranked where, and what a click costs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from parallel_agents.market.simulation.auction import (
    FIRST_PRICE,
    GSP,
    SECOND_PRICE,
    click_price,
    next_score,
    rank,
)


def ranked_prices(bids, quality, reserve, mechanism):
    """Return (bidder, price of a click) of every entrant, best first."""
    scores = np.log(np.array(bids) * np.array(quality))
    order = np.empty(len(bids), np.int64)
    ranked = order[: rank(scores, order, math.log(reserve))]
    return [
        (
            int(n),
            click_price(mechanism, bids[n], math.log(quality[n]), next_score(scores, ranked, i, math.log(reserve))),
        )
        for i, n in enumerate(ranked)
    ]


def test_gsp_price_is_next_score_over_own_quality():
    # scores: 2 × 0.5 = 1.0, 1.5 × 1.0 = 1.5, 4 × 0.2 = 0.8, 0.4 × 1 = 0.4 (below the reserve of 0.5)
    entrants = ranked_prices([2.0, 1.5, 4.0, 0.4], [0.5, 1.0, 0.2, 1.0], 0.5, GSP)
    assert [who for who, _ in entrants] == [1, 0, 2]
    np.testing.assert_allclose([price for _, price in entrants], [1.0 / 1.0, 0.8 / 0.5, 0.5 / 0.2])


def test_second_price_is_second_bid_or_reserve():
    assert ranked_prices([2.0, 5.0], [1.0, 1.0], 0.5, SECOND_PRICE)[0] == (1, pytest.approx(2.0))
    assert ranked_prices([0.3, 5.0], [1.0, 1.0], 0.5, SECOND_PRICE) == [(1, pytest.approx(0.5))]


def test_first_price_is_own_bid():
    assert ranked_prices([2.0, 5.0], [1.0, 1.0], 0.5, FIRST_PRICE)[0] == (1, 5.0)


def test_price_never_exceeds_bid_and_ties_go_to_lower_position():
    for bids in itertools.permutations([1.0, 1.0, 2.0, 0.7]):
        for mechanism in (FIRST_PRICE, SECOND_PRICE, GSP):
            entrants = ranked_prices(list(bids), [1.0] * 4, 0.6, mechanism)
            assert all(price <= bids[who] + 1e-12 for who, price in entrants)
            equal = [who for who, _ in entrants if bids[who] == 1.0]
            assert equal == sorted(equal)


def test_bids_below_reserve_do_not_enter():
    assert ranked_prices([0.1, 0.2], [1.0, 1.0], 0.5, GSP) == []
    order = np.empty(2, np.int64)
    assert rank(np.full(2, -np.inf), order, -math.inf) == 0
