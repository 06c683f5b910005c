"""Simulation: many market worlds stepped as one, in full or fast."""

from __future__ import annotations

from parallel_agents.market.simulation.attribution import Attribution
from parallel_agents.market.simulation.market_worlds import MarketWorlds

__all__ = ["Attribution", "MarketWorlds"]
