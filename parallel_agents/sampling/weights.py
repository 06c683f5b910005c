"""The mathematics of class-weighted sampling: pure functions, nothing kept.

Symbols, for K classes and a batch of B:

    natural   (K,)  pi_k   share of class k in the buffer, or its row count (normalised here)
    shares    (K,)  q_k    share of class k in a batch
    ratio     (B,)  N P(i) how much oftener a row is drawn than it would be by uniform sampling
    weights   (B,)  w_i    corrections: (N P(i))^-beta, optionally over their largest value in the buffer

A row of class k is drawn with P(i) = q_k / n_k, so N P(i) = q_k / pi_k and, at beta = 1, the mean of w f
over a batch has the expectation of f over the buffer, whatever the shares are, as long as q_k > 0 wherever
pi_k > 0 (Kahn and Marshall 1953). Annealed beta and the division by the largest weight follow Schaul et al.
2016 (prioritised experience replay), with one difference: the largest weight is that of the whole buffer, a
constant. The largest of the batch is random and goes with the batch, which biases the mean by O(1/B).

>>> shares = batch_shares([100, 900], [5.0, 1.0])
>>> shares.round(3).tolist()
[0.357, 0.643]
>>> corrections(class_ratios([100, 900], shares), beta=1.0).round(2).tolist()
[0.28, 1.4]
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallel_agents.compiled import njit
from parallel_agents.errors import ConfigError, ContractError, NonFiniteError, ShapeError

__all__ = [
    "Clipped",
    "annealed_beta",
    "batch_shares",
    "class_ratios",
    "clip_weights",
    "corrected_mean",
    "correction_effect",
    "corrections",
    "effective_sample_size",
    "expected_ess_share",
    "lifts",
    "neyman_shares",
    "self_normalised",
    "with_share",
]

Floats = NDArray[np.float64]

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
    """Batch shares (K,) from natural shares (K,) and multipliers (K,): q_k ~ pi_k m_k^(alpha / temperature).

    A `target` fixes the share of class `rare`; otherwise that share is at least `minimum`. Either way the
    other classes share the rest in proportion, so that corrections computed from the result are exact. A
    class without rows gets no share, and a class alone gets all of it.
    """
    shares = _normalised(natural)
    strengths = _vector("multipliers", multipliers)
    _same_length("natural", shares, "multipliers", strengths)
    if not np.all((strengths > 0) & (strengths < np.inf)):
        raise ConfigError(f"multipliers {strengths.tolist()} hold one that is not positive and finite")
    # Relative to the largest: equal multipliers are then exactly 1 and leave the natural shares bit for bit.
    shares = _normalised(shares * (strengths / strengths.max()) ** (alpha / temperature))
    if shares[rare] > 0.0:
        if target is not None:
            return with_share(shares, rare, target)
        if shares[rare] < minimum:
            return with_share(shares, rare, minimum)
    return shares


def with_share(shares: Floats, which: int, share: float) -> Floats:
    """Shares (K,) with one class set to `share` and the others scaled to the rest; a class alone keeps 1."""
    others = shares.sum() - shares[which]
    if others <= 0.0:
        return shares
    result: Floats = shares * ((1.0 - share) / others)
    result[which] = share
    return result


def neyman_shares(natural: ArrayLike, spreads: ArrayLike) -> Floats:
    """Shares (K,) that make a stratified mean least noisy: q_k ~ pi_k sigma_k (Neyman 1934).

    >>> neyman_shares([0.1, 0.9], [5.0, 1.0]).round(3).tolist()
    [0.357, 0.643]
    """
    return batch_shares(natural, spreads)


def lifts(value_shares: ArrayLike, population_shares: ArrayLike) -> Floats:
    """Multipliers (K,) that sample each class by its share of the value: value share over population share.

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
    """N P (K,) of the rows of each class: q_k / pi_k; infinite where a class has none: it weighs 0."""
    population = _normalised(natural)
    _same_length("natural", population, "shares", shares)
    lost = np.flatnonzero((population > 0) & (shares <= 0))
    if lost.size:
        raise ContractError(f"classes {lost.tolist()} hold rows but are never drawn: no weight can correct that")
    return np.divide(shares, population, out=np.full_like(shares, np.inf), where=population > 0)


def corrections(ratio: ArrayLike, beta: float, *, limit: float | None = None) -> Floats:
    """Corrections of any shape from N P of the same shape: min((N P)^-beta, limit).

    Those of the smallest N P in a buffer are the largest of all; divided by it, they lie in (0, 1].
    """
    weights = np.asarray(ratio, np.float64) ** -beta
    return weights if limit is None else np.minimum(weights, limit)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def weigh(
    classes: NDArray[np.int64],
    density: Floats,
    ratios: Floats,
    least: Floats,
    beta: float,
    limit: float,
    normalise: bool,
    weights: Floats,
    drawn: NDArray[np.int64],
) -> tuple[float, float, float]:
    """Fill in the corrections (B,) of drawn rows, and count the rows of each class (K,).

    N P of a row is ratios (K,) of its class times its density (B,); `least` (K,) is the smallest density of each class.
    Both are empty where rows are drawn uniformly within their class. Gives the scale of normalisation, the mean weight
    that the limit cut off, and the effective sample size (Kish 1965).
    """
    even = len(density) == 0
    full = ratios**-beta  # once per class, not once per row
    largest = 0.0
    for k in range(len(full)):
        largest = max(largest, full[k] if even else (ratios[k] * least[k]) ** -beta)
    scale = 1.0 / min(largest, limit) if normalise else 1.0
    cut, total, squares = 0.0, 0.0, 0.0
    for i in range(len(classes)):
        weight = full[classes[i]] if even else (ratios[classes[i]] * density[i]) ** -beta
        kept = min(weight, limit)
        cut += weight - kept
        weights[i] = scale * kept
        total += weights[i]
        squares += weights[i] * weights[i]
        drawn[classes[i]] += 1
    return scale, cut / len(classes), total * total / squares


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def priorities_of(errors: Floats, least: float, alpha: float, priorities: Floats) -> bool:
    """Fill in (|error| + least)^alpha of TD errors (n,); False if one is not finite (Schaul et al. 2016)."""
    for i in range(len(errors)):
        if not np.isfinite(errors[i]):
            return False
        priorities[i] = (abs(errors[i]) + least) ** alpha
    return True


def self_normalised(weights: ArrayLike) -> Floats:
    """Weights (B,) scaled to mean 1: no constant need be known, at the price of a bias of O(1/B)."""
    w = _weights(weights)
    return w / float(w.mean())


class Clipped(NamedTuple):
    """Clipped weights, and what clipping cost: |bias of the mean of w f| <= `missing` * max |f|."""

    weights: Floats
    missing: float


def clip_weights(weights: ArrayLike, limit: float, *, shares: ArrayLike | None = None) -> Clipped:
    """Weights clipped at `limit`, with the mean weight that was cut away.

    For weights (K,) of classes drawn with `shares` (K,) that mean is exact; for the weights (B,) of a batch,
    or (n,) of a log, it is estimated by their average. The weights must have mean 1: not divided by a
    maximum.

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
    """How many equally weighted samples (B,) weighted ones are worth: (sum w)^2 / sum w^2 (Kish 1965)."""
    w = _weights(weights)
    return float(w.sum() ** 2 / (w @ w))


def expected_ess_share(shares: ArrayLike, weights: ArrayLike) -> float:
    """The effective sample size over B that classes drawn with shares (K,) and weighted (K,) tend to.

    >>> round(expected_ess_share([0.5, 0.5], [0.2, 1.8]), 3)
    0.61
    """
    q, w = _normalised(shares), _weights(weights)
    _same_length("shares", q, "weights", w)
    return float((q @ w) ** 2 / (q @ (w * w)))


def annealed_beta(update: int, start: float, frames: int | None) -> float:
    """beta at an update: linear from `start` to 1 over `frames` updates; constant without `frames`."""
    if frames is None:
        return start
    return min(1.0, start + (1.0 - start) * update / frames)


def corrected_mean(values: Any, weights: Any) -> Any:
    """The corrected mean of per-sample values (B, ...): sum_i w_i v_i / B, of shape (...).

    `values` are losses (B,) or gradients (B, ...), as a numpy array or as a torch tensor, whose graph is
    kept. The weights act once, on each sample, before the mean: no factor on a mean that is already taken
    could correct it.
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
    """How far correction moves the mean of values (B, ...): |self-normalised - plain| / |plain|."""
    v = np.asarray(values, np.float64)
    plain = np.linalg.norm(v.mean(0))
    moved = np.linalg.norm(corrected_mean(v, self_normalised(weights)) - v.mean(0))
    return float(moved / plain) if plain > 0 else float(moved > 0)


def _like(values: Any, weights: Any) -> Any:
    """The weights as an array or tensor, of the kind and type of the values."""
    if isinstance(values, np.ndarray):
        return _weights(weights).astype(values.dtype, copy=False)
    import torch  # values is a tensor, so torch is loaded already; importing this module must not load it

    return torch.as_tensor(weights, dtype=values.dtype, device=values.device)


def _vector(name: str, values: ArrayLike) -> Floats:
    result = np.asarray(values, np.float64)
    if result.ndim != 1 or result.size == 0:
        raise ShapeError(f"{name} has shape {result.shape}: give one number per entry, shape (n,), n >= 1")
    return result


def _weights(values: ArrayLike) -> Floats:
    result = _vector("weights", values)
    if not (np.isfinite(result).all() and result.min() >= 0 and result.any()):
        raise NonFiniteError("weights must be finite, not negative and not all 0: check the shares they come from")
    return result


def _normalised(values: ArrayLike) -> Floats:
    """Values (n,) over their sum; those that add up to 1 but for rounding stay as they are, to the bit."""
    result = _vector("shares", values)
    total = float(result.sum())
    if not (0 < total < np.inf and result.min() >= 0):
        raise ConfigError(f"shares {result.tolist()} must be finite, not negative and not all 0")
    return result if abs(total - 1.0) < _ROUNDING else result / total


def _same_length(first: str, a: Floats, second: str, b: Floats) -> None:
    if a.shape != b.shape:
        raise ShapeError(f"{first} has {a.size} entries and {second} has {b.size}: give one of each per class")
