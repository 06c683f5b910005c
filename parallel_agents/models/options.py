"""What the `model` sections of all learners have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from parallel_agents.errors import ConfigError
from parallel_agents.learning import SHAPES, Normalising

__all__ = ["LearnerOptions", "Schedule", "in_units"]

Schedule = Literal["linear", "exponential", "cosine"]


@dataclass(frozen=True, kw_only=True)
class LearnerOptions:
    """Learning rate, gradient clip, units, classes and order, the same for every learner."""

    lr: float = 1e-3
    lr_final: float | None = None
    """Learning rate after `lr_updates` updates; None: constant."""
    lr_updates: int = 0
    lr_schedule: Schedule = "linear"
    """How the learning rate goes from `lr` to `lr_final`."""
    clip: float = 10.0
    """Largest norm of an agent's gradient."""
    training_priority: int = 0
    """Agents with a higher one are trained, and published, before the others."""
    normalise_observations: bool = False
    """See observations in units of their mean and deviation so far."""
    normalise_rewards: bool = False
    """Count rewards in units of the deviation of returns so far."""
    importance: dict[str, Any] | None = None
    """Draw by event class, with corrections: the options of `EventWeighting`, {} for its defaults; None: all alike."""

    def __post_init__(self) -> None:
        for name in ("lr", "clip"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ConfigError(f"model.{name} is {getattr(self, name)}: give a number above 0")
        if self.lr_updates < 0:
            raise ConfigError(f"model.lr_updates is {self.lr_updates}: give a whole number of at least 0")
        if self.lr_final is None:
            return  # constant, whatever the rest says: a recipe's schedule is switched off by this one key
        if not 0.0 <= self.lr_final < math.inf:
            raise ConfigError(f"model.lr_final is {self.lr_final}: give a number from 0")
        if self.lr_updates < 1:
            raise ConfigError(
                "model.lr_final is given without model.lr_updates: say over how many updates it is reached"
            )
        if self.lr_schedule == "exponential" and self.lr_final == 0.0:
            raise ConfigError("model.lr_schedule is 'exponential': lr_final must be above 0, it is reached by factors")

    @property
    def rates(self) -> dict[str, float]:
        """The learning rate as values that may differ between the rows of a stack."""
        final = self.lr if self.lr_final is None else self.lr_final
        shape = float(SHAPES.index(self.lr_schedule))
        return {"lr": self.lr, "lr_final": final, "lr_updates": float(self.lr_updates), "lr_shape": shape}

    @property
    def units(self) -> tuple[bool, bool]:
        """Whether observations and rewards are brought into units of what the agent has met."""
        return self.normalise_observations, self.normalise_rewards


def in_units(learner: Any, inputs: int, units: tuple[bool, bool]) -> Any:
    """The learner itself, or in units of what each agent has met."""
    return Normalising(learner, inputs, *units) if any(units) else learner
