"""How the market differs over time: factors of hours, weekdays and months, and deviations of periods (weeks).

A period's deviation along an axis is mostly noise in a small export. It is shrunk by the evidence that periods differ
at all (DerSimonian and Laird 1986); an axis along which they do not is reported as not identified.
"""

from __future__ import annotations

import numpy as np

from parallel_agents.market.discovery.click_history import History
from parallel_agents.market.discovery.estimation import Estimate, Fit, Floats, Ints, dummies, fit_poisson

_CLEAR = 0.3  # the lowest mean silhouette at which periods are said to fall into groups


def seasonality(history: History) -> tuple[tuple[Estimate, ...], tuple[Estimate, ...], dict[str, Estimate]]:
    """Return factors of 24 hours, 7 weekdays and the months seen, each with mean 1, from clicks per calendar hour."""
    cells = history.days * 24
    hour = np.arange(cells) % 24
    dates = history.first_day + np.arange(history.days)
    weekdays, weekday = np.unique(np.repeat((dates.astype(np.int64) + 3) % 7, 24), return_inverse=True)
    months, month = np.unique(np.repeat(dates.astype("datetime64[M]").astype(np.int64) % 12, 24), return_inverse=True)
    counts = np.bincount(np.minimum(history.time.astype(np.int64), cells - 1), minlength=cells).astype(np.float64)
    x = np.hstack([dummies(hour, 24), dummies(weekday, len(weekdays), drop=0), dummies(month, len(months), drop=0)])
    fit = fit_poisson(x, counts, np.ones(cells), np.ones(cells), np.arange(cells))

    def factors(name: str, start: int, count: int, drop: int) -> tuple[Estimate, ...]:
        logs = fit.block(start, np.eye(count)[:, drop:])
        share = np.exp(logs.values) / np.exp(logs.values).sum()
        centred = logs.combine(np.eye(count) - share)  # gradient of log f − log mean f
        logs = Fit(logs.values - np.log(np.exp(logs.values).mean()), centred.covariance)
        source = f"clicks per calendar hour, log-linear: {name}"
        return tuple(logs.log_estimate(i, count=len(history.user), source=source) for i in range(count))

    by_weekday = dict(zip(weekdays.tolist(), factors("weekday", 24, len(weekdays), 1), strict=True))
    by_month = factors("month", 24 + len(weekdays) - 1, len(months), 1)
    return (
        factors("hour", 0, 24, 0),
        tuple(by_weekday[d] for d in range(7)),
        {str(m + 1): e for m, e in zip(months.tolist(), by_month, strict=True)},
    )


def shrink(effect: Floats, error: Floats, source: str) -> tuple[Estimate, ...] | None:
    """Return deviations (Q,) shrunk by the evidence for them, or None if periods do not differ beyond chance."""
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


def volume_by_period(history: History) -> Fit:
    """Return the log deviation (Q,) of clicks per day."""
    days = np.bincount(history.day_period)
    clicks = np.maximum(np.bincount(history.period, minlength=history.periods), 0.5)
    effect = np.log(clicks / days) - np.log(clicks.sum() / days.sum())
    return Fit(effect, np.diag(1.0 / clicks))


def mix_by_period(history: History, membership: Floats) -> Fit:
    """Return the log deviation (Q,) of the share of clicks by a group, to which users belong by `membership` (U,)."""
    periods, users = history.periods, len(membership)
    clicks = np.bincount(history.user * periods + history.period, minlength=users * periods)
    clicks = clicks.reshape(-1, periods).astype(np.float64)
    total = np.maximum(clicks.sum(axis=0), 1.0)
    overall = float(membership @ clicks.sum(axis=1) / total.sum())
    share = np.maximum(membership @ clicks / total, 0.05 * overall)
    influence = (membership[:, None] - share) * clicks / total
    return Fit(np.log(share / overall), np.diag((influence**2).sum(axis=0) / share**2))


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
