"""How much each world should count in training: four factors of a world, combined by a rule fitted to data.

Each factor is 1 for a world without the property, so that no world gets weight 0 and is skipped:

    crisis_share          1 + crisis share * (value multiplier - 1): mean value of a user, where regular users have 1
    competition           1 + competition level
    behavioural_health    1 + interest in behavioural health
    ios_share             1 + iOS share

The weight of a world is the product of factor^exponent, divided by the sum over all worlds. Exponents are 1 before a
fit. A fit finds those under which the product predicts an outcome of each world (value won, learning progress), by a
log-linear model of its mean: quasi-Poisson maximum likelihood (Wedderburn 1974), which accepts outcomes of 0 and is
solved by Newton steps, without randomness.

>>> calm = {"crisis_share": 0.1, "competition": 0.2, "behavioural_health": 0.1, "ios_share": 0.5}
>>> WorldRule().weights([calm, {**calm, "crisis_share": 0.6}], value_multiplier=5.0).round(3).tolist()
[0.292, 0.708]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from parallel_agents.core.errors import ContractError, NonFiniteError
from parallel_agents.core.types import Floats

WORLD_FACTORS = ("crisis_share", "competition", "behavioural_health", "ios_share")

_RIDGE = 1e-6  # keeps the exponent of a factor that does not vary at 0
_STEPS = 100
_CLOSE = 1e-10


class NotIdentifiedError(ContractError):
    """Outcomes that no finite rule fits best."""


@dataclass(frozen=True)
class WorldRule:
    """One exponent for each of WORLD_FACTORS."""

    exponents: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)

    def weights(self, worlds: Sequence[Mapping[str, float]], *, value_multiplier: float) -> Floats:
        """Return weights (W,) of the worlds, adding up to 1."""
        return normalize_weights(combine_weights(_log_factors(worlds, value_multiplier), self))


def combine_weights(log_factors: ArrayLike, rule: WorldRule) -> Floats:
    """Return the products (W,) of factors, given as logarithms (W, F), to the exponents of a rule; the largest is 1."""
    logs = np.asarray(log_factors, np.float64) @ np.array(rule.exponents)
    return np.asarray(np.exp(logs - logs.max()))


def normalize_weights(weights: ArrayLike) -> Floats:
    """Return weights that add up to 1."""
    values = np.asarray(weights, np.float64)
    return np.asarray(values / values.sum())


def fit_world_rule(worlds: Sequence[Mapping[str, float]], outcomes: ArrayLike, *, value_multiplier: float) -> WorldRule:
    """Return the rule whose factors best predict the outcomes (W,) of worlds; outcomes must not be negative.

    Raise NotIdentifiedError if the factors tell outcomes of 0 from others without error: no exponent is large enough.
    """
    logs, observed = _log_factors(worlds, value_multiplier), np.asarray(outcomes, np.float64)
    if observed.shape != (len(logs),) or len(logs) <= len(WORLD_FACTORS):
        raise ContractError(
            f"{len(logs)} worlds and outcomes of shape {observed.shape}: give one outcome per world, "
            f"of at least {len(WORLD_FACTORS) + 1} worlds"
        )
    if not (np.isfinite(observed).all() and observed.min() >= 0 and observed.any()):
        raise NonFiniteError("outcomes must be finite, not negative and not all 0: give what each world brought")
    return WorldRule(tuple(_exponents(logs, observed / observed.mean()).tolist()))


def _exponents(logs: Floats, outcomes: Floats) -> Floats:
    """Return the fitted exponents (F,) for log factors (W, F) and outcomes (W,) of mean 1, by Newton's method."""
    features = np.column_stack([np.ones(len(logs)), logs - logs.mean(0)])
    ridge = _RIDGE * np.diag([0.0] + [1.0] * logs.shape[1])
    b = np.zeros(features.shape[1])
    for _ in range(_STEPS):
        mean = np.exp(features @ b)
        slope = features.T @ (outcomes - mean)
        step = np.linalg.solve((features.T * mean) @ features + ridge, slope)
        # A full step may overshoot if the start is far off; bounded on the log scale, it cannot overflow.
        step *= min(1.0, 2.0 / max(np.abs(features @ step).max(), 1e-300))
        b = b + step
        if np.abs(step).max() < _CLOSE:
            return b[1:]
    raise NotIdentifiedError(
        f"no finite rule fits these outcomes after {_STEPS} steps: the factors tell zero from more without error; "
        "give more worlds"
    )


def _log_factors(worlds: Sequence[Mapping[str, float]], value_multiplier: float) -> Floats:
    """Return the logarithms (W, F) of the factors of worlds; raise if one is missing or not a number from 0."""
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
