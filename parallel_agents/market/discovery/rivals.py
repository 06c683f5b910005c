"""How rivals bid: how often they enter, how high, how widely, and what they react to.

Rivals M, campaigns J, days D, groups G of days (periods first, then the landscapes that periods fall into).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parallel_agents.market.discovery.competition import Market
from parallel_agents.market.discovery.estimates import Estimate, normal_cdf, of_totals
from parallel_agents.market.discovery.patterns import Campaign, Competitor, Landscape
from parallel_agents.market.discovery.statistics import Fit, dummies, linear, probit

__all__ = [
    "Bidding",
    "Reactions",
    "competitor",
    "fit_bidding",
    "landscape",
    "participation",
    "reactions",
    "shades",
    "volatility",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_FIRST = "first_price"
_ROUNDS = 4


@dataclass(frozen=True, eq=False)
class Bidding:
    """One rival: log spread, levels of its log bid by group and campaign, and what each day adds to them."""

    log_spread: Fit
    levels: Fit  # G · J values
    groups: int
    shift: Floats  # (D,), NaN where it was not met
    precision: Floats  # (D,): one over the variance of the shift

    @property
    def level(self) -> Floats:
        """Shape (G, J)."""
        return self.levels.values.reshape(self.groups, -1)


def fit_bidding(m: Market, rival: int, quality: Floats, group: Ints, groups: int) -> Bidding | None:
    """P(above) = Φ((level − our offer) / spread); None where the rival was met too rarely to tell."""
    met, above = m.met[:, :, rival], m.above[:, :, rival]
    known = np.isfinite(m.log_bid) & (met > 0)
    day, campaign = np.nonzero(known)
    count = len(m.campaigns)
    if len(day) < 2 * (groups + count):
        return None
    offer = (m.log_bid + quality)[known]
    x = np.hstack([dummies(group[day], groups), dummies(campaign, count, drop=0), -offer[:, None]])
    fit = probit(x, above[known], met[known], np.arange(len(x)))
    slope = float(fit.values[-1])
    if slope < 2.0 * float(fit.errors[-1]):
        return None
    log_spread = Fit(-np.log(fit.values[-1:]), fit.covariance[-1:, -1:] / slope**2)
    pick = np.zeros((groups * count, len(fit.values)))
    for g in range(groups):
        for j in range(count):
            pick[g * count + j, g] = 1.0
            if j:
                pick[g * count + j, groups + j - 1] = 1.0
    sums = pick @ fit.values
    gradient = pick / slope
    gradient[:, -1] = -sums / slope**2
    levels = Fit(sums / slope, gradient @ fit.covariance @ gradient.T)

    shift, precision = _daily(day, x @ fit.values, slope, met[known], above[known], m.days)
    return Bidding(log_spread, levels, groups, shift, precision)


def _daily(day: Ints, eta: Floats, slope: float, met: Floats, above: Floats, days: int) -> tuple[Floats, Floats]:
    """Each day's shift of the level (D,): one scoring step from the fit, and its precision."""
    p = normal_cdf(eta)
    density = np.exp(-eta * eta / 2.0) / np.sqrt(2.0 * np.pi)
    gain = np.bincount(day, met * density * slope, days)
    noise = np.bincount(day, met * p * (1.0 - p), days)
    surplus = np.bincount(day, above - met * p, days)
    seen = gain > 1.0
    safe = np.where(seen, gain, 1.0)
    return np.where(seen, surplus / safe, np.nan), np.where(seen, safe**2 / np.maximum(noise, 1e-9), 0.0)


def participation(m: Market, group: Ints, groups: int) -> tuple[Floats, Floats]:
    """Share of auctions a rival takes part in, and its error: (G, M) each; days are clusters."""
    met, auctions = m.met.sum(axis=1), m.auctions.sum(axis=1)
    value, error = np.zeros((groups, met.shape[1])), np.zeros((groups, met.shape[1]))
    for g in range(groups):
        mine = group == g
        for r in range(met.shape[1]):
            rows = np.stack([met[mine, r], auctions[mine]], axis=1)
            got, miss = of_totals(lambda t: t[:1] / t[1:], rows)
            value[g, r], error[g, r] = got[0], miss[0]
    return value, error


def landscape(
    m: Market,
    bidding: Mapping[int, Bidding],
    entered: tuple[Floats, Floats],
    g: int,
    periods: int,
    shades: Mapping[int, Estimate],
    campaigns: Mapping[str, Campaign],
) -> Landscape:
    """Group g as a landscape; what a rival shades in first-price auctions is taken out of its level there."""
    first = np.array([campaigns[c].mechanism == _FIRST for c in m.campaigns])
    share, levels = {}, {}
    for r, b in bidding.items():
        met = int(m.met[:, :, r].sum())
        share[m.rivals[r]] = Estimate.from_error(
            entered[0][g, r], entered[1][g, r], "logit", count=met, source="overlap rate, days as clusters"
        )
        errors = b.levels.errors.reshape(b.groups, -1)[g]
        levels[m.rivals[r]] = {
            c: Estimate.from_error(
                b.level[g, j] - first[j] * shades[r].value,
                errors[j],
                "linear",
                count=met,
                source="position-above rate against our bid, probit",
            )
            for j, c in enumerate(m.campaigns)
        }
    return Landscape(periods, share, levels)


@dataclass(frozen=True, eq=False)
class Reactions:
    """What rivals (by index) react to, as coefficients (4,), and what is left of their daily shifts (D,)."""

    fits: dict[int, Fit]
    rest: dict[int, Floats]


def reactions(m: Market, bidding: Mapping[int, Bidding], our_shock: Floats) -> Reactions:
    """Responses to our bid of the day before, and PID pacing of the rival's own spend.

    `our_shock` (D,) is our log bid less its mean. What is left of the other rivals' shifts on the same day stands for
    all that moves the whole market, which would otherwise pass for the rival's own reaction; so each rival's reaction
    needs those of the others, and a few rounds settle them.
    """
    fits: dict[int, Fit] = {}
    rest = {r: np.nan_to_num(b.shift) for r, b in bidding.items()}
    for _ in range(_ROUNDS):
        for r, b in bidding.items():
            common = _pooled(bidding, rest, without=r)[0]
            before = _before(m, b, r, our_shock)
            x = np.column_stack([np.ones(m.days), before, common])
            known = np.isfinite(b.shift) & (np.arange(m.days) > 0)
            fit = linear(x[known], b.shift[known], b.precision[known], np.arange(int(known.sum())))
            fits[r] = fit.along(np.eye(4, x.shape[1], 1))
            rest[r] = np.nan_to_num(b.shift - before @ fits[r].values)
    return Reactions(fits, rest)


def _before(m: Market, b: Bidding, r: int, our_shock: Floats) -> Floats:
    """(D, 4): the day before's shock of our bid, and the rival's spend error, its sum and its change."""
    spend = m.met[:, :, r].sum(axis=1) * np.exp(np.nan_to_num(b.shift))
    mean = np.cumsum(spend) / np.arange(1, m.days + 1)
    error = 1.0 - spend / np.maximum(mean, 1e-9)
    columns = np.column_stack([our_shock, error, np.cumsum(error), np.diff(error, prepend=0.0)])
    return np.vstack([np.zeros(4), columns[:-1]])


def _pooled(
    bidding: Mapping[int, Bidding], shifts: Mapping[int, Floats], without: int | None = None
) -> tuple[Floats, Floats]:
    """The mean of rivals' shifts on each day (D,) by their precision, and its variance by sampling."""
    used = [r for r in bidding if r != without] or list(bidding)
    weight = np.maximum(np.sum([bidding[r].precision for r in used], axis=0), 1e-9)
    return np.sum([shifts[r] * bidding[r].precision for r in used], axis=0) / weight, 1.0 / weight


def competitor(m: Market, b: Bidding, r: int, shade: Estimate, reaction: Fit) -> Competitor:
    """A rival as a pattern."""
    names = (
        "our bid of the day before",
        "yesterday's spend error",
        "summed spend error",
        "change of spend error",
    )
    gains = [
        Estimate.from_error(v, e, "linear", count=m.days, source=f"daily level on {what}")
        for v, e, what in zip(reaction.values, reaction.errors, names, strict=True)
    ]
    spread = Estimate.from_log(
        b.log_spread.values[0],
        b.log_spread.errors[0],
        count=int(m.met[:, :, r].sum()),
        source="slope of the probit in our bid",
    )
    return Competitor(spread, shade, gains[0], tuple(gains[1:]))


def shades(m: Market, bidding: Mapping[int, Bidding], campaigns: Mapping[str, Campaign]) -> dict[int, Estimate]:
    """What each rival takes off its log bid in first-price auctions, compared with the others.

    A difference of differences: its level there less its level elsewhere, less the same of the rival that shades
    least. So the most truthful rival has shade 0, and a taste for a campaign is taken for shading.
    """
    first = np.array([campaigns[c].mechanism == _FIRST for c in m.campaigns])
    source = "level in first-price campaigns less that elsewhere, against the least shading rival"
    if not first.any() or first.all() or not bidding:
        return {r: Estimate(0.0, 0.0, 0.0, "linear", 0, "no campaign of each kind to compare") for r in bidding}
    contrast = np.where(first, 1.0 / first.sum(), -1.0 / (~first).sum())
    gaps = {r: b.levels.along(np.tile(contrast, b.groups)[None] / b.groups) for r, b in bidding.items()}
    least = max(float(fit.values[0]) for fit in gaps.values())
    return {
        r: Estimate.from_error(
            fit.values[0] - least, fit.errors[0], "linear", count=int(m.met[:, :, r].sum()), source=source
        )
        for r, fit in gaps.items()
    }


def volatility(bidding: Mapping[int, Bidding], rest: Mapping[int, Floats], group: Ints) -> Estimate:
    """Day-to-day movement of all levels together, beyond reactions and sampling noise and within a landscape."""
    shift, noise = _pooled(bidding, rest)
    same = group[1:] == group[:-1]
    moved = (np.diff(shift) ** 2 - noise[1:] - noise[:-1])[same]
    source = "changes of rivals' levels from day to day, less reactions and sampling noise"
    if len(moved) < 2:
        return Estimate(0.0, 0.0, 0.0, "linear", len(moved), source)
    variance = max(float(moved.mean()), 1e-6)
    error = float(moved.std() / np.sqrt(len(moved)))
    return Estimate.from_error(variance**0.5, error / (2.0 * variance**0.5), "log", count=len(moved), source=source)
