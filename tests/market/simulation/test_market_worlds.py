"""Many worlds stepped together: equal for any number of threads, budgets kept, every purchase counted."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_agents.core.errors import ActionError, ConfigError, NonFiniteError, RunError, ShapeError
from parallel_agents.market.simulation import MarketWorlds
from tests.market.builders import plain_world


def usual(market: MarketWorlds, factor: float = 1.0) -> np.ndarray:
    """Bids of the usual height."""
    return factor * np.broadcast_to(
        np.exp(market.parameters.usual_bid), (market.bidders, *market.parameters.usual_bid.shape)
    )


def play(market: MarketWorlds, epoch: int = 0, factor: float = 1.0, **choices) -> np.ndarray:
    """Rewards (steps, N, W) of one episode."""
    market.reset(epoch)
    rewards = []
    while not market.done:
        rewards.append(market.step(usual(market, factor), **choices))
    return np.array(rewards)


def everything(market: MarketWorlds) -> bytes:
    return b"".join(np.ascontiguousarray(a).tobytes() for a in (*market.total, market.observe(), market.state.spent))


def test_results_do_not_depend_on_threads_or_other_worlds(worlds):
    results = []
    for threads in (1, 2, 7):
        with MarketWorlds(worlds, bidders=2, threads=threads) as market:
            rewards = play(market, epoch=3)
            results.append((rewards.tobytes(), everything(market)))
    assert results[0] == results[1] == results[2]
    with MarketWorlds(worlds[10:13], bidders=2, threads=1) as few:
        assert (play(few, epoch=3) == rewards[:, :, 10:13]).all()


def test_an_epoch_repeats_exactly_and_other_epochs_and_seeds_differ(worlds):
    with MarketWorlds(worlds, threads=1) as market:
        first, other, again = play(market, 0), play(market, 1), play(market, 0)
    assert (first == again).all()
    assert not (first == other).all()
    with MarketWorlds(worlds, threads=1, seed=1) as market:
        assert not (play(market, 0) == first).all()


@pytest.mark.parametrize("factor", [1.0, 50.0])
def test_budgets_are_never_overspent(worlds, factor):
    with MarketWorlds(worlds, bidders=3, threads=1, budget=7.5, auctions_per_step=60) as market:
        play(market, factor=factor)
        info = market.info(episode=True)
        assert (info["budget_left"] >= 0).all()
        np.testing.assert_allclose(info["cost"] + info["budget_left"], 7.5)
        assert (market.state.spent > 0).any()
        if factor > 1:
            assert (info["budget_left"] < 1.0).mean() > 0.3  # many budgets are used up


@pytest.mark.parametrize("attribution", ["last_click", "position", "linear"])
def test_credits_and_purchases_add_up(worlds, attribution):
    with MarketWorlds(
        worlds, bidders=3, threads=1, auctions_per_step=300, budget=1e6, attribution=attribution
    ) as market:
        rewards = play(market, factor=3.0)
        info = market.info(episode=True)
        caused = market.total.caused.copy()
    assert info["superseded"].sum() > 0
    assert info["pending"][:, 0].sum() == 0  # what was on its way is credited at the end
    np.testing.assert_allclose(caused[..., :2].sum(axis=0), info["delivered"])
    np.testing.assert_allclose(info["credits"].sum(axis=(0, 2)), info["delivered"][:, 1])
    np.testing.assert_allclose(info["conversions"].sum(axis=0), info["delivered"][:, 0])
    np.testing.assert_allclose(info["scheduled"], info["delivered"] + info["superseded"] + info["pending"])
    if attribution == "last_click":  # the step and the bidder that caused a purchase are those of the last click
        np.testing.assert_allclose(rewards.sum(axis=0), info["revenue"] - info["cost"])
        np.testing.assert_allclose(caused[..., 2], info["crisis_revenue"])
    assert (info["crisis_revenue"] <= info["revenue"] + 1e-9).all()


def test_attribution_changes_who_is_credited_but_not_the_sum(worlds):
    totals = {}
    for rule in ("last_click", "position", "linear"):
        with MarketWorlds(
            worlds[:8], bidders=3, threads=1, auctions_per_step=300, budget=1e6, attribution=rule
        ) as market:
            play(market, factor=3.0)
            totals[rule] = market.info(episode=True)["revenue"]
    for rule in ("position", "linear"):
        assert not np.allclose(totals[rule], totals["last_click"])
        np.testing.assert_allclose(totals[rule].sum(), totals["last_click"].sum())


def test_purchases_arrive_after_their_delay_in_simulated_time():
    """A purchase delayed by two days arrives two simulated days later, not by the computer's clock."""
    world = plain_world(delay_hours=48.0, conversion_dynamics__delay_shape=np.full(1, 400.0))  # hardly any spread
    with MarketWorlds(
        [world], steps=14, decisions_per_day=2, auctions_per_step=1, budget=1e6, threads=1
    ) as market:  # 12 hours a step
        market.reset(0)
        arrived = []
        for t in range(14):
            market.step(np.full((1, 1, 1), 1e3 if t == 0 else 0.0))
            arrived.append(market.info()["conversions"].sum())
    first = int(np.flatnonzero(arrived)[0])
    assert first in (3, 4)
    assert sum(arrived) == 1


def test_purchases_beyond_the_last_step_are_credited_at_the_end_and_to_the_step_that_caused_them():
    with MarketWorlds([plain_world(delay_hours=1e5)], threads=1, auctions_per_step=20, budget=1e6) as market:
        market.reset(0)
        credited, caused = [], []
        while not market.done:
            market.step(usual(market, 10.0))
            credited.append(market.last.credits.sum())
            caused.append(market.last.caused[0, 0, 1])
        info = market.info(episode=True)
    assert sum(credited[:-1]) < 0.05 * credited[-1]
    assert sum(caused) == pytest.approx(sum(credited)) == pytest.approx(info["revenue"].sum())
    assert np.count_nonzero(caused) > 40


def test_crisis_parents_have_the_share_and_value_of_the_world(patterns):
    """All auctions are won and purchases come at once, so the value by segment is that of its users."""
    from dataclasses import replace

    from parallel_agents.market.worlds import create_world_variants

    drawn = create_world_variants(patterns, 30, {"normal_market": 1.0}, users=(2000, 2000))
    eased = []
    for world in drawn:
        dynamics = replace(
            world.conversion_dynamics,
            delay_hours=np.full(4, 1e-6),
            visit_factor=np.ones(3),
            interest_lift=0.0,
            hour_factor=np.ones((24, 4)),
        )
        state = replace(world.market_state, campaign_share=np.full((4, 4), 0.25))
        flat = replace(world.users, device=np.tile([0.0, 0.0, 1.0], (4, 1)))
        shown = replace(world.creative_variance, segment_factor=np.ones((4, 4)))
        eased.append(
            replace(world, conversion_dynamics=dynamics, market_state=state, users=flat, creative_variance=shown)
        )
    with MarketWorlds(eased, threads=1, auctions_per_step=400, budget=1e9) as market:
        p = market.parameters
        population = np.array(
            [np.mean(p.user_segment[a:b] == c) for a, b, c in zip(p.first, p.first[1:], p.crisis, strict=False)]
        )
        play(market, factor=1e3)
        info = market.info(episode=True)
    users = np.array([w.users.share[w.crisis] for w in drawn])
    assert population.mean() == pytest.approx(users.mean(), abs=0.01)
    assert 0.05 < users.mean() < 0.16
    expected = []
    for w in drawn:
        c = w.conversion_dynamics
        worth = w.users.share * w.users.activity * c.base * np.exp(c.value_log_mean + c.value_log_spread**2 / 2)
        expected.append(worth[w.crisis] / worth.sum())
    share = info["crisis_revenue"].sum() / info["revenue"].sum()
    assert share == pytest.approx(np.mean(expected), abs=0.06)
    assert share > 3 * population.mean()


def test_zero_bids_stay_out(worlds):
    with MarketWorlds(worlds, threads=1, budget=1e6, auctions_per_step=100) as market:
        play(market, factor=0.0)
        assert market.info(episode=True)["impressions"].sum() == market.info(episode=True)["cost"].sum() == 0


def test_budgets_and_targets_are_drawn_log_uniformly_for_every_episode(worlds):
    with MarketWorlds(worlds, threads=1) as market:
        ranges = worlds[0].auction_pressure
        rates, targets = [], []
        for epoch in range(30):
            market.reset(epoch)
            rates.append(market.parameters.budget / market.parameters.auctions.sum(axis=1))
            targets.append(market.parameters.target.copy())
        market.reset(3)
        np.testing.assert_array_equal(market.parameters.target, targets[3])
    for drawn, (low, high) in ((rates, ranges.budget), (targets, ranges.target)):
        place = np.log(np.array(drawn) / low) / np.log(high / low)
        assert place.min() >= 0.0
        assert place.max() <= 1.0
        assert place.mean() == pytest.approx(0.5, abs=0.03)
        assert place.std() == pytest.approx(12**-0.5, abs=0.02)
    with MarketWorlds(worlds[:2], threads=1, budget=7.0, target=3.0) as market:
        market.reset(1)
        assert market.parameters.budget.tolist() == [7.0, 7.0]
        assert market.parameters.target.tolist() == [3.0, 3.0]


def test_the_score_counts_acquisitions_and_their_cost_against_the_target():
    with MarketWorlds([plain_world()], threads=1, budget=1e6, target=1.0, auctions_per_step=20) as market:
        play(market, factor=3.0)
        bought, cost = market.total.caused[0, 0, 0], market.total.cost.sum()
        assert cost / bought > 1.0
        assert market.score()[0, 0] == pytest.approx(bought * (1.0 / (cost / bought)) ** 2)
    with MarketWorlds([plain_world()], threads=1, budget=1e6, target=1e3, auctions_per_step=20) as market:
        play(market, factor=3.0)
        assert market.score()[0, 0] == market.total.caused[0, 0, 0]


def test_expected_purchases_have_the_mean_of_real_ones_and_less_noise():
    expected, real = [], []
    world = plain_world(conversion_dynamics__base=np.full(1, 0.1))
    with MarketWorlds([world], threads=1, budget=1e6, target=1e3, auctions_per_step=100) as market:
        for epoch in range(60):
            market.reset(epoch)
            while not market.done:
                market.step(np.exp(market.parameters.usual_bid)[None] * 3.0)
            expected.append(market.total.expected[0, 0])
            real.append(market.total.caused[0, 0, 0])
            assert market.score(expected=True)[0, 0] == pytest.approx(expected[-1])
    error = np.std(np.array(expected) - real) / np.sqrt(len(real))
    assert abs(np.mean(expected) - np.mean(real)) < 4.0 * error
    assert np.mean(real) > 5.0
    assert np.std(expected) < 0.8 * np.std(real)


def test_a_bidder_that_follows_its_pace_spends_its_budget_evenly():
    """From bids far too low or too high, the spend of the second half comes near half of the budget."""
    options = {"threads": 1, "auctions_per_step": 200}
    with MarketWorlds([plain_world()], budget=1e6, **options) as market:
        play(market, factor=3.0)
        budget = float(market.total.cost.sum()) / 3.0
    for factor in (0.2, 3.0):
        with MarketWorlds([plain_world()], budget=budget, **options) as market:
            market.reset(0)
            market.state.pace[...] += np.log(factor)
            halves = [0.0, 0.0]
            while not market.done:
                half = 2 * market.step_number // market.steps
                market.step(np.exp(market.state.pace)[..., None] * market.parameters.predicted_value)
                halves[half] += float(market.last.cost.sum())
        assert sum(halves) > 0.8 * budget
        assert 0.25 * budget < halves[1] < 0.75 * budget


def test_hours_change_prices_and_conversion_and_segments_prefer_creatives():
    def outcome(**parts) -> tuple[float, float, float]:
        with MarketWorlds([plain_world(**parts)], threads=1, budget=1e6, auctions_per_step=200) as market:
            play(market, factor=20.0)
            clicks, cost = market.total.clicks.sum(), market.total.cost.sum()
            return cost / clicks, market.total.caused[0, 0, 0] / clicks, clicks

    plain = outcome()
    assert outcome(market_state__hour_price=np.full((24, 1), 0.3))[0] > 1.1 * plain[0]
    assert outcome(conversion_dynamics__hour_factor=np.full((24, 1), 0.5))[1] == pytest.approx(0.5 * plain[1], rel=0.2)
    half = np.full((1, 1), 0.5)
    assert outcome(creative_variance__segment_factor=half)[2] == pytest.approx(0.5 * plain[2], rel=0.1)


def test_only_the_shown_creative_wears_out(worlds):
    with MarketWorlds(worlds, threads=1, budget=1e6, auctions_per_step=500) as market:
        names = [n for n in market.names if n.startswith("freshness")]
        market.reset(0)
        for _ in range(20):
            market.step(usual(market), creative=np.full((1, len(worlds)), 2))
        observations = market.observe()[0]
    columns = [market.names.index(n) for n in names]
    assert (observations[:, columns[2]] < 0.99).all()
    assert (observations[:, [columns[0], columns[1], columns[3]]] == 1.0).all()


def test_bidders_compete_with_each_other(worlds):
    with MarketWorlds(worlds, bidders=1, threads=1, budget=1e6, auctions_per_step=200) as alone:
        play(alone)
        single = alone.info(episode=True)["impressions"][0].sum()
    with MarketWorlds(worlds, bidders=4, threads=1, budget=1e6, auctions_per_step=200) as market:
        play(market)
        shared = market.info(episode=True)["impressions"].sum(axis=1)
    assert (shared < single).all()


def test_rivals_respond_to_our_bids_and_pace_their_spending_at_every_step():
    rivals = {"competitors__response": np.array([0.8, 0.0])}
    with MarketWorlds([plain_world(**rivals)], threads=1, steps=240, budget=1e9, auctions_per_step=50) as market:
        market.reset(0)
        market.step(usual(market, 4.0))
        assert market.state.shift[0, 0] > 0.0
        while not market.done:
            market.step(usual(market, 4.0))
        assert market.state.shift[0, 0] == pytest.approx(0.8 * np.log(4.0), rel=1e-3)  # after ten days
        assert market.state.shift[0, 1] == 0.0
    gains = {"competitors__pacing": np.array([[0.5, 0.1, 0.1], [0.0, 0.0, 0.0]])}
    with MarketWorlds([plain_world(**gains)], threads=1, budget=1e9, auctions_per_step=50) as market:
        play(market)
        assert market.state.shift[0, 0] != 0.0
        assert market.state.shift[0, 1] == 0.0


def test_prices_drift_by_the_volatility():
    worlds = [plain_world(i, market_state__volatility=0.2) for i in range(400)]
    with MarketWorlds(worlds, threads=1, budget=1e9, auctions_per_step=1) as market:
        play(market)
        assert market.state.drift.std() == pytest.approx(0.2 * np.sqrt(2.0), rel=0.1)  # two days


def test_number_of_auctions_follows_the_hourly_volume():
    volume = np.ones(168)
    volume[:84] = 3.0
    world = plain_world(time_period__volume=volume)
    with MarketWorlds([world], steps=14, decisions_per_day=2, auctions_per_step=100, threads=1) as market:
        held = []
        market.reset(0)
        while not market.done:
            market.step(usual(market))
            held.append(market.info()["auctions"].sum())
    assert held[:7] == [300] * 7
    assert held[7:] == [100] * 7


def test_observations_are_named_finite_and_without_hidden_state(worlds):
    with MarketWorlds(worlds, bidders=2, threads=1) as market:
        observations = market.reset(0)
        assert observations.shape == (2, len(worlds), len(market.names))
        assert observations.dtype == np.float32
        while not market.done:
            market.step(usual(market))
            observations = market.observe()
            assert np.isfinite(observations).all()
        assert np.abs(observations).max() < 50
        assert not [n for n in market.names if "segment" in n or "pending" in n or "crisis" in n]
        left = market.names.index("budget_left")
        np.testing.assert_allclose(
            observations[:, :, left], 1 - market.state.spent / market.parameters.budget, atol=1e-6
        )


def test_invalid_options_are_refused(worlds):
    for arguments, text in (
        ({"bidders": 0}, "bidders 0 is too few"),
        ({"steps": 0}, "steps 0 is too few"),
        ({"bidders": 2000}, "2000 bidders in 4 campaigns are too many"),
        ({"auctions_per_step": 0}, "auctions_per_step 0 is out of range"),
        ({"budget": 0.0}, "budget 0.0 is not positive and finite"),
        ({"budget": -1.0}, "budget -1.0 is not positive"),
        ({"budget": np.inf}, "is not positive and finite"),
        ({"target": 0.0}, "target 0.0 is not positive and finite"),
        ({"decisions_per_day": 0}, "decisions_per_day 0 is too few"),
        ({"attribution": "first"}, "attribution 'first' is unknown"),
        ({"threads": 0}, "threads 0 is too few"),
    ):
        with pytest.raises(ConfigError, match=text):
            MarketWorlds(worlds[:2], **arguments)
    with pytest.raises(ConfigError, match="no worlds were given"):
        MarketWorlds([])
    with pytest.raises(ConfigError, match="come from the same patterns"):
        MarketWorlds([worlds[0], plain_world()])


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (
            {"market_state__reserve": np.array([-0.1])},
            ConfigError,
            "market_state.reserve must be 0 or more: found -0.1",
        ),
        ({"market_state__usual_bid": np.array([0.0])}, ConfigError, "market_state.usual_bid must be positive"),
        (
            {"auction_pressure__budget": np.array([-2.0, 1.0])},
            ConfigError,
            "auction_pressure.budget must be positive: found -2.0",
        ),
        ({"competitors__spread": np.array([0.0, 1.0])}, ConfigError, "competitors.spread must be positive"),
        ({"conversion_dynamics__base": np.array([np.nan])}, NonFiniteError, "conversion_dynamics.base is not finite"),
        ({"users__count": 0}, ConfigError, "users.count must be positive"),
    ],
)
def test_invalid_worlds_are_refused_with_the_name_of_the_parameter(change, error, text):
    with pytest.raises(error, match=text):
        MarketWorlds([plain_world(7, **change)])


def test_invalid_actions_are_refused_and_change_nothing(worlds):
    with MarketWorlds(worlds[:3], threads=1) as market:
        with pytest.raises(RunError, match="call reset"):
            market.step(np.ones((1, 3, 4)))
        market.reset(0)
        before = everything(market)
        for arguments, error, text in (
            ({"bids": np.ones((3, 4))}, ShapeError, r"bids have shape \(3, 4\): \(1, 3, 4\) is needed"),
            ({"bids": -np.ones((1, 3, 4))}, ActionError, "finite and 0 or more"),
            ({"bids": np.full((1, 3, 4), np.nan)}, ActionError, "finite and 0 or more"),
            (
                {"bids": np.ones((1, 3, 4)), "creative": np.full((1, 3), 9)},
                ActionError,
                "creative must lie between 0 and 3",
            ),
            (
                {"bids": np.ones((1, 3, 4)), "creative": np.full((1, 3), 0.5)},
                ActionError,
                "creative must be whole numbers",
            ),
            ({"bids": np.ones((1, 3, 4)), "creative": np.ones(3, int)}, ShapeError, "creative has shape"),
        ):
            with pytest.raises(error, match=text):
                market.step(**arguments)
        assert everything(market) == before
        with pytest.raises(ConfigError, match="epoch -1 is negative"):
            market.reset(-1)
