"""Every parameter of a world has an effect: changed alone, it changes the outcome."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
from scipy import stats

from parallel_agents.market.simulation import MarketWorlds, world_arrays
from parallel_agents.market.worlds import World, WorldType, create_world_variants

PARTS = (
    "users", "competitors", "market_state", "time_period", "auction_pressure", "creative_variance", "conversion_dynamics",
)  # fmt: skip


def outcome(world: World) -> bytes:
    """Return everything that is seen of an episode: with the world's own number of auctions, and with many of them."""
    parts: list[np.ndarray] = []
    for steps, auctions in ((3, None), (30, 3000)):
        with MarketWorlds([world], bidders=2, steps=steps, auctions_per_step=auctions, threads=1) as market:
            market.reset(0)
            bids = np.stack(
                [np.exp(market.parameters.usual_bid) * f for f in (1.0, 8.0)]
            )  # one has money left at the end, the other has not
            while not market.done:
                market.step(bids, creative=np.array([[0], [1]]))
            parts += [*market.total, market.score(), market.observe()]
    return b"".join(np.ascontiguousarray(part).tobytes() for part in parts)


def changed(value: np.ndarray | float | int, name: str) -> np.ndarray | float | int:
    """Return a small change that must have an effect: 10 % of an entry, another mechanism, or one slot less."""
    if name == "mechanism":
        return np.where(np.arange(len(value)) == np.argmax(value), 0, value)
    if name == "slots":
        return np.minimum(value, 2)
    if name in ("count", "start"):
        return value + 1
    if name in ("share", "device", "campaign_share"):
        tilted = value * np.linspace(1.0, 1.3, value.shape[-1])
        return tilted / tilted.sum(axis=-1, keepdims=True)
    if name == "participation":
        return value * 0.9
    if name == "activity":
        return value * np.where(np.arange(len(value)) == 0, 1.1, 1.0)  # how often one is seen compared with others
    if name == "interest_lift":
        return (
            value * 4.0
        )  # it acts on how far a user's interest is from the mean: 10 % of it moves one in 500 purchases
    if name == "delay_shape":
        return value * 0.4  # most purchases come in the same step with 10 % of it
    if name == "reserve":
        return value * 40.0  # rivals bid far above it
    if name == "interest":
        return value * 1.5
    if name == "position":
        return value * np.linspace(1.5, 1.1, len(value))
    return value * 1.1


@pytest.fixture(scope="module")
def world(patterns) -> World:
    """Return a world whose rivals shade, respond and pace."""
    drawn = create_world_variants(patterns, 1, {"high_competition": 1.0}, seed=3)[0]
    rivals = replace(
        drawn.competitors,
        response=drawn.competitors.response + 0.3,
        pacing=drawn.competitors.pacing + 0.2,
        shade=drawn.competitors.shade - 0.2,
    )
    return replace(drawn, competitors=rivals)


def test_all_parts_of_a_world_are_tested():
    parts = {f.name for f in fields(World)} - {
        "index",
        "kind",
        "segments",
        "devices",
        "campaigns",
        "creatives",
        "rivals",
        "provenance",
    }
    assert parts == set(PARTS)


def test_each_parameter_alone_changes_the_outcome(world):
    base = outcome(world)
    assert outcome(world) == base
    without_effect = []
    for part in PARTS:
        assert is_dataclass(getattr(world, part))
        for field in fields(getattr(world, part)):
            value = getattr(getattr(world, part), field.name)
            mutant = replace(world, **{part: replace(getattr(world, part), **{field.name: changed(value, field.name)})})
            if outcome(mutant) == base:
                without_effect.append(f"{part}.{field.name}")
    assert not without_effect


def test_world_types_differ_in_their_outcomes(patterns):
    """The distributions that characterise a type differ from those of other types."""
    from scipy.stats import ks_2samp

    results = {}
    for kind in ("high_competition", "low_competition", "crisis_parent", "luxury_seeker", "economic_downturn"):
        worlds = create_world_variants(patterns, 40, {kind: 1.0}, seed=5)
        assert {w.kind for w in worlds} == {WorldType(kind)}
        with MarketWorlds(worlds, threads=1, budget=1e6, auctions_per_step=400) as market:
            market.reset(0)
            while not market.done:
                market.step(np.exp(market.parameters.usual_bid)[None])
            info = market.info(episode=True)
        results[kind] = {
            "win": (info["impressions"][0] / info["auctions"]),
            "crisis": info["crisis_auctions"] / info["auctions"],
            "price": (info["cost"] / np.maximum(info["clicks"], 1))[0],
            "value": info["scheduled"][:, 1] / np.maximum(info["scheduled"][:, 0], 1),
            "rate": info["scheduled"][:, 0] / np.maximum(info["clicks"][0], 1),
        }

    def differ(measure: str, one: str, other: str) -> bool:
        return ks_2samp(results[one][measure], results[other][measure]).pvalue < 1e-4

    assert differ("win", "high_competition", "low_competition")
    assert differ("crisis", "crisis_parent", "high_competition")
    assert differ("rate", "economic_downturn", "luxury_seeker")
    assert differ("value", "luxury_seeker", "economic_downturn")
    assert results["high_competition"]["win"].mean() < results["low_competition"]["win"].mean()
    assert results["crisis_parent"]["crisis"].mean() > results["low_competition"]["crisis"].mean()


@pytest.mark.parametrize(("a", "b"), [(0.3, 0.5), (2.0, 5.0), (40.0, 7.0)])
def test_interests_are_beta_distributed(a: float, b: float) -> None:
    keys = np.array([3, 4], np.uint64)
    found = world_arrays._beta_numbers(np.full(50_000, a), np.full(50_000, b), keys, np.uint64(1))
    assert stats.kstest(found, stats.beta(a, b).cdf).pvalue > 0.01


def test_interests_of_the_smallest_shapes_are_near_0_or_1_and_finite() -> None:
    keys, shape = np.array([3, 4], np.uint64), np.full(20_000, 1e-3)
    found = world_arrays._beta_numbers(shape, 2.0 * shape, keys, np.uint64(1))
    assert np.isfinite(found).all()
    assert abs(found.mean() - 1.0 / 3.0) < 0.02
