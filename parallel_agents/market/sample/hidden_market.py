"""The hidden market: every parameter behind a sample export, and the truth that discovery must recover.

The numbers here are an invented market. Samples of it are the data of a first run and the oracle of the tests. Nothing
outside of this package reads them: discovery sees only the export.

>>> market = HiddenMarket.draw(seed=0)
>>> round(float(market.share.sum()), 6), market.segments[0]
(1.0, 'crisis_parent')
"""

# ruff: noqa: RUF009 - `_array` returns a dataclass field

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.core.types import Floats, Ints

LANDSCAPES = ("dominant_bidder", "value_rival", "rich_entrant", "price_war", "pull_back")


def _array(*values: object) -> Any:
    """Return a dataclass field whose default is an array; each market gets its own copy."""
    return field(default_factory=np.array(values, np.float64).copy)


@dataclass(frozen=True, eq=False)
class Campaigns:
    """The origins of clicks. `mechanisms` holds None where nothing is auctioned (organic, email)."""

    names: tuple[str, ...] = ("urgent_help", "guides", "offers", "brand", "organic", "newsletter")
    channels: tuple[str, ...] = (
        "paid_search", "paid_search", "paid_social", "display", "organic_search", "email",
    )  # fmt: skip
    sources: tuple[str, ...] = ("google", "google", "facebook", "google", "google", "newsletter")
    mediums: tuple[str, ...] = ("cpc", "cpc", "paid_social", "display", "organic", "email")
    mechanisms: tuple[str | None, ...] = ("gsp", "gsp", "second_price", "first_price", None, None)
    slots: tuple[int, ...] = (3, 3, 1, 1, 0, 0)
    reserve: float = 0.2
    bid: Floats = _array(5.0, 3.0, 2.2, 2.0)  # our own mean bid per click, paid campaigns only
    bid_spread: float = 0.7  # from day to day, log scale
    hour_price: Floats = _array([0.45, 0.30], [-0.38, 0.38], [0.15, -0.52], [-0.30, -0.38])  # sine, cosine; log bids
    hour_value: Floats = _array([-0.75, 0.30], [0.75, -0.45], [0.60, 0.75], [0.30, 0.60])  # the same of conversion
    creatives: tuple[str, ...] = ("hope_video", "checklist", "testimonial", "offer_card")
    click_rate: Floats = _array(0.075, 0.055, 0.065, 0.045)  # at the top position, before any wear
    fatigue: float = 0.3  # loss of log click rate per remembered impression and known user
    remembered: float = 0.8  # share of the impressions of yesterday and before that users still remember
    position: Floats = _array(1.0, 0.72, 0.52)

    @property
    def paid(self) -> tuple[str, ...]:
        """The auctioned campaigns, which come first."""
        return tuple(n for n, m in zip(self.names, self.mechanisms, strict=True) if m is not None)


@dataclass(frozen=True, eq=False)
class Rivals:
    """Competitors M, in each landscape L and paid campaign J. Bids are lognormal, per click."""

    names: tuple[str, ...] = ("brightpath", "carelink", "novus", "steadyco", "quickbid", "mindwell")
    participation: Floats = _array(  # (L, M): how often a rival enters an auction
        [0.95, 0.75, 0.05, 0.80, 0.80, 0.70],
        [0.75, 0.95, 0.05, 0.75, 0.80, 0.75],
        [0.75, 0.70, 0.95, 0.80, 0.75, 0.70],
        [0.90, 0.90, 0.80, 0.90, 0.95, 0.85],
        [0.70, 0.65, 0.50, 0.70, 0.65, 0.70],
    )
    level: Floats = _array(  # (L, M): mean log bid
        [1.70, 0.85, 0.80, 0.75, 0.70, 0.65],
        [0.90, 1.35, 0.80, 0.75, 0.75, 0.70],
        [0.90, 0.85, 1.85, 0.75, 0.70, 0.65],
        [1.75, 1.65, 1.60, 1.55, 1.65, 1.50],
        [-0.10, -0.15, -0.20, -0.15, -0.25, -0.30],
    )
    focus: Floats = _array(  # (L, J): what all of them bid more for a campaign
        [0.5, -0.4, 0.0, 0.2],
        [-0.6, 0.5, 0.3, -0.3],
        [0.6, 0.2, -0.5, -0.2],
        [-0.2, -0.3, 0.5, 0.3],
        [0.1, 0.5, -0.4, 0.3],
    )
    target: Floats = _array(  # (M, J): extra log bid by campaign; carelink is the rival on value segments
        [0.0, 0.0, 0.0, 0.0],
        [0.6, -0.3, -0.2, -0.1],
        [0.0, 0.1, 0.0, -0.1],
        [0.0, 0.0, 0.1, 0.0],
        [-0.1, 0.0, 0.1, 0.0],
        [0.1, 0.0, -0.1, 0.1],
    )
    spread: Floats = _array(0.30, 0.35, 0.30, 0.40, 0.35, 0.35)
    shade: Floats = _array(0.0, -0.35, 0.0, 0.0, 0.0, 0.0)  # log, in first-price auctions
    drift: float = 0.05  # of all levels from day to day
    memory: float = 0.9  # the share of yesterday's drift that remains
    response: Floats = _array(0.0, 0.0, 0.0, 0.0, 0.5, 0.0)  # to our bid of the day before
    pacing: Floats = _array(  # (M, 3): proportional, integral and derivative gain on the spend error
        [0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0],
        [0.30, 0.03, 0.05],
        [0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0],
    )


@dataclass(frozen=True, eq=False)
class HiddenMarket:
    """Segments K, topics T, devices D, campaigns J (paid and not), and amplitudes of weekly effects."""

    segments: tuple[str, ...] = ("crisis_parent", "researcher", "price_sensitive", "regular")
    share: Floats = _array(0.10, 0.22, 0.28, 0.40)
    visits: Floats = _array(4.0, 5.0, 4.2, 3.6)  # clicks after the first
    pages: Floats = _array(2.0, 2.8, 2.0, 1.8)  # page views after a session's first
    topics: tuple[str, ...] = ("urgent", "research", "price", "general")
    topic_share: Floats = _array(
        [0.62, 0.14, 0.05, 0.19],
        [0.05, 0.66, 0.09, 0.20],
        [0.03, 0.12, 0.65, 0.20],
        [0.04, 0.10, 0.10, 0.76],
    )
    engagement: Floats = _array(3.3, 4.2, 2.9, 3.1)  # mean log seconds on a page
    engagement_spread: float = 0.8
    interest: Floats = _array(0.55, 0.45, 0.25, 0.15)  # in behavioural health
    interest_weight: float = 8.0  # concentration of its Beta distribution
    interest_lift: float = 0.6  # relative conversion per unit of interest above the segment's mean
    conversion: Floats = _array(0.30, 0.13, 0.14, 0.12)  # iOS, paid search, first visit
    value_share: float = 0.5  # of crisis parents
    value: Floats = _array(np.nan, 90.0, 45.0, 65.0)  # mean purchase; NaN: follows from `value_share`
    value_spread: Floats = _array(0.45, 0.40, 0.35, 0.40)
    delay_hours: Floats = _array(9.0, 110.0, 60.0, 40.0)  # Weibull scale
    delay_shape: Floats = _array(0.9, 1.2, 1.0, 0.95)
    devices: tuple[str, ...] = ("ios", "android", "desktop")
    device_share: Floats = _array(
        [0.55, 0.25, 0.20],
        [0.35, 0.20, 0.45],
        [0.25, 0.45, 0.30],
        [0.40, 0.30, 0.30],
    )
    device_factor: Floats = _array(1.0, 0.8, 1.15)
    campaigns: Campaigns = Campaigns()
    campaign_share: Floats = _array(
        [0.62, 0.10, 0.05, 0.05, 0.13, 0.05],
        [0.06, 0.50, 0.06, 0.08, 0.20, 0.10],
        [0.04, 0.10, 0.50, 0.12, 0.14, 0.10],
        [0.05, 0.20, 0.20, 0.25, 0.20, 0.10],
    )
    channel_factor: Floats = _array(1.0, 1.0, 0.75, 0.6, 0.9, 1.2)  # by campaign
    creative_factor: Floats = _array(  # (K, creatives): how much more often a segment clicks
        [0.7, 0.8, 1.9, 0.6],
        [0.8, 1.7, 0.9, 0.6],
        [0.7, 0.8, 0.7, 1.8],
        [1.4, 0.9, 0.8, 0.9],
    )
    visit_factor: Floats = _array(1.0, 1.25, 1.4)  # first, second, third or later click
    hour: Floats = _array(*(1.0 + 0.6 * np.sin((np.arange(24) - 9.0) * np.pi / 12.0)))
    weekday: Floats = _array(1.15, 1.1, 1.05, 1.0, 0.9, 0.85, 0.95)  # Monday first
    month: Floats = _array(1.15, 1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.95, 1.15, 1.1, 1.2, 1.2)
    week_mix: float = 0.7  # amplitude of the weekly shifts of the segment mix, log scale
    week_ios: float = 0.35
    week_conversion: float = 0.7
    week_value: float = 0.3
    week_delay: float = 0.35
    rivals: Rivals = Rivals()

    def __post_init__(self) -> None:
        if not np.isclose(self.share.sum(), 1.0) or (self.share <= 0).any():
            raise ConfigError(f"segment shares {self.share.tolist()} must be positive and add up to 1")
        if not 0.0 < self.value_share < 1.0:
            raise ConfigError(f"value_share {self.value_share} must lie between 0 and 1, both excluded")
        if np.isnan(self.value[0]):
            purchases = self.share * (1.0 + self.visits) * self.segment_conversion()
            others = float((purchases * self.value)[1:].sum())
            crisis = self.value_share / (1.0 - self.value_share) * others / float(purchases[0])
            object.__setattr__(self, "value", np.concatenate([[crisis], self.value[1:]]))

    @classmethod
    def draw(cls, seed: int) -> HiddenMarket:
        """Return a market whose numbers differ from the default's by factors drawn from the seed."""
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
        rivals = replace(base.rivals, level=base.rivals.level + 0.05 * rng.standard_normal(base.rivals.level.shape))
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

    def hour_factor(self, campaign: Ints, hour: Floats) -> Floats:
        """Return the factor of conversion by campaign and hour of the day, 1 on average; unpaid campaigns have none."""
        paid = len(self.campaigns.hour_value)
        sine, cosine = self.campaigns.hour_value[np.minimum(campaign, paid - 1)].T
        angle = hour * np.pi / 12.0
        effect = np.exp(sine * np.sin(angle) + cosine * np.cos(angle))
        return np.where(campaign < paid, effect / self._mean_hour_factor[np.minimum(campaign, paid - 1)], 1.0)

    @cached_property
    def _mean_hour_factor(self) -> Floats:
        """Shape (paid campaigns,): the mean effect of hours over the clicks of a day, which fall by `hour`."""
        angle = (np.arange(24) + 0.5) * np.pi / 12.0
        waves = np.exp(self.campaigns.hour_value @ np.stack([np.sin(angle), np.cos(angle)]))
        return np.asarray(waves @ self.hour / self.hour.sum())

    def segment_conversion(self) -> Floats:
        """Return conversions per click (K,), over each segment's own devices, campaigns and visits."""
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

    def truth(self, months: tuple[int, ...], conversion: Floats, value: Floats) -> dict[str, float]:
        """Return what discovery should find, under the addresses of `Patterns.estimates`.

        `months` are those of the export, counted from 1. `conversion` and `value` (K,) are means of a click.
        """
        result: dict[str, float] = {}
        worth = self.share * (1.0 + self.visits) * value
        by_segment = {
            "share": self.share,
            "value_share": worth / worth.sum(),
            "visits": 1.0 + self.visits,
            "conversion": conversion,
            "value_log_mean": np.log(self.value) - self.value_spread**2 / 2.0,
            "value_log_spread": self.value_spread,
            "delay_hours": self.delay_hours,
            "delay_shape": self.delay_shape,
            "interest": self.interest,
            **{f"devices/{d}": share for d, share in zip(self.devices, self.device_share.T, strict=True)},
        }
        for k, name in enumerate(self.segments):
            result |= {f"segments/{name}/{what}": numbers[k] for what, numbers in by_segment.items()}
        for kind, factors in (("hours", self.hour), ("weekdays", self.weekday)):
            result |= {f"{kind}/{i}": factors[i] / factors.mean() for i in range(len(factors))}
        month = self.month[np.array(months) - 1]
        result |= {f"months/{m}": f / month.mean() for m, f in zip(months, month, strict=True)}
        result |= {f"devices/{d}/factor": f for d, f in zip(self.devices, self.device_factor, strict=True)}
        channels = zip(self.campaigns.channels, self.channel_factor, strict=True)
        result |= {f"channels/{c}/factor": f for c, f in channels}
        result |= {f"visits/{i}": f for i, f in enumerate(self.visit_factor)}
        return {address: float(number) for address, number in result.items()}
