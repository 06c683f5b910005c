"""How batches are weighted, as one frozen value: from class counts to batch shares and corrections.

The sampler of a buffer and the agents of a run are told by the same options; here they are checked, once.

>>> weighting = Weighting(crisis_parent_weight=5.0, alpha=1.0, beta=1.0)
>>> balance = weighting.balance(np.array([100, 900]))
>>> balance.shares.round(3).tolist(), weighting.corrections(balance.ratios, beta=1.0).weights.round(2).tolist()
([0.357, 0.643], [0.2, 1.0])
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_agents.errors import ConfigError
from parallel_agents.sampling import weights as maths
from parallel_agents.sampling.rule import CRISIS_PARENT, REGULAR_PARENT, ClassRule, require_share

__all__ = ["Balance", "ClassCorrections", "Weighting"]

Floats = NDArray[np.float64]


class Balance(NamedTuple):
    """Natural shares, batch shares and N P of each class (K,), never written to: batches hand them out."""

    natural: Floats
    shares: Floats
    ratios: Floats


class ClassCorrections(NamedTuple):
    """Corrections (K,) of classes drawn uniformly within, what a limit cut off each (K,), and their common scale."""

    weights: Floats
    cut: Floats
    scale: float


@dataclass(frozen=True, kw_only=True)
class Weighting:
    """Weights of the event classes, exponents and limits; also the `importance` section of a model."""

    crisis_parent_weight: float = 5.0
    alpha: float = 0.6
    """exponent of the weights: 0 samples uniformly, 1 takes them as they are"""
    beta: float = 0.4
    """exponent of the corrections, at first"""
    beta_frames: int | None = 100_000
    """updates until beta is 1; None: it stays"""
    min_crisis_parent_ratio: float = 0.05
    """least share of crisis parents in a batch, once there is one"""
    class_weights: dict[str, float] | None = None
    """weights of further event types; regular parents have 1"""
    population_ratios: dict[str, float] | None = None
    """the shares that corrections restore; None: those of the buffer"""
    temperature: float = 1.0
    focus_rare_events: bool = False
    target_share: float = 0.5
    """share of crisis parents in a batch under `focus_rare_events`"""
    learned: bool = False
    """replace the weights by the measured spread of each class, once enough was seen"""
    max_weight: float | None = None
    """largest correction, before normalisation: a bias that is told"""
    normalise: bool = True
    """divide by the largest correction in the buffer"""
    empty_class: Literal["refuse", "skip"] | None = None
    """when a class with a share of its own has no rows; None: see `ClassRule`"""

    def __post_init__(self) -> None:
        if self.class_weights is not None and CRISIS_PARENT in self.class_weights:
            raise ConfigError(f"class_weights names {CRISIS_PARENT}: its weight is crisis_parent_weight")
        require_share("beta", self.beta)
        require_positive("temperature", self.temperature)
        for name in ("beta_frames", "max_weight"):
            if getattr(self, name) is not None:
                require_positive(name, getattr(self, name))
        _ = self.rule  # what it refuses is refused here

    @cached_property
    def rule(self) -> ClassRule:
        """Who gets which share."""
        return ClassRule(
            weights={CRISIS_PARENT: self.crisis_parent_weight, REGULAR_PARENT: 1.0, **(self.class_weights or {})},
            alpha=self.alpha,
            minimum=self.min_crisis_parent_ratio,
            target=self.target_share if self.focus_rare_events else None,
            population=self.population_ratios,
            empty_class=self.empty_class,
        )

    @property
    def event_types(self) -> tuple[str, ...]:
        """The class names, in the order of their ids."""
        return self.rule.names

    def beta_at(self, update: int) -> float:
        """The exponent of the corrections at an update."""
        return maths.annealed_beta(update, self.beta, self.beta_frames)

    def balance(
        self, counts: NDArray[np.int64], *, learned: Floats | None = None, temperature: float | None = None
    ) -> Balance:
        """Shares from class counts (K,), with learned multipliers (K,) in place of the given weights."""
        heat = self.temperature if temperature is None else temperature
        require_positive("temperature", heat)
        natural, shares = self.rule.shares(counts, learned=learned, temperature=heat)
        found = Balance(natural, shares, maths.class_ratios(natural, shares))
        for array in found:
            array.setflags(write=False)
        return found

    def corrections(self, ratios: Floats, beta: float) -> ClassCorrections:
        """Corrections of classes with N P (K,) at an exponent."""
        full = maths.corrections(ratios, beta)
        kept = full if self.max_weight is None else np.minimum(full, self.max_weight)
        scale = 1.0 / float(kept.max()) if self.normalise else 1.0
        return ClassCorrections(kept * scale, full - kept, scale)


def require_positive(name: str, value: float) -> None:
    """Raise unless `value` is a finite number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{name} is {value}: give a finite number above 0")
