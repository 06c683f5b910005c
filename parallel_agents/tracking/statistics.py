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
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallel_agents.core.errors import ConfigError, NonFiniteError, ShapeError
from parallel_agents.core.seeding import Purpose, generator

Floats = NDArray[np.float64]
_NO_AGENT = 2**32 - 1  # the last agent id, which no agent has: these draws are not those of any agent
_BLOCK = 2**22  # resampled values in memory at a time
_TAIL = 0.025
RESAMPLES = 2000


class Interval(NamedTuple):
    """An estimate and its confidence interval."""

    estimate: float
    low: float
    high: float


def interquartile_mean(scores: ArrayLike) -> float:
    """Return the mean of the middle half of all scores; floor(n/4) are cut at either end.

    As in Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice".
    """
    return float(_middle_means(_checked(scores).reshape(1, -1))[0])


def _middle_means(rows: Floats) -> Floats:
    """Return the interquartile mean of each row (r, n)."""
    count = rows.shape[1]
    return np.asarray(np.sort(rows, axis=1)[:, count // 4 : count - count // 4].mean(axis=1))


def bootstrap_interval(scores: ArrayLike, *, seed: int = 0) -> Interval:
    """Return the interquartile mean of (n,) scores with its 95 % percentile interval by bootstrap (Efron 1979).

    Equal seeds give equal intervals.

    >>> bootstrap_interval([2.0, 2.0, 2.0])
    Interval(estimate=2.0, low=2.0, high=2.0)
    """
    values = _one_axis(scores)
    draws, rows = generator(seed, Purpose.SAMPLE, agent=_NO_AGENT), max(1, _BLOCK // len(values))
    blocks = [min(rows, RESAMPLES - first) for first in range(0, RESAMPLES, rows)]
    found = [_middle_means(values[_resampled(draws, count, len(values))]) for count in blocks]
    return _percentiles(interquartile_mean(values), np.concatenate(found))


def probability_of_improvement(scores: ArrayLike, others: ArrayLike, *, seed: int = 0) -> Interval:
    """Return how likely a run (n,) of one kind scores higher than a run (m,) of the other, with a bootstrap interval.

    Ties count one half. As in Agarwal et al. 2021, for one task.

    >>> probability_of_improvement([2.0, 3.0], [1.0, 2.0]).estimate
    0.875
    """
    first, second = _one_axis(scores), _one_axis(others)
    higher = (first[:, None] > second) + 0.5 * (first[:, None] == second)  # (n, m)
    draws = generator(seed, Purpose.SAMPLE, agent=_NO_AGENT)
    rows, columns = (_resampled(draws, RESAMPLES, len(values)) for values in (first, second))
    values = [float(higher[np.ix_(r, c)].mean()) for r, c in zip(rows, columns, strict=True)]
    return _percentiles(float(higher.mean()), np.array(values))


def _resampled(draws: np.random.Generator, count: int, n: int) -> NDArray[np.intp]:
    """Return `count` rows of n places, drawn with replacement."""
    return (draws.random((count, n)) * n).astype(np.intp)


def _percentiles(estimate: float, resampled: Floats) -> Interval:
    low, high = np.quantile(resampled, [_TAIL, 1 - _TAIL])
    return Interval(estimate, float(low), float(high))


def mean_interval(samples: ArrayLike) -> Interval:
    """Return the mean of (n,) samples with Student's 95 % t-interval; the bounds are NaN for a single sample."""
    mean, half = mean_half_width(_one_axis(samples)[:, None])
    return Interval(float(mean[0]), float(mean[0] - half[0]), float(mean[0] + half[0]))


def mean_half_width(samples: Floats) -> tuple[Floats, Floats]:
    """Return means (E,) of (n, E) samples and half widths (E,) of their 95 % t-intervals, NaN for n = 1."""
    count = samples.shape[0]
    mean = samples.mean(axis=0)
    if count < 2:
        return mean, np.full_like(mean, np.nan)
    return mean, student_quantile(1 - _TAIL, count - 1) * samples.std(axis=0, ddof=1) / math.sqrt(count)


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


def _one_axis(scores: ArrayLike) -> Floats:
    values = _checked(scores)
    if values.ndim != 1:
        raise ShapeError(f"scores have shape {values.shape}: give (n,)")
    return values


def _checked(scores: ArrayLike) -> Floats:
    values = np.asarray(scores, np.float64)
    if values.ndim == 0 or values.size == 0:
        raise ShapeError(f"scores have shape {values.shape}: give at least one, in an array")
    if not np.isfinite(values).all():
        invalid = np.count_nonzero(~np.isfinite(values))
        raise NonFiniteError(f"{invalid} of {values.size} scores are NaN or infinite: leave them out")
    return values
