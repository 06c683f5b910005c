"""An estimate: a number, its 90 % interval, how much data it rests on, and where it came from.

>>> e = Estimate.from_error(0.2, 0.05, "logit", count=64, source="example")
>>> e.low < 0.2 < e.high, e.quantile(0.5) == e.value, e.low <= e.quantile(1.0) <= e.high
(True, True, True)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from parallel_agents.compiled import njit
from parallel_agents.errors import NonFiniteError

__all__ = ["LEVEL", "Estimate", "Scale", "Z", "normal_cdf", "of_totals"]

Floats = NDArray[np.float64]
Scale = Literal["linear", "log", "logit"]

LEVEL = 0.90
Z = NormalDist().inv_cdf((1.0 + LEVEL) / 2.0)  # half of the rest lies above the interval

_TINY = 1e-9


@dataclass(frozen=True)
class Estimate:
    """`low` and `high` are symmetric about `value` on `scale`, so that shares stay shares and rates stay positive."""

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
        """From a value and its standard error, both on the natural scale; the interval by the delta method."""
        value = _inside(float(value), scale)
        centre, slope = _forward(value, scale)
        half = Z * float(error) * slope
        low, high = _backward(centre - half, scale), _backward(centre + half, scale)
        return cls(value, low, high, scale, int(count), source)

    @classmethod
    def from_log(cls, log_value: float, error: float, *, count: int, source: str) -> Estimate:
        """Of a positive quantity, from its logarithm and the standard error of that."""
        half = Z * float(error)
        low, high = math.exp(log_value - half), math.exp(log_value + half)
        return cls(math.exp(log_value), low, high, "log", int(count), source)

    def quantile(self, u: float) -> float:
        """The point at share u of the way through the interval's normal distribution; never outside the interval."""
        tail = (1.0 - LEVEL) / 2.0
        centre, _ = _forward(self.value, self.scale)
        z = NormalDist().inv_cdf(tail + LEVEL * u) / Z
        edge = _forward(self.high if z > 0.0 else self.low, self.scale)[0]
        point = _backward(centre + abs(z) * (edge - centre), self.scale)
        return min(max(point, self.low), self.high)


def _inside(value: float, scale: Scale) -> float:
    if scale == "log":
        return max(value, _TINY)
    return min(max(value, _TINY), 1.0 - _TINY) if scale == "logit" else value


def _forward(value: float, scale: Scale) -> tuple[float, float]:
    """The value on its scale, and the derivative there."""
    value = _inside(value, scale)
    if scale == "log":
        return math.log(value), 1.0 / value
    if scale == "logit":
        return math.log(value / (1.0 - value)), 1.0 / (value * (1.0 - value))
    return value, 1.0


def _backward(point: float, scale: Scale) -> float:
    if scale == "log":
        return math.exp(min(point, 700.0))
    if scale == "logit":
        return 1.0 / (1.0 + math.exp(-min(max(point, -700.0), 700.0)))
    return point


def of_totals(function: Callable[[Floats], Floats], rows: Floats) -> tuple[Floats, Floats]:
    """A smooth function of column totals of rows (users, p), and the standard errors of its values.

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


@njit(cache=True)  # type: ignore[untyped-decorator]
def _cdf(x: Floats) -> Floats:
    out = np.empty_like(x)
    for i in range(len(x)):
        out[i] = 0.5 * math.erfc(-x[i] / math.sqrt(2.0))
    return out


def normal_cdf(x: Floats) -> Floats:
    """The normal distribution function, elementwise."""
    return np.asarray(_cdf(np.ravel(np.asarray(x, np.float64))).reshape(np.shape(x)))
