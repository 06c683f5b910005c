"""Fit the competition: how often rivals enter, how high and how widely they bid, and what they react to.

Rivals M, campaigns J, days D, groups G of days (periods first, then the landscapes that periods fall into). Our own bid
varies from day to day, so the rate at which a rival ranks above us gives its distribution of bids: a probit in the
logarithm of our bid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

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
    normal_density,
    ratio,
    ratio_of_totals,
    student_factor,
)
from parallel_agents.market.discovery.patterns import Campaign, Competition, Competitor, Landscape
from parallel_agents.market.discovery.seasonality import cluster_periods

_REACTION_ROUNDS = 4
_EFFECT_ROUNDS = 3
_SHIFT_STEPS = 12
_LARGEST_SHIFT = 3.0  # of a log bid; a rival always or never above us on a day says no more
_MEMORIES = np.linspace(0.0, 0.96, 7)  # of the drift, from one day to the next
_STEPS_OF_DRIFT = np.geomspace(0.01, 0.3, 7)
_OTHER_NOISE = (0.0, 0.03, 0.06, 0.1)  # of a day alone, beyond that of sampling


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
        shocked = np.concatenate([[0.0], our_shock[:-1]])
        reactions = _fit_reactions(ads, bidding, our_shock, group, groups)
        unexplained = {r: np.nan_to_num(b.shift) - shocked * reactions.fits[r].values[0] for r, b in bidding.items()}
        drift, centre = _drift(*_pooled_shift(bidding, unexplained), group, groups), _mean_hour_price(ads, hours)
        moved = {
            r: fit.combine(_group_means(_causes(ads, bidding[r], r, our_shock, group), group, groups))
            for r, fit in reactions.fits.items()
        }
        if not np.isfinite(ads.rival_shown).any():
            notes.append("pacing of rivals: the auction insights hold no impression share of theirs; assumed none")
        competitors = {
            ads.rivals[r]: _describe_competitor(ads, b, r, shading[r], reactions.fits[r]) for r, b in bidding.items()
        }
        entered = _participation(ads, group, groups)
        landscapes = tuple(
            _describe_landscape(
                ads,
                bidding,
                entered,
                g,
                int((landscape == g).sum()),
                shading,
                campaigns,
                float(drift[g]),
                centre,
                moved,
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
    """Fit P(above) = Φ((level + shift of the day − our offer) / spread); return None if it was met too rarely.

    Shifts of days are random effects: without them the spread would also hold the movement from day to day.
    """
    met, above = ads.met[:, :, rival], ads.above[:, :, rival]
    known = np.isfinite(ads.log_bid) & (met > 0)
    day, campaign = np.nonzero(known)
    count = len(ads.campaigns)
    if len(day) < 2 * (groups + count):
        return None
    offer = (ads.log_bid + quality)[known]
    centre = float(offer.mean())  # the weak prior of the levels is about it, whatever the currency
    cell, cells = group[day] * count + campaign, groups * count
    x = np.hstack([dummies(cell, cells), dummies(day, ads.days), centre - offer[:, None]])
    seen, variance = np.bincount(day, minlength=ads.days) > 0, 0.1
    for _ in range(_EFFECT_ROUNDS):
        precision = np.concatenate([np.full(cells, 1e-3), np.full(ads.days, 1.0 / variance), [1e-3]])
        fit = fit_probit(x, above[known], met[known], None, precision)
        squares = fit.values[cells:-1] ** 2 + np.diag(fit.covariance)[cells:-1]
        variance = max(float(squares[seen].mean()), 1e-4)
    slope = float(fit.values[-1])
    if slope < 2.0 * float(fit.errors[-1]):
        return None
    log_spread = Fit(-np.log(fit.values[-1:]), fit.covariance[-1:, -1:] / slope**2)
    sums, own = fit.values[:cells], [*range(cells), len(fit.values) - 1]
    gradient = np.hstack([np.eye(cells) / slope, -sums[:, None] / slope**2])
    levels = _with_unseen_cells(
        Fit(centre + sums / slope, gradient @ fit.covariance[np.ix_(own, own)] @ gradient.T),
        np.bincount(cell, minlength=cells) > 0,
        groups,
    )
    eta = (levels.values[cell] - offer) * slope
    shift, precision = _daily_shift(day, eta, slope, met[known], above[known], ads.days)
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
    """Return each day's shift of the level (D,), the most likely one for itself, and its precision."""
    shift = np.zeros(days)
    for _ in range(_SHIFT_STEPS):
        z = np.clip(eta + slope * shift[day], -6.0, 6.0)
        p = np.clip(normal_cdf(z), 1e-9, 1.0 - 1e-9)
        gain = slope * normal_density(z)
        information = np.bincount(day, met * gain**2 / (p * (1.0 - p)), days)
        score = np.bincount(day, (above - met * p) * gain / (p * (1.0 - p)), days)
        shift = np.clip(
            shift + np.clip(score / np.maximum(information, 1.0), -0.5, 0.5), -_LARGEST_SHIFT, _LARGEST_SHIFT
        )
    known = (information > 1.0) & (np.abs(shift) < _LARGEST_SHIFT)
    return np.where(known, shift, np.nan), np.where(known, information, 0.0)


def _participation(ads: AdHistory, group: Ints, groups: int) -> tuple[Floats, Floats]:
    """Return the share of auctions in which each rival takes part, and its error: (G, M) each.

    Days are clusters, few in a group: hence Student's factor, and never less than the error of as many single auctions.
    """
    met, auctions = ads.met.sum(axis=1), ads.auctions.sum(axis=1)
    value, error = np.zeros((groups, met.shape[1])), np.zeros((groups, met.shape[1]))
    for g in range(groups):
        days = (group == g) & (np.nan_to_num(auctions) > 0.0)
        for r in range(met.shape[1]):
            share, found = ratio_of_totals(met[days, r], auctions[days])
            least = np.sqrt(max(share * (1.0 - share), 0.0) / max(auctions[days].sum(), 1.0))
            value[g, r], error[g, r] = share, max(found, least) * student_factor(int(days.sum()) - 1)
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
    moved: Mapping[int, Fit],
) -> Landscape:
    """Return group g as a landscape; a rival's shading in first-price auctions is taken out of its level there.

    drift: variance of the common drift of levels, which a level cannot be told from.
    centre: (J,) mean effect of the hours on log bids, which is taken out of the level too, as is `moved`: what
    reactions added on the mean of each group's days (G,).
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
                b.level[g, j] - first[j] * shading[r].value - centre[j] - moved[r].values[g],
                np.sqrt(
                    errors[j] ** 2
                    + drift
                    + moved[r].errors[g] ** 2
                    + (first[j] * (shading[r].high - shading[r].low) / (2.0 * Estimate.z())) ** 2
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


def _fit_reactions(
    ads: AdHistory, bidding: Mapping[int, _Bidding], our_shock: Floats, group: Ints, groups: int
) -> _Reactions:
    """Fit each rival's response to our bid of the day before, and the PID pacing of its own spend.

    `our_shock` (D,) is our log bid less its mean. Our bids vary by themselves, so the response needs nothing else. What
    a rival spends also depends on whatever moves the whole market, which would pass for pacing: for its gains, the
    other rivals' remaining shifts on the same day stand for that. So the gains of each rival depend on those of the
    others, and a few rounds settle them. A landscape has a level of its own: only differences within it count.
    """
    own_levels, later = dummies(group, groups), np.arange(ads.days) > 0
    rest = {r: np.nan_to_num(b.shift) for r, b in bidding.items()}
    fits: dict[int, Fit] = {}

    def fit(r: int, columns: list[Floats]) -> Fit:
        b, causes = bidding[r], _causes(ads, bidding[r], r, our_shock, group)
        x = np.column_stack([own_levels, causes, *columns])
        known = np.isfinite(b.shift) & later
        found = fit_linear(x[known], b.shift[known], b.precision[known], np.arange(int(known.sum())))
        wide = student_factor(int(known.sum()) - x.shape[1]) ** 2
        chosen = found.combine(np.eye(causes.shape[1], x.shape[1], groups))
        return Fit(chosen.values, chosen.covariance * wide)

    alone = {r: fit(r, []) for r in bidding}
    for _ in range(_REACTION_ROUNDS):
        for r, b in bidding.items():
            beside = fit(r, [_pooled_shift(bidding, rest, without=r)[0]])
            values, covariance = beside.values.copy(), beside.covariance.copy()
            values[0], covariance[0], covariance[:, 0] = alone[r].values[0], 0.0, 0.0
            covariance[0, 0] = alone[r].covariance[0, 0]
            fits[r] = Fit(values, covariance)
            rest[r] = np.nan_to_num(b.shift - _causes(ads, b, r, our_shock, group) @ values)
    return _Reactions(fits, rest)


def _causes(ads: AdHistory, b: _Bidding, r: int, our_shock: Floats, group: Ints) -> Floats:
    """Return (D, 4), all of the day before: the shock of our bid, the rival's spend error, its sum and its change.

    Spend is what the rival offers where it is shown. Without its impression share nobody knows that: (D, 1).
    """
    columns = our_shock[:, None]
    if np.isfinite(ads.rival_shown).any():
        offered = np.exp(b.level[group] + np.nan_to_num(b.shift)[:, None])
        spend = (ads.rival_shown[:, :, r] * offered).sum(axis=1)
        mean = np.cumsum(spend) / np.arange(1, ads.days + 1)
        error = 1.0 - spend / np.maximum(mean, 1e-9)
        columns = np.column_stack([our_shock, error, np.cumsum(error), np.diff(error, prepend=0.0)])
    return np.vstack([np.zeros(columns.shape[1]), columns[:-1]])


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
    unknown = Estimate.zero(0, "cannot be discovered without the rival's impression share: assumed none")
    gains = [
        reaction.estimate(i, count=ads.days, source=f"daily level on {cause}") if i < len(reaction.values) else unknown
        for i, cause in enumerate(causes)
    ]
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


def _group_means(columns: Floats, group: Ints, groups: int) -> Floats:
    """Return the means (G, p) of columns (D, p) over the days of each group."""
    member = dummies(group, groups)
    return np.asarray(member.T @ columns / np.maximum(member.sum(axis=0), 1.0)[:, None])


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


def _drift(shift: Floats, noise: Floats, group: Ints, groups: int) -> Floats:
    """Return the variance (G,) of each landscape's mean of a drift that all levels share.

    The daily common shift (D,), known up to `noise` (D,), is a level of its landscape and a drift that keeps a share of
    itself from one day to the next, and noise. How much it keeps, its steps and the noise are averaged over their
    restricted likelihood: few days tell none of them well, and more days hardly reduce the mean of a slow drift.
    """
    levels, days = dummies(group, groups), np.arange(len(shift))
    levels = levels[:, levels.any(axis=0)]
    mean = dummies(group, groups) / np.maximum(np.bincount(group, minlength=groups), 1)
    gap = np.abs(days[:, None] - days)
    likelihoods, variances = [], []
    for memory, step, other in product(_MEMORIES, _STEPS_OF_DRIFT, _OTHER_NOISE):
        drift = step**2 / (1.0 - memory**2) * memory**gap
        inverse = np.linalg.inv(drift + np.diag(noise + other**2 + 1e-6))
        inner = levels.T @ inverse @ levels
        rest = shift - levels @ np.linalg.solve(inner, levels.T @ inverse @ shift)
        _, size = np.linalg.slogdet(inverse)
        likelihoods.append(0.5 * (size - np.linalg.slogdet(inner)[1] - rest @ inverse @ rest))
        variances.append(np.einsum("dg,de,eg->g", mean, drift, mean))
    share = np.exp(np.array(likelihoods) - max(likelihoods))
    return np.asarray(share @ np.array(variances) / share.sum())


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
