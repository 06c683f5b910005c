"""One test for each fault of the documents' published code, with the numbers of the list in docs/market.md.

The tests of the simulator and of importance sampling go into more depth.
"""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import time
from dataclasses import fields, replace

import numpy as np
import pytest

import parallel_agents.market as market_package
from parallel_agents.core.errors import ActionError
from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.market.experiences import EpisodeExperience, ExperienceBuffer
from parallel_agents.market.montecarlo import EpisodeSetting, MonteCarloSimulator
from parallel_agents.market.simulation import MarketWorlds
from parallel_agents.market.strategies import Strategy, detect_convergence_patterns
from parallel_agents.market.worlds import WorldType, create_world_variants
from parallel_agents.replay.event_types import ExperienceAggregator
from tests.market.builders import plain_world


def run(market: MarketWorlds, epoch: int = 0, factor: float = 1.0) -> np.ndarray:
    market.reset(epoch)
    bids = factor * np.exp(market.parameters.usual_bid)[None].repeat(market.bidders, 0)
    return np.array([market.step(bids) for _ in range(market.steps)])


def test_1_every_module_imports():
    names = [m.name for m in pkgutil.walk_packages(market_package.__path__, "parallel_agents.market.")]
    assert len(names) > 15
    for name in names:
        importlib.import_module(name)


def test_3_an_episode_that_fails_raises_instead_of_being_empty(worlds):
    with MarketWorlds(worlds[:2], threads=2) as market:
        market.reset(0)
        with pytest.raises(ActionError):
            market.step(np.full((1, 2, 4), -1.0))
        rewards = run(market)
    assert rewards.shape == (48, 1, 2)
    assert np.abs(rewards).sum() > 0


def test_4_worlds_are_not_one_market_with_different_seeds(worlds):
    """All worlds get the same random numbers, so differences come from their parameters."""
    with MarketWorlds([replace(w, index=0) for w in worlds], threads=1, auctions_per_step=200) as market:
        run(market)
        info = market.info(episode=True)
    assert len(set(info["cost"][0].tolist())) == len(worlds)
    assert (info["impressions"][0] / info["auctions"]).std() > 0.05


def test_5_discovered_numbers_are_not_round(patterns, worlds):
    """Numbers that were typed in would be round."""
    values = [e.value for e in patterns.estimates().values() if e.value not in (0.0, 1.0)]
    assert np.mean([round(v, 3) == v for v in values]) < 0.02
    shares = np.array([w.users.share for w in worlds])
    assert np.mean(np.round(shares, 3) == shares) < 0.05


def test_6_crisis_is_an_attribute_of_users_not_of_the_outcome(worlds):
    """If crisis parents never buy, there is no crisis revenue; if only they buy, all revenue is from them."""
    for rate in (0.0, 1.0):
        changed = []
        for w in worlds[:10]:
            base = np.where(np.arange(4) == w.crisis, rate, 1.0 - rate)
            changed.append(replace(w, conversion_dynamics=replace(w.conversion_dynamics, base=base)))
        with MarketWorlds(changed, threads=1, auctions_per_step=100, budget=1e6) as market:
            run(market, factor=3.0)
            info = market.info(episode=True)
        assert info["revenue"].sum() > 0
        expected = info["revenue"] if rate else 0.0 * info["revenue"]
        np.testing.assert_allclose(info["crisis_revenue"], expected)


def test_7_delayed_purchases_arrive_within_a_simulated_run(worlds):
    with MarketWorlds(worlds, threads=1, auctions_per_step=100, budget=1e6) as market:
        run(market)
        info = market.info(episode=True)
    assert info["scheduled"][:, 0].sum() > 50
    assert info["delivered"][:, 0].sum() > 0.3 * info["scheduled"][:, 0].sum()
    assert info["revenue"].sum() > 0


def test_8_the_return_on_cost_is_a_return_and_nothing_is_dropped():
    """120 steps, none missing, in order; revenue over cost is not the reward."""
    with MarketWorlds([plain_world(i, value=4.0) for i in range(4)], steps=120, threads=1, budget=1e6) as market:
        market.reset(0)
        observations, rewards = [], []
        while not market.done:
            observations.append(market.observe())
            rewards.append(market.step(np.full((1, 4, 1), 2.0)))
        info = market.info(episode=True)
    progress = np.array(observations)[:, 0, 0, market.names.index("progress")]
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


def numbered(number: int, steps: int = 50) -> EpisodeExperience:
    """Return an episode whose states hold its number and step; one step in ten has a crisis parent's purchase."""
    at = np.arange(steps + 1)
    states = np.stack([np.full(steps + 1, number % 2000), at], axis=1).astype(np.float32)
    crisis = np.where(at[:-1] % 10 == 3, 50.0, 0.0).astype(np.float32)
    return EpisodeExperience(
        world=number,
        kind=WorldType.NORMAL_MARKET,
        lap=0,
        context={},
        states=states,
        actions=at[:-1],
        rewards=(1000.0 * number + at[:-1]).astype(np.float32),
        values=crisis,
        crisis_values=crisis,
        cost=1.0,
        conversions=0.0,
        score=0.0,
        budget=1.0,
        target=1.0,
    )


def filled(transitions: int, episodes: int | None = None) -> ExperienceBuffer:
    buffer = ExperienceBuffer(transitions, 2)
    buffer.add_experiences(numbered(n) for n in range(transitions // 50 if episodes is None else episodes))
    return buffer


def test_2_a_batch_runs_all_its_worlds(patterns):
    setting = EpisodeSetting(steps=4, threads=1)
    with MonteCarloSimulator(6, None, 6, 100, patterns=patterns, setting=setting) as simulator:
        batch = asyncio.run(simulator.run_episode_batch(Strategy(9), 6))
    assert len(batch) == 6
    assert all(len(e.rewards) == 4 and np.abs(e.states).sum() > 0 for e in batch)


def test_9_weights_are_corrections_and_the_crisis_share_is_restored_by_them():
    batch = filled(5_000).sample_batch(2_000)
    assert batch["crisis"].mean() == pytest.approx(0.5, abs=0.05)
    assert np.average(batch["crisis"], weights=batch["weights"]) == pytest.approx(0.1, abs=0.02)
    squared = batch["weights"] ** 2
    assert squared[batch["crisis"]].sum() / squared.sum() < 0.2  # in that code: 97 %


def test_10_next_states_are_those_of_the_same_episode():
    batch = filled(5_000).sample_batch(500)
    np.testing.assert_array_equal(batch["next_states"][:, 0], batch["states"][:, 0])
    np.testing.assert_array_equal(batch["next_states"][:, 1], batch["states"][:, 1] + 1)
    np.testing.assert_array_equal(batch["dones"], batch["states"][:, 1] == 49)


def test_11_class_shares_do_not_change_with_drawing():
    buffer = filled(5_000)
    before = buffer.sampler.predicted_shares()
    for _ in range(60):
        buffer.sample_batch(100)
    assert buffer.sampler.predicted_shares() == before


def test_12_after_a_wrap_rows_are_consistent_and_recent():
    batch = filled(1_000, episodes=500).sample_batch(800)
    number, step = batch["states"].T
    np.testing.assert_array_equal(batch["rewards"], 1000.0 * number + step)
    np.testing.assert_array_equal(batch["actions"], step)
    assert number.min() >= 478  # the last 21 episodes and the rows that fit beside them


def test_13_labels_are_used_and_negated_words_are_no_crisis():
    judge = ExperienceAggregator()
    experience = {"state": [0.0], "action": 0, "reward": 0.0, "metadata": {"profile": "not in crisis"}}
    assert judge.identify_event_type(experience) == "regular_parent"
    assert judge.identify_event_type({**experience, "event_type": "crisis_parent"}) == "crisis_parent"


def test_14_the_cost_of_a_batch_does_not_grow_with_the_buffer():
    def cost(buffer: ExperienceBuffer) -> float:
        times = []
        for _ in range(15):
            began = time.process_time()
            buffer.sample_batch(256)
            times.append(time.process_time() - began)
        return min(times)

    assert cost(filled(100_000)) < 10 * cost(filled(2_000)) + 1e-3


def test_15_robust_strategies_are_found_by_code():
    kinds = [WorldType.NORMAL_MARKET] * 40
    draws = generator(0, Purpose.NOISE)
    world = draws.normal(0.0, 3.0, 40)
    results = {str(i): world + draws.normal(0.0, 0.5, 40) for i in range(5)}
    assert detect_convergence_patterns({**results, "good": world + 1.0}, kinds).robust == ("good",)
