"""Discovery: from a GA4 export, with or without ads and auction-insights tables, to `Patterns`.

The flow, in `discover`: `export_reader` → `click_history` → classes of `user_segments` → `conversion` → segments;
beside them `competition` and `rivals`.
"""

from __future__ import annotations

from parallel_agents.market.discovery.click_history import Vocabulary
from parallel_agents.market.discovery.discover import discover, load_patterns, sample_patterns
from parallel_agents.market.discovery.estimation import Estimate
from parallel_agents.market.discovery.patterns import CRISIS, Patterns

__all__ = ["CRISIS", "Estimate", "Patterns", "Vocabulary", "discover", "load_patterns", "sample_patterns"]
