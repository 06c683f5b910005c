"""Fit the competition: how often rivals enter, how high and how widely they bid, and what they react to.

Rivals M, campaigns J, days D, groups G of days (periods first, then the landscapes that periods fall into). Our own bid
varies from day to day, so the rate at which a rival ranks above us gives its distribution of bids: a probit in the
logarithm of our bid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parallel_agents.market.discovery.competition import (
    AdHistory,
    ClickWorth,
    fit_campaigns,
    fit_creatives,
    price_by_hour,
    price_by_period,
)
from parallel_agents.market.discovery.estimation import (
    Estimate,
    Fit,
    Floats,
    Ints,
    dummies,
    fit_linear,
    fit_probit,
    normal_cdf,
    ratio,
    ratio_of_totals,
)
from parallel_agents.market.discovery.patterns import Campaign, Competition, Competitor, Landscape
from parallel_agents.market.discovery.seasonality import cluster_periods

_REACTION_ROUNDS = 4


@dataclass(frozen=True, eq=False)
class CompetitionFit:
    """The competition, the landscape (Q,) and log price deviation (Q,) of every period, and what is not identified."""

    competition: Competition
    landscape: Ints
    price: Fit
    notes: list[str]


def fit_competition(
    ads: AdHistory, period: Ints, periods: int, worth: Mapping[str, ClickWorth], bought: Floats
) -> CompetitionFit:
    """Fit campaigns, creatives and rivals; `period` (D,) is the period of every day.

    worth: what the events say of each campaign. bought: purchases after paid clicks, by period (Q,).
    """
    creatives = fit_creatives(ads)
    hours = price_by_hour(ads, creatives.quality, period, periods)
    campaigns = fit_campaigns(ads, worth, hours, creatives.row_quality)
    price = price_by_period(ads, creatives.quality, period, periods)
    by_period = _fit_all(ads, creatives.quality, period, periods)
    landscape = _cluster_landscapes(ads, by_period, period, periods)
    groups, group = int(landscape.max()) + 1, landscape[period]
    bidding = _fit_all(ads, creatives.quality, group, groups)
    rare = [name for r, name in enumerate(ads.rivals) if r not in bidding]
    notes = [f"rival {name}: met too rarely, or our bids vary too little, to tell how it bids" for name in rare]
    if hours is None:
        notes.append("prices by hour: no ads_by_hour table with impression shares; assumed equal at all hours")
    if not ads.rivals:
        notes.append("rivals: no auction-insights table; only the price level of periods is known")
    competitors: dict[str, Competitor] = {}
    landscapes: tuple[Landscape, ...] = ()
    movement = Estimate.zero(0, "nothing known of rivals")
    if bidding:
        shading = _fit_shading(ads, bidding, campaigns)
        our_shock = np.nan_to_num(ads.log_bid - np.nanmean(ads.log_bid, axis=0)).mean(axis=1)
        reactions = _fit_reactions(ads, bidding, our_shock, period)
        drift, centre = _drift(by_period, landscape), _mean_hour_price(ads, hours)
        competitors = {
            ads.rivals[r]: _describe_competitor(ads, b, r, shading[r], reactions.fits[r]) for r, b in bidding.items()
        }
        entered = _participation(ads, group, groups)
        landscapes = tuple(
            _describe_landscape(
                ads, bidding, entered, g, int((landscape == g).sum()), shading, campaigns, drift, centre
            )
            for g in range(groups)
        )
        movement = _volatility(bidding, reactions.rest, group)
        notes.append(
            "whether rivals bid their true value: only what they bid is seen, shading in first-price auctions apart"
        )
    auctions, cost = ads.auctions.sum(axis=1), ads.cells(ads.cost).sum(axis=1)
    days = np.isfinite(auctions) & (auctions > 0.0) & (cost > 0.0)
    users, source = np.full(int(days.sum()), float(ads.users)), "eligible auctions per user and day"
    spent = np.bincount(period, cost, periods)
    sold = (bought > 0.0) & (spent > 0.0)
    competition = Competition(
        campaigns=campaigns,
        creatives=creatives.rate,
        fatigue=creatives.fatigue,
        position=creatives.position,
        competitors=competitors,
        landscapes=landscapes,
        volatility=movement,
        auctions=ratio(auctions[days], users, "log", count=len(users), source=source),
        budget=Estimate.spread_of(cost[days] / auctions[days], source="spend per eligible auction of each day"),
        target=Estimate.spread_of(spent[sold] / bought[sold], source="cost per purchase of each period"),
    )
    return CompetitionFit(competition, landscape, price, notes)


def _cluster_landscapes(ads: AdHistory, by_period: Mapping[int, _Bidding], period: Ints, periods: int) -> Ints:
    """Return groups (Q,) of periods that are alike in how often each rival enters and how much it offers."""
    if not ads.rivals:
        return np.zeros(periods, np.int64)
    entered, _ = _participation(ads, period, periods)
    offers = np.zeros_like(entered)
    for r, fit in by_period.items():
        offers[:, r] = entered[:, r] * np.exp(np.clip(fit.level.mean(axis=1), -5.0, 5.0))
    return cluster_periods(np.hstack([entered, offers]))


def _fit_all(ads: AdHistory, quality: Floats, group: Ints, groups: int) -> dict[int, _Bidding]:
    """Return how every rival bids that was met often enough, by its index."""
    fits = {r: _fit_bidding(ads, r, quality, group, groups) for r in range(len(ads.rivals))}
    return {r: fit for r, fit in fits.items() if fit is not None}


@dataclass(frozen=True, eq=False)
class _Bidding:
    """One rival: log spread, levels of its log bid by group and campaign, and the daily shift of these levels."""

    log_spread: Fit
    levels: Fit  # G · J values
    groups: int
    shift: Floats  # (D,), NaN where the rival was not met
    precision: Floats  # (D,): one over the variance of the shift

    @property
    def level(self) -> Floats:
        """Shape (G, J)."""
        return self.levels.values.reshape(self.groups, -1)


def _fit_bidding(ads: AdHistory, rival: int, quality: Floats, group: Ints, groups: int) -> _Bidding | None:
    """Fit P(above) = Φ((level − our offer) / spread); return None if the rival was met too rarely."""
    met, above = ads.met[:, :, rival], ads.above[:, :, rival]
    known = np.isfinite(ads.log_bid) & (met > 0)
    day, campaign = np.nonzero(known)
    count = len(ads.campaigns)
    if len(day) < 2 * (groups + count):
        return None
    offer = (ads.log_bid + quality)[known]
    cell = group[day] * count + campaign
    x = np.hstack([dummies(cell, groups * count), -offer[:, None]])
    fit = fit_probit(x, above[known], met[known], day)
    slope = float(fit.values[-1])
    if slope < 2.0 * float(fit.errors[-1]):
        return None
    log_spread = Fit(-np.log(fit.values[-1:]), fit.covariance[-1:, -1:] / slope**2)
    sums = fit.values[:-1]
    gradient = np.hstack([np.eye(len(sums)) / slope, -sums[:, None] / slope**2])
    levels = _with_unseen_cells(
        Fit(sums / slope, gradient @ fit.covariance @ gradient.T), np.bincount(cell, minlength=len(sums)) > 0, groups
    )
    shift, precision = _daily_shift(day, x @ fit.values, slope, met[known], above[known], ads.days)
    return _Bidding(log_spread, levels, groups, shift, precision)


def _with_unseen_cells(levels: Fit, seen: NDArray[np.bool_], groups: int) -> Fit:
    """Return the levels (G · J); one that was never seen is the mean of its group's, as uncertain as these differ."""
    if seen.all():
        return levels
    values, covariance, table = levels.values.copy(), levels.covariance.copy(), seen.reshape(groups, -1)
    for place in np.flatnonzero(~seen):
        peers = np.flatnonzero(table[place // table.shape[1]]) + place // table.shape[1] * table.shape[1]
        known = levels.values[peers if len(peers) else np.flatnonzero(seen)]
        values[place] = known.mean()
        covariance[place], covariance[:, place] = 0.0, 0.0
        covariance[place, place] = max(float(levels.values[seen].var()), float(np.diag(levels.covariance)[seen].max()))
    return Fit(values, covariance)


def _daily_shift(day: Ints, eta: Floats, slope: float, met: Floats, above: Floats, days: int) -> tuple[Floats, Floats]:
    """Return each day's shift of the level (D,), by one scoring step from the fit, and its precision."""
    p = normal_cdf(eta)
    density = np.exp(-eta * eta / 2.0) / np.sqrt(2.0 * np.pi)
    gain = np.bincount(day, met * density * slope, days)
    noise = np.bincount(day, met * p * (1.0 - p), days)
    surplus = np.bincount(day, above - met * p, days)
    known = gain > 1.0
    divisor = np.where(known, gain, 1.0)
    return np.where(known, surplus / divisor, np.nan), np.where(known, divisor**2 / np.maximum(noise, 1e-9), 0.0)


def _participation(ads: AdHistory, group: Ints, groups: int) -> tuple[Floats, Floats]:
    """Return the share of auctions in which each rival takes part, and its error: (G, M) each; days are clusters."""
    met, auctions = ads.met.sum(axis=1), ads.auctions.sum(axis=1)
    value, error = np.zeros((groups, met.shape[1])), np.zeros((groups, met.shape[1]))
    for g in range(groups):
        days = group == g
        for r in range(met.shape[1]):
            value[g, r], error[g, r] = ratio_of_totals(met[days, r], auctions[days])
    return value, error


def _first_price(ads: AdHistory, campaigns: Mapping[str, Campaign]) -> NDArray[np.bool_]:
    """Return which campaigns (J,) are sold at first price."""
    return np.array([c in campaigns and campaigns[c].mechanism == "first_price" for c in ads.campaigns])


def _describe_landscape(
    ads: AdHistory,
    bidding: Mapping[int, _Bidding],
    entered: tuple[Floats, Floats],
    g: int,
    periods: int,
    shading: Mapping[int, Estimate],
    campaigns: Mapping[str, Campaign],
    drift: float,
    centre: Floats,
) -> Landscape:
    """Return group g as a landscape; a rival's shading in first-price auctions is taken out of its level there.

    drift: variance of the common drift of levels, which a level cannot be told from.
    centre: (J,) mean effect of the hours on log bids, which is taken out of the level too.
    """
    first = _first_price(ads, campaigns)
    share, levels = {}, {}
    for r, b in bidding.items():
        met = int(ads.met[:, :, r].sum())
        share[ads.rivals[r]] = Estimate.from_error(
            entered[0][g, r], entered[1][g, r], "logit", count=met, source="overlap rate, days as clusters"
        )
        errors = b.levels.errors.reshape(b.groups, -1)[g]
        levels[ads.rivals[r]] = {
            c: Estimate.from_error(
                b.level[g, j] - first[j] * shading[r].value - centre[j],
                np.sqrt(
                    errors[j] ** 2 + drift + (first[j] * (shading[r].high - shading[r].low) / (2.0 * Estimate.z())) ** 2
                ),
                "linear",
                count=met,
                source="position-above rate against our bid, probit",
            )
            for j, c in enumerate(ads.campaigns)
        }
    return Landscape(periods, share, levels)


@dataclass(frozen=True, eq=False)
class _Reactions:
    """Coefficients (4,) of what each rival (by index) reacts to, and its daily shifts (D,) beyond these reactions."""

    fits: dict[int, Fit]
    rest: dict[int, Floats]


def _fit_reactions(ads: AdHistory, bidding: Mapping[int, _Bidding], our_shock: Floats, period: Ints) -> _Reactions:
    """Fit each rival's response to our bid of the day before, and the PID pacing of its own spend.

    `our_shock` (D,) is our log bid less its mean. The other rivals' remaining shifts on the same day stand for
    whatever moves the whole market, which would otherwise pass for the rival's own reaction. So each rival's reaction
    depends on those of the others, and a few rounds settle them. Periods are clusters: what is left drifts for days.
    """
    fits: dict[int, Fit] = {}
    rest = {r: np.nan_to_num(b.shift) for r, b in bidding.items()}
    for _ in range(_REACTION_ROUNDS):
        for r, b in bidding.items():
            common = _pooled_shift(bidding, rest, without=r)[0]
            causes = _causes(ads, b, r, our_shock)
            x = np.column_stack([np.ones(ads.days), causes, common])
            known = np.isfinite(b.shift) & (np.arange(ads.days) > 0)
            fit = fit_linear(x[known], b.shift[known], b.precision[known], period[known])
            fits[r] = fit.combine(np.eye(4, x.shape[1], 1))
            rest[r] = np.nan_to_num(b.shift - causes @ fits[r].values)
    return _Reactions(fits, rest)


def _causes(ads: AdHistory, b: _Bidding, r: int, our_shock: Floats) -> Floats:
    """Return (D, 4), all of the day before: the shock of our bid, the rival's spend error, its sum and its change."""
    spend = ads.met[:, :, r].sum(axis=1) * np.exp(np.nan_to_num(b.shift))
    mean = np.cumsum(spend) / np.arange(1, ads.days + 1)
    error = 1.0 - spend / np.maximum(mean, 1e-9)
    columns = np.column_stack([our_shock, error, np.cumsum(error), np.diff(error, prepend=0.0)])
    return np.vstack([np.zeros(4), columns[:-1]])


def _pooled_shift(
    bidding: Mapping[int, _Bidding], shifts: Mapping[int, Floats], without: int | None = None
) -> tuple[Floats, Floats]:
    """Return the mean of rivals' shifts on each day (D,), weighted by precision, and its sampling variance."""
    used = [r for r in bidding if r != without] or list(bidding)
    weight = np.maximum(np.sum([bidding[r].precision for r in used], axis=0), 1e-9)
    return np.sum([shifts[r] * bidding[r].precision for r in used], axis=0) / weight, 1.0 / weight


def _describe_competitor(ads: AdHistory, b: _Bidding, r: int, shade: Estimate, reaction: Fit) -> Competitor:
    """Return a rival as a pattern."""
    causes = (
        "our bid of the day before", "yesterday's spend error", "summed spend error", "change of spend error",
    )  # fmt: skip
    gains = [reaction.estimate(i, count=ads.days, source=f"daily level on {cause}") for i, cause in enumerate(causes)]
    spread = b.log_spread.log_estimate(0, count=ads.met[:, :, r].sum(), source="slope of the probit in our bid")
    return Competitor(spread, shade, gains[0], tuple(gains[1:]))


def _fit_shading(
    ads: AdHistory, bidding: Mapping[int, _Bidding], campaigns: Mapping[str, Campaign]
) -> dict[int, Estimate]:
    """Return what each rival takes off its log bid in first-price auctions, compared with the other rivals.

    A difference of differences: its level there less its level elsewhere, less the same of the rival that shades
    least. So the most truthful rival has shade 0, and a preference for a campaign is taken for shading.
    """
    first = _first_price(ads, campaigns)
    if not first.any() or first.all() or not bidding:
        return {r: Estimate.zero(0, "no campaign of each kind to compare") for r in bidding}
    contrast = np.where(first, 1.0 / first.sum(), -1.0 / (~first).sum())
    gaps = {r: b.levels.combine(np.tile(contrast, b.groups)[None] / b.groups) for r, b in bidding.items()}
    least = max(float(fit.values[0]) for fit in gaps.values())
    source = "level in first-price campaigns less that elsewhere, against the least shading rival"
    return {
        r: Estimate.from_error(
            fit.values[0] - least, fit.errors[0], "linear", count=int(ads.met[:, :, r].sum()), source=source
        )
        for r, fit in gaps.items()
    }


def _mean_hour_price(ads: AdHistory, hours: Fit | None) -> Floats:
    """Return the mean effect (J,) of the hours of a day on log bids, over the auctions of each campaign."""
    count = len(ads.campaigns)
    if hours is None:
        return np.zeros(count)
    angle = 2.0 * np.pi * (np.arange(24) + 0.5) / 24.0
    share = ads.hourly_auctions.sum(axis=0)
    share = share / np.maximum(share.sum(axis=0), 1e-9)
    waves = np.outer(np.sin(angle), hours.values[:count]) + np.outer(np.cos(angle), hours.values[count:])
    return np.asarray((share * waves).sum(axis=0))


def _drift(by_period: Mapping[int, _Bidding], landscape: Ints) -> float:
    """Return the variance of a landscape's levels by a common drift: that between the periods of one landscape.

    The drift of one week goes on in the next, so more weeks of a landscape hardly reduce it.
    """
    common = np.mean([fit.level.mean(axis=1) for fit in by_period.values()], axis=0)  # (Q,)
    groups = int(landscape.max()) + 1
    means = np.bincount(landscape, common, groups) / np.bincount(landscape, minlength=groups)
    free = len(landscape) - groups
    return float(((common - means[landscape]) ** 2).sum() / free) if free > 0 else 0.0


def _volatility(bidding: Mapping[int, _Bidding], rest: Mapping[int, Floats], group: Ints) -> Estimate:
    """Return the day-to-day movement of all levels within a landscape, beyond reactions and sampling noise."""
    shift, noise = _pooled_shift(bidding, rest)
    same_group = group[1:] == group[:-1]
    moved = (np.diff(shift) ** 2 - noise[1:] - noise[:-1])[same_group]
    source = "changes of rivals' levels from day to day, less reactions and sampling noise"
    if len(moved) < 2:
        return Estimate.zero(len(moved), source)
    variance = max(float(moved.mean()), 1e-6)
    error = float(moved.std() / np.sqrt(len(moved)))
    return Estimate.from_error(variance**0.5, error / (2.0 * variance**0.5), "log", count=len(moved), source=source)
