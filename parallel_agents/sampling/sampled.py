"""One draw of the sampler, and what there is to tell about it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_agents.sampling import weights as maths

__all__ = ["Sampled", "batch_statistics", "class_statistics"]


class Sampled(NamedTuple):
    """One draw: B rows of K classes, and their corrections."""

    positions: NDArray[np.int64]
    """(B,) buffer positions"""
    classes: NDArray[np.int64]
    """(B,) class ids"""
    weights: NDArray[np.float64]
    """(B,) corrections"""
    natural: NDArray[np.float64]
    """(K,) the shares that the corrections restore"""
    shares: NDArray[np.float64]
    """(K,) the shares that were drawn with"""
    beta: float
    """exponent of the corrections"""
    scale: float
    """constant of max-normalisation: at beta = 1, mean(weights * f) estimates scale * the mean of f"""
    cut: float
    """mean weight that a limit cut off, before that scale"""


def batch_statistics(batch: Sampled, names: tuple[str, ...]) -> dict[str, float]:
    """Shares of the named classes and spread of the weights in one batch, under their metric names."""
    ratios = np.bincount(batch.classes, minlength=len(names)) / len(batch.classes)
    found: dict[str, float] = {}
    for number, name in enumerate(names):
        found[f"{name}_ratio_in_batch"] = float(ratios[number])
        found[f"{name}_natural_share"] = float(batch.natural[number])
        found[f"{name}_predicted_share"] = float(batch.shares[number])
    w = batch.weights
    for name, value in (("mean", w.mean()), ("std", w.std()), ("min", w.min()), ("max", w.max())):
        found[f"importance_weights_{name}"] = float(value)
    found["importance_weights_scale"], found["importance_weights_cut"] = batch.scale, batch.cut
    found["effective_sample_size"] = maths.effective_sample_size(w)
    return found


def class_statistics(batch: Sampled, limit: float | None) -> dict[str, float]:
    """What follows from the classes alone: the expected effective size and the expected cut of a limit."""
    ratios = maths.class_ratios(batch.natural, batch.shares)
    full = maths.corrections(ratios, batch.beta)
    kept = maths.corrections(ratios, batch.beta, limit=limit)
    return {
        "effective_sample_size_predicted": len(batch.weights) * maths.expected_ess_share(batch.shares, kept),
        "importance_weights_cut": float(batch.shares @ (full - kept)),
    }
