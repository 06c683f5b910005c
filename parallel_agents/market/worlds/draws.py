"""Regions of the discovered space, and draws within them.

A world type is a region: the axis along which it is special lies in the outer quarter of what periods showed, every
other axis in the middle half. There is no number in this file that could become one of a world's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from parallel_agents.market.discovery.estimates import Estimate
from parallel_agents.market.discovery.patterns import CRISIS, Patterns
from parallel_agents.market.worlds.types import Part, WorldType
from parallel_agents.seeding import Purpose, generator

__all__ = ["REGIONS", "Draws", "outer"]

Floats = NDArray[np.float64]

_UP, _DOWN = True, False
REGIONS: Mapping[WorldType, tuple[str, bool]] = {
    WorldType.HIGH_COMPETITION: ("price", _UP),
    WorldType.LOW_COMPETITION: ("price", _DOWN),
    WorldType.SEASONAL_PEAK: ("volume", _UP),
    WorldType.ECONOMIC_DOWNTURN: ("conversion", _DOWN),
    WorldType.CRISIS_PARENT: (f"segment:{CRISIS}", _UP),
    WorldType.TECH_SAVVY: ("device:ios", _UP),
    WorldType.BUDGET_CONSCIOUS: ("segment:price_sensitive", _UP),
    WorldType.IMPULSE_BUYER: ("delay", _DOWN),
    WorldType.LUXURY_SEEKER: ("value", _UP),
}


class Draws:
    """One part's draws for one world: a point within each estimate, and a record of where it came from."""

    def __init__(self, patterns: Patterns, kind: WorldType, part: Part, *, seed: int, world: int) -> None:
        self.patterns, self.kind, self.part = patterns, kind, part
        self.rng = generator(seed, Purpose.WORLD, agent=part, world=world)
        self.provenance: dict[str, str] = {}

    def one(self, name: str, estimate: Estimate) -> float:
        """A point within the estimate's interval."""
        self._record(name, estimate)
        return estimate.quantile(self.rng.random())

    def many(self, name: str, estimates: Sequence[Estimate]) -> Floats:
        """A point within each interval."""
        return np.array([self.one(f"{name}/{i}", e) for i, e in enumerate(estimates)])

    def clear(self, name: str, estimate: Estimate) -> float:
        """A point within the interval, or nothing at all where the interval does not exclude that."""
        point = self.one(name, estimate)
        return point if estimate.low > 0 or estimate.high < 0 else float(0)

    def along(self, axis: str) -> float:
        """A deviation along an axis: in the type's own region on the type's axis, else in the middle half."""
        effects = [p.effects[axis] for p in self.patterns.periods]
        own, up = REGIONS.get(self.kind, ("", _UP))
        low, high = outer(effects, up) if own == axis else _middle(effects)
        self.provenance[f"{self.part.name.lower()}/along/{axis}"] = (
            f"periods between {low:.4g} and {high:.4g}; {effects[0].source}"
        )
        return low + (high - low) * self.rng.random()

    def landscape(self) -> int:
        """The landscape of a period whose price lies in the type's region."""
        periods = self.patterns.periods
        prices = [p.effects["price"] for p in periods if "price" in p.effects]
        own, up = REGIONS.get(self.kind, ("", _UP))
        low, high = outer(prices, up) if own == "price" else _middle(prices)
        inside = [p for p in periods if low <= p.effects["price"].value <= high]
        chosen = inside[int(self.rng.integers(len(inside)))]
        self.provenance[f"{self.part.name.lower()}/landscape"] = (
            f"period from {chosen.first_day}, price between {low:.4g} and {high:.4g}"
        )
        return chosen.landscape

    def _record(self, name: str, e: Estimate) -> None:
        self.provenance[f"{self.part.name.lower()}/{name}"] = (
            f"{e.value:.6g} [{e.low:.6g}, {e.high:.6g}] from {e.source}"
        )


def _halves(effects: Sequence[Estimate]) -> tuple[Floats, float, float]:
    values = np.array([e.value for e in effects])
    centre = np.median(values)
    return values, float(np.median(values[values <= centre])), float(np.median(values[values >= centre]))


def outer(effects: Sequence[Estimate], up: bool) -> tuple[float, float]:
    """The outer quarter of the periods' effects, upwards or downwards: its bounds."""
    values, low, high = _halves(effects)
    return (high, float(values.max())) if up else (float(values.min()), low)


def _middle(effects: Sequence[Estimate]) -> tuple[float, float]:
    _, low, high = _halves(effects)
    return low, high
