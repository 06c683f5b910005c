"""Both fidelities against auction theory: truthful bids are best in second price, lower bids in first price."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_agents.market.simulation import MarketWorlds
from tests.market.builders import FIRST, GSP, SECOND, plain_world

VALUE = 3.0
MULTIPLIERS = np.array([0.4, 0.6, 0.8, 1.0, 1.25, 1.6, 2.5])


def profit(mechanism: int, fidelity: str, *, epochs: int = 2, **parts) -> np.ndarray:
    """Mean profit per auction of each multiplier of the true value, on common random numbers."""
    copies = 30
    worlds = [plain_world(i, mechanism=mechanism, value=VALUE, **parts) for i in range(copies)]
    totals = np.zeros((len(MULTIPLIERS), copies))
    for m, multiplier in enumerate(MULTIPLIERS):
        with MarketWorlds(worlds, steps=10, auctions_per_step=200, budget=1e9, fidelity=fidelity, threads=1) as market:
            for epoch in range(epochs):
                market.reset(epoch)
                while not market.done:
                    totals[m] += market.step(np.full((1, copies, 1), multiplier * VALUE))[0]
    return totals / (epochs * 10 * 200)


@pytest.mark.parametrize("fidelity", ["full", "fast"])
def test_truthful_bids_are_best_in_second_price_auctions(fidelity):
    profits = profit(SECOND, fidelity)
    truthful = int(np.flatnonzero(MULTIPLIERS == 1.0)[0])
    assert profits.mean(axis=1).argmax() == truthful
    for other in (truthful - 2, truthful + 2):
        gain = profits[truthful] - profits[other]
        assert gain.mean() > 3.0 * gain.std() / np.sqrt(len(gain))


@pytest.mark.parametrize("fidelity", ["full", "fast"])
def test_lower_bids_beat_truthful_ones_in_first_price_auctions(fidelity):
    profits = profit(FIRST, fidelity)
    truthful = int(np.flatnonzero(MULTIPLIERS == 1.0)[0])
    assert profits[truthful] == pytest.approx(0.0, abs=1e-3)  # a bidder that bids its value gains nothing
    assert profits.mean(axis=1).argmax() < truthful
    gain = profits[truthful - 1] - profits[truthful]
    assert gain.mean() > 3.0 * gain.std() / np.sqrt(len(gain))


def test_win_rate_and_price_follow_the_rivals_distribution():
    """The chance to win at bid b is Π(1 − a + a Φ((ln b − level) / spread)), in both simulations."""
    from scipy.stats import norm

    bid = 1.6
    expected = np.prod(
        1 - np.array([0.9, 0.6]) * (1 - norm.cdf((np.log(bid) - np.array([0.3, 0.6])) / np.array([0.5, 0.4])))
    )
    prices = {}
    for fidelity in ("full", "fast"):
        worlds = [plain_world(i, mechanism=SECOND) for i in range(20)]
        with MarketWorlds(worlds, steps=5, auctions_per_step=1000, budget=1e9, fidelity=fidelity, threads=1) as market:
            market.reset(0)
            while not market.done:
                market.step(np.full((1, 20, 1), bid))
            info = market.info(episode=True)
        rate = info["impressions"].sum() / info["auctions"].sum()
        assert rate == pytest.approx(expected, abs=0.005), fidelity
        prices[fidelity] = info["cost"].sum() / info["clicks"].sum()
    assert prices["full"] == pytest.approx(prices["fast"], rel=0.01)


def test_a_lower_position_is_clicked_less_and_costs_less_in_gsp():
    def run(bid: float) -> dict[str, np.ndarray]:
        parts = {"creative_variance__position": np.array([1.0, 0.5, 0.25]), "market_state__slots": np.array([3])}
        worlds = [plain_world(i, mechanism=GSP, **parts) for i in range(10)]
        with MarketWorlds(worlds, steps=5, auctions_per_step=500, budget=1e9, threads=1) as market:
            market.reset(0)
            while not market.done:
                market.step(np.full((1, 10, 1), bid))
            return market.info(episode=True)

    low, high = run(0.8), run(8.0)
    assert low["impressions"].sum() / low["auctions"].sum() > 0.99  # three slots, two rivals
    assert low["clicks"].sum() < 0.7 * high["clicks"].sum()
    assert low["cost"].sum() / low["clicks"].sum() < 0.5 * high["cost"].sum() / high["clicks"].sum()
