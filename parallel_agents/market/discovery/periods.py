"""Periods: how each week deviates, how sure that is, and which weeks belong together.

A week's deviation along an axis is mostly noise in a small export. It is shrunk by the evidence that weeks differ at
all (DerSimonian and Laird 1986); an axis along which they do not is said to be unidentified.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parallel_agents.market.discovery.estimates import Estimate
from parallel_agents.market.discovery.history import History
from parallel_agents.market.discovery.statistics import Fit

__all__ = ["clusters", "mix_by_period", "shrink", "volume_by_period"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_CLEAR = 0.3  # silhouette below which periods are not said to fall into groups


def shrink(effect: Floats, error: Floats, source: str) -> tuple[Estimate, ...] | None:
    """Deviations (Q,) with errors, shrunk to their evidence; None where periods do not differ beyond chance."""
    error = np.maximum(error, 1e-9)
    weight = 1.0 / error**2
    centre = weight @ effect / weight.sum()
    excess = float(weight @ (effect - centre) ** 2) - (len(effect) - 1)
    scale = weight.sum() - (weight @ weight) / weight.sum()
    between = excess / scale if scale > 0.0 else 0.0
    if between <= 0.0:
        return None
    keep = between / (between + error**2)
    return tuple(
        Estimate.from_error(
            k * e, np.sqrt(k) * s, "linear", count=len(effect), source=f"{source}, shrunk by {1 - k:.2f}"
        )
        for k, e, s in zip(keep, effect, error, strict=True)
    )


def volume_by_period(h: History) -> Fit:
    """Log deviation (Q,) of clicks per day."""
    days = np.bincount(np.minimum(np.arange(h.days) // 7, h.periods - 1))
    clicks = np.maximum(np.bincount(h.period, minlength=h.periods), 0.5)
    effect = np.log(clicks / days) - np.log(clicks.sum() / days.sum())
    return Fit(effect, np.diag(1.0 / clicks))


def mix_by_period(h: History, belongs: Floats) -> Fit:
    """Log deviation (Q,) of the share of clicks by users who belong to a group, with weight `belongs` (U,)."""
    q = h.periods
    clicks = np.bincount(h.user * q + h.period, minlength=len(belongs) * q).reshape(-1, q).astype(np.float64)
    total = np.maximum(clicks.sum(axis=0), 1.0)
    overall = float(belongs @ clicks.sum(axis=1) / total.sum())
    share = np.maximum(belongs @ clicks / total, 0.05 * overall)
    influence = (belongs[:, None] - share) * clicks / total
    return Fit(np.log(share / overall), np.diag((influence**2).sum(axis=0) / share**2))


def clusters(features: Floats) -> Ints:
    """Groups (Q,) of rows (Q, f) that are alike: average linkage, their number by the mean silhouette."""
    spread = features.std(axis=0)
    points = features[:, spread > 0] / spread[spread > 0]
    count = len(points)
    distance = np.sqrt(((points[:, None] - points) ** 2).sum(axis=2))
    labels, best, score = np.arange(count), np.zeros(count, np.int64), _CLEAR
    while labels.max() > 0:
        got = _silhouette(distance, labels)
        if got > score:
            best, score = labels.copy(), got
        labels = _merged(distance, labels)
    return np.asarray(np.unique(best, return_inverse=True)[1])


def _merged(distance: Floats, labels: Ints) -> Ints:
    """The two groups nearest on average become one."""
    member = np.eye(int(labels.max()) + 1)[labels]
    size = member.sum(axis=0)
    between = member.T @ distance @ member / np.outer(size, size)
    np.fill_diagonal(between, np.inf)
    low, high = sorted(divmod(int(between.argmin()), len(between)))
    return np.asarray(np.unique(np.where(labels == high, low, labels), return_inverse=True)[1])


def _silhouette(distance: Floats, labels: Ints) -> float:
    """Mean silhouette (Rousseeuw 1987); a row alone in its group counts as 0."""
    groups = int(labels.max()) + 1
    if groups < 2 or groups >= len(labels):
        return 0.0
    member = np.eye(groups)[labels]
    size = member.sum(axis=0)
    total = distance @ member
    rows = np.arange(len(labels))
    own = total[rows, labels] / np.maximum(size[labels] - 1.0, 1.0)
    mean = total / size
    mean[rows, labels] = np.inf
    other = mean.min(axis=1)
    value = np.where(size[labels] > 1.0, (other - own) / np.maximum(np.maximum(own, other), 1e-12), 0.0)
    return float(value.mean())
