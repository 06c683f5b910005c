"""The types of worlds, and what a world consists of: its type and seven parts, each with its own random stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum

import numpy as np
from numpy.typing import NDArray

from parallel_agents.market.discovery.patterns import CRISIS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MECHANISMS = ("first_price", "second_price", "gsp")


class WorldType(Enum):
    """The ten types of market."""

    NORMAL_MARKET = "normal_market"
    HIGH_COMPETITION = "high_competition"
    LOW_COMPETITION = "low_competition"
    SEASONAL_PEAK = "seasonal_peak"
    ECONOMIC_DOWNTURN = "economic_downturn"
    CRISIS_PARENT = "crisis_parent"
    TECH_SAVVY = "tech_savvy"
    BUDGET_CONSCIOUS = "budget_conscious"
    IMPULSE_BUYER = "impulse_buyer"
    LUXURY_SEEKER = "luxury_seeker"


class Part(IntEnum):
    """The parts of a world; the number of a part is the address of its random stream."""

    USERS = 1
    COMPETITORS = 2
    MARKET = 3
    TIME = 4
    AUCTIONS = 5
    CREATIVES = 6
    CONVERSION = 7
    TYPE = 8


@dataclass(frozen=True, eq=False)
class UserPopulation:
    """The users of a world, by segment K and device D."""

    count: int
    share: Floats  # (K,)
    activity: Floats  # (K,) how often a user of the segment comes
    device: Floats  # (K, D)
    interest: Floats  # (K,)
    interest_spread: Floats  # (K,)


@dataclass(frozen=True, eq=False)
class CompetitorConfiguration:
    """Log bids of rivals M in campaigns J. Truthful, shaded, paced and adaptive rivals are cases of this one model."""

    participation: Floats  # (M,)
    level: Floats  # (M, J)
    spread: Floats  # (M,)
    shade: Floats  # (M,)
    response: Floats  # (M,)
    pacing: Floats  # (M, 3)


@dataclass(frozen=True, eq=False)
class MarketConditions:
    """How campaigns J sell their clicks, whom they reach, and how well they convert."""

    mechanism: Ints  # (J,) into MECHANISMS
    slots: Ints  # (J,)
    reserve: Floats  # (J,)
    campaign_share: Floats  # (K, J)
    channel_factor: Floats  # (J,)
    usual_bid: Floats  # (J,)
    predicted_value: Floats  # (J,) of a click, as the data predict it: what a bidder knows, the same in every world
    hour_price: Floats  # (24, J) shift of the rivals' log bids
    volatility: float


@dataclass(frozen=True, eq=False)
class TimeWindow:
    """When the world takes place: the hour of the week at which it starts, and the volume of every hour."""

    start: int
    volume: Floats  # (hours of a week,)


@dataclass(frozen=True, eq=False)
class AuctionIntensity:
    """How many auctions there are, and the ranges of budgets and of targets for the cost of an acquisition."""

    auctions: float  # per user and day
    volume: float  # compared with the average
    budget: Floats  # (2,) lowest and highest, per auction
    target: Floats  # (2,) lowest and highest


@dataclass(frozen=True, eq=False)
class CreativePerformance:
    """Click rates by creative C and position S, and how fast creatives wear out."""

    click_rate: Floats  # (C,)
    segment_factor: Floats  # (K, C) of the click rate
    fatigue: float
    position: Floats  # (S,)


@dataclass(frozen=True, eq=False)
class ConversionPatterns:
    """Rates, values and delays of purchases, by segment K and device D."""

    base: Floats  # (K,)
    hour_factor: Floats  # (24, J)
    device_factor: Floats  # (D,)
    visit_factor: Floats  # first, second, third or later click
    interest_lift: float
    value_log_mean: Floats  # (K,)
    value_log_spread: Floats  # (K,)
    delay_hours: Floats  # (K,)
    delay_shape: Floats  # (K,)


@dataclass(frozen=True, eq=False)
class World:
    """One market. `provenance` names, for every number, the estimate and the interval it was drawn from."""

    index: int
    kind: WorldType
    segments: tuple[str, ...]
    devices: tuple[str, ...]
    campaigns: tuple[str, ...]
    creatives: tuple[str, ...]
    rivals: tuple[str, ...]
    users: UserPopulation
    competitors: CompetitorConfiguration
    market_state: MarketConditions
    time_period: TimeWindow
    auction_pressure: AuctionIntensity
    creative_variance: CreativePerformance
    conversion_dynamics: ConversionPatterns
    provenance: Mapping[str, str]

    @property
    def crisis(self) -> int:
        """The index of crisis parents among the segments, or −1 if there are none."""
        return self.segments.index(CRISIS) if CRISIS in self.segments else -1
