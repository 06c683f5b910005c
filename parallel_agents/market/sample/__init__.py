"""Sample exports from hidden parameters: the data of a first run, and the oracle of discovery's tests.

The flow: `hidden_market` → `user_journeys` and `ad_reports` → `export_writer`, as Arrow tables or files.
"""

from __future__ import annotations

from parallel_agents.market.sample.export_writer import Sample, draw_sample, write_sample
from parallel_agents.market.sample.hidden_market import LANDSCAPES, HiddenMarket

__all__ = ["LANDSCAPES", "HiddenMarket", "Sample", "draw_sample", "write_sample"]
