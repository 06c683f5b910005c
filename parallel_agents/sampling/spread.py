"""How much the gradients or returns of each class spread, learned as training goes.

Neyman's shares, q_k ~ pi_k sigma_k, make the corrected mean least noisy; sigma_k is measured here, with old
batches fading, and replaces a guessed multiplier. Batches are joined by the parallel form of Welford's update
(Chan, Golub and LeVeque 1979), in the order in which they come.

>>> spread = ClassSpread(classes=2)
>>> spread.update(np.array([-5.0, 5.0, -1.0, 1.0] * 32), np.array([0, 0, 1, 1] * 32))
>>> spread.multipliers().tolist()
[1.0, 0.2]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallel_agents.errors import CheckpointError, ContractError, NonFiniteError, ShapeError

__all__ = ["ClassSpread"]

_FADE = 0.99  # what remains of earlier batches at each new one: about the last hundred count
_ENOUGH = 32  # samples of a class before its spread is believed: an error of about an eighth
_MOST = 50.0  # largest ratio of two multipliers, so that a class that happens to be constant is still drawn


class ClassSpread:
    """Fading count, mean and squared deviation of per-sample values, by class."""

    def __init__(self, classes: int) -> None:
        self._seen = np.zeros(classes, np.int64)
        self._mass = np.zeros(classes)
        self._squares = np.zeros(classes)
        self._mean = np.zeros((classes, 1))

    def update(self, values: ArrayLike, classes: NDArray[np.int64]) -> None:
        """Learn from per-sample returns (B,) or gradients (B, D) of samples of the given classes (B,)."""
        rows = np.asarray(values, np.float64)
        rows = rows.reshape(len(rows), -1)
        self._check(rows, classes)
        if not self._seen.any():
            self._mean = np.zeros((len(self._seen), rows.shape[1]))
        for which in np.unique(classes):
            self._join(which, rows[classes == which])

    def _check(self, rows: NDArray[np.float64], classes: NDArray[np.int64]) -> None:
        if classes.shape != (len(rows),):
            raise ShapeError(f"{len(rows)} values for classes of shape {classes.shape}: give one value per sample")
        if len(rows) and not (classes.min() >= 0 and classes.max() < len(self._seen)):
            raise ContractError(
                f"a class id is outside 0 .. {len(self._seen) - 1}: found {np.unique(classes).tolist()}"
            )
        if self._seen.any() and rows.shape[1] != self._mean.shape[1]:
            raise ShapeError(f"values of width {rows.shape[1]} after values of width {self._mean.shape[1]}")
        if not np.isfinite(rows).all():
            raise NonFiniteError("spread cannot be learned from NaN or infinity: drop the batch they come from")

    def _join(self, which: int, rows: NDArray[np.float64]) -> None:
        mean = rows.mean(0)
        old = _FADE * self._mass[which]
        step = mean - self._mean[which]
        total = old + len(rows)
        self._squares[which] = (
            _FADE * self._squares[which] + ((rows - mean) ** 2).sum() + (step @ step) * old * len(rows) / total
        )
        self._mean[which] += step * len(rows) / total
        self._mass[which] = total
        self._seen[which] += len(rows)

    def multipliers(self) -> NDArray[np.float64] | None:
        """Deviation of each class (K,) over the largest; None until every class has been seen enough."""
        if (self._seen < _ENOUGH).any():
            return None
        deviations = np.sqrt(self._squares / self._mass)
        largest = deviations.max()
        return np.maximum(deviations / largest, 1.0 / _MOST) if largest > 0 else np.ones(len(self._seen))

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything there is to store."""
        return {
            "seen": self._seen.copy(),
            "mass": self._mass.copy(),
            "squares": self._squares.copy(),
            "mean": self._mean.copy(),
        }

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over a stored state of as many classes."""
        found = {name: np.shape(state[name])[:1] for name in ("seen", "mass", "squares", "mean")}
        if any(shape != self._seen.shape for shape in found.values()):
            raise CheckpointError(f"stored spread has shapes {found}: expected {len(self._seen)} classes")
        self._seen = np.array(state["seen"], np.int64)
        self._mass = np.array(state["mass"], np.float64)
        self._squares = np.array(state["squares"], np.float64)
        self._mean = np.array(state["mean"], np.float64)
