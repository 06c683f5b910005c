"""Hour × weekday × month: multiplicative factors of the number of clicks, each with mean one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parallel_agents.market.discovery.estimates import Estimate
from parallel_agents.market.discovery.history import History
from parallel_agents.market.discovery.statistics import Fit, dummies, poisson

__all__ = ["seasonality"]

Floats = NDArray[np.float64]


def seasonality(h: History) -> tuple[tuple[Estimate, ...], tuple[Estimate, ...], dict[str, Estimate]]:
    """Factors of 24 hours, 7 weekdays and the months seen, from clicks per calendar hour."""
    cells = h.days * 24
    hour = np.arange(cells) % 24
    dates = h.first_day + np.arange(h.days)
    weekday = np.repeat((dates.astype(np.int64) + 3) % 7, 24)
    month = np.repeat(dates.astype("datetime64[M]").astype(np.int64) % 12, 24)
    months, level = np.unique(month, return_inverse=True)
    counts = np.bincount(np.minimum(h.time.astype(np.int64), cells - 1), minlength=cells).astype(np.float64)
    seen = np.unique(weekday)
    x = np.hstack(
        [
            dummies(hour, 24),
            dummies(np.searchsorted(seen, weekday), len(seen), drop=0),
            dummies(level, len(months), drop=0),
        ]
    )
    fit = poisson(x, counts, np.ones(cells), np.ones(cells), np.arange(cells))

    def normalised(start: int, count: int, drop: bool) -> Fit:
        pick = np.zeros((count, x.shape[1]))
        pick[int(drop) :, start : start + count - int(drop)] = np.eye(count - int(drop))
        raw = fit.along(pick)
        share = np.exp(raw.values) / np.exp(raw.values).sum()
        centred = raw.along(np.eye(count) - share)  # gradient of log f − log mean f
        return Fit(raw.values - np.log(np.exp(raw.values).mean()), centred.covariance)

    def estimates(part: Fit, what: str) -> tuple[Estimate, ...]:
        source = f"clicks per calendar hour, log-linear: {what}"
        return tuple(
            Estimate.from_log(v, e, count=len(h.user), source=source)
            for v, e in zip(part.values, part.errors, strict=True)
        )

    hours = estimates(normalised(0, 24, False), "hour")
    days = dict(zip(seen.tolist(), estimates(normalised(24, len(seen), True), "weekday"), strict=True))
    monthly = estimates(normalised(24 + len(seen) - 1, len(months), True), "month")
    return (
        hours,
        tuple(days[d] for d in range(7)),
        {str(m + 1): e for m, e in zip(months.tolist(), monthly, strict=True)},
    )
