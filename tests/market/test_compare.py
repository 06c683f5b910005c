"""What a study passes on to training and to the baselines; whole comparisons are in test_market_commands.py."""

from __future__ import annotations

import pytest

from parallel_agents.market import compare
from parallel_agents.market.baselines import Constant, PIDPacer
from parallel_agents.market.compare import Study, play_baselines
from parallel_agents.market.discovery import sample_patterns


@pytest.mark.usefixtures("short_search")
def test_a_study_for_profit_trains_for_profit_and_chooses_its_baselines_by_it(monkeypatch):
    asked = {}

    def cheap(patterns, **options):
        asked.update(options)
        return {"best constant": Constant(0.1), "pid pacer": PIDPacer()}

    monkeypatch.setattr(compare, "study_baselines", cheap)
    study = Study(sample_patterns(), objective="profit", worlds=2, epochs=1, episodes=2)
    assert study.environment({}).config.world["objective"] == "profit"
    (played,) = play_baselines(study)
    assert list(played) == ["best constant", "pid pacer", "oracle"]
    assert asked["by"] == "profit"
