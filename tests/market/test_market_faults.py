"""The faults of the documents' published code, each as a test of ours; the numbers are those of the list of faults.

Faults of orchestration, importance sampling and PPO (2, 9 to 15) are tested where those live.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import fields, replace

import numpy as np
import pytest

import parallel_agents.market as market_package
from parallel_agents.errors import ActionError
from parallel_agents.market.simulation import MarketWorlds
from parallel_agents.market.worlds import create_world_variants
from tests.market.builders import plain_world


def run(market: MarketWorlds, epoch: int = 0, factor: float = 1.0) -> np.ndarray:
    market.reset(epoch)
    bids = factor * np.exp(market.parameters.usual_bid)[None].repeat(market.bidders, 0)
    return np.array([market.step(bids) for _ in range(market.steps)])


def test_1_every_module_imports():
    names = [m.name for m in pkgutil.walk_packages(market_package.__path__, "parallel_agents.market.")]
    assert len(names) > 25
    for name in names:
        importlib.import_module(name)


def test_3_an_episode_that_fails_raises_instead_of_being_empty(worlds):
    with MarketWorlds(worlds[:2], threads=2) as market:
        market.reset(0)
        with pytest.raises(ActionError):
            market.step(np.full((1, 2, 4), -1.0))
        rewards = run(market)
    assert rewards.shape == (50, 1, 2)
    assert np.abs(rewards).sum() > 0


def test_4_worlds_are_not_one_market_with_different_seeds(worlds):
    """The same draws in all worlds: what differs is the worlds."""
    with MarketWorlds([replace(w, index=0) for w in worlds], threads=1, auctions_per_step=200) as market:
        run(market)
        info = market.info(episode=True)
    assert len(set(info["cost"][0].tolist())) == len(worlds)
    assert (info["impressions"][0] / info["auctions"]).std() > 0.05


def test_5_discovered_numbers_are_not_round(patterns, worlds):
    """Numbers typed in are round; numbers estimated are not."""
    values = [e.value for e in patterns.estimates().values() if e.value not in (0.0, 1.0)]
    assert np.mean([round(v, 3) == v for v in values]) < 0.02
    shares = np.array([w.users.share for w in worlds])
    assert np.mean(np.round(shares, 3) == shares) < 0.05


def test_6_crisis_is_who_the_user_is_not_a_coin_on_the_outcome(worlds):
    """Worlds in which crisis parents never buy have no crisis revenue, whatever is sold; and the other way round."""
    for theirs in (0.0, 1.0):
        changed = []
        for w in worlds[:10]:
            base = np.where(np.arange(4) == w.crisis, theirs, 1.0 - theirs)
            changed.append(replace(w, conversion_dynamics=replace(w.conversion_dynamics, base=base)))
        with MarketWorlds(changed, threads=1, auctions_per_step=100, budget=1e6) as market:
            run(market, factor=3.0)
            info = market.info(episode=True)
        assert info["revenue"].sum() > 0
        expected = info["revenue"] if theirs else 0.0 * info["revenue"]
        np.testing.assert_allclose(info["crisis_revenue"], expected)


def test_7_delayed_purchases_arrive_within_a_simulated_run(worlds):
    with MarketWorlds(worlds, threads=1, auctions_per_step=100, budget=1e6) as market:
        run(market)
        info = market.info(episode=True)
    assert info["scheduled"][:, 0].sum() > 50
    assert info["delivered"][:, 0].sum() > 0.3 * info["scheduled"][:, 0].sum()
    assert info["revenue"].sum() > 0


def test_8_the_return_on_cost_is_a_return_and_nothing_is_dropped():
    """60 steps, none missing, in order; revenue over cost is not the reward."""
    with MarketWorlds([plain_world(i, value=4.0) for i in range(4)], steps=120, threads=1, budget=1e6) as market:
        market.reset(0)
        seen, rewards = [], []
        while not market.done:
            seen.append(market.observe())
            rewards.append(market.step(np.full((1, 4, 1), 2.0)))
        info = market.info(episode=True)
    progress = np.array(seen)[:, 0, 0, market.names.index("progress")]
    np.testing.assert_allclose(progress, np.arange(120) / 120, atol=1e-6)
    np.testing.assert_allclose(np.sum(rewards, axis=0), info["revenue"] - info["cost"])
    assert not np.allclose(info["revenue"] / info["cost"], np.sum(rewards, axis=0))


def test_populations_have_their_size_and_every_part_of_a_world_is_filled(patterns):
    world = create_world_variants(patterns, 1, users=(700, 700))[0]
    with MarketWorlds([world], threads=1) as market:
        assert len(market.parameters.user_segment) == 700
    for part in (
        "users",
        "competitors",
        "market_state",
        "time_period",
        "auction_pressure",
        "creative_variance",
        "conversion_dynamics",
    ):
        for f in fields(getattr(world, part)):
            assert np.size(getattr(getattr(world, part), f.name)) > 0
