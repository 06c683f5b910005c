"""The hidden market: every parameter behind a sample export, and the truth that discovery must recover.

The numbers here are an invented market, the oracle of the tests and the embedded data of a first run. Nothing
outside this package reads them: discovery sees only the export.

>>> market = HiddenMarket.draw(seed=0)
>>> round(float(market.share.sum()), 6), market.segments[0]
(1.0, 'crisis_parent')
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_agents.errors import ConfigError
from parallel_agents.seeding import Purpose, generator

__all__ = ["LANDSCAPES", "Campaigns", "HiddenMarket", "Rivals"]

Floats = NDArray[np.float64]


def _numbers(*values: object) -> Callable[[], Floats]:
    """A factory of an array: each market has its own."""
    return np.array(values, np.float64).copy


LANDSCAPES = ("dominant_bidder", "value_rival", "rich_entrant", "price_war", "pull_back")


@dataclass(frozen=True, eq=False)
class Campaigns:
    """Where a click can come from. `mechanism` is None where nothing is auctioned (organic, email)."""

    names: tuple[str, ...] = ("urgent_help", "guides", "offers", "brand", "organic", "newsletter")
    channels: tuple[str, ...] = (
        "paid_search",
        "paid_search",
        "paid_social",
        "display",
        "organic_search",
        "email",
    )
    sources: tuple[str, ...] = ("google", "google", "facebook", "google", "google", "newsletter")
    mediums: tuple[str, ...] = ("cpc", "cpc", "paid_social", "display", "organic", "email")
    mechanisms: tuple[str | None, ...] = ("gsp", "gsp", "second_price", "first_price", None, None)
    slots: tuple[int, ...] = (4, 4, 1, 1, 0, 0)
    reserve: float = 0.2
    bid: Floats = field(default_factory=_numbers(2.0, 1.2, 1.0, 0.9))  # our own mean bid per click, paid campaigns only
    bid_spread: float = 0.35  # day to day, log scale
    creatives: tuple[str, ...] = ("hope_video", "checklist", "testimonial", "offer_card")
    click_rate: Floats = field(default_factory=_numbers(0.075, 0.055, 0.065, 0.045))  # top position, fresh creative
    fatigue: float = 0.05  # loss of log click rate per impression and known user
    position: Floats = field(default_factory=_numbers(1.0, 0.72, 0.52, 0.38))

    @property
    def paid(self) -> tuple[str, ...]:
        """The auctioned campaigns, which come first."""
        return tuple(n for n, m in zip(self.names, self.mechanisms, strict=True) if m is not None)


@dataclass(frozen=True, eq=False)
class Rivals:
    """Competitors M, in each landscape L and paid campaign J. Bids are lognormal, per click."""

    names: tuple[str, ...] = ("brightpath", "carelink", "novus", "steadyco", "quickbid")
    participation: Floats = field(
        default_factory=_numbers(  # (L, M): how often a rival enters an auction
            [0.95, 0.45, 0.02, 0.50, 0.50],
            [0.50, 0.90, 0.02, 0.45, 0.50],
            [0.50, 0.45, 0.90, 0.50, 0.45],
            [0.80, 0.75, 0.60, 0.80, 0.85],
            [0.25, 0.20, 0.15, 0.25, 0.20],
        )
    )
    level: Floats = field(
        default_factory=_numbers(  # (L, M): mean log bid
            [0.85, -0.10, -0.10, -0.15, -0.20],
            [-0.05, 0.35, -0.10, -0.15, -0.20],
            [-0.05, -0.10, 1.00, -0.15, -0.20],
            [0.60, 0.50, 0.45, 0.40, 0.50],
            [-0.55, -0.60, -0.50, -0.60, -0.65],
        )
    )
    target: Floats = field(
        default_factory=_numbers(  # (M, J): extra log bid by campaign; carelink is the rival on value segments
            [0.0, 0.0, 0.0, 0.0],
            [0.6, -0.3, -0.2, -0.1],
            [0.0, 0.1, 0.0, -0.1],
            [0.0, 0.0, 0.1, 0.0],
            [-0.1, 0.0, 0.1, 0.0],
        )
    )
    spread: Floats = field(default_factory=_numbers(0.35, 0.40, 0.35, 0.45, 0.40))
    shade: Floats = field(default_factory=_numbers(0.0, -0.35, 0.0, 0.0, 0.0))  # log, in first-price auctions
    drift: float = 0.05  # of all levels from day to day
    memory: float = 0.9  # how much of yesterday's drift remains
    response: Floats = field(default_factory=_numbers(0.0, 0.0, 0.0, 0.0, 0.5))  # to our bid of the day before
    pacing: Floats = field(
        default_factory=_numbers(  # (M, 3): proportional, integral and derivative gain on the spend error
            [0.0, 0.0, 0.0],
            [0.0, 0.0, 0.0],
            [0.0, 0.0, 0.0],
            [0.30, 0.03, 0.05],
            [0.0, 0.0, 0.0],
        )
    )


@dataclass(frozen=True, eq=False)
class HiddenMarket:
    """Segments K, topics T, devices D, campaigns J (paid and not), weeks of effects as functions of time."""

    segments: tuple[str, ...] = ("crisis_parent", "researcher", "price_sensitive", "regular")
    share: Floats = field(default_factory=_numbers(0.10, 0.22, 0.28, 0.40))
    visits: Floats = field(default_factory=_numbers(1.8, 2.4, 1.8, 1.5))  # clicks after the first
    pages: Floats = field(default_factory=_numbers(3.2, 4.5, 3.2, 2.8))  # page views after a session's first
    topics: tuple[str, ...] = ("urgent", "research", "price", "general")
    topic_share: Floats = field(
        default_factory=_numbers(
            [0.62, 0.14, 0.05, 0.19],
            [0.05, 0.66, 0.09, 0.20],
            [0.03, 0.12, 0.65, 0.20],
            [0.04, 0.10, 0.10, 0.76],
        )
    )
    engagement: Floats = field(default_factory=_numbers(3.3, 4.2, 2.9, 3.1))  # mean log seconds on a page
    engagement_spread: float = 0.8
    interest: Floats = field(default_factory=_numbers(0.55, 0.45, 0.25, 0.15))  # in behavioural health
    interest_weight: float = 8.0  # concentration of its Beta distribution
    interest_lift: float = 0.6  # relative conversion per unit of interest above the segment's mean
    conversion: Floats = field(default_factory=_numbers(0.16, 0.050, 0.055, 0.045))  # iOS, paid search, first visit
    value_share: float = 0.5  # what crisis parents bring
    value: Floats = field(default_factory=_numbers(np.nan, 90.0, 45.0, 65.0))  # mean purchase; the first follows
    value_spread: Floats = field(default_factory=_numbers(0.45, 0.40, 0.35, 0.40))
    delay_hours: Floats = field(default_factory=_numbers(9.0, 110.0, 60.0, 40.0))  # Weibull scale
    delay_shape: Floats = field(default_factory=_numbers(0.9, 1.2, 1.0, 0.95))
    devices: tuple[str, ...] = ("ios", "android", "desktop")
    device_share: Floats = field(
        default_factory=_numbers(
            [0.55, 0.25, 0.20],
            [0.35, 0.20, 0.45],
            [0.25, 0.45, 0.30],
            [0.40, 0.30, 0.30],
        )
    )
    device_factor: Floats = field(default_factory=_numbers(1.0, 0.8, 1.15))
    campaigns: Campaigns = Campaigns()
    campaign_share: Floats = field(
        default_factory=_numbers(
            [0.62, 0.10, 0.05, 0.05, 0.13, 0.05],
            [0.06, 0.50, 0.06, 0.08, 0.20, 0.10],
            [0.04, 0.10, 0.50, 0.12, 0.14, 0.10],
            [0.05, 0.20, 0.20, 0.25, 0.20, 0.10],
        )
    )
    channel_factor: Floats = field(default_factory=_numbers(1.0, 1.0, 0.75, 0.6, 0.9, 1.2))  # by campaign
    visit_factor: Floats = field(default_factory=_numbers(1.0, 1.25, 1.4))  # first, second, third or later click
    hour: Floats = field(default_factory=_numbers(*(1.0 + 0.6 * np.sin((np.arange(24) - 9.0) * np.pi / 12.0))))
    weekday: Floats = field(default_factory=_numbers(1.15, 1.1, 1.05, 1.0, 0.9, 0.85, 0.95))  # Monday first
    month: Floats = field(default_factory=_numbers(1.15, 1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.95, 1.15, 1.1, 1.2, 1.2))
    week_mix: float = 0.5  # amplitude of the weekly shifts of the segment mix, log scale
    week_ios: float = 0.35
    week_conversion: float = 0.25
    week_value: float = 0.25
    week_delay: float = 0.35
    rivals: Rivals = Rivals()

    def __post_init__(self) -> None:
        if not np.isclose(self.share.sum(), 1.0) or (self.share <= 0).any():
            raise ConfigError(f"segment shares {self.share.tolist()} must be positive and add up to 1")
        if not 0.0 < self.value_share < 1.0:
            raise ConfigError(f"value_share {self.value_share} must lie between 0 and 1, both excluded")
        if np.isnan(self.value[0]):
            worth = self.share * (1.0 + self.visits) * self.segment_conversion()
            others = float((worth * self.value)[1:].sum())
            crisis = self.value_share / (1.0 - self.value_share) * others / float(worth[0])
            object.__setattr__(self, "value", np.concatenate([[crisis], self.value[1:]]))

    @classmethod
    def draw(cls, seed: int) -> HiddenMarket:
        """A market whose every number differs from the default's, by a factor drawn from the seed."""
        rng = generator(seed, Purpose.INIT)

        def jitter(x: Floats, spread: float = 0.1) -> Floats:
            return x * np.exp(spread * rng.standard_normal(np.shape(x)))

        def shares(x: Floats) -> Floats:
            y = jitter(x)
            return np.asarray(y / y.sum(axis=-1, keepdims=True))

        base = cls()
        campaigns = replace(
            base.campaigns,
            bid=jitter(base.campaigns.bid),
            click_rate=jitter(base.campaigns.click_rate),
            fatigue=base.campaigns.fatigue * (0.7 + 0.6 * rng.random()),
        )
        rivals = replace(base.rivals, level=base.rivals.level + 0.05 * rng.standard_normal((5, 5)))
        return replace(
            base,
            share=shares(base.share),
            visits=jitter(base.visits),
            topic_share=shares(base.topic_share),
            interest=np.clip(jitter(base.interest), 0.05, 0.8),
            conversion=jitter(base.conversion),
            value_share=0.5 + 0.05 * (2.0 * rng.random() - 1.0),
            value=np.concatenate([[np.nan], jitter(base.value[1:])]),
            value_spread=jitter(base.value_spread),
            delay_hours=jitter(base.delay_hours, 0.2),
            delay_shape=jitter(base.delay_shape, 0.05),
            device_share=shares(base.device_share),
            campaign_share=shares(base.campaign_share),
            hour=np.maximum(jitter(base.hour), 0.2),
            weekday=jitter(base.weekday, 0.05),
            month=jitter(base.month, 0.05),
            campaigns=campaigns,
            rivals=rivals,
        )

    def segment_conversion(self) -> Floats:
        """Shape (K,): conversions per click, over the segment's own devices, campaigns and visits."""
        none = np.exp(-self.visits)  # clicks after the first are Poisson
        first = 1.0 / (1.0 + self.visits)
        second = (1.0 - none) / (1.0 + self.visits)
        by_visit = np.stack([first, second, 1.0 - first - second], axis=1)
        return np.asarray(
            self.conversion
            * (self.campaign_share @ self.channel_factor)
            * (self.device_share @ self.device_factor)
            * (by_visit @ self.visit_factor)
        )

    def truth(self, months: tuple[int, ...], rates: Floats, values: Floats) -> dict[str, float]:
        """What discovery should find, under the addresses of `Patterns.estimates`.

        Months seen count from 1; `rates` and `values` (K,) are what the export's own weeks did to conversion and to
        value per click.
        """
        found: dict[str, float] = {}
        rate = self.segment_conversion() * rates
        worth = self.share * (1.0 + self.visits) * self.segment_conversion() * values * self.value
        for k, name in enumerate(self.segments):
            log_mean = np.log(self.value[k]) - self.value_spread[k] ** 2 / 2.0
            found |= {
                f"segments/{name}/share": self.share[k],
                f"segments/{name}/value_share": worth[k] / worth.sum(),
                f"segments/{name}/visits": 1.0 + self.visits[k],
                f"segments/{name}/conversion": rate[k],
                f"segments/{name}/value_log_mean": log_mean,
                f"segments/{name}/value_log_spread": self.value_spread[k],
                f"segments/{name}/delay_hours": self.delay_hours[k],
                f"segments/{name}/delay_shape": self.delay_shape[k],
                f"segments/{name}/interest": self.interest[k],
            }
            for d, device in enumerate(self.devices):
                found[f"segments/{name}/devices/{device}"] = self.device_share[k, d]
        for kind, factors in (("hours", self.hour), ("weekdays", self.weekday)):
            found |= {f"{kind}/{i}": factors[i] / factors.mean() for i in range(len(factors))}
        seen = self.month[np.array(months) - 1]
        found |= {f"months/{m}": f / seen.mean() for m, f in zip(months, seen, strict=True)}
        found |= {f"devices/{d}/factor": f for d, f in zip(self.devices, self.device_factor, strict=True)}
        pairs = zip(self.campaigns.channels, self.channel_factor, strict=True)
        found |= {f"channels/{c}/factor": f for c, f in pairs}
        found |= {f"visits/{i}": f for i, f in enumerate(self.visit_factor)}
        return {key: float(value) for key, value in found.items()}

    def as_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, for `truth.json`."""
        return dict(_plain(self))


def _plain(thing: Any) -> Any:
    if isinstance(thing, HiddenMarket | Campaigns | Rivals):
        return {f.name: _plain(getattr(thing, f.name)) for f in fields(thing)}
    return thing.tolist() if isinstance(thing, np.ndarray) else thing
