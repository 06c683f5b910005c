"""From a hidden market to the advertiser's own reports: an ads table and an auction-insights table.

Every eligible auction is played: rivals enter and bid, ads are ranked, the top ones are shown and clicks are
charged by the campaign's own rule. The tables hold only what an advertiser is told: daily sums and rates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parallel_agents.market.sample.hidden import LANDSCAPES, HiddenMarket
from parallel_agents.market.sample.journeys import Calendar, Journeys
from parallel_agents.seeding import Purpose, generator

__all__ = ["AdReports", "draw_reports"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_FIRST = "first_price"


@dataclass(frozen=True, eq=False)
class AdReports:
    """Columns of the two tables, one entry per row; names are indices into the market's."""

    ads: dict[str, NDArray[np.generic]]
    insights: dict[str, NDArray[np.generic]]
    landscape: Ints  # (days,) hidden: which landscape ruled; never exported


@dataclass(eq=False)
class _Control:
    """What rivals (M,) remember from day to day: our bid, and how their spending went."""

    shift: Floats
    mean_spend: Floats
    days: int = 0
    total_error: Floats | float = 0.0
    last_error: Floats | float = 0.0

    def update(self, market: HiddenMarket, our_bid: float, spend: Floats) -> None:
        """A response to our bid, and PID pacing of the spend towards its own running mean."""
        self.days += 1
        self.mean_spend += (spend - self.mean_spend) / self.days
        error = 1.0 - spend / np.maximum(self.mean_spend, 1e-9)
        self.total_error = self.total_error + error
        gains = market.rivals.pacing
        pid = gains[:, 0] * error + gains[:, 1] * self.total_error + gains[:, 2] * (error - self.last_error)
        self.last_error = error
        self.shift = market.rivals.response * our_bid + pid


def draw_reports(market: HiddenMarket, journeys: Journeys, *, seed: int) -> AdReports:
    """Play every day's auctions, the five landscapes one after the other in equal parts of the window."""
    rng = generator(seed, Purpose.WORLD, agent=1)
    calendar, paid = journeys.calendar, len(market.campaigns.paid)
    weeks = len(calendar.mix)
    week = np.minimum(np.arange(calendar.days) // 7, weeks - 1)
    landscape = np.minimum(week * len(LANDSCAPES) // weeks, len(LANDSCAPES) - 1)
    auctions = _auctions_per_day(market, journeys, paid)
    users, shown = len(journeys.segment), np.zeros(len(market.campaigns.creatives))
    rivals = len(market.rivals.names)
    control, drift = _Control(np.zeros(rivals), np.zeros(rivals)), 0.0
    ads: list[dict[str, NDArray[np.generic]]] = []
    insights: list[dict[str, NDArray[np.generic]]] = []
    for day in range(calendar.days):
        shock = market.campaigns.bid_spread * rng.standard_normal(paid)
        counts = rng.poisson(auctions * calendar.volume[day].mean())
        live = _live(calendar, day, len(shown))
        drift = market.rivals.memory * drift + market.rivals.drift * float(rng.standard_normal())
        played = _Day(market, int(landscape[day]), control.shift + drift, shock, counts, live, shown / users, rng)
        ads.append(played.ads(day))
        insights.append(played.insights(day))
        shown += played.shown_by_creative()
        control.update(market, float(shock.mean()), played.rival_spend())
    return AdReports(_joined(ads), _joined(insights), landscape)


def _auctions_per_day(market: HiddenMarket, journeys: Journeys, paid: int) -> Floats:
    """Eligible auctions per day and campaign such that ad clicks come near the paid sessions of the export."""
    clicks = np.bincount(journeys.campaign, minlength=paid)[:paid]
    slots = np.array(market.campaigns.slots[:paid])
    seen = np.array([market.campaigns.position[:s].mean() for s in slots]) * np.where(slots > 1, 0.95, 0.45)
    return np.asarray(clicks / journeys.calendar.days / (market.campaigns.click_rate.mean() * seen))


def _live(calendar: Calendar, day: int, creatives: int) -> Ints:
    """Creatives are launched one after the other over the first half of the window."""
    launch = np.arange(creatives) * calendar.days // (2 * creatives)
    return np.flatnonzero(launch <= day)


class _Day:
    """One day's auctions A: who entered, how they ranked, what was shown, clicked and paid."""

    def __init__(
        self,
        market: HiddenMarket,
        landscape: int,
        shift: Floats,
        shock: Floats,
        counts: Ints,
        live: Ints,
        frequency: Floats,
        rng: np.random.Generator,
    ) -> None:
        self.market, ads, rivals = market, market.campaigns, market.rivals
        self.counts, self.bid = counts, ads.bid * np.exp(shock)
        self.campaign = campaign = np.repeat(np.arange(len(counts)), counts)
        size = len(campaign)
        self.creative = live[rng.integers(0, len(live), size)]
        fresh = ads.click_rate * np.exp(-ads.fatigue * frequency)
        quality = np.log(fresh / ads.click_rate.mean())[self.creative]
        ours = np.log(self.bid)[campaign] + quality

        first = np.array([m == _FIRST for m in ads.mechanisms])[campaign]
        enters = rng.random((size, len(rivals.names))) < rivals.participation[landscape]
        level = rivals.level[landscape] + shift + rivals.target[:, campaign].T + first[:, None] * rivals.shade
        bids = np.where(enters, level + rivals.spread * rng.standard_normal(level.shape), -np.inf)

        self.scores = np.column_stack([ours, bids])
        self.scores[self.scores < np.log(ads.reserve)] = -np.inf
        order = np.argsort(-self.scores, axis=1, kind="stable")
        ranks = np.empty_like(order)
        np.put_along_axis(ranks, order, np.arange(order.shape[1])[None], axis=1)
        self.rank = ranks
        slots = np.array(ads.slots)[campaign]
        self.shown = (ranks < slots[:, None]) & np.isfinite(self.scores)

        ordered = np.column_stack([np.take_along_axis(self.scores, order, 1), np.full(size, -np.inf)])
        below = np.take_along_axis(ordered, ranks[:, :1] + 1, 1)[:, 0]
        price = np.exp(np.maximum(below, np.log(ads.reserve)) - quality)
        price = np.where(first, self.bid[campaign], np.minimum(price, self.bid[campaign]))
        rate = fresh[self.creative] * ads.position[np.minimum(ranks[:, 0], len(ads.position) - 1)]
        self.clicked = self.shown[:, 0] & (rng.random(size) < rate)
        self.cost = np.where(self.clicked, price, 0.0)

    def shown_by_creative(self) -> Floats:
        """Our impressions (creatives,)."""
        creatives = len(self.market.campaigns.creatives)
        return np.asarray(np.bincount(self.creative, self.shown[:, 0], creatives), np.float64)

    def rival_spend(self) -> Floats:
        """What rivals (M,) spend by their own bids where they are shown."""
        spend = np.where(self.shown[:, 1:], np.exp(self.scores[:, 1:]), 0.0)
        return np.asarray(spend.sum(axis=0))

    def ads(self, day: int) -> dict[str, NDArray[np.generic]]:
        """One row per campaign, creative and position in which we were seen."""
        creatives, places = len(self.market.campaigns.creatives), max(self.market.campaigns.slots)
        cell = (self.campaign * creatives + self.creative) * places + np.minimum(self.rank[:, 0], places - 1)
        size = len(self.counts) * creatives * places
        mine = self.shown[:, 0]
        impressions = np.bincount(cell[mine], minlength=size)
        rows = np.flatnonzero(impressions)
        campaign = rows // (creatives * places)
        won = np.bincount(self.campaign, mine, len(self.counts))
        return {
            "day": np.full(len(rows), day),
            "campaign": campaign,
            "creative": rows // places % creatives,
            "position": rows % places + 1,
            "impressions": impressions[rows],
            "clicks": np.bincount(cell, self.clicked, size)[rows].astype(np.int64),
            "cost": np.bincount(cell, self.cost, size)[rows],
            "bid": self.bid[campaign],
            "impression_share": (won / np.maximum(self.counts, 1))[campaign],
        }

    def insights(self, day: int) -> dict[str, NDArray[np.generic]]:
        """One row per campaign and rival that competed with us: the rates of an auction-insights report."""
        paid, rivals = len(self.counts), len(self.market.rivals.names)
        entered = np.isfinite(self.scores)
        both = entered[:, :1] & entered[:, 1:]
        above = both & (self.rank[:, 1:] < self.rank[:, :1])
        outranked = self.shown[:, :1] & ~above

        def per_campaign(what: NDArray[np.bool_]) -> Floats:
            return np.stack([np.bincount(self.campaign, what[:, m], paid) for m in range(rivals)], axis=1)

        met, auctions = per_campaign(both), np.maximum(self.counts[:, None], 1)
        campaign, rival = np.nonzero(met > 0)
        rates = {
            "impression_share": per_campaign(self.shown[:, 1:]) / auctions,
            "overlap_rate": met / auctions,
            "position_above_rate": per_campaign(above) / np.maximum(met, 1),
            "outranking_share": per_campaign(outranked) / auctions,
        }
        return {
            "day": np.full(len(campaign), day),
            "campaign": campaign,
            "competitor": rival,
            **{name: rate[campaign, rival] for name, rate in rates.items()},
        }


def _joined(rows: list[dict[str, NDArray[np.generic]]]) -> dict[str, NDArray[np.generic]]:
    return {name: np.concatenate([r[name] for r in rows]) for name in rows[0]}
