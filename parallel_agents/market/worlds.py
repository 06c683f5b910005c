"""What a world is, its type and seven parts, and how worlds are drawn from patterns, no two alike.

Every number of a world lies within a discovered interval, and every part has its own random stream. A world type is a
region of the discovered space: the axis along which the type is special lies in the outer quarter of what the periods
showed, every other axis in the middle half. This module holds no number that could become one of a world's own.
Functions are those of `kernels.functions` and products are sums in a written order, so that the same patterns give the
same worlds on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NoReturn

import numpy as np

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.core.types import Floats, Ints
from parallel_agents.kernels.functions import each, exp
from parallel_agents.market.discovery import CRISIS, Estimate, Patterns
from parallel_agents.market.discovery.estimation import hour_waves
from parallel_agents.market.discovery.patterns import Competition, Segment

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

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise ConfigError(f"world type {value!r} is unknown: give one of {', '.join(kind.value for kind in cls)}")


TypeShares = Mapping[WorldType, float] | Mapping[str, float]
"""A mix of world types, which are named or given."""


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


# -- drawing --------------------------------------------------------------------------------------------------------

POPULATION = (500, 2000)  # how many users are simulated: a matter of cost, not of the market

_UP, _DOWN = True, False
_REGIONS: Mapping[WorldType, tuple[str, bool]] = {  # the axis along which a type is special, and its direction
    WorldType.HIGH_COMPETITION: ("price", _UP),
    WorldType.LOW_COMPETITION: ("price", _DOWN),
    WorldType.SEASONAL_PEAK: ("volume", _UP),
    WorldType.ECONOMIC_DOWNTURN: ("conversion", _DOWN),
    WorldType.CRISIS_PARENT: (f"segment:{CRISIS}", _UP),
    WorldType.TECH_SAVVY: ("device:ios", _UP),
    WorldType.BUDGET_CONSCIOUS: ("segment:price_sensitive", _UP),
    WorldType.IMPULSE_BUYER: ("delay", _DOWN),
    WorldType.LUXURY_SEEKER: ("value", _UP),
}


class EstimateSampler:
    """Draws the numbers of one part of one world from estimates, and records the provenance of each."""

    def __init__(self, patterns: Patterns, kind: WorldType, part: Part, *, seed: int, world: int) -> None:
        self.patterns, self.kind, self.part = patterns, kind, part
        self.rng = generator(seed, Purpose.WORLD, agent=part, world=world)
        self.provenance: dict[str, str] = {}

    def draw(self, name: str, estimate: Estimate) -> float:
        """Return a point within the estimate's interval."""
        e = estimate
        self._record(name, f"{e.value:.6g} [{e.low:.6g}, {e.high:.6g}] from {e.source}")
        return estimate.quantile(self.rng.random())

    def draw_each(self, name: str, estimates: Sequence[Estimate]) -> Floats:
        """Return a point within each interval."""
        return np.array([self.draw(f"{name}/{i}", e) for i, e in enumerate(estimates)])

    def take(self, name: str, estimates: Sequence[Estimate]) -> Floats:
        """Return the values themselves: what is known of every world alike."""
        for i, e in enumerate(estimates):
            self._record(f"{name}/{i}", f"{e.value:.6g}, the same in every world, from {e.source}")
        return np.array([e.value for e in estimates])

    def draw_day(self, name: str, coefficients: Sequence[tuple[Estimate, ...]]) -> Floats:
        """Return a log effect (24, J) of the hours of a day, from its sine and cosine in every campaign."""
        drawn = np.array([self.draw_each(f"{name}/{j}", pair) for j, pair in enumerate(coefficients)])
        (sine, cosine), (of_sine, of_cosine) = hour_waves(), drawn.T
        return np.outer(sine, of_sine) + np.outer(cosine, of_cosine)

    def take_range(self, name: str, estimate: Estimate) -> Floats:
        """Return the ends of an interval: the range from which episodes draw."""
        self._record(name, f"[{estimate.low:.6g}, {estimate.high:.6g}] from {estimate.source}")
        return np.array([estimate.low, estimate.high])

    def draw_or_zero(self, name: str, estimate: Estimate) -> float:
        """Return a point within the interval, or 0 if the interval contains 0."""
        point = self.draw(name, estimate)
        return point if estimate.low > 0 or estimate.high < 0 else float(0)

    def draw_deviation(self, axis: str) -> float:
        """Return a deviation along an axis, within the region of the world's type."""
        effects = [p.effects[axis] for p in self.patterns.periods]
        low, high = _region(self.kind, axis, effects)
        self._record(f"along/{axis}", f"periods between {low:.4g} and {high:.4g}; {effects[0].source}")
        return low + (high - low) * self.rng.random()

    def draw_landscape(self) -> int:
        """Return the landscape of a period whose price lies within the region of the world's type."""
        periods = self.patterns.periods
        low, high = _region(self.kind, "price", [p.effects["price"] for p in periods if "price" in p.effects])
        inside = [p for p in periods if low <= p.effects["price"].value <= high]
        chosen = inside[int(self.rng.integers(len(inside)))]
        self._record("landscape", f"period from {chosen.first_day}, price between {low:.4g} and {high:.4g}")
        return chosen.landscape

    def _record(self, name: str, provenance: str) -> None:
        self.provenance[f"{self.part.name.lower()}/{name}"] = provenance


def _region(kind: WorldType, axis: str, effects: Sequence[Estimate]) -> tuple[float, float]:
    """Return the bounds of a type along an axis: the outer quarter of the effects if special, else the middle half."""
    values = np.array([e.value for e in effects])
    centre = np.median(values)
    low, high = float(np.median(values[values <= centre])), float(np.median(values[values >= centre]))
    special_axis, up = _REGIONS.get(kind, ("", _UP))
    if special_axis != axis:
        return low, high
    return (high, float(values.max())) if up else (float(values.min()), low)


def _normalized(shares: Floats) -> Floats:
    return np.asarray(shares / shares.sum(axis=-1, keepdims=True))


def _competition(patterns: Patterns) -> Competition:
    """Return the competition that was discovered; raise an error that says how to discover it if there is none."""
    if patterns.competition is None or not patterns.competition.competitors:
        raise ConfigError(
            f"patterns of {patterns.source} hold no competition: discover them with an ads table and an "
            "auction-insights table, since no market can be simulated without prices"
        )
    return patterns.competition


def _campaigns(patterns: Patterns) -> tuple[str, ...]:
    """Return the campaigns that the ads table and the clicks of every segment have in common."""
    common = tuple(c for c in _competition(patterns).campaigns if all(c in s.campaigns for s in patterns.segments))
    if not common:
        raise ConfigError(f"no campaign of the ads table has a click in {patterns.source}: do their names agree?")
    return common


def sample_user_population(sampler: EstimateSampler, users: tuple[int, int] = POPULATION) -> UserPopulation:
    """Draw the number of users, their segments, devices and interests."""
    segments, devices = sampler.patterns.segments, tuple(sampler.patterns.devices)
    share = sampler.draw_each("share", [s.share for s in segments])
    share = share * each(exp, [sampler.draw_deviation(f"segment:{s.name}") for s in segments])
    tilt = each(exp, [sampler.draw_deviation(f"device:{d}") for d in devices])
    device = np.array([sampler.draw_each(f"device/{s.name}", [s.devices[d] for d in devices]) for s in segments])
    return UserPopulation(
        count=int(sampler.rng.integers(users[0], users[1], endpoint=True)),
        share=_normalized(share),
        activity=sampler.draw_each("activity", [s.visits for s in segments]),
        device=_normalized(device * tilt),
        interest=sampler.draw_each("interest", [s.interest for s in segments]),
        interest_spread=sampler.draw_each("interest_spread", [s.interest_spread for s in segments]),
    )


def sample_competitor_configuration(sampler: EstimateSampler) -> CompetitorConfiguration:
    """Draw rivals as they behaved in one landscape of the type's price region."""
    competition, campaigns = _competition(sampler.patterns), _campaigns(sampler.patterns)
    landscape = competition.landscapes[sampler.draw_landscape()]
    rivals = competition.competitors
    pacing = [[sampler.draw_or_zero(f"pacing/{n}/{i}", g) for i, g in enumerate(r.pacing)] for n, r in rivals.items()]
    return CompetitorConfiguration(
        participation=sampler.draw_each("participation", [landscape.participation[n] for n in rivals]),
        level=np.array([sampler.draw_each(f"level/{n}", [landscape.level[n][c] for c in campaigns]) for n in rivals]),
        spread=sampler.draw_each("spread", [r.spread for r in rivals.values()]),
        shade=np.array([sampler.draw(f"shade/{n}", r.shade) for n, r in rivals.items()]),
        response=np.array([sampler.draw_or_zero(f"response/{n}", r.response) for n, r in rivals.items()]),
        pacing=np.maximum(np.array(pacing), 0),
    )


def sample_market_conditions(sampler: EstimateSampler) -> MarketConditions:
    """Draw how the campaigns sell, and whom they reach."""
    patterns = sampler.patterns
    competition, names = _competition(patterns), _campaigns(patterns)
    campaigns = [competition.campaigns[c] for c in names]
    mix = [sampler.draw_each(f"campaign_share/{s.name}", [s.campaigns[c] for c in names]) for s in patterns.segments]
    channels = patterns.channels
    if not all(c.channel in channels for c in campaigns):
        raise ConfigError(
            f"channels {[c.channel for c in campaigns]} are not all among {sorted(channels)} of the events"
        )
    return MarketConditions(
        mechanism=np.array([MECHANISMS.index(c.mechanism) for c in campaigns]),
        slots=np.array([c.slots for c in campaigns]),
        reserve=sampler.draw_each("reserve", [c.reserve for c in campaigns]),
        campaign_share=_normalized(np.array(mix)),
        channel_factor=sampler.draw_each("channel_factor", [channels[c.channel].factor for c in campaigns]),
        usual_bid=sampler.draw_each("usual_bid", [c.bid for c in campaigns]),
        predicted_value=sampler.take("predicted_value", [c.value for c in campaigns]),
        hour_price=sampler.draw_day("hour_price", [c.hour_price for c in campaigns]),
        volatility=sampler.draw("volatility", competition.volatility),
    )


def sample_time_window(sampler: EstimateSampler) -> TimeWindow:
    """Draw a window that starts at any hour of a week of a month that was seen."""
    patterns = sampler.patterns
    hours, weekdays = sampler.draw_each("hours", patterns.hours), sampler.draw_each("weekdays", patterns.weekdays)
    months = sorted(patterns.months)
    month = months[int(sampler.rng.integers(len(months)))]
    week = np.outer(weekdays, hours).ravel() * sampler.draw(f"month/{month}", patterns.months[month])
    return TimeWindow(start=int(sampler.rng.integers(len(week))), volume=week)


def sample_auction_intensity(sampler: EstimateSampler) -> AuctionIntensity:
    """Draw how busy the market is; budgets and targets have the ranges of the data."""
    competition = _competition(sampler.patterns)
    return AuctionIntensity(
        auctions=sampler.draw("auctions", competition.auctions),
        volume=exp(sampler.draw_deviation("volume")),
        budget=sampler.take_range("budget", competition.budget),
        target=sampler.take_range("target", competition.target),
    )


def sample_creative_performance(sampler: EstimateSampler) -> CreativePerformance:
    """Draw the click rates of creatives, new and worn."""
    competition, segments = _competition(sampler.patterns), sampler.patterns.segments
    return CreativePerformance(
        click_rate=sampler.draw_each("click_rate", list(competition.creatives.values())),
        segment_factor=np.array(
            [sampler.draw_each(f"segment_factor/{s.name}", _creatives_of(s, competition)) for s in segments]
        ),
        fatigue=max(sampler.draw("fatigue", competition.fatigue), 0),
        position=sampler.draw_each("position", competition.position),
    )


def _creatives_of(segment: Segment, competition: Competition) -> list[Estimate]:
    """Return the factors of a segment for every creative; one that no click names has none."""
    unknown = Estimate.one("no click of the events names this creative")
    return [segment.creatives.get(creative, unknown) for creative in competition.creatives]


def sample_conversion_patterns(sampler: EstimateSampler) -> ConversionPatterns:
    """Draw who converts, when, and for how much."""
    patterns, segments = sampler.patterns, sampler.patterns.segments

    def by_segment(name: str) -> Floats:
        return sampler.draw_each(name, [getattr(s, name) for s in segments])

    campaigns = [_competition(patterns).campaigns[c] for c in _campaigns(patterns)]
    by_hour = each(exp, sampler.draw_day("hour_factor", [c.hour_value for c in campaigns]))
    volume = np.array([[e.value] for e in patterns.hours])
    mean = (volume * by_hour).sum(axis=0) / volume.sum()
    return ConversionPatterns(
        hour_factor=by_hour / mean,  # rates are means over the clicks of a day
        base=by_segment("base") * exp(sampler.draw_deviation("conversion")),
        device_factor=sampler.draw_each("device_factor", [d.factor for d in patterns.devices.values()]),
        visit_factor=sampler.draw_each("visit_factor", patterns.visits),
        interest_lift=sampler.draw("interest_lift", patterns.interest_lift),
        value_log_mean=by_segment("value_log_mean") + sampler.draw_deviation("value"),
        value_log_spread=by_segment("value_log_spread"),
        delay_hours=by_segment("delay_hours") * exp(sampler.draw_deviation("delay")),
        delay_shape=by_segment("delay_shape"),
    )


def identified_types(patterns: Patterns) -> dict[WorldType, int]:
    """Return how many periods are of each type: of that in whose region a period lies deepest, else normal.

    A type is identified if its axis shows any difference between periods, also if no period is of it.
    """
    depth: dict[WorldType, Floats] = {}
    for kind, (axis, up) in _REGIONS.items():
        effects = [p.effects[axis] for p in patterns.periods if axis in p.effects]
        if effects and min(e.value for e in effects) < max(e.value for e in effects):
            values, (low, high) = np.array([e.value for e in effects]), _region(kind, axis, effects)
            edge, end = (low, high) if up else (high, low)
            depth[kind] = (values - edge) / (end - edge) if end != edge else values - values
    counts = dict.fromkeys([WorldType.NORMAL_MARKET, *depth], 0)
    for i in range(len(patterns.periods)):
        deepest = max(depth, key=lambda k: depth[k][i]) if depth else WorldType.NORMAL_MARKET
        inside = bool(depth) and depth[deepest][i] > 0
        counts[deepest if inside else WorldType.NORMAL_MARKET] += True
    return counts


def default_distribution(patterns: Patterns) -> dict[WorldType, float]:
    """Return the mix of types in the data: the share of periods that are of each type."""
    counts = identified_types(patterns)
    return {kind: count / sum(counts.values()) for kind, count in counts.items()}


def share_intervals(patterns: Patterns) -> dict[WorldType, tuple[float, float]]:
    """Return the 90 % interval of each type's share (Wilson 1927): how far the mix may move within the data."""
    counts, z = identified_types(patterns), Estimate.z()
    n = sum(counts.values())
    intervals = {}
    for kind, count in counts.items():
        share = count / n
        centre = (share + z * z / (n + n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * np.sqrt(share * (1 - share) / n + (z / (n + n)) * (z / (n + n)))
        intervals[kind] = float(centre - half), float(centre + half)
    return intervals


def type_distribution(patterns: Patterns, requested: TypeShares | None) -> dict[WorldType, float]:
    """Return the requested mix of types, checked and normalized, or that of the data."""
    if requested is None:
        return default_distribution(patterns)
    available, shares = identified_types(patterns), dict[WorldType, float]()
    for name, share in requested.items():
        kind = WorldType(name)
        if kind not in available:
            raise ConfigError(
                f"world type {kind.value!r} is not identified: no period differs along {_REGIONS[kind][0]!r}; "
                f"available are {[k.value for k in available]}"
            )
        if not share >= 0:
            raise ConfigError(f"share {share} of world type {kind.value!r} is negative: give shares of 0 or more")
        shares[kind] = share
    total = sum(shares.values())
    if not total > 0:
        raise ConfigError("world_types_distribution is empty or all 0: give at least one positive share")
    return {kind: share / total for kind, share in shares.items()}


def create_world_variants(
    patterns: Patterns,
    n_worlds: int,
    world_types_distribution: TypeShares | None = None,
    *,
    seed: int = 0,
    users: tuple[int, int] = POPULATION,
) -> tuple[World, ...]:
    """Return `n_worlds` different worlds; world i is the same for any number of worlds."""
    if n_worlds < 1:
        raise ConfigError(f"n_worlds {n_worlds} is too few: give at least 1")
    if not 0 < users[0] <= users[1]:
        raise ConfigError(f"users {users} is not a range of population sizes: give (least, most), both positive")
    mix = type_distribution(patterns, world_types_distribution)
    kinds, edges = list(mix), np.cumsum(list(mix.values()))
    worlds = []
    for i in range(n_worlds):
        point = generator(seed, Purpose.WORLD, agent=Part.TYPE, world=i).random() * edges[-1]
        kind = kinds[min(int(np.searchsorted(edges, point, side="right")), len(kinds) - 1)]
        worlds.append(_draw_world(patterns, kind, seed, i, users))
    return tuple(worlds)


def _draw_world(patterns: Patterns, kind: WorldType, seed: int, index: int, users: tuple[int, int]) -> World:
    """Draw one world, each part with a sampler of its own, so that no part's numbers depend on another's."""
    samplers = {part: EstimateSampler(patterns, kind, part, seed=seed, world=index) for part in Part}
    competition = _competition(patterns)
    return World(
        index=index,
        kind=kind,
        segments=tuple(s.name for s in patterns.segments),
        devices=tuple(patterns.devices),
        campaigns=_campaigns(patterns),
        creatives=tuple(competition.creatives),
        rivals=tuple(competition.competitors),
        users=sample_user_population(samplers[Part.USERS], users),
        competitors=sample_competitor_configuration(samplers[Part.COMPETITORS]),
        market_state=sample_market_conditions(samplers[Part.MARKET]),
        time_period=sample_time_window(samplers[Part.TIME]),
        auction_pressure=sample_auction_intensity(samplers[Part.AUCTIONS]),
        creative_variance=sample_creative_performance(samplers[Part.CREATIVES]),
        conversion_dynamics=sample_conversion_patterns(samplers[Part.CONVERSION]),
        provenance={name: text for sampler in samplers.values() for name, text in sampler.provenance.items()},
    )
