"""Fit how rivals bid: how often they enter, how high and how widely they bid, and in which landscapes.

Rivals M, campaigns J, days D, groups G of days (periods first, then the landscapes that periods fall into). A rival's
log bid is normal about a level of the day and the campaign, plus the wave of the hours that all rivals share. Our own
bid varies from day to day, so the rate at which a rival ranks above us shows level and spread.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.compiled import njit
from parallel_agents.core.types import Floats, Ints
from parallel_agents.market.discovery.competition import AdHistory, Creatives
from parallel_agents.market.discovery.estimation import (
    Estimate,
    Fit,
    dummies,
    hour_waves,
    normal_cdf,
    ratio_of_totals,
    regress,
    student_factor,
)
from parallel_agents.market.discovery.patterns import Campaign, Competitor, Landscape

_NEWTON_STEPS = 60
_LARGEST_STEP = 0.5  # of a log bid
_CLOSE = 1e-4  # steps are Newton's: the next one would be its square
_INFORMATIVE = 10.0  # precision of a level, beside 1 of its prior
_VAGUE = 1e-3  # precision of what nothing is known of before
_CLEAR = 0.3  # the lowest mean silhouette at which periods are said to fall into groups


@dataclass(frozen=True, eq=False)
class Auctions:
    """What is known of our auctions, and our offers in those of a cell (D, J): one for each creative C, at 24 hours."""

    ads: AdHistory
    creatives: Creatives
    reserve: Floats  # (J,)
    hours: Fit | None  # (2 · J): sine and cosine of what all rivals add to their log bids during a day

    @cached_property
    def hour_share(self) -> Floats:
        """Shape (J, 24): how auctions are spread over the hours; without a report by hour, all hours are alike."""
        held = self.ads.hourly_auctions.sum(axis=0).T + _VAGUE
        return np.asarray(held / held.sum(axis=1, keepdims=True))

    @cached_property
    def offer(self) -> Floats:
        """Shape (D, J, C): log of bid × quality, NaN where the bid is not known."""
        return np.asarray(self.ads.log_bid[:, :, None] + self.creatives.quality[:, None, :])

    @cached_property
    def log_reserve(self) -> Floats:
        """Shape (J,)."""
        return np.asarray(np.log(np.maximum(self.reserve, 1e-9)))

    @cached_property
    def live_share(self) -> Floats:
        """Shape (D, J, C): the share of each creative; of those that bid less than the reserve, none."""
        live = self.creatives.live
        bidding = live & (self.offer >= self.log_reserve[:, None])
        return np.asarray(bidding / np.maximum(live.sum(axis=2, keepdims=True), 1.0))

    @cached_property
    def wave(self) -> Floats:
        """Shape (J, 24): what all rivals add to their log bids at an hour."""
        if self.hours is None:
            return np.zeros_like(self.hour_share)
        effects = zip(self.hours.values.reshape(2, -1), hour_waves(), strict=True)
        return np.asarray(sum(np.outer(effect, wave) for effect, wave in effects))

    def chances(self, day: Ints, campaign: Ints, level: Floats, spread: float) -> tuple[Floats, Floats]:
        """Return by cell the chance (cells, 3) that a rival ranks above us if both enter, and that both enter (cells,).

        The three columns are the chance itself and its derivatives by level and by log spread.
        """
        ours = self.live_share, self.offer, self.log_reserve
        chance, enters = _chances(day, campaign, level, spread, self.wave, self.hour_share, *ours)
        return chance, enters

    def variants(self, campaigns: Mapping[str, Campaign]) -> list[Auctions]:
        """Return the same with one standard deviation of every independent error of what is taken as given."""
        unsure = [replace(self, creatives=variant) for variant in self.creatives.variants()]
        for j, name in enumerate(self.ads.campaigns):
            if name in campaigns and campaigns[name].reserve.low == 0.0:
                other = self.reserve.copy()
                other[j] += campaigns[name].reserve.high / math.sqrt(12.0)  # all values up to the bound are as likely
                unsure.append(replace(self, reserve=other))
        return unsure


@njit(cache=True)  # type: ignore[untyped-decorator]
def _chances(
    day: Ints,
    campaign: Ints,
    level: Floats,
    spread: float,
    wave: Floats,
    hour_share: Floats,
    live_share: Floats,
    offer: Floats,
    log_reserve: Floats,
) -> tuple[Floats, Floats]:
    """Return what `Auctions.chances` says; day, campaign and level are by cell."""
    chance, reach = np.zeros((len(level), 3)), np.zeros(len(level))
    for i in range(len(level)):
        d, j = day[i], campaign[i]
        above = by_level = by_spread = 0.0
        enters = enters_by_level = enters_by_spread = shown = 0.0
        for c in range(offer.shape[2]):
            shown += live_share[d, j, c]
        for h in range(wave.shape[1]):
            weight = hour_share[j, h]
            z = (level[i] + wave[j, h] - log_reserve[j]) / spread
            density = weight * shown * math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
            enters += weight * shown * normal_cdf(z)
            enters_by_level += density / spread
            enters_by_spread -= density * z
            for c in range(offer.shape[2]):
                share = weight * live_share[d, j, c]
                if share > 0.0:
                    z = (level[i] + wave[j, h] - offer[d, j, c]) / spread
                    density = share * math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
                    above += share * normal_cdf(z)
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
class Rivals:
    """How every rival bids that was met often enough, by its index, and how often each enters."""

    auctions: Auctions
    group: Ints  # (D,)
    bidding: dict[int, Bidding]
    entered: tuple[Floats, Floats]  # share of auctions and its error, (G, M) each
    common: Floats | None = None  # (D, D): covariance of the errors that the levels of all rivals share

    @classmethod
    def of(cls, auctions: Auctions, group: Ints, start: Mapping[int, Bidding] | None = None) -> Rivals:
        """Fit all rivals at a given wave of the hours."""
        known = start or {}
        fits = {r: _fit_bidding(auctions, r, group, known.get(r)) for r in range(len(auctions.ads.rivals))}
        bidding = {r: fit for r, fit in fits.items() if fit is not None}
        return cls(auctions, group, bidding, _participation(auctions, bidding, group))

    def meetings(self, r: int) -> int:
        """Return in how many auctions rival r met us."""
        return int(self.auctions.ads.met[:, :, r].sum())

    def again(self) -> Rivals:
        """Fit the wave of the hours to the rivals, and the rivals to that."""
        if self.auctions.hours is None or not self.bidding:
            return self
        return Rivals.of(replace(self.auctions, hours=_fit_hours(self)), self.group, self.bidding)

    def varied(self, auctions: Auctions) -> Rivals:
        """Return what the fit had been in other auctions."""
        known = Rivals.of(auctions, self.group, self.bidding)
        if auctions.hours is None or not known.bidding:
            return known
        return replace(known, auctions=replace(auctions, hours=_fit_hours(known)))

    def widened(self, variants: Sequence[Rivals]) -> Rivals:
        """Return the same with the errors of what was taken as given: each variant is one deviation of it.

        A variant in which none of these rivals can be fitted says nothing.
        """
        variants = [v for v in variants if v.bidding.keys() & self.bidding.keys()]
        bidding = {
            r: replace(b, fit=_wider(b.fit, [v.bidding[r].fit for v in variants if r in v.bidding]))
            for r, b in self.bidding.items()
        }
        hours = self.auctions.hours
        hours = hours and _wider(hours, [v.auctions.hours for v in variants if v.auctions.hours is not None])
        shifts = [
            [v.bidding[r].days.values - b.days.values for r, b in self.bidding.items() if r in v.bidding]
            for v in variants
        ]
        apart = [np.mean(own, axis=0) for own in shifts]
        share, error = self.entered
        error = np.sqrt(error**2 + np.sum([(v.entered[0] - share) ** 2 for v in variants], axis=0))
        auctions, common = replace(self.auctions, hours=hours), np.array(apart).T @ np.array(apart)
        return Rivals(auctions, self.group, bidding, (share, error), common)


def _wider(fit: Fit, variants: list[Fit]) -> Fit:
    """Return the fit with the differences of its variants as further errors."""
    apart = np.array([v.values - fit.values for v in variants]).reshape(-1, len(fit.values))
    return Fit(fit.values, fit.covariance + apart.T @ apart)


def cluster_landscapes(auctions: Auctions, period: Ints) -> Ints:
    """Return groups (Q,) of periods that are alike in how often each rival enters and how much it offers.

    period (D,): that of every day.
    """
    found = Rivals.of(auctions, period)
    entered, _ = found.entered
    offers = np.zeros_like(entered)
    for r, b in found.bidding.items():
        mean = np.bincount(period, b.days.values * b.met) / np.maximum(np.bincount(period, b.met), 1.0)
        offers[:, r] = entered[:, r] * np.exp(np.clip(mean, -5.0, 5.0))
    return cluster_periods(np.hstack([entered, offers]))


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
    member = np.eye(int(labels.max()) + 1)[labels]
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
class Bidding:
    """One rival: levels by group (G,) less `centre`, what campaigns add (G · J), shifts of days (D,), log spread."""

    fit: Fit
    centre: float
    group: Ints  # (D,)
    seen: NDArray[np.bool_]  # (G, J): where its rates show its level
    met: NDArray[np.bool_]  # (D,)

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


def _fit_bidding(auctions: Auctions, rival: int, group: Ints, start: Bidding | None) -> Bidding | None:
    """Fit level and spread by how often the rival ranks above us; return None if it was met too rarely.

    What campaigns add and shifts of days have a prior of about 0 ± 1: a rival that is always above us in a campaign
    shows no more than that. Counts that vary more than those of independent auctions widen the covariance.
    """
    ads, groups = auctions.ads, int(group.max()) + 1
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
    return Bidding(fit, centre, group, seen.reshape(groups, count), np.bincount(day, minlength=ads.days) > 0)


def _participation(auctions: Auctions, bidding: Mapping[int, Bidding], group: Ints) -> tuple[Floats, Floats]:
    """Return the share of auctions in which each rival takes part, and its error: (G, M) each.

    A bid below the reserve is not seen: auctions count by the chance that both of us are above it. Days are clusters,
    few in a group: hence Student's factor, and never less than the error of as many single auctions.
    """
    ads, groups = auctions.ads, int(group.max()) + 1
    value, error = np.zeros((2, groups, len(ads.rivals)))
    held = np.nan_to_num(ads.auctions)
    day, campaign = np.nonzero(held > 0.0)
    for r in range(len(ads.rivals)):
        could = held.copy()
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


def _fit_hours(rivals: Rivals) -> Fit:
    """Return sines and cosines by campaign (2 · J) of the hours in log bids, by how often we are on top.

    We are on top if no rival that enters bids more. Days are clusters.
    """
    auctions, ads, bidding = rivals.auctions, rivals.auctions.ads, rivals.bidding
    day, hour, campaign = place = np.nonzero(
        (ads.hourly_auctions > 0.0) & (auctions.live_share.sum(axis=2) > 0.0)[:, None, :]
    )
    held, top = ads.hourly_auctions[place], ads.hourly_top[place]
    level = np.stack([b.level for b in bidding.values()], axis=2)[day, campaign]
    spread = np.array([b.spread for b in bidding.values()])
    enters = rivals.entered[0][rivals.group][:, list(bidding)][day]
    offer, live = auctions.offer[day, campaign], auctions.live_share[day, campaign]

    def derivatives(eta: Floats) -> tuple[Floats, Floats]:
        p, slope = _top(level + eta[:, None], spread, enters, offer, live)
        per_success = slope / (p * (1.0 - p))
        return (top - held * p) * per_success, held * slope * per_success

    member = dummies(campaign, len(ads.campaigns))
    x = np.hstack([*(member * wave[hour, None] for wave in hour_waves()), member])
    return regress(x, derivatives, day, np.zeros(x.shape[1]))[: 2 * len(ads.campaigns)]


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
                    free = max(1.0 - enters[i, m] * normal_cdf(z), 1e-12)
                    below *= free
                    change += enters[i, m] * math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) / spread[m] / free
                p[i] += below
                slope[i] -= below * change
        p[i] = min(max(p[i], 1e-9), 1.0 - 1e-9)
    return p, slope


def describe_rivals(
    rivals: Rivals,
    landscape: Ints,
    campaigns: Mapping[str, Campaign],
    levels: Mapping[int, Fit],
    reactions: Mapping[int, Fit],
) -> tuple[dict[str, Competitor], tuple[Landscape, ...]]:
    """Return the rivals, and the landscapes of periods (Q,), as patterns; levels (G,) and reactions are by rival.

    A rival's shading in first-price auctions is taken out of its level there.
    """
    ads, (share, share_error) = rivals.auctions.ads, rivals.entered
    first = np.array([c in campaigns and campaigns[c].mechanism == "first_price" for c in ads.campaigns])
    shading = _fit_shading(rivals, first)
    causes = (
        "our bid of the day before", "yesterday's spend error", "summed spend error", "change of spend error",
    )  # fmt: skip
    unknown = Estimate.zero(0, "cannot be discovered without the rival's impression share: assumed none")
    competitors: dict[str, Competitor] = {}
    entering: list[dict[str, Estimate]] = [{} for _ in share]
    bids: list[dict[str, dict[str, Estimate]]] = [{} for _ in share]
    for r, b in rivals.bidding.items():
        name, met, level, reaction, shade = ads.rivals[r], rivals.meetings(r), levels[r], reactions[r], shading[r]
        spread = b.fit.log_estimate(-1, count=met, source="slope of the probit in our bid")
        gains = [
            reaction.estimate(i, count=ads.days, source=f"daily level on {c}") if i < len(reaction.values) else unknown
            for i, c in enumerate(causes)
        ]
        competitors[name] = Competitor(spread, shade, gains[0], tuple(gains[1:]))
        extra, extra_error = (table.reshape(-1, len(first)) for table in (b.extra.values, b.extra.errors))
        shade_error = (shade.high - shade.low) / (2.0 * Estimate.z())
        for g in range(len(share)):
            entering[g][name] = Estimate.from_error(
                share[g, r], share_error[g, r], "logit", count=met, source="overlap rate, days as clusters"
            )
            means = level.values[g] + extra[g] - first * shade.value
            errors = np.sqrt(level.errors[g] ** 2 + extra_error[g] ** 2 + (first * shade_error) ** 2)
            source = "position-above rate against our bid, probit"
            bids[g][name] = {
                c: Estimate.from_error(mean, error, "linear", count=met, source=source)
                for c, mean, error in zip(ads.campaigns, means, errors, strict=True)
            }
    return competitors, tuple(map(Landscape, np.bincount(landscape).tolist(), entering, bids))


def _fit_shading(rivals: Rivals, first: NDArray[np.bool_]) -> dict[int, Estimate]:
    """Return what each rival takes off its log bid in first-price auctions, compared with the median rival.

    first: which campaigns (J,) are sold at first price.

    A difference of differences: its level there less its level elsewhere, less the same of the others. A preference for
    a campaign looks like shading; how far rivals' preferences differ elsewhere says how uncertain that leaves it.
    """
    if not first.any() or first.all():
        return {r: Estimate.zero(0, "no campaign of each kind to compare") for r in rivals.bidding}
    count, groups, others = len(first), len(rivals.entered[0]), int((~first).sum())
    usual = {
        r: b.extra.combine(np.tile(np.eye(count), groups) * count / len(b.extra.values))
        for r, b in rivals.bidding.items()
    }
    extra = np.array([fit.values for fit in usual.values()])
    extra = extra - np.median(extra, axis=0)
    gap = extra[:, first].mean(axis=1) - extra[:, ~first].mean(axis=1)
    gap = gap - np.median(gap)
    prefer = extra[:, ~first] - extra[:, ~first].mean(axis=1, keepdims=True)
    free = (len(usual) - 1) * (others - 1)
    preference = float((prefer**2).sum()) / free * (1.0 + 1.0 / others) if free > 0 else float((gap**2).mean())
    contrast = np.where(first, 1.0 / first.sum(), -1.0 / others)
    source = "level in first-price campaigns less that elsewhere, against the median rival"
    return {
        r: Estimate.from_error(
            gap[i],
            math.sqrt(float(fit.combine(contrast[None]).errors[0]) ** 2 + preference),
            "linear",
            count=rivals.meetings(r),
            source=source,
        )
        for i, (r, fit) in enumerate(usual.items())
    }
