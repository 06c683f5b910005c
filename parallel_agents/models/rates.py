"""The learning rate in a `model` section, the same for every learner."""

from __future__ import annotations

import math
from typing import Any, Literal

from parallel_agents.errors import ConfigError
from parallel_agents.learning import SHAPES

__all__ = ["Schedule", "check_learning_rate", "learning_rate"]

Schedule = Literal["linear", "exponential", "cosine"]


def check_learning_rate(options: Any) -> None:
    """Refuse what cannot be scheduled."""
    if options.lr_updates < 0:
        raise ConfigError(f"model.lr_updates is {options.lr_updates}: give a whole number of at least 0")
    if options.lr_final is None:
        return  # constant, whatever the rest says: a recipe's schedule is switched off by this one key
    if not 0.0 <= options.lr_final < math.inf:
        raise ConfigError(f"model.lr_final is {options.lr_final}: give a number from 0")
    if options.lr_updates < 1:
        raise ConfigError("model.lr_final is given without model.lr_updates: say over how many updates it is reached")
    if options.lr_schedule == "exponential" and options.lr_final == 0.0:
        raise ConfigError("model.lr_schedule is 'exponential': lr_final must be above 0, it is reached by factors")


def learning_rate(options: Any) -> dict[str, float]:
    """The rate as values that may differ between the rows of a stack."""
    final = options.lr if options.lr_final is None else options.lr_final
    shape = float(SHAPES.index(options.lr_schedule))
    return {"lr": options.lr, "lr_final": final, "lr_updates": float(options.lr_updates), "lr_shape": shape}
