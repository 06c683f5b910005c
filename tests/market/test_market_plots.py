"""Panels of market worlds, trainings and bidders."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from parallel_agents.core.types import EpochStats
from parallel_agents.market.baselines import Played
from parallel_agents.market.market_plots import MarketPanels, baseline_panels, world_atlas
from parallel_agents.market.worlds import World
from parallel_agents.tracking.run_view import RunView


def test_worlds_are_coloured_by_their_scores(worlds: tuple[World, ...]) -> None:
    panel = world_atlas(worlds, scores={worlds[0].index: 2.5})
    assert [point["value"] for point in panel["points"][:2]] == [2.5, None]
    assert {point["group"] for point in panel["points"]} == {world.kind.value for world in worlds}
    assert panel["value"] == "score"
    assert world_atlas(worlds)["value"] == ""


def test_a_training_leaves_its_worlds_with_their_newest_scores(worlds: tuple[World, ...], tmp_path: Path) -> None:
    """Two groups of worlds are used in turn; two bidders in each world."""
    markets = [SimpleNamespace(worlds=group, score=None) for group in (worlds[:20], worlds[20:])]
    environment: Any = SimpleNamespace(markets=markets)
    callback = MarketPanels(environment, tmp_path / "run")
    callback.on_end({})
    assert not (tmp_path / "run").exists(), "a run without an epoch has nothing to show"
    for epoch, score in enumerate((1.0, 5.0, 2.0)):
        environment.market = markets[epoch % 2]
        environment.market.score = lambda score=score: np.array([[0.5 * score] * 20, [1.5 * score] * 20])
        callback.on_epoch(cast("EpochStats", None))
    callback.on_end({})
    view = RunView(tmp_path / "run")
    view.refresh()
    found = {panel["title"]: panel for section in view.sections() for panel in section["panels"]}
    view.close()
    values = [point["value"] for point in found["40 worlds"]["points"]]
    assert values == pytest.approx([1.3] * 20 + [5.0] * 20), "a moving mean"
    kind = worlds[0].kind.value
    row = next(row for row in found["By type of world"]["rows"] if row["name"] == kind)
    assert row["estimate"] == pytest.approx(
        np.mean([v for v, w in zip(values, worlds, strict=True) if w.kind.value == kind])
    )


def test_bidders_are_shown_beside_each_other_and_the_first_by_world(worlds: tuple[World, ...]) -> None:
    def played(level: float) -> Played:
        figures = level + np.arange(40.0)[:, None]
        return Played(figures, figures, figures, figures, np.ones((40, 1)))

    bidders, scores, atlas, kinds = baseline_panels({"trained": played(3.0), "random": played(0.0)}, worlds)
    assert [row[0] for row in bidders["rows"]] == ["trained", "random"]
    assert bidders["rows"][1][1].startswith("19.5 (")
    assert len(bidders["rows"][0]) == len(bidders["columns"])
    assert [row["estimate"] for row in scores["rows"]] == [22.5, 19.5]
    assert [point["value"] for point in atlas["points"]] == (3.0 + np.arange(40)).tolist()
    assert sum(len(row["points"]) for row in kinds["rows"]) == 40
