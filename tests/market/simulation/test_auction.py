"""Auctions made by hand: who is shown, and what a click costs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from parallel_agents.market.simulation.attribution import Attribution, credit_shares
from parallel_agents.market.simulation.auction import FIRST_PRICE, GSP, SECOND_PRICE, click_price, rank


def outcome(bids, quality, reserve, mechanism):
    scores = np.log(np.array(bids) * np.array(quality))
    order = np.empty(len(bids), np.int64)
    entrants = rank(scores, order, math.log(reserve))
    return [
        (
            int(order[i]),
            click_price(
                mechanism, i, order, scores, entrants, math.log(reserve), bids[order[i]], math.log(quality[order[i]])
            ),
        )
        for i in range(entrants)
    ]


def test_gsp_pays_the_next_score_over_the_own_quality():
    # scores: 2 × 0.5 = 1.0, 1.5 × 1.0 = 1.5, 4 × 0.2 = 0.8, 0.4 × 1 = 0.4 (below the reserve of 0.5)
    found = outcome([2.0, 1.5, 4.0, 0.4], [0.5, 1.0, 0.2, 1.0], 0.5, GSP)
    assert [who for who, _ in found] == [1, 0, 2]
    np.testing.assert_allclose([price for _, price in found], [1.0 / 1.0, 0.8 / 0.5, 0.5 / 0.2])


def test_second_price_pays_the_second_bid_or_the_reserve():
    assert outcome([2.0, 5.0], [1.0, 1.0], 0.5, SECOND_PRICE)[0] == (1, pytest.approx(2.0))
    assert outcome([0.3, 5.0], [1.0, 1.0], 0.5, SECOND_PRICE) == [(1, pytest.approx(0.5))]


def test_first_price_pays_the_own_bid():
    assert outcome([2.0, 5.0], [1.0, 1.0], 0.5, FIRST_PRICE)[0] == (1, 5.0)


def test_a_price_never_exceeds_the_bid_and_ties_go_to_the_first():
    for bids in itertools.permutations([1.0, 1.0, 2.0, 0.7]):
        for mechanism in (FIRST_PRICE, SECOND_PRICE, GSP):
            found = outcome(list(bids), [1.0] * 4, 0.6, mechanism)
            assert all(price <= bids[who] + 1e-12 for who, price in found)
            equal = [who for who, _ in found if bids[who] == 1.0]
            assert equal == sorted(equal)


def test_nobody_at_the_reserve_means_no_entrant():
    assert outcome([0.1, 0.2], [1.0, 1.0], 0.5, GSP) == []
    order = np.empty(2, np.int64)
    assert rank(np.full(2, -np.inf), order, -math.inf) == 0


@pytest.mark.parametrize("rule", list(Attribution))
@pytest.mark.parametrize("touches", range(1, 9))
def test_credits_add_up_to_the_whole(rule, touches):
    shares = np.full(8, np.nan)
    credit_shares(int(rule), touches, shares)
    assert shares[:touches].sum() == pytest.approx(1.0, abs=1e-15)
    assert (shares[:touches] >= 0).all()


def test_attribution_rules_differ_as_they_should():
    found = {}
    for rule in Attribution:
        found[rule] = np.empty(4)
        credit_shares(int(rule), 4, found[rule])
    np.testing.assert_allclose(found[Attribution.LAST_CLICK], [0, 0, 0, 1])
    np.testing.assert_allclose(found[Attribution.LINEAR], [0.25] * 4)
    np.testing.assert_allclose(found[Attribution.POSITION], [0.4, 0.1, 0.1, 0.4])
