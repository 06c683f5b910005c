"""Means and confidence intervals over few samples, such as agents or seeds. Pure functions.

>>> scores = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 100.0])
>>> interquartile_mean(scores)
4.5
>>> mean, low, high = mean_interval(scores[:4])
>>> f"{mean:.3f} ({low:.3f} to {high:.3f})"
'2.500 (0.446 to 4.554)'
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallel_agents.core.errors import ConfigError, NonFiniteError, ShapeError
from parallel_agents.core.seeding import Purpose, generator

Floats = NDArray[np.float64]
_NO_AGENT = 2**32 - 1  # the last agent id, which no agent has: these draws are not those of any agent
_BLOCK = 2**22  # resampled values in memory at a time


class Interval(NamedTuple):
    """An estimate and its confidence interval."""

    estimate: float
    low: float
    high: float


@overload
def interquartile_mean(scores: ArrayLike) -> float: ...
@overload
def interquartile_mean(scores: ArrayLike, axis: int) -> Floats: ...
def interquartile_mean(scores: ArrayLike, axis: int | None = None) -> float | Floats:
    """Return the mean of the middle half of all scores, or along an axis; floor(n/4) are cut at either end.

    As in Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice".
    """
    values = _checked(scores)
    rows = values.reshape(1, -1) if axis is None else np.moveaxis(values, axis, -1)
    count = rows.shape[-1]
    middle = np.sort(rows, axis=-1)[..., count // 4 : count - count // 4].mean(axis=-1)
    return float(middle[0]) if axis is None else np.asarray(middle)


def bootstrap_interval(
    scores: ArrayLike,
    statistic: Callable[..., Any] = interquartile_mean,
    *,
    seed: int = 0,
    level: float = 0.95,
    resamples: int = 2000,
) -> Interval:
    """Return a percentile interval by stratified bootstrap (Efron 1979; Agarwal et al. 2021).

    `scores` is (runs,) or (runs, strata). Runs are drawn with replacement, separately within each stratum (a task, an
    agent). `statistic` takes an array and an axis, as `np.mean` does. Equal seeds give equal intervals.

    >>> bootstrap_interval([2.0, 2.0, 2.0])
    Interval(estimate=2.0, low=2.0, high=2.0)
    """
    table = _checked(scores)
    if table.ndim > 2:
        raise ShapeError(f"scores have shape {table.shape}: give (runs,) or (runs, strata)")
    if resamples < 1:
        raise ConfigError(f"{resamples} resamples were asked for: give at least 1, better 2000")
    tail = _tail(level)
    table = table.reshape(len(table), -1)
    values = np.concatenate([statistic(block, axis=1) for block in _resampled(table, seed, resamples)])
    low, high = np.quantile(values, [tail, 1 - tail])
    return Interval(float(statistic(table.reshape(1, -1), axis=1)[0]), float(low), float(high))


def probability_of_improvement(
    scores: ArrayLike, others: ArrayLike, *, seed: int = 0, level: float = 0.95, resamples: int = 2000
) -> Interval:
    """Return how likely a run (n,) of one kind scores higher than a run (m,) of the other, with a bootstrap interval.

    Ties count one half. As in Agarwal et al. 2021, for one task.

    >>> probability_of_improvement([2.0, 3.0], [1.0, 2.0]).estimate
    0.875
    """
    first, second = _checked(scores).ravel(), _checked(others).ravel()
    higher = (first[:, None] > second) + 0.5 * (first[:, None] == second)  # (n, m)
    draws = generator(seed, Purpose.SAMPLE, agent=_NO_AGENT)
    rows = (draws.random((resamples, len(first))) * len(first)).astype(np.intp)
    columns = (draws.random((resamples, len(second))) * len(second)).astype(np.intp)
    values = [float(higher[np.ix_(r, c)].mean()) for r, c in zip(rows, columns, strict=True)]
    low, high = np.quantile(values, [_tail(level), 1 - _tail(level)])
    return Interval(float(higher.mean()), float(low), float(high))


def _resampled(table: Floats, seed: int, resamples: int) -> list[Floats]:
    """Resample (runs, strata): return blocks of (B, runs · strata) with `resamples` rows in total."""
    runs, strata = table.shape
    draws = generator(seed, Purpose.SAMPLE, agent=_NO_AGENT)
    rows = max(1, _BLOCK // table.size)
    blocks = []
    for first in range(0, resamples, rows):
        count = min(rows, resamples - first)
        chosen = (draws.random((count, runs, strata)) * runs).astype(np.intp)
        blocks.append(table[chosen, np.arange(strata)].reshape(count, -1))
    return blocks


def mean_interval(samples: ArrayLike, *, level: float = 0.95) -> Interval:
    """Return the mean of (n,) samples with Student's t-interval; the bounds are NaN for a single sample."""
    values = _checked(samples)
    if values.ndim != 1:
        raise ShapeError(f"samples have shape {values.shape}: give (n,)")
    mean, half = mean_half_width(values[:, None], level=level)
    return Interval(float(mean[0]), float(mean[0] - half[0]), float(mean[0] + half[0]))


def mean_half_width(samples: Floats, *, level: float = 0.95) -> tuple[Floats, Floats]:
    """Return means (E,) of (n, E) samples and half widths (E,) of their t-intervals; the widths are NaN for n = 1."""
    count = samples.shape[0]
    mean = samples.mean(axis=0)
    tail = _tail(level)
    if count < 2:
        return mean, np.full_like(mean, np.nan)
    return mean, student_quantile(1 - tail, count - 1) * samples.std(axis=0, ddof=1) / math.sqrt(count)


@lru_cache(maxsize=256)
def student_quantile(probability: float, freedom: int) -> float:
    """Return a quantile of Student's t for a probability in (0.5, 1) and whole degrees of freedom.

    >>> round(student_quantile(0.975, 3), 6)
    3.182446
    """
    if not 0.5 < probability < 1 or freedom < 1:
        raise ConfigError(
            f"Student's quantile of {probability} with {freedom} degrees of freedom was asked for: give a "
            "probability between 0.5 and 1 and at least 1 degree"
        )
    if freedom > 500:  # Abramowitz & Stegun 26.7.5, the first two corrections of the normal quantile
        z = NormalDist().inv_cdf(probability)
        return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _two_sided(middle, freedom) < 2 * probability - 1 else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _two_sided(angle: float, freedom: int) -> float:
    """Return P(|T| < √freedom · tan(angle)), a finite sum of positive terms (Abramowitz & Stegun 26.7.3-4)."""
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0 if freedom == 1 else term
    for k in range(2 + odd, freedom, 2):
        term *= (k - 1) / k * math.cos(angle) ** 2
        total += term
    area = math.sin(angle) * total
    return 2 / math.pi * (angle + area) if odd else area


def _tail(level: float) -> float:
    if not 0 < level < 1:
        raise ConfigError(f"confidence level {level} is impossible: give one between 0 and 1, such as 0.95")
    return (1 - level) / 2


def _checked(scores: ArrayLike) -> Floats:
    values = np.asarray(scores, np.float64)
    if values.ndim == 0 or values.size == 0:
        raise ShapeError(f"scores have shape {values.shape}: give at least one, in an array")
    if not np.isfinite(values).all():
        invalid = np.count_nonzero(~np.isfinite(values))
        raise NonFiniteError(f"{invalid} of {values.size} scores are NaN or infinite: leave them out")
    return values
