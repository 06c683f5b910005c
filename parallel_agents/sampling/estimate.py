"""Means of weighted samples with their errors: what a log of one policy says about another.

>>> found = weighted_estimate([0.0, 1.0, 1.0, 0.0], [0.5, 1.5, 1.5, 0.5])
>>> found.mean, round(found.effective_share, 2)
(0.75, 0.8)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from parallel_agents.errors import NonFiniteError, ShapeError
from parallel_agents.sampling.collapse import flag_collapse
from parallel_agents.sampling.weights import clip_weights, effective_sample_size

__all__ = ["Estimate", "weighted_estimate"]


@dataclass(frozen=True)
class Estimate:
    """A mean, how far to trust it, and what clipping may have cost."""

    mean: float
    error: float
    """standard error"""
    effective_share: float
    """effective sample size over sample size"""
    largest_weight: float
    missing: float
    """mean weight that clipping cut off: the mean may be off by this times the largest |value|"""

    def interval(self, z: float = 1.96) -> tuple[float, float]:
        """The confidence interval of z standard errors; 1.96 gives 95 %."""
        return self.mean - z * self.error, self.mean + z * self.error


def weighted_estimate(
    values: ArrayLike,
    weights: ArrayLike,
    *,
    limit: float | None = None,
    self_normalised: bool = False,
    ess_floor: float = 0.1,
) -> Estimate:
    """The weighted mean of values (n,) with weights (n,) of mean 1, such as target over logging chances.

    `limit` clips the weights; `self_normalised` divides by their sum instead of n. An effective sample below
    `ess_floor` of n is flagged by an `EffectiveSampleSizeWarning`: the interval is not to be trusted then.
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
    flag_collapse(size, v.size, ess_floor, "clip them, or log with a policy closer to the target")
    return Estimate(mean, error, size / v.size, float(w.max()), missing)
