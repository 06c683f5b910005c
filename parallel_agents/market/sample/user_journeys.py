"""Draw the journeys of users: when they come, from where, what they read, when they buy.

A user clicks once and then a Poisson number of further times, each at a moment drawn from the hour × weekday ×
month field. Each click may lead to a purchase after a Weibull delay, unless the user clicks again first: then the
newer click takes over. What would happen after the export's last day is not seen: right censoring.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.core.types import Floats, Ints
from parallel_agents.market.sample.hidden_market import HiddenMarket

HOUR = 3_600_000_000  # microseconds
_WEEK = 7
_MANY_USERS = 50_000  # of each segment: the mean of their clicks is known to about 0.2 %


@dataclass(frozen=True, eq=False)
class Calendar:
    """The export's days, and the effect of each of its weeks on mix, devices, conversion, value and delay."""

    first_day: np.datetime64
    days: int
    months: Ints  # (days,) calendar month, January is 0
    weeks: Ints  # (days,) the days after the last whole week belong to that one
    volume: Floats  # (days, 24), mean 1
    weight: Floats  # (weeks,) share of the volume
    mix: Floats  # (weeks, K, 2): relative intensity by segment, not iOS or iOS
    conversion: Floats  # (weeks,) factor, volume-weighted mean 1
    value: Floats  # (weeks,) log shift, volume-weighted mean 0
    delay: Floats  # (weeks,) log shift, volume-weighted mean 0

    @property
    def start(self) -> int:
        """Microseconds since 1970 at the first midnight."""
        return int(self.first_day.astype("datetime64[us]").astype(np.int64))

    @property
    def end(self) -> int:
        """Microseconds since 1970 at the last midnight."""
        return self.start + self.days * 24 * HOUR

    @classmethod
    def draw(cls, market: HiddenMarket, first_day: str, days: int, rng: np.random.Generator) -> Calendar:
        """Return the calendar of some days, with weekly effects drawn from `rng`."""
        if days < _WEEK:
            raise ConfigError(f"days {days} is too short for a sample: give at least {_WEEK}")
        dates = np.datetime64(first_day, "D") + np.arange(days)
        months, weekday = dates.astype("datetime64[M]").astype(np.int64) % 12, (dates.astype(np.int64) + 3) % 7
        weeks = np.minimum(np.arange(days) // _WEEK, max(1, days // _WEEK) - 1)
        volume = (market.month[months] * market.weekday[weekday])[:, None] * market.hour
        volume /= volume.mean()
        by_week = np.bincount(weeks, volume.mean(axis=1))
        weight = np.asarray(by_week / by_week.sum(), np.float64)

        def centred(amplitude: float) -> Floats:
            shift = amplitude * rng.standard_normal(len(weight))
            return np.asarray(shift - weight @ shift)

        conversion = np.exp(centred(market.week_conversion))
        return cls(
            dates[0],
            days,
            months,
            weeks,
            volume,
            weight,
            _weekly_mix(market, weight, rng),
            conversion / (weight @ conversion),
            centred(market.week_value),
            centred(market.week_delay),
        )

    def week(self, time: Ints) -> Ints:
        """Return the week of every moment (C,) in microseconds since 1970."""
        return np.minimum((time - self.start) // (HOUR * 24 * _WEEK), len(self.mix) - 1)


def _weekly_mix(market: HiddenMarket, weight: Floats, rng: np.random.Generator) -> Floats:
    """Return a mix that shifts from week to week but keeps every week's volume and every group's total."""
    shift = market.week_mix * rng.standard_normal((len(weight), len(market.share), 1))
    ios = market.week_ios * rng.standard_normal((len(weight), 1, 1)) * np.array([0.0, 1.0])
    mix = np.exp(shift + ios)
    owners = market.device_share[:, :1]
    group = (market.share * (1.0 + market.visits))[:, None] * np.hstack([1.0 - owners, owners])
    group /= group.sum()
    for _ in range(100):  # iterative proportional fitting to both margins
        mix /= np.tensordot(weight, mix, 1)
        mix /= (mix * group).sum(axis=(1, 2), keepdims=True)
    return np.asarray(mix)


@dataclass(frozen=True, eq=False)
class Clicks:
    """Users U and their clicks C, sorted by user and time."""

    calendar: Calendar
    segment: Ints  # (U,)
    device: Ints  # (U,)
    interest: Floats  # (U,)
    user: Ints  # (C,)
    time: Ints  # (C,) microseconds since 1970
    campaign: Ints  # (C,)

    @classmethod
    def draw(cls, market: HiddenMarket, calendar: Calendar, segment: Ints, rng: np.random.Generator) -> Clicks:
        """Return the clicks of users of the given segments (U,)."""
        device = _draw_categories(market.device_share[segment], rng)
        mean = market.interest[segment]
        interest = rng.beta(market.interest_weight * mean, market.interest_weight * (1.0 - mean))
        user = np.repeat(np.arange(len(segment)), 1 + rng.poisson(market.visits[segment]))
        time = _draw_moments(calendar, segment[user] * 2 + (device[user] == 0), rng)
        time = time[np.lexsort((time, user))]
        return cls(
            calendar, segment, device, interest, user, time, _draw_categories(market.campaign_share[segment[user]], rng)
        )

    def conversion(self, market: HiddenMarket) -> Floats:
        """Return the probability (C,) that a click leads to a purchase, in time or not. It is at most 1."""
        calendar = self.calendar
        segment, device, interest = (of_user[self.user] for of_user in (self.segment, self.device, self.interest))
        number = np.arange(len(self.user)) - np.searchsorted(self.user, self.user, side="left")
        rate = (
            market.conversion[segment]
            * market.channel_factor[self.campaign]
            * market.device_factor[device]
            * market.visit_factor[np.minimum(number, len(market.visit_factor) - 1)]
            * calendar.conversion[calendar.week(self.time)]
            * market.hour_factor(self.campaign, (self.time - calendar.start) / HOUR)
            * np.maximum(0.0, 1.0 + market.interest_lift * (interest - market.interest[segment]))
        )
        return np.asarray(np.minimum(rate, 1.0))


@dataclass(frozen=True, eq=False)
class Journeys(Clicks):
    """Users U, clicks C, page views P (sorted by click), purchases B."""

    creative: Ints  # (C,)
    page_click: Ints  # (P,) the click a page view belongs to
    page_topic: Ints  # (P,)
    page_health: NDArray[np.bool_]  # (P,)
    page_seconds: Floats  # (P,)
    bought_click: Ints  # (B,) the click that led to a purchase
    bought_time: Ints  # (B,)
    bought_value: Floats  # (B,)


def draw_journeys(market: HiddenMarket, *, users: int, first_day: str, days: int, seed: int) -> Journeys:
    """Return all journeys of a sample; the same arguments always give the same journeys."""
    if users < 1:
        raise ConfigError(f"users {users} is too few for a sample: give at least 1")
    rng = generator(seed, Purpose.WORLD)
    calendar = Calendar.draw(market, first_day, days, rng)
    clicks = Clicks.draw(market, calendar, rng.choice(len(market.share), users, p=market.share), rng)
    segment = clicks.segment[clicks.user]
    preferred = market.creative_factor * market.campaigns.click_rate
    creative = _draw_categories((preferred / preferred.sum(axis=1, keepdims=True))[segment], rng)

    bought_click, bought_time, bought_value = _draw_purchases(market, clicks, rng)
    page_click = np.repeat(np.arange(len(segment)), 1 + rng.poisson(market.pages[segment]))
    reader = clicks.user[page_click]
    page_seconds = rng.lognormal(market.engagement[segment[page_click]], market.engagement_spread)
    return Journeys(
        **vars(clicks),
        creative=creative,
        page_click=page_click,
        page_topic=_draw_categories(market.topic_share[segment[page_click]], rng),
        page_health=rng.random(len(reader)) < clicks.interest[reader],
        page_seconds=page_seconds,
        bought_click=bought_click,
        bought_time=bought_time,
        bought_value=bought_value,
    )


def worth_of_segments(market: HiddenMarket, calendar: Calendar) -> tuple[Floats, Floats]:
    """Return the mean conversion (K,) and value (K,) of a click of each segment in these weeks, from many clicks.

    Causes of conversion are not independent (later visits come in later weeks), and no probability is above 1, so a
    product of mean factors would be wrong.
    """
    segment = np.repeat(np.arange(len(market.share)), _MANY_USERS)
    clicks = Clicks.draw(market, calendar, segment, generator(0, Purpose.EVALUATION_WORLD))
    k, conversion = segment[clicks.user], clicks.conversion(market)
    value = conversion * market.value[k] * np.exp(calendar.value[calendar.week(clicks.time)])
    number = np.bincount(k)
    return np.bincount(k, conversion) / number, np.bincount(k, value) / number


def _draw_categories(shares: Floats, rng: np.random.Generator) -> Ints:
    """Draw one category per row of `shares` (rows, categories)."""
    u = rng.random((len(shares), 1))
    return np.asarray(np.minimum((u > shares.cumsum(axis=1)).sum(axis=1), shares.shape[1] - 1))


def _draw_moments(calendar: Calendar, group: Ints, rng: np.random.Generator) -> Ints:
    """Draw a moment per click: the hour by the volume field and the group's weekly mix, uniform within the hour."""
    mix = calendar.mix.reshape(len(calendar.mix), -1)
    hours = np.empty(len(group), np.int64)
    for g in range(mix.shape[1]):
        members = group == g
        field = np.cumsum((calendar.volume * mix[calendar.weeks, g][:, None]).ravel())
        hours[members] = np.searchsorted(field, rng.random(members.sum()) * field[-1], side="right")
    return np.asarray(calendar.start + hours * HOUR + rng.integers(0, HOUR, len(group)))


def _draw_purchases(market: HiddenMarket, clicks: Clicks, rng: np.random.Generator) -> tuple[Ints, Ints, Floats]:
    """Return click, time and value (B,) of the purchases before the user's next click and before the export's end."""
    calendar, user, time = clicks.calendar, clicks.user, clicks.time
    segment, week = clicks.segment[user], calendar.week(time)
    end = np.full(len(user), calendar.end)
    again = np.append(user[1:] == user[:-1], False)
    end[again] = np.append(time[1:], 0)[again]

    delay = market.delay_hours[segment] * np.exp(calendar.delay[week]) * rng.weibull(market.delay_shape[segment])
    moment = time + (delay * HOUR).astype(np.int64)
    spread = market.value_spread[segment]
    log_value = np.log(market.value[segment]) - spread**2 / 2.0 + calendar.value[week]
    value = np.exp(log_value + spread * rng.standard_normal(len(user)))
    bought = (rng.random(len(user)) < clicks.conversion(market)) & (moment < end)
    return np.flatnonzero(bought), moment[bought], value[bought].round(2)
