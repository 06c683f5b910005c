"""Estimates with intervals, and the estimators that give them.

An `Estimate` is a number, its 90 % interval, how much data it rests on, and where it came from. Every model here is
an M-estimator: its parameters are those at which the scores of all rows add up to zero. Its covariance is the sandwich
H⁻¹ (Σ s sᵀ) H⁻¹, where the scores s are first added up within a cluster (a user, a day), since rows of one cluster may
depend on each other (Liang and Zeger 1986).

>>> e = Estimate.from_error(0.2, 0.05, "logit", count=64, source="example")
>>> e.low < 0.2 < e.high, e.quantile(0.5) == e.value, e.low <= e.quantile(1.0) <= e.high
(True, True, True)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from parallel_agents.core.compiled import njit
from parallel_agents.core.errors import NonFiniteError, RunError
from parallel_agents.core.types import Floats, Ints
from parallel_agents.kernels.functions import cospi, each, exp, log, normal_quantile, sinpi

Scale = Literal["linear", "log", "logit"]

LEVEL = 0.90
_Z = 1.6448536269514722  # the normal quantile of 0.95: half of the remaining probability lies above the interval

_TINY = 1e-9  # how near to its bounds a rate or a share may come
_RIDGE = 1e-3  # keeps a level without any event finite, with a wide interval
_MAX_ITERATIONS = 100
_TOLERANCE = 1e-8
_DIFFERENCE = 1e-6  # step of numerical derivatives
_JACKKNIFE_GROUPS, _JACKKNIFE_STEPS = 40, 5
_STUDENT_FACTOR = (1.685 / 1.645) ** 2  # Student's 95 % point for that many groups over the normal's, squared


@dataclass(frozen=True)
class Estimate:
    """A number with an interval that is symmetric on `scale`, so that shares stay shares and rates stay positive."""

    value: float
    low: float
    high: float
    scale: Scale
    count: int
    source: str

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.value, self.low, self.high))):
            raise NonFiniteError(f"estimate of {self.source}: {self.value} [{self.low}, {self.high}] is not finite")

    @classmethod
    def from_error(cls, value: float, error: float, scale: Scale, *, count: int, source: str) -> Estimate:
        """Return the estimate of a value with its standard error, both untransformed; interval by the delta method."""
        value = _clamp(float(value), scale)
        centre, slope = _transform(value, scale)
        half = _Z * float(error) * slope
        low, high = _transform_back(centre - half, scale), _transform_back(centre + half, scale)
        return cls(value, low, high, scale, int(count), source)

    @classmethod
    def from_log(cls, log_value: float, error: float, *, count: int, source: str) -> Estimate:
        """Return the estimate of a positive quantity from its logarithm and the standard error of that."""
        half = _Z * float(error)
        low, high = math.exp(log_value - half), math.exp(log_value + half)
        return cls(math.exp(log_value), low, high, "log", int(count), source)

    @classmethod
    def zero(cls, count: int, source: str) -> Estimate:
        """Return an effect of exactly 0: what is assumed where the data show none."""
        return cls(0.0, 0.0, 0.0, "linear", count, source)

    @staticmethod
    def z() -> float:
        """Return how many standard errors an interval reaches to either side."""
        return _Z

    @classmethod
    def one(cls, source: str) -> Estimate:
        """Return a factor of exactly 1: what is assumed where the data show none."""
        return cls(1.0, 1.0, 1.0, "log", 0, source)

    @classmethod
    def spread_of(cls, values: Floats, *, source: str) -> Estimate:
        """Return the median of positive values; the interval holds 90 % of the values, not of the median's error."""
        low, middle, high = np.quantile(values, [(1.0 - LEVEL) / 2.0, 0.5, (1.0 + LEVEL) / 2.0])
        return cls(float(middle), float(low), float(high), "log", len(values), source)

    def quantile(self, u: float) -> float:
        """Return the point at share u of the interval's normal distribution; it is never outside of the interval."""
        tail = (1.0 - LEVEL) / 2.0
        centre, _ = _transform(self.value, self.scale)
        z = normal_quantile(tail + LEVEL * u) / _Z
        edge = _transform(self.high if z > 0.0 else self.low, self.scale)[0]
        point = _transform_back(centre + abs(z) * (edge - centre), self.scale)
        return min(max(point, self.low), self.high)


def _clamp(value: float, scale: Scale) -> float:
    """Return the value, moved inside the open range of its scale."""
    if scale == "log":
        return max(value, _TINY)
    return min(max(value, _TINY), 1.0 - _TINY) if scale == "logit" else value


def _transform(value: float, scale: Scale) -> tuple[float, float]:
    """Return the value on its scale, and the derivative of the scale there."""
    value = _clamp(value, scale)
    if scale == "log":
        return log(value), 1.0 / value
    if scale == "logit":
        return log(value / (1.0 - value)), 1.0 / (value * (1.0 - value))
    return value, 1.0


def _transform_back(point: float, scale: Scale) -> float:
    """Return the value of a point on a scale."""
    if scale == "log":
        return float(exp(min(point, 700.0)))
    if scale == "logit":
        return float(1.0 / (1.0 + exp(-min(max(point, -700.0), 700.0))))
    return point


def function_of_totals(function: Callable[[Floats], Floats], rows: Floats) -> tuple[Floats, Floats]:
    """Return a smooth function of the column totals of rows (users, p), and the standard errors of its values.

    Linearisation: the variance is that of the sum over users of gradient · row (Woodruff 1971), with the
    gradient by central differences. Users are the independent units, so repeated visits need no correction.
    """
    totals = rows.sum(axis=0)
    value = np.atleast_1d(function(totals))
    step = 1e-5 * np.maximum(np.abs(totals), 1e-8)
    gradient = np.empty((len(value), len(totals)))
    for i, h in enumerate(step):
        shift = np.zeros_like(totals)
        shift[i] = h
        gradient[:, i] = (np.atleast_1d(function(totals + shift)) - np.atleast_1d(function(totals - shift))) / (2 * h)
    influence = rows @ gradient.T
    return value, np.sqrt(len(rows) * influence.var(axis=0, ddof=1) if len(rows) > 1 else np.zeros(len(value)))


def ratio_of_totals(top: Floats, bottom: Floats) -> tuple[float, float]:
    """Return Σ top / Σ bottom over independent units, and its standard error."""
    value, error = function_of_totals(lambda totals: totals[:1] / totals[1:], np.stack([top, bottom], axis=1))
    return value[0], error[0]


def ratio(top: Floats, bottom: Floats, scale: Scale, *, count: int, source: str) -> Estimate:
    """Return the estimate of Σ top / Σ bottom over independent units."""
    return Estimate.from_error(*ratio_of_totals(top, bottom), scale, count=count, source=source)


@njit(cache=True)  # type: ignore[untyped-decorator]
def normal_cdf(x: float) -> float:
    """Return the probability that a standard normal number is at most x."""
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


@dataclass(frozen=True, eq=False)
class Fit:
    """Fitted parameters (p,) and their covariance (p, p)."""

    values: Floats
    covariance: Floats

    @property
    def errors(self) -> Floats:
        """Shape (p,): standard errors."""
        return np.sqrt(np.maximum(np.diag(self.covariance), 0.0))

    def __getitem__(self, places: slice) -> Fit:
        """Return the fit of a run of parameters."""
        return Fit(self.values[places], self.covariance[places, places])

    def combine(self, directions: Floats) -> Fit:
        """Return the fit of linear combinations, one per row of `directions` (q, p)."""
        return Fit(directions @ self.values, directions @ self.covariance @ directions.T)

    def block(self, start: int, rows: Floats) -> Fit:
        """Return the fit of combinations `rows` (q, n) of the n parameters from `start` on."""
        directions = np.zeros((len(rows), len(self.values)))
        directions[:, start : start + rows.shape[1]] = rows
        return self.combine(directions)

    @classmethod
    def averaged(cls, fits: Sequence[Fit], log_likelihoods: Sequence[float]) -> tuple[Fit, Floats]:
        """Return the mean of fits by likelihood, the differences between them as further errors, and their shares."""
        share = np.exp(np.array(log_likelihoods) - max(log_likelihoods))
        share /= share.sum()
        values = np.array([fit.values for fit in fits])
        mean = share @ values
        apart = (values - mean) * np.sqrt(share)[:, None]
        covariance = np.tensordot(share, np.array([fit.covariance for fit in fits]), 1) + apart.T @ apart
        return cls(mean, covariance), share

    def estimate(self, i: int, *, count: float, source: str) -> Estimate:
        """Return parameter i as an estimate."""
        return Estimate.from_error(self.values[i], self.errors[i], "linear", count=int(count), source=source)

    def log_estimate(self, i: int, *, count: float, source: str) -> Estimate:
        """Return the exponential of parameter i as an estimate."""
        return Estimate.from_log(self.values[i], self.errors[i], count=int(count), source=source)


def student_factor(free: int) -> float:
    """Return by how much Student's 95 % point for some degrees of freedom exceeds the normal's, nearly.

    >>> round(student_factor(13) * 1.645, 2)
    1.77
    """
    n = max(free, 2)
    return 1.0 + (_Z**2 + 1.0) / (4.0 * n) + (5.0 * _Z**4 + 16.0 * _Z**2 + 3.0) / (96.0 * n**2)


def hour_waves() -> tuple[Floats, Floats]:
    """Return the sine (24,) and the cosine (24,) of the middle of every hour of a day."""
    half_days = (np.arange(24) + 0.5) / 12.0
    return each(sinpi, half_days), each(cospi, half_days)


def dummies(levels: Ints, count: int, *, drop: int | None = None) -> Floats:
    """Return indicator columns (rows, count), without that of level `drop`; a negative level is in no column."""
    table = np.zeros((len(levels), count))
    known = levels >= 0
    table[np.flatnonzero(known), levels[known]] = 1.0
    return table if drop is None else np.delete(table, drop, axis=1)


def _sandwich(hessian: Floats, scores: Floats, clusters: Ints) -> Floats:
    """Return H⁻¹ (Σ s sᵀ) H⁻¹ times G / (G − p), for G clusters with any score and p parameters."""
    groups = int(clusters.max()) + 1
    summed = np.stack([np.bincount(clusters, column, groups) for column in scores.T], axis=1)
    bread = np.linalg.pinv(hessian)
    informative = int(np.count_nonzero(np.abs(summed).sum(axis=1) > _TOLERANCE))
    factor = informative / max(informative - len(hessian), 1)
    return np.asarray(bread @ (summed.T @ summed) @ bread * factor)


def regress(
    x: Floats,
    derivatives: Callable[[Floats], tuple[Floats, Floats]],
    clusters: Ints,
    start: Floats,
    precision: Floats | float = _RIDGE,
) -> Fit:
    """Fit β by Newton's method; `derivatives` gives slope and curvature of a row's log likelihood by η = x β.

    clusters: rows that may depend on each other. precision: of a normal prior about 0, as for random effects.
    """
    beta, ridge = start.copy(), np.diag(np.broadcast_to(precision, x.shape[1]))
    for _ in range(_MAX_ITERATIONS):
        slope, curvature = derivatives(x @ beta)
        gradient = x.T @ slope - ridge @ beta
        hessian = (x * curvature[:, None]).T @ x + ridge
        step = np.linalg.solve(hessian, gradient)
        beta += step * min(1.0, 2.0 / max(float(np.abs(step).max()), _TOLERANCE))
        if float(np.abs(step).max()) < _TOLERANCE:
            return Fit(beta, _sandwich(hessian, x * slope[:, None], clusters))
    raise RunError("a regression did not converge: the export may be too small, or a column constant")


def fit_poisson(
    x: Floats, y: Floats, exposure: Floats, weights: Floats, clusters: Ints, precision: Floats | float = _RIDGE
) -> Fit:
    """Fit E y = exposure · exp(x β). Right for any y ≥ 0 with that mean, since the covariance is a sandwich."""

    def derivatives(eta: Floats) -> tuple[Floats, Floats]:
        mean = exposure * np.exp(np.minimum(eta, 50.0))
        return weights * (y - mean), weights * mean

    rate = max(float(weights @ y), 0.5) / max(float(weights @ exposure), _TOLERANCE)
    constant = np.linalg.pinv(x.T @ x) @ x.sum(axis=0)  # the combination of columns that is 1 everywhere
    start = np.asarray(constant * math.log(rate), np.float64)
    return regress(x, derivatives, clusters, start, precision)


def fit_probit(x: Floats, successes: Floats, trials: Floats, clusters: Ints) -> Fit:
    """Fit successes of trials with probability Φ(x β), by Fisher scoring."""

    def derivatives(eta: Floats) -> tuple[Floats, Floats]:
        eta = np.clip(eta, -6.0, 6.0)
        p = np.clip(each(normal_cdf, eta), 1e-9, 1.0 - 1e-9)
        density = np.exp(-eta * eta / 2.0) / math.sqrt(2.0 * math.pi)
        per_success = density / (p * (1.0 - p))
        return (successes - trials * p) * per_success, trials * density * per_success

    return regress(x, derivatives, clusters, np.zeros(x.shape[1]))


def _least_squares_start(design: Floats, prior: Floats, y: Floats, precision: Floats) -> Floats:
    """Return the least squares fit of y (rows,) on design (rows, K, p), classes weighted by their prior."""
    p = design.shape[2]
    weighted = design * prior[..., None]
    gram = np.einsum("rkp,rkq->pq", weighted, design) + np.diag(precision[:p])
    return np.asarray(np.linalg.solve(gram, np.einsum("rkp,r->p", weighted, y)), np.float64)


def fit_weibull(
    scale: Floats, shape: Floats, delay: Floats, monitored: Floats, prior: Floats, clusters: Ints, precision: Floats
) -> Fit:
    """Fit Weibull delays seen only if they end within the time monitored: parameters of log scale, then of log shape.

    `scale` (rows, K, a) and `shape` (rows, K, b) are the designs, should the row belong to class k; `prior` (rows, K)
    is the probability that it does. A seen delay has the density Σ prior f(delay) / Σ prior F(monitored), so nothing
    need be known of those who never convert; leaving F out would take late buyers for none. `precision` (a + b,) is
    that of a normal prior about 0: where hardly any delay could be seen to its end, the likelihood alone has no
    maximum.
    """
    log_delay, log_limit = np.log(np.maximum(delay, 1e-6))[:, None], np.log(monitored)[:, None]

    def derivatives(log_scale: Floats, log_shape: Floats) -> tuple[Floats, Floats]:
        k = np.exp(log_shape)
        z = np.clip(k * (log_delay - log_scale), -60.0, 6.0)
        y = np.clip(k * (log_limit - log_scale), -60.0, 6.0)
        hazard, limit_hazard = np.exp(z), np.exp(y)
        mass = -np.expm1(-limit_hazard)
        density = prior * k * np.exp(z - hazard)
        posterior = density / np.maximum(density.sum(axis=1, keepdims=True), 1e-300)
        reach = prior * mass / (prior * mass).sum(axis=1, keepdims=True)
        slope = limit_hazard * np.exp(-limit_hazard) / mass  # d log F / d y
        by_scale = k * (posterior * (hazard - 1.0) + reach * slope)
        return by_scale, posterior * (1.0 + z * (1.0 - hazard)) - reach * y * slope

    centre = _least_squares_start(scale, prior, log_delay[:, 0], precision)
    start = np.concatenate([centre, np.zeros(shape.shape[2])])
    return _newton(derivatives, (scale, shape), start, clusters, precision)


def fit_normal(mean: Floats, spread: Floats, y: Floats, prior: Floats, clusters: Ints, precision: Floats) -> Fit:
    """Fit normal values of uncertain class: parameters of mean, then of log spread; shapes as in `fit_weibull`."""

    def derivatives(expected: Floats, log_spread: Floats) -> tuple[Floats, Floats]:
        z = (y[:, None] - expected) / np.exp(log_spread)
        level = np.log(prior) - log_spread - z * z / 2.0
        posterior = np.exp(level - level.max(axis=1, keepdims=True))
        posterior /= posterior.sum(axis=1, keepdims=True)
        return posterior * z / np.exp(log_spread), posterior * (z * z - 1.0)

    centre = _least_squares_start(mean, prior, y, precision)
    variance = (prior * (y[:, None] - mean @ centre) ** 2).sum() / len(y)
    start = np.concatenate([centre, np.full(spread.shape[2], math.log(max(variance, 1e-6)) / 2.0)])
    return _newton(derivatives, (mean, spread), start, clusters, precision)


def _newton(
    derivatives: Callable[[Floats, Floats], tuple[Floats, Floats]],
    designs: tuple[Floats, Floats],
    start: Floats,
    clusters: Ints,
    precision: Floats,
) -> Fit:
    """Find the zero of the summed scores by damped Newton steps, with their derivatives by differences.

    `derivatives` gives the slopes of a row's log likelihood by its two parameters in every class (rows, K), which
    follow from β by the `designs` (rows, K, p).
    """
    size = designs[0].shape[2]

    def scores(beta: Floats) -> Floats:
        slopes = derivatives(designs[0] @ beta[:size], designs[1] @ beta[size:])
        return np.hstack([np.einsum("rk,rkp->rp", *own) for own in zip(slopes, designs, strict=True)])

    beta = start.copy()
    for _ in range(_MAX_ITERATIONS):
        rows = scores(beta)
        total = rows.sum(axis=0) - precision * beta
        hessian = np.empty((len(beta), len(beta)))
        for i in range(len(beta)):
            shift = np.zeros_like(beta)
            shift[i] = _DIFFERENCE
            hessian[:, i] = (rows - scores(beta + shift)).sum(axis=0) / _DIFFERENCE
        hessian = (hessian + hessian.T) / 2.0 + np.diag(precision)
        lowest = float(np.linalg.eigvalsh(hessian)[0])
        lift = 1.0 - lowest if lowest <= 0.0 else 0.0  # far from the maximum the curvature may have the wrong sign
        step = np.linalg.solve(hessian + lift * np.eye(len(beta)), total)
        beta = beta + step * min(1.0, 0.7 / max(float(np.abs(step).max()), _TOLERANCE))
        if float(np.abs(step).max()) < 1e-6 and not lift:
            return _jackknife(scores, beta, np.asarray(np.linalg.inv(hessian), np.float64), clusters, precision)
    raise RunError("a distribution of delays or values did not converge: the export holds too few purchases")


def _jackknife(
    scores: Callable[[Floats], Floats], beta: Floats, bread: Floats, clusters: Ints, precision: Floats
) -> Fit:
    """Re-estimate without one group of clusters at a time, to remove bias and get a covariance (Quenouille, Tukey).

    A shape or a spread from few purchases is biased by a good part of its error. Each group's estimate is a few
    steps from the full one, so the curvature of the full one serves for all.
    """
    order = np.unique(clusters, return_inverse=True)[1]
    groups = min(_JACKKNIFE_GROUPS, int(order.max()) + 1)
    fold = order % groups
    left_out = np.empty((groups, len(beta)))
    for g in range(groups):
        kept, point = fold != g, beta
        for _ in range(_JACKKNIFE_STEPS):
            point = point + bread @ (scores(point)[kept].sum(axis=0) - precision * point)
        left_out[g] = point
    centre = left_out.mean(axis=0)
    deviation = left_out - centre
    covariance = deviation.T @ deviation * ((groups - 1.0) / groups) * _STUDENT_FACTOR
    return Fit(beta - (groups - 1.0) * (centre - beta), covariance)
