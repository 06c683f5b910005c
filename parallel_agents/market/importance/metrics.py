"""What there is to tell about an update, an episode and a whole training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike

from parallel_agents.errors import ShapeError

__all__ = ["ImportanceSamplingTrainingMetrics", "correlation", "mean_metrics", "plain_figures"]


@dataclass(frozen=True, kw_only=True)
class ImportanceSamplingTrainingMetrics:
    """One update, or the mean over several."""

    crisis_parent_weight: float
    regular_parent_weight: float
    crisis_parent_ratio_in_batch: float
    crisis_parent_natural_share: float
    """share of crisis parents in the buffer"""
    crisis_parent_predicted_share: float
    """share of crisis parents that the batch was to have"""
    importance_weights_mean: float
    importance_weights_std: float
    effective_sample_size: float
    beta: float
    bias_correction_effect: float
    """how far correction moves the batch's mean reward, relative to it"""
    identification_accuracy: float
    """share of right event types among rows whose truth is known; NaN where none is"""
    loss: float
    """as the agent reports it; NaN if it does not"""

    def as_dict(self) -> dict[str, float]:
        """The metrics by name."""
        return asdict(self)


def mean_metrics(
    metrics: Sequence[ImportanceSamplingTrainingMetrics],
) -> ImportanceSamplingTrainingMetrics | None:
    """The mean of each figure over those that have it; None of nothing."""
    if not metrics:
        return None
    tables = [each.as_dict() for each in metrics]
    return ImportanceSamplingTrainingMetrics(**{name: _mean([table[name] for table in tables]) for name in tables[0]})


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def correlation(first: ArrayLike, second: ArrayLike) -> float | None:
    """Pearson's correlation of two series (n,); None where one of them is constant or n < 3.

    >>> correlation([1.0, 2.0, 3.0], [2.0, 4.0, 6.1]).__round__(3)
    1.0
    """
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if a.shape != b.shape or a.ndim != 1:
        raise ShapeError(f"series of shapes {a.shape} and {b.shape} cannot be correlated: give (n,) each")
    known = np.isfinite(a) & np.isfinite(b)
    a, b = a[known], b[known]
    if len(a) < 3 or a.std() == 0 or b.std() == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def plain_figures(figures: Mapping[str, float]) -> dict[str, float | None]:
    """Figures as JSON knows them: NaN is None."""
    return {name: None if math.isnan(value) else value for name, value in figures.items()}
