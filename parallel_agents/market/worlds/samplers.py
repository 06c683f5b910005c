"""A sampler for each part of a world; every number is a point within an estimate's interval.

Each takes the `Draws` of its own part, so that no part's draws depend on another's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parallel_agents.errors import ConfigError
from parallel_agents.market.discovery.patterns import Competition, Patterns
from parallel_agents.market.worlds.draws import Draws
from parallel_agents.market.worlds.types import (
    MECHANISMS,
    AuctionIntensity,
    CompetitorConfiguration,
    ConversionPatterns,
    CreativePerformance,
    MarketConditions,
    TimeWindow,
    UserPopulation,
)

__all__ = [
    "POPULATION",
    "campaigns_of",
    "competition_of",
    "sample_auction_intensity",
    "sample_competitor_configuration",
    "sample_conversion_patterns",
    "sample_creative_performance",
    "sample_market_conditions",
    "sample_time_window",
    "sample_user_population",
]

Floats = NDArray[np.float64]

POPULATION = (500, 2000)  # how many users are simulated: a matter of cost, not of the market


def _normal(shares: Floats) -> Floats:
    return np.asarray(shares / shares.sum(axis=-1, keepdims=True))


def competition_of(patterns: Patterns) -> Competition:
    """The competition that was discovered, or an error that says how to discover it."""
    if patterns.competition is None or not patterns.competition.competitors:
        raise ConfigError(
            f"patterns of {patterns.source} know no competition: discover them with an ads table and an "
            "auction-insights table, since no market can be simulated without prices"
        )
    return patterns.competition


def campaigns_of(patterns: Patterns) -> tuple[str, ...]:
    """Campaigns that the ads table and the clicks of every segment have in common."""
    known = tuple(c for c in competition_of(patterns).campaigns if all(c in s.campaigns for s in patterns.segments))
    if not known:
        raise ConfigError(f"no campaign of the ads table has a click in {patterns.source}: do their names agree?")
    return known


def sample_user_population(draws: Draws, users: tuple[int, int] = POPULATION) -> UserPopulation:
    """Who lives in a world: how many, of which segments, with which devices and interests."""
    segments, devices = draws.patterns.segments, tuple(draws.patterns.devices)
    share = draws.many("share", [s.share for s in segments])
    share = share * np.exp([draws.along(f"segment:{s.name}") for s in segments])
    tilt = np.exp([draws.along(f"device:{d}") for d in devices])
    device = np.array([draws.many(f"device/{s.name}", [s.devices[d] for d in devices]) for s in segments])
    return UserPopulation(
        count=int(draws.rng.integers(users[0], users[1], endpoint=True)),
        share=_normal(share),
        activity=draws.many("activity", [s.visits for s in segments]),
        device=_normal(device * tilt),
        interest=draws.many("interest", [s.interest for s in segments]),
        interest_spread=draws.many("interest_spread", [s.interest_spread for s in segments]),
    )


def sample_competitor_configuration(draws: Draws) -> CompetitorConfiguration:
    """Rivals as they behaved in one landscape of the type's price region."""
    found = competition_of(draws.patterns)
    ground = found.landscapes[draws.landscape()]
    rivals, campaigns = found.competitors, campaigns_of(draws.patterns)
    pacing = [[draws.clear(f"pacing/{n}/{i}", g) for i, g in enumerate(r.pacing)] for n, r in rivals.items()]
    return CompetitorConfiguration(
        participation=draws.many("participation", [ground.participation[n] for n in rivals]),
        level=np.array([draws.many(f"level/{n}", [ground.level[n][c] for c in campaigns]) for n in rivals]),
        spread=draws.many("spread", [r.spread for r in rivals.values()]),
        shade=np.array([draws.one(f"shade/{n}", r.shade) for n, r in rivals.items()]),
        response=np.array([draws.clear(f"response/{n}", r.response) for n, r in rivals.items()]),
        pacing=np.maximum(np.array(pacing), 0),
    )


def sample_market_conditions(draws: Draws) -> MarketConditions:
    """How the campaigns sell, and whom they reach."""
    found, names = competition_of(draws.patterns), campaigns_of(draws.patterns)
    campaigns = [found.campaigns[c] for c in names]
    channels = draws.patterns.channels
    mix = [draws.many(f"campaign_share/{s.name}", [s.campaigns[c] for c in names]) for s in draws.patterns.segments]
    factors = [channels[c.channel].factor for c in campaigns if c.channel in channels]
    if len(factors) < len(campaigns):
        raise ConfigError(
            f"channels {[c.channel for c in campaigns]} are not all among {sorted(channels)} of the events"
        )
    return MarketConditions(
        mechanism=np.array([MECHANISMS.index(c.mechanism) for c in campaigns]),
        slots=np.array([c.slots for c in campaigns]),
        reserve=draws.many("reserve", [c.reserve for c in campaigns]),
        campaign_share=_normal(np.array(mix)),
        channel_factor=draws.many("channel_factor", factors),
        usual_bid=draws.many("usual_bid", [c.bid for c in campaigns]),
        volatility=draws.one("volatility", found.volatility),
    )


def sample_time_window(draws: Draws) -> TimeWindow:
    """A period's length, from any hour of a week of a month that was seen."""
    patterns = draws.patterns
    hours, weekdays = draws.many("hours", patterns.hours), draws.many("weekdays", patterns.weekdays)
    months = sorted(patterns.months)
    month = months[int(draws.rng.integers(len(months)))]
    week = np.outer(weekdays, hours).ravel() * draws.one(f"month/{month}", patterns.months[month])
    length = patterns.periods[int(draws.rng.integers(len(patterns.periods)))].days * len(patterns.hours)
    return TimeWindow(start=int(draws.rng.integers(len(week))), hours=float(length), volume=week)


def sample_auction_intensity(draws: Draws) -> AuctionIntensity:
    """How busy the market is, and what is usually spent."""
    campaigns = competition_of(draws.patterns).campaigns
    spend = draws.many("spend", [campaigns[c].spend for c in campaigns_of(draws.patterns)])
    return AuctionIntensity(volume=float(np.exp(draws.along("volume"))), spend=float(spend.mean()))


def sample_creative_performance(draws: Draws) -> CreativePerformance:
    """How creatives do, fresh and worn."""
    found = competition_of(draws.patterns)
    return CreativePerformance(
        click_rate=draws.many("click_rate", list(found.creatives.values())),
        fatigue=max(draws.one("fatigue", found.fatigue), 0),
        position=draws.many("position", found.position),
    )


def sample_conversion_patterns(draws: Draws) -> ConversionPatterns:
    """Who converts, when, and for how much."""
    patterns, segments = draws.patterns, draws.patterns.segments
    return ConversionPatterns(
        base=draws.many("base", [s.base for s in segments]) * np.exp(draws.along("conversion")),
        device_factor=draws.many("device_factor", [d.factor for d in patterns.devices.values()]),
        visit_factor=draws.many("visit_factor", patterns.visits),
        interest_lift=draws.one("interest_lift", patterns.interest_lift),
        value_log_mean=draws.many("value_log_mean", [s.value_log_mean for s in segments]) + draws.along("value"),
        value_log_spread=draws.many("value_log_spread", [s.value_log_spread for s in segments]),
        delay_hours=draws.many("delay_hours", [s.delay_hours for s in segments]) * np.exp(draws.along("delay")),
        delay_shape=draws.many("delay_shape", [s.delay_shape for s in segments]),
    )
