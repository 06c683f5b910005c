"""Fit the competition: how often rivals enter, how high and how widely they bid, and what they react to.

Rivals M, campaigns J, days D, groups G of days (periods first, then the landscapes that periods fall into). A rival's
log bid is normal about a level of the day and the campaign, plus the wave of the hours that all rivals share. Our own
bid varies from day to day, so the rate at which a rival ranks above us shows level and spread. Levels of days are then
a landscape's level, reactions to our bid and to the rival's own spend, and a drift that all rivals share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.compiled import njit
from parallel_agents.kernels.functions import each, normal_quantile
from parallel_agents.market.discovery.competition import (
    AdHistory,
    ClickWorth,
    Creatives,
    fit_campaigns,
    fit_creatives,
    price_by_hour,
    price_by_period,
)
from parallel_agents.market.discovery.day_levels import DayLevels, fit_days
from parallel_agents.market.discovery.estimation import (
    Estimate,
    Fit,
    Floats,
    Ints,
    dummies,
    hour_waves,
    normal_cdf,
    ratio,
    ratio_of_totals,
    regress,
    student_factor,
)
from parallel_agents.market.discovery.patterns import Campaign, Competition, Competitor, Landscape

_HOUR_ROUNDS = 2  # bids and the wave of the hours depend on each other
_NEWTON_STEPS = 60
_LARGEST_STEP = 0.5  # of a log bid
_CLOSE = 1e-4  # steps are Newton's: the next one would be its square
_INFORMATIVE = 10.0  # precision of a level, beside 1 of its prior
_VAGUE = 1e-3  # precision of what nothing is known of before
_BIDS_TRIED = np.linspace(-4.0, 4.0, 81)  # deviations of a bid from its mean
_CLEAR = 0.3  # the lowest mean silhouette at which periods are said to fall into groups


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
    quality = creatives.mean_quality
    hours = price_by_hour(ads, quality, period)
    campaigns = fit_campaigns(ads, worth, hours, creatives)
    price = price_by_period(ads, quality, period)
    reserve = np.array([campaigns[c].reserve.value if c in campaigns else 0.0 for c in ads.campaigns])
    auctions = _Auctions.of(ads, creatives, reserve, hours)
    landscape = _cluster_landscapes(ads, auctions, period, periods)
    groups, group = int(landscape.max()) + 1, landscape[period]
    known = replace(_Rivals.of(ads, auctions, group, groups), hours=hours)
    for _ in range(_HOUR_ROUNDS):
        known = known.again(ads)
    unsure = [_Auctions.of(ads, variant, reserve, known.hours) for variant in creatives.variants()]
    for j, c in enumerate(ads.campaigns):
        if c in campaigns and campaigns[c].reserve.low == 0.0:
            deviation = campaigns[c].reserve.high / math.sqrt(12.0)  # all values up to the bound are as likely
            other = np.where(np.arange(len(reserve)) == j, reserve[j] + deviation, reserve)
            unsure.append(_Auctions.of(ads, creatives, other, known.hours))
    if known.bidding:
        known = known.widened([known.varied(ads, variant) for variant in unsure])
    bidding, entered = known.bidding, known.entered
    if known.hours is not None:
        campaigns = fit_campaigns(ads, worth, known.hours, creatives)
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
        daily = _fit_days(ads, known, _our_shocks(ads, known, creatives, reserve).mean(axis=1))
        if not np.isfinite(ads.rival_shown).any():
            notes.append("pacing of rivals: the auction insights hold no impression share of theirs; assumed none")
        competitors = {
            ads.rivals[r]: _describe_competitor(ads, b, r, shading[r], daily.reactions[r]) for r, b in bidding.items()
        }
        first = _first_price(ads, campaigns)
        landscapes = tuple(
            _describe_landscape(ads, bidding, entered, g, int((landscape == g).sum()), shading, first, daily)
            for g in range(groups)
        )
        movement = daily.step
        notes.append(
            "whether rivals bid their true value: only what they bid is seen, shading in first-price auctions apart"
        )
    held, cost = ads.auctions.sum(axis=1), ads.cells(ads.cost).sum(axis=1)
    days = np.isfinite(held) & (held > 0.0) & (cost > 0.0)
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
        auctions=ratio(held[days], users, "log", count=len(users), source=source),
        budget=Estimate.spread_of(cost[days] / held[days], source="spend per eligible auction of each day"),
        target=Estimate.spread_of(spent[sold] / bought[sold], source="cost per purchase of each period"),
    )
    return CompetitionFit(competition, landscape, price, notes)


@dataclass(frozen=True, eq=False)
class _Auctions:
    """Our offers in the auctions of a cell (D, J): one for each creative C, at the hours at which auctions are held."""

    hour_share: Floats  # (J, 24)
    live_share: Floats  # (D, J, C): of creatives
    offer: Floats  # (D, J, C): log of bid × quality
    log_reserve: Floats  # (J,)
    wave: Floats  # (J, 24): what all rivals add to their log bids at an hour

    @classmethod
    def of(cls, ads: AdHistory, creatives: Creatives, reserve: Floats, hours: Fit | None) -> _Auctions:
        """Return the auctions of a history; without a report by hour, all hours are alike."""
        held = ads.hourly_auctions.sum(axis=0).T + _VAGUE
        offer = ads.log_bid[:, :, None] + creatives.quality[:, None, :]
        log_reserve = np.log(np.maximum(reserve, 1e-9))
        live = creatives.live & (offer >= log_reserve[:, None])
        return cls(
            held / held.sum(axis=1, keepdims=True),
            live / np.maximum(creatives.live.sum(axis=2, keepdims=True), 1.0),
            np.nan_to_num(offer),
            log_reserve,
            np.zeros_like(held) if hours is None else _wave(hours),
        )

    def chances(self, day: Ints, campaign: Ints, level: Floats, spread: float) -> tuple[Floats, Floats]:
        """Return by cell the chance (cells, 3) that a rival ranks above us if both enter, and that both enter (cells,).

        The three columns are the chance itself and its derivatives by level and by log spread.
        """
        chance, enters = _chances(
            level,
            spread,
            self.wave[campaign],
            self.hour_share[campaign],
            self.live_share[day, campaign],
            self.offer[day, campaign],
            self.log_reserve[campaign],
        )
        return chance, enters


def _wave(hours: Fit) -> Floats:
    """Return the effect (J, 24) of the hours on log bids, from sines and cosines by campaign (2 · J)."""
    effects = zip(hours.values.reshape(2, -1), hour_waves(), strict=True)
    return np.asarray(sum(np.outer(effect, wave) for effect, wave in effects))


@njit(cache=True)  # type: ignore[untyped-decorator]
def _chances(
    level: Floats, spread: float, wave: Floats, hour_share: Floats, live_share: Floats, offer: Floats, reserve: Floats
) -> tuple[Floats, Floats]:
    """Return what `_Auctions.chances` says; all arrays by cell."""
    chance, reach = np.zeros((len(level), 3)), np.zeros(len(level))
    for i in range(len(level)):
        above = by_level = by_spread = 0.0
        enters = enters_by_level = enters_by_spread = shown = 0.0
        for c in range(offer.shape[1]):
            shown += live_share[i, c]
        for h in range(wave.shape[1]):
            weight = hour_share[i, h]
            z = (level[i] + wave[i, h] - reserve[i]) / spread
            density = weight * shown * math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
            enters += weight * shown * 0.5 * math.erfc(-z / math.sqrt(2.0))
            enters_by_level += density / spread
            enters_by_spread -= density * z
            for c in range(offer.shape[1]):
                share = weight * live_share[i, c]
                if share > 0.0:
                    z = (level[i] + wave[i, h] - offer[i, c]) / spread
                    density = share * math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
                    above += share * 0.5 * math.erfc(-z / math.sqrt(2.0))
                    by_level += density / spread
                    by_spread -= density * z
        reach[i] = enters
        enters = max(enters, 1e-12)
        p = min(max(above / enters, 1e-9), 1.0 - 1e-9)
        chance[i, 0] = p
        chance[i, 1] = (by_level - p * enters_by_level) / enters
        chance[i, 2] = (by_spread - p * enters_by_spread) / enters
    return chance, reach


@dataclass(frozen=True, eq=False)
class _Rivals:
    """How every rival bids that was met often enough, by its index; how often each enters; the wave of the hours."""

    auctions: _Auctions
    group: Ints  # (D,)
    groups: int
    bidding: dict[int, _Bidding]
    entered: tuple[Floats, Floats]  # share of auctions and its error, (G, M) each
    hours: Fit | None = None
    common: Floats | None = None  # (D, D): covariance of the errors that the levels of all rivals share

    @classmethod
    def of(
        cls, ads: AdHistory, auctions: _Auctions, group: Ints, groups: int, start: Mapping[int, _Bidding] | None = None
    ) -> _Rivals:
        """Fit all rivals at a given wave of the hours."""
        known = start or {}
        fits = {r: _fit_bidding(ads, auctions, r, group, groups, known.get(r)) for r in range(len(ads.rivals))}
        bidding = {r: fit for r, fit in fits.items() if fit is not None}
        return cls(auctions, group, groups, bidding, _participation(ads, auctions, bidding, group, groups))

    def again(self, ads: AdHistory) -> _Rivals:
        """Fit the wave of the hours to the rivals, and the rivals to that."""
        if self.hours is None or not self.bidding:
            return self
        hours = _fit_hours(ads, self.auctions, self.bidding, self.entered[0][self.group])
        auctions = replace(self.auctions, wave=_wave(hours))
        return replace(_Rivals.of(ads, auctions, self.group, self.groups, self.bidding), hours=hours)

    def varied(self, ads: AdHistory, auctions: _Auctions) -> _Rivals:
        """Return what the fit had been in other auctions."""
        known = _Rivals.of(ads, auctions, self.group, self.groups, self.bidding)
        hours = self.hours and _fit_hours(ads, auctions, known.bidding, known.entered[0][self.group])
        return replace(known, hours=hours)

    def widened(self, variants: list[_Rivals]) -> _Rivals:
        """Return the same with the errors of what was taken as given: each variant is one deviation of it."""
        bidding = {
            r: replace(b, fit=_wider(b.fit, [v.bidding[r].fit for v in variants if r in v.bidding]))
            for r, b in self.bidding.items()
        }
        hours = self.hours and _wider(self.hours, [v.hours for v in variants if v.hours is not None])
        apart = [
            np.mean(
                [v.bidding[r].days.values - b.days.values for r, b in self.bidding.items() if r in v.bidding], axis=0
            )
            for v in variants
        ]
        share, error = self.entered
        error = np.sqrt(error**2 + np.sum([(v.entered[0] - share) ** 2 for v in variants], axis=0))
        common = np.array(apart).T @ np.array(apart)
        return replace(self, bidding=bidding, hours=hours, entered=(share, error), common=common)


def _wider(fit: Fit, variants: list[Fit]) -> Fit:
    """Return the fit with the differences of its variants as further errors."""
    apart = np.array([v.values - fit.values for v in variants]).reshape(-1, len(fit.values))
    return Fit(fit.values, fit.covariance + apart.T @ apart)


def _cluster_landscapes(ads: AdHistory, auctions: _Auctions, period: Ints, periods: int) -> Ints:
    """Return groups (Q,) of periods that are alike in how often each rival enters and how much it offers."""
    if not ads.rivals:
        return np.zeros(periods, np.int64)
    found = _Rivals.of(ads, auctions, period, periods)
    offers = np.zeros_like(found.entered[0])
    for r, b in found.bidding.items():
        mean = np.bincount(period, b.days.values * b.met, periods) / np.maximum(
            np.bincount(period, b.met, periods), 1.0
        )
        offers[:, r] = found.entered[0][:, r] * np.exp(np.clip(mean, -5.0, 5.0))
    return cluster_periods(np.hstack([found.entered[0], offers]))


def cluster_periods(features: Floats) -> Ints:
    """Return groups (Q,) of rows (Q, f) that are alike: average linkage, their number by the mean silhouette."""
    spread = features.std(axis=0)
    points = features[:, spread > 0] / spread[spread > 0]
    count = len(points)
    distance = np.sqrt(((points[:, None] - points) ** 2).sum(axis=2))
    labels, best, best_score = np.arange(count), np.zeros(count, np.int64), _CLEAR
    while labels.max() > 0:
        score = _silhouette(distance, labels)
        if score > best_score:
            best, best_score = labels.copy(), score
        labels = _merge_nearest(distance, labels)
    return np.asarray(np.unique(best, return_inverse=True)[1])


def _merge_nearest(distance: Floats, labels: Ints) -> Ints:
    """Return labels (Q,) in which the two groups that are nearest on average are one."""
    member = np.eye(int(labels.max()) + 1)[labels]
    size = member.sum(axis=0)
    between = member.T @ distance @ member / np.outer(size, size)
    np.fill_diagonal(between, np.inf)
    low, high = sorted(divmod(int(between.argmin()), len(between)))
    return np.asarray(np.unique(np.where(labels == high, low, labels), return_inverse=True)[1])


def _silhouette(distance: Floats, labels: Ints) -> float:
    """Return the mean silhouette (Rousseeuw 1987); a row alone in its group counts as 0."""
    groups = int(labels.max()) + 1
    if groups < 2 or groups >= len(labels):
        return 0.0
    member = np.eye(groups)[labels]
    size = member.sum(axis=0)
    total = distance @ member
    rows = np.arange(len(labels))
    within = total[rows, labels] / np.maximum(size[labels] - 1.0, 1.0)
    mean = total / size
    mean[rows, labels] = np.inf
    nearest = mean.min(axis=1)
    value = (nearest - within) / np.maximum(np.maximum(within, nearest), 1e-12)
    return float(np.where(size[labels] > 1.0, value, 0.0).mean())


@dataclass(frozen=True, eq=False)
class _Bidding:
    """One rival: levels by group (G,) less `centre`, what campaigns add (G · J), shifts of days (D,), log spread."""

    fit: Fit
    centre: float
    group: Ints  # (D,)
    seen: NDArray[np.bool_]  # (G, J): where its rates show its level
    met: NDArray[np.bool_]  # (D,)

    @property
    def log_spread(self) -> Fit:
        """The logarithm of the deviation of log bids."""
        return self.fit.block(len(self.fit.values) - 1, np.eye(1))

    @property
    def spread(self) -> float:
        """The deviation of log bids."""
        return math.exp(float(self.fit.values[-1]))

    @property
    def _mean(self) -> Floats:
        """Shape (G, G · J): the mean of the campaigns that show the rival's level."""
        groups, count = self.seen.shape
        share = self.seen / np.maximum(self.seen.sum(axis=1, keepdims=True), 1)
        return np.asarray(np.kron(np.eye(groups), np.ones(count)) * share.ravel())

    @property
    def days(self) -> Fit:
        """The mean level (D,) of every day."""
        days = len(self.group)
        own = dummies(self.group, len(self.seen))
        fit = self.fit.block(0, np.hstack([own, self._mean[self.group], np.eye(days)]))
        return Fit(self.centre + fit.values, fit.covariance)

    @property
    def extra(self) -> Fit:
        """What the rival bids more (G · J) in a campaign than on the mean of those that show its level."""
        groups, count = self.seen.shape
        return self.fit.block(groups, np.eye(groups * count) - self._mean.repeat(count, axis=0))

    @property
    def level(self) -> Floats:
        """The level (D, J) of every day and campaign."""
        groups, cells, values = len(self.seen), self.seen.size, self.fit.values
        base = values[:groups, None] + values[groups : groups + cells].reshape(self.seen.shape)
        return np.asarray(self.centre + base[self.group] + values[groups + cells : -1, None])


def _fit_bidding(
    ads: AdHistory, auctions: _Auctions, rival: int, group: Ints, groups: int, start: _Bidding | None
) -> _Bidding | None:
    """Fit level and spread by how often the rival ranks above us; return None if it was met too rarely.

    What campaigns add and shifts of days have a prior of about 0 ± 1: a rival that is always above us in a campaign
    shows no more than that. Counts that vary more than those of independent auctions widen the covariance.
    """
    met, above = ads.met[:, :, rival], ads.above[:, :, rival]
    known = np.isfinite(ads.log_bid) & (met > 0) & (auctions.live_share.sum(axis=2) > 0.0)
    day, campaign = np.nonzero(known)
    count, cells = len(ads.campaigns), groups * len(ads.campaigns)
    if len(day) < 2 * (groups + count):
        return None
    n, k, cell = met[known], above[known], group[day] * count + campaign
    x = np.hstack([dummies(group[day], groups), dummies(cell, cells), dummies(day, ads.days)])
    centre = float(np.nanmean(ads.log_bid))  # the vague prior of the levels is about it, whatever the currency
    prior = np.concatenate([np.full(groups, _VAGUE), np.ones(cells + ads.days), [_VAGUE]])
    beta = np.zeros(len(prior)) if start is None else start.fit.values.copy()
    for _ in range(_NEWTON_STEPS):
        chance, _ = auctions.chances(day, campaign, centre + x @ beta[:-1], math.exp(beta[-1]))
        p, gradient = chance[:, 0], np.hstack([x * chance[:, 1:2], chance[:, 2:]])
        weight = 1.0 / (p * (1.0 - p))
        hessian = (gradient * (n * weight)[:, None]).T @ gradient + np.diag(prior)
        step = np.linalg.solve(hessian, gradient.T @ ((k - n * p) * weight) - prior * beta)
        beta += step * min(1.0, _LARGEST_STEP / max(float(np.abs(step).max()), 1e-9))
        if float(np.abs(step).max()) < _CLOSE:
            break
    else:
        return None
    seen = np.bincount(cell, n * weight * chance[:, 1] ** 2, cells) > _INFORMATIVE
    square, usual = (k - n * p) ** 2 * weight / n, (n * p > 1.0) & (n * (1.0 - p) > 1.0)
    free = int(usual.sum()) - int(seen.sum()) - len(np.unique(day))
    excess = float(square[usual].sum()) / max(free, 1)
    fit = Fit(beta, np.linalg.inv(hessian) * max(excess, 1.0))
    if float(fit.errors[-1]) > _LARGEST_STEP:
        return None
    return _Bidding(fit, centre, group, seen.reshape(groups, count), np.bincount(day, minlength=ads.days) > 0)


def _participation(
    ads: AdHistory, auctions: _Auctions, bidding: Mapping[int, _Bidding], group: Ints, groups: int
) -> tuple[Floats, Floats]:
    """Return the share of auctions in which each rival takes part, and its error: (G, M) each.

    A bid below the reserve is not seen: auctions count by the chance that both of us are above it. Days are clusters,
    few in a group: hence Student's factor, and never less than the error of as many single auctions.
    """
    value, error = np.zeros((groups, len(ads.rivals))), np.zeros((groups, len(ads.rivals)))
    day, campaign = np.nonzero(np.nan_to_num(ads.auctions) > 0.0)
    for r in range(len(ads.rivals)):
        could = np.nan_to_num(ads.auctions)
        if r in bidding:
            level = bidding[r].level[day, campaign]
            could[day, campaign] *= auctions.chances(day, campaign, level, bidding[r].spread)[1]
        met, able = (ads.met[:, :, r] * (could > 0.0)).sum(axis=1), could.sum(axis=1)
        for g in range(groups):
            days = (group == g) & (able > 0.0)
            if days.any():
                share, found = ratio_of_totals(met[days], able[days])
                share = min(share, 1.0)
                least = np.sqrt(share * (1.0 - share) / able[days].sum())
                value[g, r], error[g, r] = share, max(found, least) * student_factor(int(days.sum()) - 1)
    return value, error


def _fit_hours(ads: AdHistory, auctions: _Auctions, bidding: Mapping[int, _Bidding], entered: Floats) -> Fit:
    """Return sines and cosines by campaign (2 · J) of the hours in log bids, by how often we are on top.

    We are on top if no rival that enters, with chance `entered` (D, M), bids more. Days are clusters.
    """
    day, hour, campaign = place = np.nonzero(
        (ads.hourly_auctions > 0.0) & (auctions.live_share.sum(axis=2) > 0.0)[:, None, :]
    )
    held, top = ads.hourly_auctions[place], ads.hourly_top[place]
    level = np.stack([b.level for b in bidding.values()], axis=2)[day, campaign]
    spread = np.array([b.spread for b in bidding.values()])
    enters = entered[:, list(bidding)][day]
    offer, live = auctions.offer[day, campaign], auctions.live_share[day, campaign]

    def derivatives(eta: Floats) -> tuple[Floats, Floats]:
        p, slope = _top(level + eta[:, None], spread, enters, offer, live)
        per_success = slope / (p * (1.0 - p))
        return (top - held * p) * per_success, held * slope * per_success

    member = dummies(campaign, len(ads.campaigns))
    x = np.hstack([*(member * wave[hour, None] for wave in hour_waves()), member])
    start = np.zeros(x.shape[1])
    fit = regress(x, derivatives, day, start)
    return fit.block(0, np.eye(2 * len(ads.campaigns)))


@njit(cache=True)  # type: ignore[untyped-decorator]
def _top(level: Floats, spread: Floats, enters: Floats, offer: Floats, live: Floats) -> tuple[Floats, Floats]:
    """Return our chance (rows,) to be on top against rivals with levels (rows, M), and its derivative by all levels."""
    p, slope = np.zeros(len(level)), np.zeros(len(level))
    for i in range(len(level)):
        for c in range(offer.shape[1]):
            if live[i, c] > 0.0:
                below, change = live[i, c], 0.0
                for m in range(len(spread)):
                    z = (level[i, m] - offer[i, c]) / spread[m]
                    free = max(1.0 - enters[i, m] * 0.5 * math.erfc(-z / math.sqrt(2.0)), 1e-12)
                    below *= free
                    change += enters[i, m] * math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) / spread[m] / free
                p[i] += below
                slope[i] -= below * change
        p[i] = min(max(p[i], 1e-9), 1.0 - 1e-9)
    return p, slope


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
    first: NDArray[np.bool_],
    daily: _Daily,
) -> Landscape:
    """Return group g as a landscape; a rival's shading in first-price auctions is taken out of its level there."""
    share, levels = {}, {}
    for r, b in bidding.items():
        met = int(ads.met[:, :, r].sum())
        share[ads.rivals[r]] = Estimate.from_error(
            entered[0][g, r], entered[1][g, r], "logit", count=met, source="overlap rate, days as clusters"
        )
        extra, own = b.extra.values.reshape(-1, len(first))[g], b.extra.errors.reshape(-1, len(first))[g]
        unshaded = (shading[r].high - shading[r].low) / (2.0 * Estimate.z())
        levels[ads.rivals[r]] = {
            c: Estimate.from_error(
                daily.levels[r].values[g] + extra[j] - first[j] * shading[r].value,
                math.sqrt(daily.levels[r].errors[g] ** 2 + own[j] ** 2 + (first[j] * unshaded) ** 2),
                "linear",
                count=met,
                source="position-above rate against our bid, probit",
            )
            for j, c in enumerate(ads.campaigns)
        }
    return Landscape(periods, share, levels)


@dataclass(frozen=True, eq=False)
class _Daily:
    """What moves levels from day to day: by rival, levels of landscapes (G,) and reactions; the drift's daily step."""

    levels: dict[int, Fit]
    reactions: dict[int, Fit]
    step: Estimate


def _our_shocks(ads: AdHistory, known: _Rivals, creatives: Creatives, reserve: Floats) -> Floats:
    """Return by how much our log bids (D, J) of a day exceed their mean; 0 where nothing shows a bid.

    A campaign that won no impression shows no bid, and it bid little then. How little follows from how often rivals
    ranked above us: the mean over that likelihood, about bids as they are known to vary.
    """
    mean, spread, log_bid = np.nanmean(ads.log_bid, axis=0), np.nanstd(ads.log_bid, axis=0), ads.log_bid.copy()
    day, campaign = place = np.nonzero(~np.isfinite(log_bid) & np.isfinite(mean) & (ads.met.sum(axis=2) > 0.0))
    tried = mean[campaign] + np.multiply.outer(_BIDS_TRIED, spread[campaign])
    log_likelihood = np.tile(-0.5 * _BIDS_TRIED[:, None] ** 2, len(day))
    for i, bids in enumerate(tried):
        log_bid[place] = bids
        auctions = _Auctions.of(replace(ads, log_bid=log_bid), creatives, reserve, known.hours)
        for r, b in known.bidding.items():
            above, met = ads.above[*place, r], ads.met[*place, r]
            chance = auctions.chances(day, campaign, b.level[place], b.spread)[0][:, 0]
            log_likelihood[i] += above * np.log(chance) + (met - above) * np.log1p(-chance)
    share = np.exp(log_likelihood - log_likelihood.max(axis=0))
    log_bid[place] = (share * tried).sum(axis=0) / share.sum(axis=0)
    return np.asarray(np.nan_to_num(log_bid - np.nanmean(log_bid, axis=0)))


def _fit_days(ads: AdHistory, known: _Rivals, our_shock: Floats) -> _Daily:
    """Fit the levels of days: a landscape's level, reactions to the day before, a drift that all rivals share, noise.

    our_shock (D,): by how much we bid more than usual. Reactions are to the past, so the likelihood holds although a
    rival's spend follows from its earlier levels.
    """
    groups = known.groups
    own_levels = dummies(known.group, groups)
    days = {r: b.days for r, b in known.bidding.items()}
    centre = float(np.mean([fit.values.mean() for fit in days.values()]))
    found = fit_days(
        [
            DayLevels(
                Fit(days[r].values - centre, days[r].covariance),
                b.met,
                np.hstack([own_levels, _causes(ads, known, r, our_shock)]),
            )
            for r, b in known.bidding.items()
        ],
        known.common,
    )
    levels, reactions = {}, {}
    for r, own in zip(days, found.effects, strict=True):
        level = own.block(0, np.eye(groups))
        levels[r] = Fit(centre + level.values, level.covariance)
        reactions[r] = own.block(groups, np.eye(len(own.values) - groups))
    source = "daily levels of all rivals: steps of the drift they share"
    return _Daily(
        levels, reactions, Estimate.from_log(found.log_step, found.log_step_error, count=ads.days, source=source)
    )


def _causes(ads: AdHistory, known: _Rivals, r: int, our_shock: Floats) -> Floats:
    """Return (D, 4), all of the day before: the shock of our bid, the rival's spend error, its sum and its change.

    Spend is what the rival offers where it is shown. Without its impression share nobody knows that: (D, 1). Shown are
    the higher ones of its bids; which of them also depends on the others, whose bids spread about as far as its own.
    """
    columns = our_shock[:, None]
    if np.isfinite(ads.rival_shown).any():
        shown, b, auctions = ads.rival_shown[:, :, r], known.bidding[r], known.auctions
        entered = known.entered[0][known.group, r]
        share = np.clip(shown / np.maximum(np.nan_to_num(ads.auctions) * entered[:, None], 1e-9), 1e-6, 1.0 - 1e-6)
        higher = each(normal_cdf, each(normal_quantile, share) + b.spread / math.sqrt(2.0)) / share
        by_hour = (auctions.hour_share * np.exp(auctions.wave)).sum(axis=1)
        spend = (shown * np.exp(b.level) * by_hour * higher).sum(axis=1)
        mean = np.cumsum(spend) / np.arange(1, ads.days + 1)
        error = 1.0 - spend / np.maximum(mean, 1e-9)
        columns = np.column_stack([our_shock, error, np.cumsum(error), np.diff(error, prepend=0.0)])
    return np.vstack([np.zeros(columns.shape[1]), columns[:-1]])


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
    """Return what each rival takes off its log bid in first-price auctions, compared with the median rival.

    A difference of differences: its level there less its level elsewhere, less the same of the others. A preference for
    a campaign looks like shading; how far rivals' preferences differ elsewhere says how uncertain that leaves it.
    """
    first = _first_price(ads, campaigns)
    if not first.any() or first.all() or not bidding:
        return {r: Estimate.zero(0, "no campaign of each kind to compare") for r in bidding}
    count, others = len(first), int((~first).sum())
    usual = {
        r: b.extra.block(0, np.tile(np.eye(count), len(b.extra.values) // count) * count / len(b.extra.values))
        for r, b in bidding.items()
    }
    extra = np.array([fit.values for fit in usual.values()])
    extra = extra - np.median(extra, axis=0)
    gap = extra[:, first].mean(axis=1) - extra[:, ~first].mean(axis=1)
    gap = gap - np.median(gap)
    prefer = extra[:, ~first] - extra[:, ~first].mean(axis=1, keepdims=True)
    free = (len(bidding) - 1) * (others - 1)
    preference = float((prefer**2).sum()) / free * (1.0 + 1.0 / others) if free > 0 else float((gap**2).mean())
    contrast = np.where(first, 1.0 / first.sum(), -1.0 / others)
    source = "level in first-price campaigns less that elsewhere, against the median rival"
    return {
        r: Estimate.from_error(
            gap[i],
            math.sqrt(float(fit.combine(contrast[None]).errors[0]) ** 2 + preference),
            "linear",
            count=int(ads.met[:, :, r].sum()),
            source=source,
        )
        for i, (r, fit) in enumerate(usual.items())
    }
