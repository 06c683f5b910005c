"""Fit what moves the levels of rivals from day to day, all rivals at once: known causes, and a drift that they share.

The causes are all of the day before: our bid, and what the rival spent itself (`fit_reactions`).

Rivals M, days D, causes p of each rival. A level is design · β + drift + noise. The drift keeps a share of itself, its
memory, from one day to the next. Given the noise and the drift's memory and step this is a linear mixed model: β and
its restricted likelihood follow from sums over rivals, which depend on the noise but not on the drift.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.types import Floats
from parallel_agents.kernels.functions import each, normal_quantile
from parallel_agents.market.discovery.estimation import Estimate, Fit, dummies, normal_cdf, student_factor
from parallel_agents.market.discovery.rivals import Auctions, Bidding, Rivals

_VAGUE = 1e-3  # precision of what nothing is known of before
_MEMORIES = np.array([0.0, 0.4, 0.6, 0.75, 0.85, 0.92, 0.97])  # share of the drift that is left a day later
_STEPS_OF_DRIFT = np.geomspace(0.008, 0.4, 36)  # closer to each other than 70 days can tell apart
_OTHER_NOISE = (0.0, *np.geomspace(0.005, 0.2, 16))  # of one rival and day, beyond that of sampling
_NOISE_ROUNDS = 10  # two or three are enough
_BIDS_TRIED = np.linspace(-4.0, 4.0, 81)  # deviations of a bid from its mean


@dataclass(frozen=True, eq=False)
class DayLevels:
    """One rival: its levels (D,) and their errors, on which days (D,) it was met, and the causes (D, p) of them."""

    levels: Fit
    met: NDArray[np.bool_]
    design: Floats


class DayFit(NamedTuple):
    """Effects of causes (p,) by rival, and the drift's daily step."""

    effects: list[Fit]
    log_step: float
    log_step_error: float


def fit_days(rivals: Sequence[DayLevels], common: Floats | None) -> DayFit:
    """Fit causes, drift and noise; `common` (D, D) is the covariance of other errors that the levels of all share.

    Memory and step of the drift are averaged over their restricted likelihood: few days tell neither of them well. Each
    rival has its own noise, the likeliest: one whose levels follow from the causes less well tells less of the drift.
    """
    drifts = [_Drift.of(len(rivals[0].met), *own, common) for own in product(_MEMORIES, _STEPS_OF_DRIFT)]
    ends = np.cumsum([rival.design.shape[1] for rival in rivals]).tolist()
    places = [slice(start, end) for start, end in pairwise([0, *ends])]
    by_noise = [
        [_sums(rival, noise, (place.start, ends[-1] - place.stop)) for noise in _OTHER_NOISE]
        for rival, place in zip(rivals, places, strict=True)
    ]
    sums = _likeliest(by_noise, drifts)
    tried = [_fit(sums, drift) for drift in drifts]
    whole, share = Fit.averaged([fit for fit, _ in tried], [likelihood for _, likelihood in tried])
    effects = []
    for rival, own in zip(rivals, (whole[place] for place in places), strict=True):
        factor = student_factor(int(rival.met.sum()) - len(own.values))
        effects.append(Fit(own.values, own.covariance * factor**2))
    log_steps = np.log([drift.step for drift in drifts])
    log_step = float(share @ log_steps)
    return DayFit(effects, log_step, float(np.sqrt(share @ (log_steps - log_step) ** 2)))


def _likeliest(by_noise: Sequence[Sequence[_Sums]], drifts: Sequence[_Drift]) -> _Sums:
    """Return the sums over rivals, each at the noise that is likeliest with that of the others and the likeliest drift.

    by_noise: the sums of every rival at every noise.
    """
    chosen = [own[0] for own in by_noise]
    for _ in range(_NOISE_ROUNDS):
        before, sums = list(chosen), _joined(chosen)
        drift = max(drifts, key=lambda one: _fit(sums, one)[1])
        for i, own in enumerate(by_noise):
            with_others = [_joined([*chosen[:i], one, *chosen[i + 1 :]]) for one in own]
            chosen[i] = own[int(np.argmax([_fit(sums, drift)[1] for sums in with_others]))]
        if all(one is other for one, other in zip(chosen, before, strict=True)):
            break
    return _joined(chosen)


class _Sums(NamedTuple):
    """What the likelihood of every drift is made of, of one rival or of all; p is the number of all causes."""

    precision: Floats  # (D, D): of levels about drift and causes
    log_size: float  # of the precision
    x_side: Floats  # (D, p): precision · design
    y_side: Floats  # (D,): precision · levels
    xx: Floats  # (p, p)
    xy: Floats  # (p,)
    yy: float


def _sums(rival: DayLevels, noise: float, others: tuple[int, int]) -> _Sums:
    """Return the sums of one rival, each of whose days has some noise beyond that of sampling.

    others: how many causes of other rivals stand before and behind its own.
    """
    there, x, y = np.flatnonzero(rival.met), rival.design, rival.levels.values
    inner = rival.levels.covariance[np.ix_(there, there)] + (noise**2 + 1e-8) * np.eye(len(there))
    precision = np.zeros((len(y), len(y)))
    precision[np.ix_(there, there)] = np.linalg.inv(inner)
    log_size = -float(np.linalg.slogdet(inner)[1])
    x_side = np.pad(precision @ x, ((0, 0), others))
    xx, xy = np.pad(x.T @ precision @ x, others), np.pad(x.T @ precision @ y, others)
    return _Sums(precision, log_size, x_side, precision @ y, xx, xy, float(y @ precision @ y))


def _joined(parts: Sequence[_Sums]) -> _Sums:
    """Return the sums over rivals."""
    return _Sums(*(sum(own[1:], start=own[0]) for own in zip(*parts, strict=True)))


class _Drift(NamedTuple):
    """A drift that all rivals share: its daily step, its precision (D, D), and the log size of its covariance."""

    step: float
    precision: Floats
    log_size: float

    @classmethod
    def of(cls, days: int, memory: float, step: float, common: Floats | None) -> _Drift:
        """Return a drift; `common` (D, D) is the covariance of other errors that the levels of all rivals share."""
        gap = np.abs(np.arange(days)[:, None] - np.arange(days))
        covariance = step**2 / (1.0 - memory**2) * memory**gap + (0.0 if common is None else common)
        return cls(step, np.linalg.inv(covariance), float(np.linalg.slogdet(covariance)[1]))


def _fit(sums: _Sums, drift: _Drift) -> tuple[Fit, float]:
    """Return the effects (p,) of all causes with one drift, and the restricted log likelihood of drift and noise."""
    inner = np.linalg.inv(drift.precision + sums.precision)  # the drift's covariance given the levels
    info = sums.xx - sums.x_side.T @ inner @ sums.x_side + _VAGUE * np.eye(len(sums.xx))
    covariance = np.asarray(np.linalg.inv(info), np.float64)
    side = sums.xy - sums.x_side.T @ inner @ sums.y_side
    effects = covariance @ side
    rest = sums.yy - float(sums.y_side @ inner @ sums.y_side) - float(side @ effects)
    log_size = sums.log_size - drift.log_size + float(np.linalg.slogdet(inner)[1])
    return Fit(effects, covariance), 0.5 * (log_size - float(np.linalg.slogdet(info)[1]) - rest)


def fit_reactions(rivals: Rivals) -> tuple[dict[int, Fit], dict[int, Fit], Estimate]:
    """Fit the levels of days: a landscape's level, reactions to the day before, a drift that all rivals share, noise.

    Return by rival the levels of landscapes (G,) and the reactions, and the drift's daily step. Reactions are to the
    past, so the likelihood holds although a rival's spend follows from its earlier levels.
    """
    groups, days = len(rivals.entered[0]), {r: b.days for r, b in rivals.bidding.items()}
    our_shock = our_shocks(rivals.auctions, rivals.bidding).mean(axis=1)
    centre = float(np.mean([fit.values.mean() for fit in days.values()]))
    found = fit_days(
        [
            DayLevels(
                Fit(own.values - centre, own.covariance),
                rivals.bidding[r].met,
                np.hstack([dummies(rivals.group, groups), _causes(rivals, r, our_shock)]),
            )
            for r, own in days.items()
        ],
        rivals.common,
    )
    effects = dict(zip(days, found.effects, strict=True))
    source = "daily levels of all rivals: steps of the drift they share"
    return (
        {r: Fit(centre + own.values[:groups], own[:groups].covariance) for r, own in effects.items()},
        {r: own[groups:] for r, own in effects.items()},
        Estimate.from_log(found.log_step, found.log_step_error, count=len(our_shock), source=source),
    )


def our_shocks(auctions: Auctions, bidding: Mapping[int, Bidding]) -> Floats:
    """Return by how much our log bids (D, J) of a day exceed their mean; 0 where nothing shows a bid.

    A campaign that won no impression shows no bid, and it bid little then. How little follows from how often rivals
    ranked above us: the mean over that likelihood, about bids as they are known to vary.
    """
    ads, log_bid = auctions.ads, auctions.ads.log_bid.copy()
    mean, spread = np.nanmean(log_bid, axis=0), np.nanstd(log_bid, axis=0)
    day, campaign = place = np.nonzero(~np.isfinite(log_bid) & np.isfinite(mean) & (ads.met.sum(axis=2) > 0.0))
    tried = mean[campaign] + np.multiply.outer(_BIDS_TRIED, spread[campaign])
    log_likelihood = np.tile(-0.5 * _BIDS_TRIED[:, None] ** 2, len(day))
    for i, bids in enumerate(tried):
        log_bid[place] = bids
        with_bids = replace(auctions, ads=replace(ads, log_bid=log_bid))
        for r, b in bidding.items():
            above, met = ads.above[*place, r], ads.met[*place, r]
            chance = with_bids.chances(day, campaign, b.level[place], b.spread)[0][:, 0]
            log_likelihood[i] += above * np.log(chance) + (met - above) * np.log1p(-chance)
    share = np.exp(log_likelihood - log_likelihood.max(axis=0))
    log_bid[place] = (share * tried).sum(axis=0) / share.sum(axis=0)
    return np.asarray(np.nan_to_num(log_bid - np.nanmean(log_bid, axis=0)))


def _causes(rivals: Rivals, r: int, our_shock: Floats) -> Floats:
    """Return (D, 4), all of the day before: the shock of our bid, the rival's spend error, its sum and its change.

    our_shock (D,): by how much we bid more than usual. Spend is what the rival offers where it is shown. Without its
    impression share nobody knows that: (D, 1). Shown are the higher ones of its bids; which of them also depends on the
    others, whose bids spread about as far as its own.
    """
    auctions, b, columns = rivals.auctions, rivals.bidding[r], our_shock[:, None]
    shown = auctions.ads.rival_shown[:, :, r]
    if np.isfinite(auctions.ads.rival_shown).any():
        entered = rivals.entered[0][rivals.group, r]
        held = np.nan_to_num(auctions.ads.auctions)
        share = np.clip(shown / np.maximum(held * entered[:, None], 1e-9), 1e-6, 1.0 - 1e-6)
        higher = each(normal_cdf, each(normal_quantile, share) + b.spread / math.sqrt(2.0)) / share
        by_hour = (auctions.hour_share * np.exp(auctions.wave)).sum(axis=1)
        spend = (shown * np.exp(b.level) * by_hour * higher).sum(axis=1)
        mean = np.cumsum(spend) / np.arange(1, len(spend) + 1)
        error = 1.0 - spend / np.maximum(mean, 1e-9)
        columns = np.column_stack([our_shock, error, np.cumsum(error), np.diff(error, prepend=0.0)])
    return np.vstack([np.zeros(columns.shape[1]), columns[:-1]])
