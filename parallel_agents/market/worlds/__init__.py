"""Worlds: every parameter drawn from what was discovered, every part from its own stream, no two alike.

The flow: `Patterns` → `Draws` per part → the seven samplers → `World`; `create_world_variants` makes many.
"""

from __future__ import annotations

from parallel_agents.market.worlds.draws import Draws
from parallel_agents.market.worlds.samplers import (
    POPULATION,
    sample_auction_intensity,
    sample_competitor_configuration,
    sample_conversion_patterns,
    sample_creative_performance,
    sample_market_conditions,
    sample_time_window,
    sample_user_population,
)
from parallel_agents.market.worlds.types import (
    AuctionIntensity,
    CompetitorConfiguration,
    ConversionPatterns,
    CreativePerformance,
    MarketConditions,
    Part,
    TimeWindow,
    UserPopulation,
    World,
    WorldType,
)
from parallel_agents.market.worlds.variants import create_world_variants, default_distribution

__all__ = [
    "POPULATION",
    "AuctionIntensity",
    "CompetitorConfiguration",
    "ConversionPatterns",
    "CreativePerformance",
    "Draws",
    "MarketConditions",
    "Part",
    "TimeWindow",
    "UserPopulation",
    "World",
    "WorldType",
    "create_world_variants",
    "default_distribution",
    "sample_auction_intensity",
    "sample_competitor_configuration",
    "sample_conversion_patterns",
    "sample_creative_performance",
    "sample_market_conditions",
    "sample_time_window",
    "sample_user_population",
]
