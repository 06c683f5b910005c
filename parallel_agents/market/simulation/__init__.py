"""Simulation of many market worlds together.

world_arrays    worlds as arrays: constants, state, results
auction         random numbers, ranking, price of a click
journeys        clicks, delayed purchases, attribution
step            one step of many worlds, compiled, in several threads
market_worlds   `MarketWorlds`: observations, steps, scores
"""

from __future__ import annotations

from parallel_agents.market.simulation.journeys import Attribution
from parallel_agents.market.simulation.market_worlds import MarketWorlds

__all__ = ["Attribution", "MarketWorlds"]
