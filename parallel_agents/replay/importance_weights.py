"""The mathematics of class-weighted sampling: pure functions without state.

Symbols, for K classes and a batch of B:

    natural   (K,)  pi_k   share of class k in the buffer, or its row count (normalised here)
    shares    (K,)  q_k    share of class k in a batch
    ratio     (B,)  N P(i) how much more often a row is drawn than by uniform sampling
    weights   (B,)  w_i    importance weights: (N P(i))^-beta, optionally over their largest value in the buffer

A row of class k is drawn with P(i) = q_k / n_k, so N P(i) = q_k / pi_k. At beta = 1 the mean of w f over a batch has
the expectation of f over the buffer, whatever the shares are, if q_k > 0 wherever pi_k > 0 (Kahn and Marshall 1953).
Annealed beta and the division by the largest weight follow Schaul et al. 2016 (prioritised experience replay), with one
difference: the largest weight is that of the whole buffer, a constant. The largest weight of the batch is random and
depends on the batch, which biases the mean by O(1/B).

>>> shares = batch_shares([100, 900], [5.0, 1.0])
>>> shares.round(3).tolist()
[0.357, 0.643]
>>> corrections(class_ratios([100, 900], shares), beta=1.0).round(2).tolist()
[0.28, 1.4]
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from parallel_agents.core.compiled import njit
from parallel_agents.core.errors import ConfigError, ContractError, NonFiniteError, ShapeError
from parallel_agents.core.types import Floats, Ints
from parallel_agents.kernels.functions import power, powers

_ROUNDING = 1e-12


def batch_shares(
    natural: ArrayLike,
    multipliers: ArrayLike,
    *,
    alpha: float = 1.0,
    temperature: float = 1.0,
    rare: int = 0,
    minimum: float = 0.0,
    target: float | None = None,
) -> Floats:
    """Return batch shares (K,) from natural shares (K,) and multipliers (K,): q_k ~ pi_k m_k^(alpha / temperature).

    A `target` fixes the share of class `rare`; otherwise that share is at least `minimum`. Either way the other classes
    divide the rest in proportion, so that corrections computed from the result are exact. A class without rows gets no
    share, and a single class gets all of it. With the spread of each class as its multiplier these are the shares that
    make a stratified mean least noisy (Neyman 1934).
    """
    shares = _normalised(natural)
    strengths = _vector("multipliers", multipliers)
    _same_length("natural", shares, "multipliers", strengths)
    if not np.all((strengths > 0) & (strengths < np.inf)):
        raise ConfigError(f"multipliers {strengths.tolist()} hold one that is not positive and finite")
    # Relative to the largest: equal multipliers are then exactly 1 and leave the natural shares bit for bit.
    shares = _normalised(shares * powers(strengths / strengths.max(), alpha / temperature))
    if shares[rare] > 0.0:
        if target is not None:
            return with_share(shares, rare, target)
        if shares[rare] < minimum:
            return with_share(shares, rare, minimum)
    return shares


def with_share(shares: Floats, which: int, share: float) -> Floats:
    """Return shares (K,) with one class set to `share` and the others scaled to the rest; a single class keeps 1."""
    others = shares.sum() - shares[which]
    if others <= 0.0:
        return shares
    result: Floats = shares * ((1.0 - share) / others)
    result[which] = share
    return result


def lifts(value_shares: ArrayLike, population_shares: ArrayLike) -> Floats:
    """Return multipliers (K,) that draw each class by its share of the value: value share over population share.

    >>> lifts([0.5, 0.5], [0.1, 0.9]).round(3).tolist()
    [5.0, 0.556]
    """
    value, population = _normalised(value_shares), _normalised(population_shares)
    _same_length("value shares", value, "population shares", population)
    if not np.all((value > 0) & (population > 0)):
        raise ConfigError(
            f"value shares {value.tolist()} and population shares {population.tolist()} must all be above 0"
        )
    return value / population


def class_ratios(natural: ArrayLike, shares: Floats) -> Floats:
    """Return N P (K,) of the rows of each class: q_k / pi_k; infinity for a class without rows, which then weighs 0."""
    population = _normalised(natural)
    _same_length("natural", population, "shares", shares)
    lost = np.flatnonzero((population > 0) & (shares <= 0))
    if lost.size:
        raise ContractError(f"classes {lost.tolist()} hold rows but are never drawn: no weight can correct that")
    return np.divide(shares, population, out=np.full_like(shares, np.inf), where=population > 0)


def corrections(ratio: ArrayLike, beta: float, *, limit: float | None = None) -> Floats:
    """Return importance weights min((N P)^-beta, limit), of the shape of N P.

    The smallest N P in a buffer has the largest weight; divided by that, weights lie in (0, 1].
    """
    ratios = np.asarray(ratio, np.float64)
    weights: Floats = powers(ratios.reshape(-1), -beta).reshape(ratios.shape)
    return weights if limit is None else np.minimum(weights, limit)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def weigh(
    classes: Ints,
    density: Floats,
    ratios: Floats,
    least: Floats,
    beta: float,
    limit: float,
    normalise: bool,
    weights: Floats,
    drawn: Ints,
) -> tuple[float, float, float]:
    """Fill in the importance weights (B,) of drawn rows, and add the rows of each class to `drawn` (K,).

    N P of a row is ratios (K,) of its class times its density (B,); `least` (K,) is the smallest density of each class.
    Both are empty if rows are drawn uniformly within their class. Return the scale of normalisation, the mean weight
    that the limit cut off, and the effective sample size (Kish 1965).
    """
    even = len(density) == 0
    full = powers(ratios, -beta)  # once per class, not once per row
    largest = 0.0
    for k in range(len(full)):
        largest = max(largest, full[k] if even else power(ratios[k] * least[k], -beta))
    scale = 1.0 / min(largest, limit) if normalise else 1.0
    cut, total, squares = 0.0, 0.0, 0.0
    for i in range(len(classes)):
        weight = full[classes[i]] if even else power(ratios[classes[i]] * density[i], -beta)
        kept = min(weight, limit)
        cut += weight - kept
        weights[i] = scale * kept
        total += weights[i]
        squares += weights[i] * weights[i]
        drawn[classes[i]] += 1
    return scale, cut / len(classes), total * total / squares


def self_normalised(weights: ArrayLike) -> Floats:
    """Return weights (B,) scaled to mean 1: no constant needs to be known, at the price of a bias of O(1/B)."""
    w = _weights(weights)
    return w / float(w.mean())


class Clipped(NamedTuple):
    """Clipped weights, and the mean weight cut off: |bias of the mean of w f| <= `missing` * max |f|."""

    weights: Floats
    missing: float


def clip_weights(weights: ArrayLike, limit: float, *, shares: ArrayLike | None = None) -> Clipped:
    """Return weights clipped at `limit`, with the mean weight that was cut off.

    For weights (K,) of classes drawn with `shares` (K,) that mean is exact; for the weights (n,) of samples it is
    estimated by their average. The weights must have mean 1, not be divided by a maximum.

    >>> clip_weights([0.2, 1.4], 1.0, shares=[0.5, 0.5]).missing.__round__(3)
    0.2
    """
    w = _weights(weights)
    if not limit > 0:
        raise ConfigError(f"a weight limit of {limit} leaves nothing: give a number above 0")
    clipped = np.minimum(w, limit)
    chances = np.full(w.shape, 1.0 / w.size) if shares is None else _normalised(shares)
    _same_length("weights", w, "shares", chances)
    return Clipped(clipped, float(chances @ (w - clipped)))


def effective_sample_size(weights: ArrayLike) -> float:
    """Return how many equally weighted samples the weighted ones (B,) are worth: (sum w)^2 / sum w^2 (Kish 1965)."""
    w = _weights(weights)
    return float(w.sum() ** 2 / (w @ w))


def expected_ess_share(shares: ArrayLike, weights: ArrayLike) -> float:
    """Return the effective sample size over B to which classes drawn with shares (K,) and weights (K,) tend.

    >>> round(expected_ess_share([0.5, 0.5], [0.2, 1.8]), 3)
    0.61
    """
    q, w = _normalised(shares), _weights(weights)
    _same_length("shares", q, "weights", w)
    return float((q @ w) ** 2 / (q @ (w * w)))


def annealed_beta(update: int, start: float, frames: int | None) -> float:
    """Return beta at an update: linear from `start` to 1 over `frames` updates; constant without `frames`."""
    if frames is None:
        return start
    return min(1.0, start + (1.0 - start) * update / frames)


def corrected_mean(values: Any, weights: Any) -> Any:
    """Return the corrected mean of per-sample values (B, ...): sum_i w_i v_i / B, of shape (...).

    `values` are losses (B,) or gradients (B, ...), as a numpy array or as a torch tensor, whose graph is kept. Each
    sample is weighted once, before the mean: no factor on a mean that is already taken could correct it.
    """
    shape, factors = tuple(values.shape), _like(values, weights)
    if factors.ndim != 1 or shape[:1] != tuple(factors.shape):
        raise ShapeError(
            f"values of shape {shape} do not hold one entry for each of the weights of shape "
            f"{tuple(factors.shape)}: give per-sample losses or gradients, batch first; a gradient that is "
            "already averaged cannot be corrected"
        )
    return (values * factors.reshape(-1, *(1 for _ in shape[1:]))).sum(0) / shape[0]


def correction_effect(values: ArrayLike, weights: ArrayLike) -> float:
    """Return how far correction moves the mean of values (B, ...): |self-normalised - plain| / |plain|."""
    v = np.asarray(values, np.float64)
    plain = np.linalg.norm(v.mean(0))
    moved = np.linalg.norm(corrected_mean(v, self_normalised(weights)) - v.mean(0))
    return float(moved / plain) if plain > 0 else float(moved > 0)


class EffectiveSampleSizeWarning(UserWarning):
    """A few weights carry a batch or a log: it is worth far fewer samples than it holds."""


def warn_of_collapse(size: float, count: int, floor: float, advice: str) -> None:
    """Warn the caller's caller if an effective `size` of `count` samples lies below the share `floor`."""
    if size < floor * count:
        warnings.warn(
            f"{count} samples are worth {size:.1f}, a few weights carry them: {advice}",
            EffectiveSampleSizeWarning,
            stacklevel=3,
        )


@dataclass(frozen=True)
class Estimate:
    """A weighted mean and its errors: what a log of one policy says about another."""

    mean: float
    error: float
    """standard error"""
    effective_share: float
    """effective sample size over sample size"""
    largest_weight: float
    missing: float
    """mean weight that clipping cut off: the mean may be wrong by this times the largest |value|"""

    def interval(self, z: float = 1.96) -> tuple[float, float]:
        """Return the confidence interval of z standard errors; 1.96 gives 95 %."""
        return self.mean - z * self.error, self.mean + z * self.error


def weighted_estimate(
    values: ArrayLike,
    weights: ArrayLike,
    *,
    limit: float | None = None,
    self_normalised: bool = False,
    ess_floor: float = 0.1,
) -> Estimate:
    """Return the weighted mean of values (n,) with weights (n,) of mean 1, such as target over logging probabilities.

    `limit` clips the weights; `self_normalised` divides by their sum instead of n. An effective sample size below
    `ess_floor` of n gives an `EffectiveSampleSizeWarning`: do not trust the interval then.

    >>> estimate = weighted_estimate([0.0, 1.0, 1.0, 0.0], [0.5, 1.5, 1.5, 0.5])
    >>> estimate.mean, round(estimate.effective_share, 2)
    (0.75, 0.8)
    """
    v, full = np.asarray(values, np.float64), np.asarray(weights, np.float64)
    if v.ndim != 1 or v.shape != full.shape or v.size < 2:
        raise ShapeError(f"values of shape {v.shape} and weights of shape {full.shape}: give (n,) each, n >= 2")
    if not np.isfinite(v).all():
        raise NonFiniteError("values hold NaN or infinity: no mean follows from them")
    w, missing = clip_weights(full, np.inf if limit is None else limit)
    if self_normalised:
        mean = float(w @ v / w.sum())
        error = float(np.sqrt(w**2 @ (v - mean) ** 2) / w.sum())
    else:
        mean = float((w * v).mean())
        error = float((w * v).std(ddof=1) / np.sqrt(v.size))
    size = effective_sample_size(w)
    warn_of_collapse(size, v.size, ess_floor, "clip them, or log with a policy closer to the target")
    return Estimate(mean, error, size / v.size, float(w.max()), missing)


def _like(values: Any, weights: Any) -> Any:
    """Return the weights as an array or tensor of the type of the values."""
    if isinstance(values, np.ndarray):
        return _weights(weights).astype(values.dtype, copy=False)
    import torch  # loaded already, since values is a tensor; importing this module must not load it

    return torch.as_tensor(weights, dtype=values.dtype, device=values.device)


def _vector(name: str, values: ArrayLike) -> Floats:
    """Return numbers (n,) as float64; raise unless there is at least one."""
    result = np.asarray(values, np.float64)
    if result.ndim != 1 or result.size == 0:
        raise ShapeError(f"{name} has shape {result.shape}: give one number per entry, shape (n,), n >= 1")
    return result


def _weights(values: ArrayLike) -> Floats:
    """Return weights (n,); raise unless they are finite, not negative and not all 0."""
    result = _vector("weights", values)
    if not (np.isfinite(result).all() and result.min() >= 0 and result.any()):
        raise NonFiniteError("weights must be finite, not negative and not all 0: check the shares they come from")
    return result


def _normalised(values: ArrayLike) -> Floats:
    """Return values (n,) over their sum; values that add up to 1 but for rounding stay unchanged in every bit."""
    result = _vector("shares", values)
    total = float(result.sum())
    if not (0 < total < np.inf and result.min() >= 0):
        raise ConfigError(f"shares {result.tolist()} must be finite, not negative and not all 0")
    return result if abs(total - 1.0) < _ROUNDING else result / total


def _same_length(first: str, a: Floats, second: str, b: Floats) -> None:
    """Raise unless two vectors have one entry per class each."""
    if a.shape != b.shape:
        raise ShapeError(f"{first} has {a.size} entries and {second} has {b.size}: give one of each per class")
