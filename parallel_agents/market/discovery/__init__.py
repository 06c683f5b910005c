"""Discovery: from a GA4 export, with or without ads and auction-insights tables, to `Patterns`.

The flow: `open_export` → `read_history` → classes → delays, rates and values → segments; beside them seasonality,
competition and periods.
"""

from __future__ import annotations

from parallel_agents.market.discovery.discover import discover
from parallel_agents.market.discovery.estimates import Estimate
from parallel_agents.market.discovery.history import Vocabulary
from parallel_agents.market.discovery.patterns import CRISIS, Patterns

__all__ = ["CRISIS", "Estimate", "Patterns", "Vocabulary", "discover"]
