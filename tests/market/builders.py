"""Build small worlds whose results are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from parallel_agents.market.worlds import (
    AuctionIntensity,
    CompetitorConfiguration,
    ConversionPatterns,
    CreativePerformance,
    MarketConditions,
    TimeWindow,
    UserPopulation,
    World,
    WorldType,
)

FIRST, SECOND, GSP = 0, 1, 2


def plain_world(
    index: int = 0, *, mechanism: int = SECOND, value: float = 3.0, delay_hours: float = 1e-6, **parts: Any
) -> World:
    """Return a world of one campaign and one segment: each shown ad is clicked, each click buys at once for `value`."""
    one = np.ones(1)
    world = World(
        index=index,
        kind=WorldType.NORMAL_MARKET,
        segments=("crisis_parent",),
        devices=("ios",),
        campaigns=("all",),
        creatives=("only",),
        rivals=("a", "b"),
        users=UserPopulation(500, one, one, np.ones((1, 1)), one * 0.5, one * 0.1),
        competitors=CompetitorConfiguration(
            participation=np.array([0.9, 0.6]),
            level=np.array([[0.3], [0.6]]),
            spread=np.array([0.5, 0.4]),
            shade=np.zeros(2),
            response=np.zeros(2),
            pacing=np.zeros((2, 3)),
        ),
        market_state=MarketConditions(
            mechanism=np.array([mechanism]),
            slots=np.array([1]),
            reserve=np.array([0.1]),
            campaign_share=np.ones((1, 1)),
            channel_factor=one,
            usual_bid=one,
            predicted_value=one,
            hour_price=np.zeros((24, 1)),
            volatility=0.0,
        ),
        time_period=TimeWindow(0, np.ones(168)),
        auction_pressure=AuctionIntensity(1.0, 1.0, np.array([0.05, 0.2]), np.array([1.0, 4.0])),
        creative_variance=CreativePerformance(one, np.ones((1, 1)), 0.0, one),
        conversion_dynamics=ConversionPatterns(
            base=one,
            hour_factor=np.ones((24, 1)),
            device_factor=one,
            visit_factor=np.ones(3),
            interest_lift=0.0,
            value_log_mean=one * np.log(value),
            value_log_spread=one * 1e-9,
            delay_hours=one * delay_hours,
            delay_shape=one,
        ),
        provenance={},
    )
    for path, change in parts.items():
        part, name = path.split("__")
        world = replace(world, **{part: replace(getattr(world, part), **{name: change})})
    return world
