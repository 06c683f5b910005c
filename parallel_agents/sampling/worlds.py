"""How much each world should count: four factors of a world, combined by a rule that is fitted from data.

Each factor is 1 for a world without the property, so that no world ever gets weight 0 and is skipped:

    crisis        1 + crisis share * (value multiplier - 1)     mean value of a user, regular users being 1
    competition   1 + competition level
    health        1 + interest in behavioural health
    device        1 + iOS share

The weight of a world is the product of factor^exponent over all worlds' sum; an exponent is the importance of
its factor. Before a fit each is 1; a fit finds those under which the product predicts an outcome (value won,
learning progress) of each world, by a log-linear model of its mean: quasi-Poisson maximum likelihood
(Wedderburn 1974), which takes outcomes of 0 as they are and is solved by Newton steps, without randomness.

>>> calm = {"crisis_share": 0.1, "competition": 0.2, "behavioural_health": 0.1, "ios_share": 0.5}
>>> WorldRule().weights([calm, {**calm, "crisis_share": 0.6}], value_multiplier=5.0).round(3).tolist()
[0.292, 0.708]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallel_agents.errors import ContractError, NonFiniteError

__all__ = ["WORLD_FACTORS", "WorldRule", "fit_world_rule"]

WORLD_FACTORS = ("crisis_share", "competition", "behavioural_health", "ios_share")

_RIDGE = 1e-6  # without slope, no step: a factor that does not vary keeps the exponent 0
_STEPS = 100
_CLOSE = 1e-10


@dataclass(frozen=True)
class WorldRule:
    """One exponent for each of WORLD_FACTORS."""

    exponents: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)

    def weights(self, worlds: Sequence[Mapping[str, float]], *, value_multiplier: float) -> NDArray[np.float64]:
        """Weights (W,) of the worlds, adding up to 1."""
        logs = _log_factors(worlds, value_multiplier) @ np.array(self.exponents)
        weights: NDArray[np.float64] = np.exp(logs - logs.max())
        weights /= weights.sum()
        return weights


def fit_world_rule(worlds: Sequence[Mapping[str, float]], outcomes: ArrayLike, *, value_multiplier: float) -> WorldRule:
    """The exponents under which the factors of the worlds best predict their outcomes (W,), none negative."""
    logs, seen = _log_factors(worlds, value_multiplier), np.asarray(outcomes, np.float64)
    if seen.shape != (len(logs),) or len(logs) <= len(WORLD_FACTORS):
        raise ContractError(
            f"{len(logs)} worlds and outcomes of shape {seen.shape}: give one outcome per world, "
            f"of at least {len(WORLD_FACTORS) + 1} worlds"
        )
    if not (np.isfinite(seen).all() and seen.min() >= 0 and seen.any()):
        raise NonFiniteError("outcomes must be finite, not negative and not all 0: give what each world brought")
    return WorldRule(tuple(_exponents(logs, seen / seen.mean()).tolist()))


def _exponents(logs: NDArray[np.float64], outcomes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Newton's method on the quasi-Poisson score; features (W, F) centred, outcomes (W,) of mean 1."""
    features = np.column_stack([np.ones(len(logs)), logs - logs.mean(0)])
    ridge = _RIDGE * np.diag([0.0] + [1.0] * logs.shape[1])
    b = np.zeros(features.shape[1])
    for _ in range(_STEPS):
        mean = np.exp(features @ b)
        slope = features.T @ (outcomes - mean)
        step = np.linalg.solve((features.T * mean) @ features + ridge, slope)
        # A full step may overshoot where the start is far off; bounded in log scale it cannot overflow.
        step *= min(1.0, 2.0 / max(np.abs(features @ step).max(), 1e-300))
        b = b + step
        if np.abs(step).max() < _CLOSE:
            return b[1:]
    raise ContractError(
        f"no finite rule fits these outcomes after {_STEPS} steps: one factor alone tells zero from more"
    )


def _log_factors(worlds: Sequence[Mapping[str, float]], value_multiplier: float) -> NDArray[np.float64]:
    if not worlds:
        raise ContractError("there are no worlds to weigh: give at least one")
    for number, world in enumerate(worlds):
        missing = [name for name in WORLD_FACTORS if name not in world]
        if missing:
            raise ContractError(f"world {number} has no {', '.join(missing)}: give {', '.join(WORLD_FACTORS)}")
    table = np.array([[world[name] for name in WORLD_FACTORS] for world in worlds], np.float64)
    if not (np.isfinite(table).all() and table.min() >= 0):
        number, factor = np.argwhere(~(np.isfinite(table) & (table >= 0)))[0]
        raise NonFiniteError(
            f"world {number} has {WORLD_FACTORS[factor]} {table[number, factor]}: give a number from 0"
        )
    table[:, 0] *= value_multiplier - 1.0
    if table[:, 0].min() <= -1.0:
        raise ContractError(f"a value multiplier of {value_multiplier} leaves a world without value: give one above 0")
    return np.log1p(table)
