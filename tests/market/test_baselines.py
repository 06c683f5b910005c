"""Baselines: they act as described, and the task is worth learning beside them."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_agents.core.errors import ConfigError
from parallel_agents.market.baselines import Constant, PIDPacer, Random, best_constant, fit_baselines, oracle, play
from parallel_agents.market.simulation import MarketWorlds
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


def test_the_oracle_knows_what_a_common_constant_cannot():
    """With the same target, a dear world needs a high bid, and a cheap one a low bid."""
    with MarketWorlds(priced_worlds(), threads=1, auctions_per_step=20, budget=50.0, target=1.2) as market:
        common = best_constant(market, [0, 1], per_campaign=False)
        known = oracle(market, 5, episodes=3)
        assert market.budget == 50.0  # as before
        gain = play(market, known, [5]).score.mean() / play(market, common, [5]).score.mean()
    assert known.alpha.shape == (4, 1)
    assert len(set(known.alpha[:, 0].tolist())) > 1
    assert gain > 1.0
    with pytest.raises(ConfigError, match="no worlds were given"):
        fit_baselines([])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_task_is_worth_learning():
    """In unseen worlds knowing the world is worth at least 20 %, and the pacer at least 15 %, over the best constant."""
    from benchmarks.market_task import study

    rows = study()["results"]
    assert rows["oracle"]["over_best_constant"][0] >= 0.20
    assert rows["pid pacer"]["over_best_constant"][0] >= 0.15
    assert rows["random"]["score"][2] < rows["best constant"]["score"][1]
