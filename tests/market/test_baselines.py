"""Baselines: they act as described, and the task is worth learning beside them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parallel_agents.core.errors import ConfigError
from parallel_agents.market.baselines import (
    Constant,
    Oracle,
    PIDPacer,
    Random,
    best_constant,
    fit_baselines,
    oracle,
    play,
)
from parallel_agents.market.simulation import MarketWorlds
from parallel_agents.market.worlds import CreativePerformance, UserPopulation
from tests.market.builders import plain_world


def priced_worlds(count: int = 4):
    """Return worlds of different price levels: a bid of 1 wins nearly everything in the first, little in the last."""
    levels = np.linspace(-1.0, 1.0, count)
    return [plain_world(i, competitors__level=np.array([[x], [x]])) for i, x in enumerate(levels)]


def test_a_constant_bids_alpha_times_the_predicted_value_and_random_uses_every_level():
    world = plain_world(market_state__predicted_value=np.array([2.0]))
    with MarketWorlds([world], threads=1, auctions_per_step=5) as market:
        play(market, Constant(0.5), [0])
        assert market.state.alpha[0, 0, 0] == pytest.approx(np.log(0.5))
        market.reset(0)
        bidder = Random()
        bidder.begin(market)
        drawn = {float(bidder.act(market)[0][0, 0, 0]) for _ in range(200)}
    assert len(drawn) == 12


def test_the_pacer_spends_the_budget_evenly_and_the_cap_binds():
    with MarketWorlds(priced_worlds(), threads=1, auctions_per_step=40, budget=60.0, target=100.0) as market:
        market.reset(0)
        pacer, spent = PIDPacer(start=0.1), []
        pacer.begin(market)
        while not market.done:
            alpha, creative = pacer.act(market)
            market.step(alpha * market.parameters.predicted_value, creative)
            spent.append(market.state.spent[0] / 60.0)
        constant = play(market, Constant(3.0), [0])
        capped = play(market, PIDPacer(start=0.1, cap=1e-5), [0])
    half = np.array(spent)[23]
    assert ((half > 0.3) & (half < 0.7)).all()
    assert (np.array(spent)[-1] > 0.8).all()
    assert (constant.spent > 0.95).all()
    assert (capped.spent < 0.1).all()


def test_a_constant_for_profit_earns_more_than_one_for_the_score():
    """A target that nobody reaches makes every purchase count as little; for profit the market is worth its price."""
    with MarketWorlds(priced_worlds(), threads=1, auctions_per_step=20, budget=200.0, target=0.05) as market:
        bids = {by: best_constant(market, [0, 1], by) for by in ("score", "profit")}
        earned = {by: play(market, bidder, [0, 1]).by_world("profit").mean() for by, bidder in bids.items()}
        scores = {by: play(market, bidder, [0, 1]).by_world().mean() for by, bidder in bids.items()}
    assert earned["profit"] > earned["score"]
    assert scores["score"] > scores["profit"]


def test_the_oracle_knows_what_a_common_constant_cannot():
    """With the same target, a dear world needs a high bid, and a cheap one a low bid."""
    with MarketWorlds(priced_worlds(), threads=1, auctions_per_step=20, budget=50.0, target=1.2) as market:
        common = best_constant(market, [0, 1])
        known = oracle(market, 5, {"pid pacer": PIDPacer(start=0.5, cap=1.0)}, generations=4)
        assert market.budget == 50.0  # as before
        gain = play(market, known, [5]).score.mean() / play(market, common, [5]).score.mean()
    assert known.mix.shape == (4, 1)
    assert len(set(known.start.tolist())) == 4
    assert gain > 1.0
    with pytest.raises(ConfigError, match="no worlds were given"):
        fit_baselines([])


def test_the_oracle_bids_by_the_hour_and_shows_the_creative_that_buyers_click():
    """Half of the users buy often; the first creative attracts these, the second is clicked more often."""
    two, world = np.ones(2), plain_world(conversion_dynamics__hour_factor=np.linspace(0.5, 2.0, 24)[:, None])
    by_segment = dict.fromkeys(("value_log_mean", "value_log_spread", "delay_hours", "delay_shape"), two)
    world = replace(
        world,
        segments=("crisis_parent", "other"),
        creatives=("for buyers", "for all"),
        users=UserPopulation(500, two / 2, two, np.ones((2, 1)), two / 2, two / 10),
        market_state=replace(world.market_state, campaign_share=np.ones((2, 1))),
        creative_variance=CreativePerformance(two / 5, np.array([[1.5, 1.1], [0.5, 1.1]]), 0.0, np.ones(1)),
        conversion_dynamics=replace(world.conversion_dynamics, base=np.array([0.4, 0.05]), **by_segment),
    )
    with MarketWorlds([world], steps=24, threads=1, auctions_per_step=5) as market:
        shown = {}
        for buyers in (0.0, 5.0):
            known, bids = Oracle(start=0.1, proportional=0.0, integral=0.0, cap=1e9, buyers=buyers), []
            market.reset(0)
            known.begin(market)
            while not market.done:
                alpha, creative = known.act(market)
                bids.append(alpha[0, 0, 0])
                shown[buyers] = int(creative[0, 0])
                market.step(alpha * 0.0, creative)  # nothing is shown, so nothing wears out
            hours = market.parameters.hour_factor[0, :, 0]
            np.testing.assert_allclose(bids, 0.1 * hours)
    assert shown == {0.0: 1, 5.0: 0}  # the creative for all, the creative for buyers


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_task_is_worth_learning():
    """In unseen worlds knowing the world is worth at least 20 %, and the pacer at least 15 %, over the best constant."""
    from benchmarks.market_task import study

    rows = study()["results"]
    assert rows["oracle"]["over_best_constant"][0] >= 0.20
    assert rows["pid pacer"]["over_best_constant"][0] >= 0.15
    assert rows["random"]["score"][2] < rows["best constant"]["score"][1]
