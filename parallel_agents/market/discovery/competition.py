"""Read the advertiser's own reports, and fit what they show of creatives, campaigns and prices.

Days D, paid campaigns J, creatives, rivals M. An auction-insights row gives how often a rival took part in the
auctions we took part in (`overlap_rate`) and how often it then ranked above us (`position_above_rate`). `rivals` fits
how rivals bid from these.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from parallel_agents.core.errors import ConfigError
from parallel_agents.market.discovery.click_history import History
from parallel_agents.market.discovery.estimation import (
    Estimate,
    Fit,
    Floats,
    Ints,
    dummies,
    fit_poisson,
    fit_probit,
    ratio,
)
from parallel_agents.market.discovery.export_reader import Export
from parallel_agents.market.discovery.patterns import Campaign, Mechanism


@dataclass(frozen=True, eq=False)
class AdHistory:
    """The two reports as arrays: rows of the ads table (R,), cells by day, campaign (D, J) and rival (D, J, M)."""

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
    log_bid: Floats  # (D, J), NaN where we were not shown
    met: Floats  # (D, J, M): auctions in which the rival took part
    above: Floats  # (D, J, M): of these, auctions in which the rival ranked above us

    @property
    def days(self) -> int:
        """The number of days D."""
        return len(self.auctions)

    def cells(self, rows: Floats) -> Floats:
        """Return the sums (D, J) of a column of the ads table."""
        flat = np.bincount(self.day * len(self.campaigns) + self.campaign, rows, self.auctions.size)
        return np.asarray(flat, np.float64).reshape(self.auctions.shape)


def read_ad_history(export: Export, history: History) -> AdHistory:
    """Return the reports of an export, which must hold an ads table and may hold auction insights."""
    start = f"DATE '{history.first_day}'"
    ads = export.rows(f"""
        SELECT datediff('day', {start}, date) AS day, CAST(campaign AS VARCHAR) AS campaign, first(channel) AS channel,
            CAST(creative AS VARCHAR) AS creative, position, sum(impressions) AS impressions, sum(clicks) AS clicks,
            sum(cost) AS cost, avg(bid) AS bid, avg(impression_share) AS share
        FROM ads WHERE impressions > 0 AND datediff('day', {start}, date) BETWEEN 0 AND {history.days - 1}
        GROUP BY ALL ORDER BY ALL""")
    if not len(ads["day"]):
        raise ConfigError(f"the ads table of {export.source} holds no impression within the days of the events")
    campaigns, campaign = np.unique(ads["campaign"].astype(str), return_inverse=True)
    creatives, creative = np.unique(ads["creative"].astype(str), return_inverse=True)
    day = ads["day"].astype(np.int64)
    impressions, bid = ads["impressions"].astype(np.float64), ads["bid"].astype(np.float64)
    shape = (history.days, len(campaigns))
    cell, cells = day * shape[1] + campaign, history.days * shape[1]
    won = np.bincount(cell, impressions, cells)

    def mean(column: Floats) -> Floats:
        with np.errstate(invalid="ignore"):
            return (np.bincount(cell, impressions * column, cells) / won).reshape(shape)

    with np.errstate(invalid="ignore"):
        shown = np.clip(mean(ads["share"].astype(np.float64)), 1e-6, 1.0)
        auctions = np.nan_to_num(won.reshape(shape) / shown)
    daily = np.zeros((history.days, len(creatives)))
    np.add.at(daily, (day, creative), impressions)
    before = np.vstack([np.zeros(len(creatives)), np.cumsum(daily, axis=0)[:-1]])
    names = tuple(map(str, campaigns))
    rivals, met, above = _read_insights(export, history, names, auctions)
    return AdHistory(
        campaigns=names,
        channels=tuple(str(ads["channel"][np.flatnonzero(campaign == j)[0]]) for j in range(len(names))),
        creatives=tuple(map(str, creatives)),
        rivals=rivals,
        users=len(history.clicks),
        day=day,
        campaign=campaign,
        creative=creative,
        position=ads["position"].astype(np.int64) - 1,
        impressions=impressions,
        clicks=ads["clicks"].astype(np.float64),
        cost=ads["cost"].astype(np.float64),
        bid=bid,
        frequency=before[day, creative] / len(history.clicks),
        auctions=auctions,
        log_bid=mean(np.log(np.maximum(bid, 1e-9))),
        met=met,
        above=above,
    )


def _read_insights(
    export: Export, history: History, campaigns: tuple[str, ...], auctions: Floats
) -> tuple[tuple[str, ...], Floats, Floats]:
    """Return rivals M, and the auctions (D, J, M) in which each took part and in which it ranked above us."""
    if "auction_insights" not in export.reports:
        return (), np.zeros((*auctions.shape, 0)), np.zeros((*auctions.shape, 0))
    start = f"DATE '{history.first_day}'"
    rows = export.rows(f"""
        SELECT datediff('day', {start}, date) AS day, CAST(campaign AS VARCHAR) AS campaign,
            CAST(competitor AS VARCHAR) AS competitor, avg(overlap_rate) AS overlap, avg(position_above_rate) AS above
        FROM insights WHERE datediff('day', {start}, date) BETWEEN 0 AND {history.days - 1}
        GROUP BY ALL ORDER BY ALL""")
    known = np.isin(rows["campaign"].astype(str), campaigns)
    rivals, rival = np.unique(rows["competitor"].astype(str)[known], return_inverse=True)
    campaign = np.searchsorted(campaigns, rows["campaign"][known].astype(str))
    place = (rows["day"][known].astype(np.int64), campaign, rival)
    met = np.zeros((*auctions.shape, len(rivals)))
    above = np.zeros_like(met)
    met[place] = rows["overlap"][known] * auctions[place[:2]]
    above[place] = met[place] * rows["above"][known]
    return tuple(map(str, rivals)), met, above


@dataclass(frozen=True, eq=False)
class Creatives:
    """Click rates of unworn creatives on top, position effects, fatigue, and the log quality of our bids (D, J)."""

    rate: dict[str, Estimate]
    position: tuple[Estimate, ...]
    fatigue: Estimate
    quality: Floats


def fit_creatives(ads: AdHistory) -> Creatives:
    """Fit clicks per impression as creative × position × exp(−fatigue · frequency)."""
    count, places = len(ads.creatives), int(ads.position.max()) + 1
    x = np.hstack([dummies(ads.creative, count), dummies(ads.position, places, drop=0), -ads.frequency[:, None]])
    fit = fit_poisson(x, ads.clicks, ads.impressions, np.ones(len(x)), np.arange(len(x)))
    by_creative = np.bincount(ads.creative, ads.clicks, count)
    by_position = np.bincount(ads.position, ads.clicks, places)
    positions = fit.block(count, np.eye(places)[:, 1:])
    fatigue = fit.estimate(-1, count=ads.clicks.sum(), source="clicks by impressions per user so far")
    relative = fit.values[:count] - np.log(np.exp(fit.values[:count]).mean())
    quality = relative[ads.creative] - fatigue.value * ads.frequency
    total = np.maximum(ads.cells(ads.impressions), 1e-9)
    return Creatives(
        rate={
            name: fit.log_estimate(i, count=by_creative[i], source="clicks per impression")
            for i, name in enumerate(ads.creatives)
        },
        position=tuple(
            positions.log_estimate(i, count=by_position[i], source="clicks by position, all else equal")
            for i in range(places)
        ),
        fatigue=fatigue,
        quality=ads.cells(ads.impressions * quality) / total,
    )


def fit_campaigns(ads: AdHistory) -> dict[str, Campaign]:
    """Return mechanism, slots, reserve, our bid and our spend of every campaign."""
    campaigns = {name: _campaign(ads, j) for j, name in enumerate(ads.campaigns)}
    reserves = [c.reserve for c in campaigns.values() if c.mechanism != "first_price"]
    if reserves:  # where we pay our own bid, prices do not show the reserve
        lowest = replace(
            min(reserves, key=lambda e: e.value), source="lowest reserve of the other campaigns: not seen here"
        )
        campaigns = {n: c if c.mechanism != "first_price" else replace(c, reserve=lowest) for n, c in campaigns.items()}
    return campaigns


def _campaign(ads: AdHistory, j: int) -> Campaign:
    """Return campaign j; its mechanism follows from whether we pay our bid, and from the number of positions."""
    rows = ads.campaign == j
    clicked = rows & (ads.clicks > 0)
    if not clicked.any():
        name = ads.campaigns[j]
        raise ConfigError(f"campaign {name!r} has no click in the ads table: leave it out, or give more days")
    slots = int(ads.position[rows].max()) + 1
    price = np.sort(ads.cost[clicked] / ads.clicks[clicked])
    paid_share = float(ads.cost[clicked].sum() / (ads.clicks[clicked] * ads.bid[clicked]).sum())
    mechanism: Mechanism = "first_price" if paid_share > 1.0 - 1e-6 else "gsp" if slots > 1 else "second_price"
    lowest = float(price[0])
    gap = min(float(price[min(1, len(price) - 1)]) - lowest, lowest)
    log_bid = ads.log_bid[np.isfinite(ads.log_bid[:, j]), j]
    auctions = ads.auctions[:, j]
    return Campaign(
        channel=ads.channels[j],
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
        spend=ratio(
            ads.cells(ads.cost)[:, j], auctions, "log", count=int(auctions.sum()), source="cost per eligible auction"
        ),
    )


def price_by_period(ads: AdHistory, quality: Floats, period: Ints, periods: int) -> Fit:
    """Return the deviation (Q,) of the log price of the top position: the bid that is first half of the time.

    `period` (D,). The top position is won with probability Φ((log bid + quality − price) / spread).
    """
    top = ads.cells(ads.impressions * (ads.position == 0))
    known = np.isfinite(ads.log_bid) & (ads.auctions > 0)
    day, campaign = np.nonzero(known)
    offer = (ads.log_bid + quality)[known]
    by_campaign = -dummies(campaign, len(ads.campaigns))
    x = np.hstack([by_campaign, -dummies(period[day], periods, drop=0), offer[:, None]])
    fit = fit_probit(x, top[known], ads.auctions[known], np.arange(len(x)))
    slope = max(float(fit.values[-1]), 1e-3)
    share = np.bincount(period, minlength=periods) / len(period)
    effects = np.eye(periods)[:, 1:]
    return fit.block(len(ads.campaigns), (effects - share @ effects) / slope)
