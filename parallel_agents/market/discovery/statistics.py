"""Estimation by scores: find the parameters at which the scores of all rows add up to nothing.

Every model here is an M-estimator. Its covariance is the sandwich H⁻¹ (Σ s sᵀ) H⁻¹, where the scores s are first
added up within a cluster (a user, a day): rows of one cluster may depend on each other (Liang and Zeger 1986).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parallel_agents.errors import RunError
from parallel_agents.market.discovery.estimates import normal_cdf

__all__ = ["Fit", "dummies", "linear", "normal", "poisson", "probit", "weibull"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_RIDGE = 1e-3  # keeps a level without any event finite, with an interval that says so
_ROUNDS = 100
_SMALL = 1e-8
_STEP = 1e-6
_GROUPS, _STEPS = 40, 5
_FEW = (1.685 / 1.645) ** 2  # Student's 95 % point for that many groups over the normal's


@dataclass(frozen=True, eq=False)
class Fit:
    """Parameters (p,) and their covariance (p, p)."""

    values: Floats
    covariance: Floats

    @property
    def errors(self) -> Floats:
        """Shape (p,): standard errors."""
        return np.sqrt(np.maximum(np.diag(self.covariance), 0.0))

    def along(self, directions: Floats) -> Fit:
        """The fit of linear combinations, one per row of `directions` (q, p)."""
        return Fit(directions @ self.values, directions @ self.covariance @ directions.T)


def dummies(levels: Ints, count: int, *, drop: int | None = None) -> Floats:
    """Indicator columns (rows, count), without the reference level `drop`; a negative level is in no column."""
    table = np.zeros((len(levels), count))
    known = levels >= 0
    table[np.flatnonzero(known), levels[known]] = 1.0
    return table if drop is None else np.delete(table, drop, axis=1)


def _sandwich(hessian: Floats, scores: Floats, clusters: Ints) -> Floats:
    """H⁻¹ (Σ s sᵀ) H⁻¹ with the small-sample factor G / (G − p) of G clusters that say anything of p parameters."""
    groups = int(clusters.max()) + 1
    summed = np.stack([np.bincount(clusters, column, groups) for column in scores.T], axis=1)
    bread = np.linalg.pinv(hessian)
    live = int(np.count_nonzero(np.abs(summed).sum(axis=1) > _SMALL))
    factor = live / max(live - len(hessian), 1)
    return np.asarray(bread @ (summed.T @ summed) @ bread * factor)


def _regress(
    x: Floats,
    pull: Callable[[Floats], tuple[Floats, Floats]],
    weights: Floats,
    clusters: Ints,
    start: Floats,
    precision: Floats | float = _RIDGE,
) -> Fit:
    """Newton's method for scores weight · pull(x β) · x; `pull` gives the derivative and the curvature by η."""
    beta, ridge = start.copy(), np.diag(np.broadcast_to(precision, x.shape[1]))
    for _ in range(_ROUNDS):
        slope, curve = pull(x @ beta)
        gradient = x.T @ (weights * slope) - ridge @ beta
        hessian = (x * (weights * curve)[:, None]).T @ x + ridge
        step = np.linalg.solve(hessian, gradient)
        beta += step * min(1.0, 2.0 / max(float(np.abs(step).max()), _SMALL))
        if float(np.abs(step).max()) < _SMALL:
            return Fit(beta, _sandwich(hessian, x * (weights * slope)[:, None], clusters))
    raise RunError("a regression did not converge: the export may be too small, or a column constant")


def linear(x: Floats, y: Floats, weights: Floats, clusters: Ints) -> Fit:
    """Weighted least squares: x (rows, p), y (rows,)."""
    return _regress(x, lambda eta: (y - eta, np.ones_like(eta)), weights, clusters, np.zeros(x.shape[1]))


def poisson(
    x: Floats,
    y: Floats,
    exposure: Floats,
    weights: Floats,
    clusters: Ints,
    precision: Floats | float = _RIDGE,
) -> Fit:
    """E y = exposure · exp(x β). Right for any y ≥ 0 with that mean, since the covariance is a sandwich."""

    def pull(eta: Floats) -> tuple[Floats, Floats]:
        mean = exposure * np.exp(np.minimum(eta, 50.0))
        return y - mean, mean

    rate = max(float(weights @ y), 0.5) / max(float(weights @ exposure), _SMALL)
    constant = np.linalg.pinv(x.T @ x) @ x.sum(axis=0)  # the combination of columns that is 1 everywhere
    return _regress(x, pull, weights, clusters, np.asarray(constant * math.log(rate), np.float64), precision)


def probit(x: Floats, successes: Floats, trials: Floats, clusters: Ints) -> Fit:
    """successes of trials with probability Φ(x β): Fisher scoring."""

    def pull(eta: Floats) -> tuple[Floats, Floats]:
        eta = np.clip(eta, -6.0, 6.0)
        p = np.clip(normal_cdf(eta), 1e-9, 1.0 - 1e-9)
        density = np.exp(-eta * eta / 2.0) / math.sqrt(2.0 * math.pi)
        pull = density / (p * (1.0 - p))
        return (successes - trials * p) * pull, trials * density * pull

    return _regress(x, pull, np.ones(len(x)), clusters, np.zeros(x.shape[1]))


def _over_classes(pull: Floats, design: Floats) -> Floats:
    """Σ over classes of pull (rows, K) × design (rows, K, p): (rows, p)."""
    return np.asarray(np.einsum("rk,rkp->rp", pull, design))


def _first_guess(design: Floats, prior: Floats, y: Floats, precision: Floats) -> Floats:
    """Least squares of y (rows,) on design (rows, K, p) by prior weights."""
    p = design.shape[2]
    pulled = design * prior[..., None]
    gram = np.einsum("rkp,rkq->pq", pulled, design) + np.diag(precision[:p])
    return np.asarray(np.linalg.solve(gram, np.einsum("rkp,r->p", pulled, y)), np.float64)


def weibull(
    scale: Floats,
    shape: Floats,
    delay: Floats,
    watched: Floats,
    prior: Floats,
    clusters: Ints,
    precision: Floats,
) -> Fit:
    """Weibull delays seen only if they end within the time watched: parameters of log scale, then of log shape.

    `scale` (rows, K, a) and `shape` (rows, K, b) are the designs, should the row belong to class k; `prior` (rows, K)
    is the chance that it does. A seen delay has the density Σ prior f(delay) / Σ prior F(watched), so nothing need be
    known of those who never convert; leaving F out would take late buyers for none. `precision` (a + b,) is that of
    a normal prior about 0: where hardly any delay could be seen to its end, the likelihood alone has no maximum.
    """
    a = scale.shape[2]
    x, limit = np.log(np.maximum(delay, 1e-6))[:, None], np.log(watched)[:, None]

    def scores(beta: Floats) -> Floats:
        log_scale, k = scale @ beta[:a], np.exp(shape @ beta[a:])
        z = np.clip(k * (x - log_scale), -60.0, 6.0)
        y = np.clip(k * (limit - log_scale), -60.0, 6.0)
        grow, e = np.exp(z), np.exp(y)
        mass = -np.expm1(-e)
        density = prior * k * np.exp(z - grow)
        drawn = density / np.maximum(density.sum(axis=1, keepdims=True), 1e-300)
        reach = prior * mass / (prior * mass).sum(axis=1, keepdims=True)
        slope = e * np.exp(-e) / mass  # d log F / d y
        by_scale = k * (drawn * (grow - 1.0) + reach * slope)
        by_shape = drawn * (1.0 + z * (1.0 - grow)) - reach * y * slope
        return np.hstack([_over_classes(by_scale, scale), _over_classes(by_shape, shape)])

    start = np.concatenate([_first_guess(scale, prior, x[:, 0], precision), np.zeros(shape.shape[2])])
    return _newton(scores, start, clusters, precision)


def normal(mean: Floats, spread: Floats, y: Floats, prior: Floats, clusters: Ints, precision: Floats) -> Fit:
    """Normal values of unsure class: parameters of the mean, then of the log spread; shapes as in `weibull`."""
    a = mean.shape[2]

    def scores(beta: Floats) -> Floats:
        log_spread = spread @ beta[a:]
        z = (y[:, None] - mean @ beta[:a]) / np.exp(log_spread)
        level = np.log(prior) - log_spread - z * z / 2.0
        drawn = np.exp(level - level.max(axis=1, keepdims=True))
        drawn /= drawn.sum(axis=1, keepdims=True)
        by_mean, by_spread = drawn * z / np.exp(log_spread), drawn * (z * z - 1.0)
        return np.hstack([_over_classes(by_mean, mean), _over_classes(by_spread, spread)])

    centre = _first_guess(mean, prior, y, precision)
    rest = (prior * (y[:, None] - mean @ centre) ** 2).sum() / len(y)
    start = np.concatenate([centre, np.full(spread.shape[2], math.log(max(rest, 1e-6)) / 2.0)])
    return _newton(scores, start, clusters, precision)


def _newton(scores: Callable[[Floats], Floats], start: Floats, clusters: Ints, precision: Floats) -> Fit:
    """Damped Newton on the summed scores, the derivative by differences."""
    beta = start.copy()
    for _ in range(_ROUNDS):
        rows = scores(beta)
        total = rows.sum(axis=0) - precision * beta
        hessian = np.empty((len(beta), len(beta)))
        for i in range(len(beta)):
            shift = np.zeros_like(beta)
            shift[i] = _STEP
            hessian[:, i] = (rows - scores(beta + shift)).sum(axis=0) / _STEP
        hessian = (hessian + hessian.T) / 2.0 + np.diag(precision)
        lowest = float(np.linalg.eigvalsh(hessian)[0])
        lift = 1.0 - lowest if lowest <= 0.0 else 0.0  # far from the maximum the curvature may have the wrong sign
        step = np.linalg.solve(hessian + lift * np.eye(len(beta)), total)
        beta = beta + step * min(1.0, 0.7 / max(float(np.abs(step).max()), _SMALL))
        if float(np.abs(step).max()) < 1e-6 and not lift:
            return _jackknife(scores, beta, np.asarray(np.linalg.inv(hessian), np.float64), clusters, precision)
    raise RunError("a distribution of delays or values did not converge: the export holds too few purchases")


def _jackknife(
    scores: Callable[[Floats], Floats], beta: Floats, bread: Floats, clusters: Ints, precision: Floats
) -> Fit:
    """Estimate without a group of clusters at a time: bias removed, covariance by the spread (Quenouille, Tukey).

    A shape or a spread from few purchases is biased by a good part of its error. Each group's estimate is a few
    steps from the whole one, so the whole one's curvature serves for all.
    """
    order = np.unique(clusters, return_inverse=True)[1]
    groups = min(_GROUPS, int(order.max()) + 1)
    fold = order % groups
    left_out = np.empty((groups, len(beta)))
    for g in range(groups):
        kept, point = fold != g, beta
        for _ in range(_STEPS):
            point = point + bread @ (scores(point)[kept].sum(axis=0) - precision * point)
        left_out[g] = point
    centre = left_out.mean(axis=0)
    deviation = left_out - centre
    covariance = deviation.T @ deviation * ((groups - 1.0) / groups) * _FEW
    return Fit(beta - (groups - 1.0) * (centre - beta), covariance)
