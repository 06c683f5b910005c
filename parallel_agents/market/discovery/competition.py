"""What the advertiser's own reports tell: creatives, prices, and how rivals bid.

Days D, paid campaigns J, creatives, rivals M. An auction-insights row says how often a rival took part in the
auctions we took part in (`overlap_rate`) and how often it then ranked above us (`position_above_rate`); with our own
bid varying from day to day, the second gives the rival's bid distribution (a probit in the logarithm of our bid).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from parallel_agents.errors import ConfigError
from parallel_agents.market.discovery.estimates import Estimate, of_totals
from parallel_agents.market.discovery.history import History
from parallel_agents.market.discovery.patterns import Campaign, Mechanism
from parallel_agents.market.discovery.reader import Export
from parallel_agents.market.discovery.statistics import Fit, dummies, poisson, probit

__all__ = ["Creatives", "Market", "fit_creatives", "our_campaigns", "price_by_period", "read_market"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Market:
    """The two reports as arrays. Rows of `ads` (R,), cells of day and campaign (D, J), of rival too (D, J, M)."""

    campaigns: tuple[str, ...]
    channels: tuple[str, ...]  # of campaigns
    creatives: tuple[str, ...]
    rivals: tuple[str, ...]
    users: int
    # rows of the ads table
    day: Ints
    campaign: Ints
    creative: Ints
    position: Ints  # from 0
    impressions: Floats
    clicks: Floats
    cost: Floats
    bid: Floats
    frequency: Floats  # impressions of the creative before this day, per user
    # cells
    auctions: Floats  # (D, J)
    log_bid: Floats  # (D, J), NaN where we were not seen
    met: Floats  # (D, J, M): auctions in which the rival took part
    above: Floats  # (D, J, M): … and ranked above us

    @property
    def days(self) -> int:
        """D."""
        return len(self.auctions)

    def cells(self, rows: Floats) -> Floats:
        """Sums (D, J) of a column of the ads table."""
        flat = np.bincount(self.day * len(self.campaigns) + self.campaign, rows, self.auctions.size)
        return np.asarray(flat, np.float64).reshape(self.auctions.shape)


def read_market(export: Export, h: History) -> Market:
    """The reports of an export; insights may be absent, the ads table not."""
    start = f"DATE '{h.first_day}'"
    ads = export.rows(f"""
        SELECT datediff('day', {start}, date) AS day, CAST(campaign AS VARCHAR) AS campaign, first(channel) AS channel,
            CAST(creative AS VARCHAR) AS creative, position, sum(impressions) AS impressions, sum(clicks) AS clicks,
            sum(cost) AS cost, avg(bid) AS bid, avg(impression_share) AS share
        FROM ads WHERE impressions > 0 AND datediff('day', {start}, date) BETWEEN 0 AND {h.days - 1}
        GROUP BY ALL ORDER BY ALL""")
    if not len(ads["day"]):
        raise ConfigError(f"the ads table of {export.source} holds no impression within the days of the events")
    campaigns, campaign = np.unique(ads["campaign"].astype(str), return_inverse=True)
    creatives, creative = np.unique(ads["creative"].astype(str), return_inverse=True)
    day = ads["day"].astype(np.int64)
    impressions = ads["impressions"].astype(np.float64)
    shape = (h.days, len(campaigns))
    cell = day * shape[1] + campaign

    def mean(column: Floats) -> Floats:
        total = np.bincount(cell, impressions, h.days * shape[1])
        with np.errstate(invalid="ignore"):
            return (np.bincount(cell, impressions * column, h.days * shape[1]) / total).reshape(shape)

    won = np.bincount(cell, impressions, h.days * shape[1]).reshape(shape)
    with np.errstate(invalid="ignore"):
        auctions = np.nan_to_num(won / np.clip(mean(ads["share"].astype(np.float64)), 1e-6, 1.0))
    daily = np.zeros((h.days, len(creatives)))
    np.add.at(daily, (day, creative), impressions)
    before = np.vstack([np.zeros(len(creatives)), np.cumsum(daily, axis=0)[:-1]])
    rivals, met, above = _insights(export, h, tuple(map(str, campaigns)), auctions)
    channel = [str(ads["channel"][np.flatnonzero(campaign == j)[0]]) for j in range(len(campaigns))]
    return Market(
        campaigns=tuple(map(str, campaigns)),
        channels=tuple(channel),
        creatives=tuple(map(str, creatives)),
        rivals=rivals,
        users=len(h.clicks),
        day=day,
        campaign=campaign,
        creative=creative,
        position=ads["position"].astype(np.int64) - 1,
        impressions=impressions,
        clicks=ads["clicks"].astype(np.float64),
        cost=ads["cost"].astype(np.float64),
        bid=ads["bid"].astype(np.float64),
        frequency=before[day, creative] / len(h.clicks),
        auctions=auctions,
        log_bid=mean(np.log(np.maximum(ads["bid"].astype(np.float64), 1e-9))),
        met=met,
        above=above,
    )


def _insights(
    export: Export, h: History, campaigns: tuple[str, ...], auctions: Floats
) -> tuple[tuple[str, ...], Floats, Floats]:
    if "auction_insights" not in export.reports:
        return (), np.zeros((*auctions.shape, 0)), np.zeros((*auctions.shape, 0))
    rows = export.rows(f"""
        SELECT datediff('day', DATE '{h.first_day}', date) AS day, CAST(campaign AS VARCHAR) AS campaign,
            CAST(competitor AS VARCHAR) AS competitor, avg(overlap_rate) AS overlap, avg(position_above_rate) AS above
        FROM insights WHERE datediff('day', DATE '{h.first_day}', date) BETWEEN 0 AND {h.days - 1}
        GROUP BY ALL ORDER BY ALL""")
    known = np.isin(rows["campaign"].astype(str), campaigns)
    rivals, rival = np.unique(rows["competitor"].astype(str)[known], return_inverse=True)
    place = (
        rows["day"][known].astype(np.int64),
        np.searchsorted(campaigns, rows["campaign"][known].astype(str)),
        rival,
    )
    met = np.zeros((*auctions.shape, len(rivals)))
    above = np.zeros_like(met)
    met[place] = rows["overlap"][known] * auctions[place[:2]]
    above[place] = met[place] * rows["above"][known]
    return tuple(map(str, rivals)), met, above


@dataclass(frozen=True, eq=False)
class Creatives:
    """Click rates fresh and on top, position effects, fatigue, and the quality they give our bids (D, J), log."""

    rate: dict[str, Estimate]
    position: tuple[Estimate, ...]
    fatigue: Estimate
    quality: Floats


def fit_creatives(m: Market) -> Creatives:
    """Clicks per impression as creative × position × exp(−fatigue · frequency)."""
    count, places = len(m.creatives), int(m.position.max()) + 1
    x = np.hstack([dummies(m.creative, count), dummies(m.position, places, drop=0), -m.frequency[:, None]])
    fit = poisson(x, m.clicks, m.impressions, np.ones(len(x)), np.arange(len(x)))
    clicks = np.bincount(m.creative, m.clicks, count)
    rate = {
        name: Estimate.from_log(fit.values[i], fit.errors[i], count=int(clicks[i]), source="clicks per impression")
        for i, name in enumerate(m.creatives)
    }
    seen = np.bincount(m.position, m.clicks, places)
    at = [(0.0, 0.0), *zip(fit.values[count:-1], fit.errors[count:-1], strict=True)]
    position = tuple(
        Estimate.from_log(v, e, count=int(n), source="clicks by position, all else equal")
        for (v, e), n in zip(at, seen, strict=True)
    )
    fatigue = Estimate.from_error(
        fit.values[-1],
        fit.errors[-1],
        "linear",
        count=int(m.clicks.sum()),
        source="clicks by impressions per user so far",
    )
    relative = fit.values[:count] - np.log(np.exp(fit.values[:count]).mean())
    quality = relative[m.creative] - fatigue.value * m.frequency
    total = np.maximum(m.cells(m.impressions), 1e-9)
    return Creatives(rate, position, fatigue, m.cells(m.impressions * quality) / total)


def our_campaigns(m: Market) -> dict[str, Campaign]:
    """Mechanism, slots, reserve, our bid and spend of every campaign."""
    found = {name: _campaign(m, j) for j, name in enumerate(m.campaigns)}
    told = [c.reserve for c in found.values() if c.mechanism != "first_price"]
    if told:  # where we pay our own bid, prices say nothing of the reserve
        lowest = replace(
            min(told, key=lambda e: e.value), source="lowest reserve of the other campaigns: not seen here"
        )
        found = {n: c if c.mechanism != "first_price" else replace(c, reserve=lowest) for n, c in found.items()}
    return found


def _campaign(m: Market, j: int) -> Campaign:
    mine = m.campaign == j
    clicked = mine & (m.clicks > 0)
    if not clicked.any():
        raise ConfigError(f"campaign {m.campaigns[j]!r} has no click in the ads table: leave it out, or give more days")
    slots = int(m.position[mine].max()) + 1
    price = np.sort(m.cost[clicked] / m.clicks[clicked])
    share = float(m.cost[clicked].sum() / (m.clicks[clicked] * m.bid[clicked]).sum())
    mechanism: Mechanism = "first_price" if share > 1.0 - 1e-6 else "gsp" if slots > 1 else "second_price"
    lowest = float(price[0])
    gap = min(float(price[min(1, len(price) - 1)]) - lowest, lowest)
    log_bid = m.log_bid[np.isfinite(m.log_bid[:, j]), j]
    spend, error = of_totals(lambda t: t[:1] / t[1:], np.stack([m.cells(m.cost)[:, j], m.auctions[:, j]], axis=1))
    return Campaign(
        channel=m.channels[j],
        mechanism=mechanism,
        slots=slots,
        reserve=Estimate(
            lowest - gap / 2.0,
            lowest - gap,
            lowest,
            "linear",
            len(price),
            "at most the lowest mean price of a click, and not lower by more than the next is higher",
        ),
        bid=Estimate.from_log(
            float(log_bid.mean()),
            float(log_bid.std() / np.sqrt(len(log_bid))),
            count=len(log_bid),
            source="our own bids, geometric mean over days",
        ),
        spend=Estimate.from_error(
            spend[0], error[0], "log", count=int(m.auctions[:, j].sum()), source="cost per eligible auction"
        ),
    )


def price_by_period(m: Market, quality: Floats, period: Ints, periods: int) -> Fit:
    """Deviation (Q,) of the log price of the top position: what we must bid to be first half of the time.

    `period` (D,). The top position is won with probability Φ((log bid + quality − price) / spread).
    """
    top = m.cells(m.impressions * (m.position == 0))
    known = np.isfinite(m.log_bid) & (m.auctions > 0)
    day, campaign = np.nonzero(known)
    offer = (m.log_bid + quality)[known]
    own = -dummies(campaign, len(m.campaigns))
    x = np.hstack([own, -dummies(period[day], periods, drop=0), offer[:, None]])
    fit = probit(x, top[known], m.auctions[known], np.arange(len(x)))
    slope = max(float(fit.values[-1]), 1e-3)
    share = np.bincount(period, minlength=periods) / len(period)
    raw = np.vstack([np.zeros(periods - 1), np.eye(periods - 1)])
    directions = np.zeros((periods, len(fit.values)))
    directions[:, len(m.campaigns) : -1] = (raw - share @ raw) / slope
    return fit.along(directions)
