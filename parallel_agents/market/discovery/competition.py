"""Read the advertiser's own reports, and fit what they show of creatives, campaigns and prices.

Days D, paid campaigns J, creatives, rivals M. An auction-insights row gives how often a rival took part in the
auctions we took part in (`overlap_rate`) and how often it then ranked above us (`position_above_rate`). `rivals` fits
how rivals bid from these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.types import Floats, Ints
from parallel_agents.market.discovery.click_history import History
from parallel_agents.market.discovery.conversion import ClickWorth
from parallel_agents.market.discovery.estimation import (
    Estimate,
    Fit,
    dummies,
    fit_poisson,
    fit_probit,
    hour_waves,
    ratio,
)
from parallel_agents.market.discovery.export_reader import Export, known
from parallel_agents.market.discovery.patterns import Campaign, Mechanism

_LONGEST_MEMORY = 0.98  # of impressions, a day later
_MEMORIES, _ZOOMS = 15, 3  # memories tried at a time; how often among those around the likely ones
_UNLIKELY = 8.0  # a log likelihood that much below the largest has no weight
_OFTEN = 5  # prices alike by chance are fewer
_SAME_PRICE = 0.005  # relative error of a single price beyond that of quality: prices are in whole cents


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
    # cells
    shown: Floats  # (D, C): our impressions of a creative, per user
    auctions: Floats  # (D, J), NaN where the impression share is not known
    log_bid: Floats  # (D, J), NaN where we were not shown or the bid is not known
    met: Floats  # (D, J, M): auctions in which the rival took part
    above: Floats  # (D, J, M): of these, auctions in which the rival ranked above us
    rival_shown: Floats  # (D, J, M): auctions in which the rival was shown, NaN where that is not known
    hourly_auctions: Floats  # (D, 24, J), 0 without a report by hour
    hourly_top: Floats  # (D, 24, J): auctions in which we were on top

    @property
    def days(self) -> int:
        """The number of days D."""
        return len(self.auctions)

    def unknown(self) -> str | None:
        """Return why nothing can be said of prices, or None if something can."""
        if not np.isfinite(self.log_bid).any():
            return "no row of the ads table holds our bid"
        if not (np.nan_to_num(self.auctions) > 0.0).any():
            return "no row of the ads table holds an impression share, so the number of auctions is unknown"
        if not (self.clicks > 0.0).any():
            return "no row of the ads table holds a click"
        return None

    def remembered(self, memory: float) -> Floats:
        """Return the impressions (D, C) before a day, per user, of which users keep a share `memory` each day."""
        before = np.zeros_like(self.shown)
        for i in range(1, len(before)):
            before[i] = memory * before[i - 1] + self.shown[i - 1]
        return before

    def cells(self, rows: Floats) -> Floats:
        """Return the sums (D, J) of a column of the ads table."""
        flat = np.bincount(self.day * len(self.campaigns) + self.campaign, rows, self.auctions.size)
        return np.asarray(flat, np.float64).reshape(self.auctions.shape)


def read_ad_history(export: Export, history: History) -> AdHistory:
    """Return the reports of an export, which must hold an ads table and may hold further reports.

    What a row does not say stays unknown: a day without a bid has none, and without an impression share nobody knows
    how many auctions there were. Rows without a position count as the first one.
    """
    columns = """first(channel) AS channel, coalesce(creative, '(none)') AS creative, coalesce(position, 1) AS position,
        sum(impressions) AS impressions, sum(coalesce(clicks, 0)) AS clicks, sum(coalesce(cost, 0)) AS cost,
        avg(bid) AS bid, avg(impression_share) AS share"""
    ads = _by_day(export, history, "ads", columns, where="impressions > 0")
    if not len(ads["day"]):
        raise ConfigError(f"the ads table of {export.source} holds no impression within the days of the events")
    campaigns, first, campaign = np.unique(ads["campaign"].astype(str), return_index=True, return_inverse=True)
    creatives, creative = np.unique(ads["creative"].astype(str), return_inverse=True)
    day, impressions, bid, share = ads["day"], ads["impressions"], known(ads["bid"]), known(ads["share"])
    shape = (history.days, len(campaigns))
    cell = day * shape[1] + campaign
    won = np.bincount(cell, impressions, shape[0] * shape[1]).reshape(shape)
    shown = np.clip(_mean_of_known(cell, impressions, share, shape), 1e-6, 1.0)
    auctions = np.where(won > 0.0, won / shown, 0.0)
    daily = np.zeros((history.days, len(creatives)))
    np.add.at(daily, (day, creative), impressions)
    names = tuple(map(str, campaigns))
    rivals, met, above, rival_shown, auctions = _read_insights(export, history, names, auctions)
    hourly, top = _read_hours(export, history, names, auctions)
    return AdHistory(
        campaigns=names,
        channels=tuple(map(str, ads["channel"][first])),
        creatives=tuple(map(str, creatives)),
        rivals=rivals,
        users=len(history.clicks),
        day=day,
        campaign=campaign,
        creative=creative,
        position=ads["position"].astype(np.int64) - 1,
        impressions=impressions,
        clicks=ads["clicks"],
        cost=ads["cost"],
        bid=bid,
        shown=daily / len(history.clicks),
        auctions=auctions,
        log_bid=_mean_of_known(cell, impressions, np.log(np.maximum(bid, 1e-9)), shape),
        met=met,
        above=above,
        rival_shown=rival_shown,
        hourly_auctions=hourly,
        hourly_top=top,
    )


def _by_day(
    export: Export, history: History, table: str, columns: str, *, where: str = "true", having: str = "true"
) -> dict[str, Any]:
    """Return columns of a report, in which figures are aggregated, by day and campaign.

    Days are those of the events, campaigns those of which the ads table shows an impression on one of these.
    """
    day = f"datediff('day', DATE '{history.first_day}', date)"
    within = f"{day} BETWEEN 0 AND {history.days - 1}"
    return export.rows(f"""
        SELECT {day} AS day, campaign, {columns} FROM {table}
        WHERE {where} AND {within} AND campaign IN (SELECT campaign FROM ads WHERE impressions > 0 AND {within})
        GROUP BY ALL HAVING {having} ORDER BY ALL""")


def _mean_of_known(cell: Ints, weight: Floats, column: Floats, shape: tuple[int, int]) -> Floats:
    """Return the weighted means of a column by cell, NaN for a cell without a known value."""
    there = np.isfinite(column)
    total = np.bincount(cell[there], (weight * column)[there], shape[0] * shape[1])
    size = np.bincount(cell[there], weight[there], shape[0] * shape[1])
    means = np.full(len(size), np.nan)
    np.divide(total, size, out=means, where=size > 0.0)
    return means.reshape(shape)


def _read_hours(
    export: Export, history: History, campaigns: tuple[str, ...], auctions: Floats
) -> tuple[Floats, Floats]:
    """Return auctions, and auctions in which we were on top, by day, hour and campaign (D, 24, J).

    An hour without an impression does not show its auctions; leaving it out would leave out the hours at which rivals
    bid most. It gets its usual share of the day's auctions.
    """
    shape = (history.days, 24, len(campaigns))
    held, top = np.zeros(shape), np.zeros(shape)
    if "ads_by_hour" not in export.reports:
        return held, top
    columns = """hour, sum(impressions) AS impressions, avg(impression_share) AS share,
        avg(top_impression_share) AS top"""
    where = "impressions >= 0 AND impression_share > 0 AND hour BETWEEN 0 AND 23"
    rows = _by_day(export, history, "ads_by_hour", columns, where=where, having="isfinite(top)")
    place = (rows["day"], rows["hour"].astype(np.int64), np.searchsorted(campaigns, rows["campaign"].astype(str)))
    held[place] = known(rows["impressions"]) / rows["share"]
    top[place] = np.minimum(rows["top"], 1.0) * held[place]
    seen, of_day = held > 0.0, np.broadcast_to(np.nan_to_num(auctions)[:, None, :], shape)
    usual = held.sum(axis=0) / np.maximum((of_day * seen).sum(axis=0), 1.0)
    return np.where(seen | ~seen.any(axis=1, keepdims=True), held, usual * of_day), top


def _read_insights(
    export: Export, history: History, campaigns: tuple[str, ...], auctions: Floats
) -> tuple[tuple[str, ...], Floats, Floats, Floats, Floats]:
    """Return rivals M, the auctions (D, J, M) in which each took part, ranked above us, and was shown, and all (D, J).

    On a day on which rivals met us in a campaign that won no impression, it gets its usual share of the auctions.
    """
    if "auction_insights" not in export.reports:
        nobody = np.zeros((*auctions.shape, 0))
        return (), nobody, nobody, nobody, auctions
    columns = """competitor, avg(overlap_rate) AS overlap, avg(position_above_rate) AS above,
        avg(impression_share) AS share"""
    known_rates = "isfinite(overlap) AND isfinite(above)"
    rows = _by_day(export, history, "insights", columns, where="competitor IS NOT NULL", having=known_rates)
    rivals, rival = np.unique(rows["competitor"].astype(str), return_inverse=True)
    place = (rows["day"], np.searchsorted(campaigns, rows["campaign"].astype(str)), rival)
    took_part = np.zeros(auctions.shape, np.bool_)
    took_part[place[:2]] = True
    seen = np.nan_to_num(auctions) > 0.0
    usual = np.where(seen, auctions, 0.0).sum(axis=0) / np.maximum(seen.sum(axis=0), 1)
    size = np.where(seen, auctions, 0.0).sum(axis=1) / np.maximum((seen * usual).sum(axis=1), 1e-9)  # of the day
    auctions = np.where((auctions == 0.0) & took_part, np.outer(size, usual), auctions)
    held = np.nan_to_num(auctions)[place[:2]]
    met, above, shown = np.zeros((3, *auctions.shape, len(rivals)))
    met[place] = rows["overlap"] * held
    above[place] = met[place] * rows["above"]
    share = known(rows["share"])
    shown[place] = np.nan_to_num(share) * held
    if not np.isfinite(share).any():
        shown[:] = np.nan
    return tuple(map(str, rivals)), met, above, shown, auctions


@dataclass(frozen=True, eq=False)
class Creatives:
    """Click rates of unworn creatives C on top, position effects, fatigue, and the quality of our bids by these."""

    rate: dict[str, Estimate]
    position: tuple[Estimate, ...]
    fatigue: Estimate
    wear: Fit  # (C + 2): log rates about the log of their mean, the fatigue, and how far the likely memory is off
    remembered: Floats  # (D, C): impressions before this day that users remember, per user
    by_memory: Floats  # (D, C): what a longer memory adds to the wear, per unit of memory
    live: NDArray[np.bool_]  # (D, J, C): where the creative was in use

    @property
    def quality(self) -> Floats:
        """The log quality (D, C) of the creatives, worn as they were on the day."""
        rates, (fatigue, memory) = self.wear.values[:-2], self.wear.values[-2:]
        return np.asarray(rates - fatigue * self.remembered - memory * self.by_memory)

    @property
    def mean_quality(self) -> Floats:
        """The mean log quality (D, J) of the creatives in use."""
        worth = self.live * self.quality[:, None, :]
        return np.asarray(worth.sum(axis=2) / np.maximum(self.live.sum(axis=2), 1.0))

    def variants(self) -> list[Creatives]:
        """Return the same creatives with one standard deviation of every independent error of their quality."""
        sizes, directions = np.linalg.eigh(self.wear.covariance)
        errors = (directions * np.sqrt(np.maximum(sizes, 0.0))).T
        return [
            replace(self, wear=Fit(self.wear.values + error, self.wear.covariance)) for error in errors[sizes > 1e-9]
        ]


def fit_creatives(ads: AdHistory) -> Creatives:
    """Fit clicks per impression as creative × position × exp(−fatigue · remembered impressions).

    How long users remember is averaged over its likelihood, at memories closer to each other than the export can tell
    apart; quality is that of the most likely memory, whose error is one of its own.
    """
    count, places = len(ads.creatives), int(ads.position.max()) + 1
    x = np.hstack([dummies(ads.creative, count), dummies(ads.position, places, drop=0)])
    low, high = 0.0, _LONGEST_MEMORY
    for _ in range(_ZOOMS):
        memories, fits, likelihoods = np.linspace(low, high, _MEMORIES), [], []
        for memory in memories:
            worn = np.column_stack([x, -ads.remembered(memory)[ads.day, ads.creative]])
            fit = fit_poisson(worn, ads.clicks, ads.impressions, np.ones(len(x)), np.arange(len(x)))
            fits.append(Fit(np.append(fit.values, memory), np.pad(fit.covariance, (0, 1))))
            eta = worn @ fit.values
            likelihoods.append(float(ads.clicks @ eta - ads.impressions @ np.exp(eta)))
        likely = np.flatnonzero(np.array(likelihoods) > max(likelihoods) - _UNLIKELY)
        low, high = memories[max(likely[0] - 1, 0)], memories[min(likely[-1] + 1, _MEMORIES - 1)]
    average, share = Fit.averaged(fits, likelihoods)
    best = int(share.argmax())
    fit = Fit(fits[best].values, average.covariance)
    by_creative = np.bincount(ads.creative, ads.clicks, count)
    by_position = np.bincount(ads.position, ads.clicks, places)
    positions = fit.block(count, np.eye(places)[:, 1:])
    rates = np.exp(fit.values[:count])
    relative = np.zeros((count + 2, len(fit.values)))
    relative[:count, :count] = np.eye(count) - rates / rates.sum()
    relative[-2:, -2:] = np.eye(2)
    wear, memory, step = fit.combine(relative), fit.values[-1], 1e-5
    longer = (ads.remembered(memory + step) - ads.remembered(memory - step)) / (2.0 * step)
    # in use from its first to its last impression: on a day between, a weak creative may have lost every auction
    shown = np.zeros((*ads.auctions.shape, count), np.bool_)
    shown[ads.day, ads.campaign, ads.creative] = True
    return Creatives(
        rate={
            name: fit.log_estimate(i, count=by_creative[i], source="clicks per impression")
            for i, name in enumerate(ads.creatives)
        },
        position=tuple(
            positions.log_estimate(i, count=by_position[i], source="clicks by position, all else equal")
            for i in range(places)
        ),
        fatigue=average.estimate(
            -2,
            count=ads.clicks.sum(),
            source=f"clicks by impressions per user, of which {memory:.0%} are remembered a day later",
        ),
        wear=Fit(np.append(fit.values[:count] - np.log(rates.mean()), [fit.values[-2], 0.0]), wear.covariance),
        remembered=ads.remembered(memory),
        by_memory=fit.values[-2] * longer,
        live=np.logical_or.accumulate(shown) & np.logical_or.accumulate(shown[::-1])[::-1],
    )


def fit_campaigns(
    ads: AdHistory, worth: Mapping[str, ClickWorth], hours: Fit | None, creatives: Creatives
) -> dict[str, Campaign]:
    """Return mechanism, slots, reserve, bid, spend and value of every campaign that can be simulated.

    These are the campaigns with a click in both tables and a known bid; `hours` comes from `price_by_hour`.
    """
    campaigns = {}
    for j, name in enumerate(ads.campaigns):
        rows = ads.campaign == j
        if name in worth and ads.clicks[rows].sum() > 0 and np.isfinite(ads.log_bid[:, j]).any():
            price: tuple[Estimate, ...] = (Estimate.zero(0, "no report by hour: assumed equal at all hours"),) * 2
            if hours is not None:
                source = "top position by hour, against our bid of the day, probit"
                count = float(ads.hourly_auctions[:, :, j].sum())
                price = tuple(hours.estimate(i, count=count, source=source) for i in (j, len(ads.campaigns) + j))
            campaigns[name] = _campaign(ads, j, worth[name], price, creatives)
    elsewhere = min((c.reserve.value for c in campaigns.values() if c.reserve.low > 0.0), default=np.inf)
    for name, c in campaigns.items():
        if c.reserve.low == 0.0 and elsewhere < c.reserve.high:  # only an upper bound is known
            campaigns[name] = replace(c, reserve=replace(c.reserve, value=elsewhere))
    return campaigns


def _campaign(
    ads: AdHistory, j: int, worth: ClickWorth, hour_price: tuple[Estimate, ...], creatives: Creatives
) -> Campaign:
    """Return campaign j; its mechanism follows from whether we pay our bid, and from the number of positions."""
    rows = ads.campaign == j
    clicked = rows & (ads.clicks > 0) & np.isfinite(ads.bid)
    slots = int(ads.position[rows].max()) + 1
    paid_share = float(ads.cost[clicked].sum() / (ads.clicks[clicked] * ads.bid[clicked]).sum())
    mechanism: Mechanism = "first_price" if paid_share > 1.0 - 1e-6 else "gsp" if slots > 1 else "second_price"
    log_bid = ads.log_bid[np.isfinite(ads.log_bid[:, j]), j]
    auctions = ads.auctions[:, j]
    days = np.isfinite(auctions)
    return Campaign(
        channel=ads.channels[j],
        mechanism=mechanism,
        slots=slots,
        reserve=_reserve(ads, creatives, clicked, mechanism),
        bid=Estimate.from_log(
            float(log_bid.mean()),
            float(log_bid.std(ddof=1) / np.sqrt(len(log_bid))) if len(log_bid) > 1 else 0.0,
            count=len(log_bid),
            source="our own bids, geometric mean over days",
        ),
        spend=ratio(
            ads.cells(ads.cost)[days, j],
            auctions[days],
            "log",
            count=int(auctions[days].sum()),
            source="cost per eligible auction",
        ),
        value=worth.value,
        hour_price=hour_price,
        hour_value=worth.hour_value,
    )


def _reserve(ads: AdHistory, creatives: Creatives, clicked: NDArray[np.bool_], mechanism: Mechanism) -> Estimate:
    """Return the reserve from prices × quality: the lowest if it occurs again and again, else anything up to it.

    Prices are the same if they differ by no more than the errors of quality explain.
    """
    place = ads.day[clicked], ads.creative[clicked]
    rates = dummies(place[1], len(ads.creatives))
    x = np.column_stack([rates, -creatives.remembered[place], -creatives.by_memory[place]])
    price = np.log(ads.cost[clicked] / ads.clicks[clicked])
    if mechanism == "first_price":  # where we pay our own bid, a price shows nothing but that it was enough
        lowest = float(np.exp((price + x @ creatives.wear.values).min()))
        return Estimate(lowest / 2.0, 0.0, lowest, "linear", len(price), "below the lowest bid that was shown")
    fit = creatives.wear.combine(x)
    price, error = price + fit.values, fit.errors
    first = int(price.argmin())
    single = ads.clicks[clicked] == 1.0  # a row of several clicks holds a mean of prices
    wide = 2.0 * Estimate.z() * max(float(error[single].max(initial=0.0)), _SAME_PRICE)
    same = single & (price <= price[first] + wide)
    next_ones = single & ~same & (price <= price[first] + 2.0 * wide)
    if same.sum() >= _OFTEN and same.sum() > 3 * next_ones.sum():
        inverse = np.linalg.inv(fit.covariance[np.ix_(same, same)] + _SAME_PRICE**2 * np.eye(int(same.sum())))
        size = float(inverse.sum())
        source = f"lowest price of a click at mean quality, paid {int(same.sum())} times"
        return Estimate.from_log(
            float(inverse.sum(axis=0) @ price[same]) / size, size**-0.5, count=len(price), source=source
        )
    highest = float(np.exp(price[first] + Estimate.z() * error[first]))
    source = f"below the lowest of {len(price)} prices at mean quality; nothing shows how far"
    return Estimate(highest / 2.0, 0.0, highest, "linear", len(price), source)


def price_by_hour(ads: AdHistory, quality: Floats, period: Ints) -> Fit | None:
    """Return how the log price of the top position changes during a day: sine and cosine by campaign (2 · J)."""
    place = np.nonzero((ads.hourly_auctions > 0.0) & np.isfinite(ads.log_bid)[:, None, :])
    day, hour, campaign = place
    count = len(ads.campaigns)
    if len(day) < 10 * count or len(np.unique(campaign)) < count:
        return None
    waves = [wave[hour] for wave in hour_waves()]
    x = _price_design(ads, quality, period, day, campaign, waves)
    fit = fit_probit(x, ads.hourly_top[place], ads.hourly_auctions[place], day)
    return fit.block(0, np.eye(2 * count) / max(float(fit.values[-1]), 1e-3))


def price_by_period(ads: AdHistory, quality: Floats, period: Ints) -> Fit:
    """Return the deviation (Q,) of the log price of the top position: the bid that is first half of the time.

    `period` (D,). The top position is won with probability Φ((log bid + quality − price) / spread).
    """
    top = ads.cells(ads.impressions * (ads.position == 0))
    there = np.isfinite(ads.log_bid) & (np.nan_to_num(ads.auctions) > 0)
    day, campaign = np.nonzero(there)
    fit = fit_probit(_price_design(ads, quality, period, day, campaign), top[there], ads.auctions[there], day)
    slope = max(float(fit.values[-1]), 1e-3)
    share = np.bincount(period) / len(period)
    effects = np.eye(len(share))[:, 1:]
    return fit.block(len(ads.campaigns), (effects - share @ effects) / slope)


def _price_design(
    ads: AdHistory, quality: Floats, period: Ints, day: Ints, campaign: Ints, waves: Sequence[Floats] = ()
) -> Floats:
    """Return the causes by row of being on top: waves of the hours by campaign, campaign, period, and our offer."""
    by_campaign = -dummies(campaign, len(ads.campaigns))
    by_period = -dummies(period[day], int(period.max()) + 1, drop=0)
    offer = (ads.log_bid + quality)[day, campaign]
    return np.hstack([*(by_campaign * wave[:, None] for wave in waves), by_campaign, by_period, offer[:, None]])
