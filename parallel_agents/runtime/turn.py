"""What one turn holds: the choices of all agents, and what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parallel_agents.compiled import njit
from parallel_agents.types import Array

__all__ = ["Acts", "Events", "Outcome", "all_finite"]

Events = tuple[Array, Array]
"""(N, W) event types and (N, W) values of a turn's transitions."""


@dataclass(slots=True)
class Acts:
    """What was chosen: rows per stack, and those on their own."""

    observations: dict[int, Array] = field(default_factory=dict)
    """stack -> (N, W, D), as the actions were chosen from them"""
    actions: dict[int, Array] = field(default_factory=dict)
    """stack -> (N, W, …)"""
    extras: dict[int, dict[str, Array]] = field(default_factory=dict)
    """stack -> further columns to keep"""
    alone: dict[Any, Array] = field(default_factory=dict)
    """seat on its own -> (W, …)"""
    alone_saw: dict[Any, Array] = field(default_factory=dict)
    """seat on its own -> (W, *obs), as its actions were chosen from it"""


@dataclass(slots=True)
class Outcome:
    """What a turn gave, one (N, W) array per environment; nothing to those that did not take part."""

    rewards: list[Array]
    terminated: list[Array]
    truncated: list[Array]
    acted: list[Array]
    first: list[Array]
    present: list[bool]
    events: list[Events | None]
    """None where nobody asks for them"""

    @classmethod
    def nothing(cls, nobody: Sequence[Array], first: Sequence[Array]) -> Outcome:
        """nobody: an (N, W) array of False per environment, shared and never written to."""
        none = list(nobody)
        zeros = [np.zeros(own.shape, np.float32) for own in nobody]
        return cls(zeros, none, list(none), list(none), list(first), [False] * len(none), [None] * len(none))


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def all_finite(numbers: Array) -> bool:
    """True if none is NaN or infinite; stops at the first that is."""
    for number in numbers.flat:  # noqa: SIM110 - compiled
        if not np.isfinite(number):
            return False
    return True
