"""How a batch is shared out among event classes: the validated rule, from class counts to shares.

>>> rule = ClassRule(weights={"regular_parent": 1.0, "crisis_parent": 5.0}, alpha=1.0)
>>> rule.names
('crisis_parent', 'regular_parent')
>>> natural, shares = rule.shares(np.array([100, 900]))
>>> shares.round(3).tolist()
[0.357, 0.643]
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from parallel_agents.errors import ConfigError, ContractError
from parallel_agents.sampling.weights import batch_shares

__all__ = ["CRISIS_PARENT", "REGULAR_PARENT", "ClassRule"]

CRISIS_PARENT = "crisis_parent"
REGULAR_PARENT = "regular_parent"


@dataclass(frozen=True, kw_only=True)
class ClassRule:
    """Weights of the event classes and what bounds their shares. Class ids are places in the sorted names."""

    weights: Mapping[str, float]
    """sampling multiplier of each class, before alpha"""
    rare: str = CRISIS_PARENT
    """the class that `minimum` and `target` speak of"""
    alpha: float = 0.6
    """exponent of the multipliers: 0 samples uniformly, 1 takes them as they are"""
    minimum: float = 0.0
    """least batch share of the rare class"""
    target: float | None = None
    """batch share of the rare class, whatever its multiplier"""
    population: Mapping[str, float] | None = None
    """the shares that corrections restore; None: those of the buffer"""
    empty_class: Literal["refuse", "skip"] | None = None
    """what to do when a class that was promised a share has no rows: refuse, or share out among the others; None:
    refuse where a target or a population was given, while a minimum waits for the first row of its class"""

    def __post_init__(self) -> None:
        for name, weight in self.weights.items():
            if not (isinstance(name, str) and name):
                raise ConfigError(f"event type {name!r} is not a name: give a text that is not empty")
            if not (math.isfinite(weight) and weight > 0):
                raise ConfigError(
                    f"weight of {name} is {weight}: give a number above 0; a class without weight is lost"
                )
        if self.rare not in self.weights:
            raise ConfigError(f"rare class {self.rare!r} has no weight: known are {', '.join(self.names)}")
        require_share("alpha", self.alpha)
        require_share("min_crisis_parent_ratio", self.minimum, below=1.0)
        if self.target is not None:
            require_share("target_share", self.target, above=0.0, below=1.0)
            if self.target < self.minimum:
                raise ConfigError(f"target_share {self.target} is below min_crisis_parent_ratio {self.minimum}")
        if self.empty_class not in ("refuse", "skip", None):
            raise ConfigError(f"empty_class is {self.empty_class!r}: give 'refuse', 'skip' or None")
        if self.population is not None:
            self._check_population(self.population)

    def _check_population(self, population: Mapping[str, float]) -> None:
        if set(population) != set(self.weights):
            raise ConfigError(f"population_ratios name {sorted(population)}: give one for each of {list(self.names)}")
        for name, share in population.items():
            require_share(f"population_ratios[{name!r}]", share, above=0.0)
        if abs(sum(population.values()) - 1.0) > 1e-6:
            raise ConfigError(f"population_ratios add up to {sum(population.values())}: they must add up to 1")

    @property
    def names(self) -> tuple[str, ...]:
        """Class names in the order of their ids, which does not depend on the order they were given in."""
        return tuple(sorted(self.weights))

    def multipliers(self) -> NDArray[np.float64]:
        """The given weights (K,), by class id."""
        return np.array([self.weights[name] for name in self.names])

    def shares(
        self,
        counts: NDArray[np.int64],
        *,
        learned: NDArray[np.float64] | None = None,
        temperature: float = 1.0,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Natural shares (K,) and batch shares (K,) from class counts (K,).

        Learned multipliers (K,) are taken as they are: alpha tempers a guess, not a measurement.
        """
        self._check_promises(counts)
        natural = counts.astype(np.float64)
        if self.population is not None:
            natural = np.where(counts > 0, [self.population[name] for name in self.names], 0.0)
        shares = batch_shares(
            natural,
            self.multipliers() if learned is None else learned,
            alpha=self.alpha if learned is None else 1.0,
            temperature=temperature,
            rare=self.names.index(self.rare),
            minimum=self.minimum,
            target=self.target,
        )
        return natural / natural.sum(), shares

    def _check_promises(self, counts: NDArray[np.int64]) -> None:
        """A target, or a minimum, promises a share to the rare class, a given population to every class."""
        if self.empty_class == "skip":
            return
        promised = self.target is not None or (self.minimum > 0 and self.empty_class == "refuse")
        for name, count in zip(self.names, counts, strict=True):
            if count == 0 and (self.population is not None or (promised and name == self.rare)):
                raise ContractError(
                    f"class {name} is to have a share of every batch but the buffer holds no such row: add "
                    "some, lift its minimum, target or population share, or give empty_class='skip'"
                )


def require_share(name: str, value: float, *, above: float | None = None, below: float | None = None) -> None:
    """Raise unless `value` lies in [0, 1], with either end left out on request."""
    low = value > above if above is not None else value >= 0.0
    high = value < below if below is not None else value <= 1.0
    if not (low and high):
        interval = f"{'[0' if above is None else '(0'}, {'1]' if below is None else '1)'}"
        raise ConfigError(f"{name} is {value}: give a number in {interval}")
