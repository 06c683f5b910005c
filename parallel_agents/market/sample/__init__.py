"""Sample exports from hidden parameters: the data of a first run, and the oracle of discovery's tests.

The flow: `HiddenMarket` → journeys (`draw_journeys`) and ad reports (`draw_reports`) → `Sample` → files.
"""

from __future__ import annotations

from parallel_agents.market.sample.events import render_events
from parallel_agents.market.sample.export import Sample, draw_sample, write_sample
from parallel_agents.market.sample.hidden import LANDSCAPES, HiddenMarket

__all__ = ["LANDSCAPES", "HiddenMarket", "Sample", "draw_sample", "render_events", "write_sample"]
