"""Panels of trainings, searches, scores and recorded episodes, and pictures of episodes and orders."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from parallel_agents.core.types import EpochStats
from parallel_agents.tracking import callbacks
from parallel_agents.tracking.callbacks import BaseCallback
from parallel_agents.tracking.run_view import RunView
from parallel_agents.workflows.blue_policies import scripted
from parallel_agents.workflows.defence import NetworkDefence
from parallel_agents.workflows.evaluation import Episode, OrderEvaluation, Score, record_episode
from parallel_agents.workflows.network import NetworkWorlds
from parallel_agents.workflows.orders import ORDERS
from parallel_agents.workflows.pictures import (
    episode_animation,
    network_frames,
    orders_picture,
    score_panels,
    search_panels,
    timeline_picture,
    training_panels,
)
from parallel_agents.workflows.trainer import TrainingHistory, WorkflowResult


def test_an_episode_of_the_network_now_and_the_last_are_left_in_the_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, seen = [10.0], []
    monkeypatch.setattr(callbacks, "time", SimpleNamespace(monotonic=lambda: now[0]))

    class Look(BaseCallback):
        def on_epoch(self, stats: EpochStats) -> None:
            now[0] += 1.1
            (section,) = [entry for entry in _sections(tmp_path) if entry["title"] == "The defended network"]
            seen.append(section["panels"][0]["label"])

    config = {
        "experiment": {"epochs": 8, "max_turns": 4, "worlds": 2},
        "model": {"algorithm": "random"},
    }
    env, plain = NetworkDefence(config=config), NetworkDefence(config=config)
    recorded = env.run_experiment(callbacks=[*env.recorders(tmp_path), Look()])
    assert recorded["mean_reward"] == plain.run_experiment()["mean_reward"]
    assert seen == [f"epoch {epoch}" for epoch in (1, 1, 1, 4, 4, 4, 7, 8)], "every two seconds, and the last"
    (section,) = [entry for entry in _sections(tmp_path) if entry["title"] == "The defended network"]
    (panel,) = section["panels"]
    assert len(panel["frames"]) == 4
    assert all(len(frame["levels"]) == len(panel["hosts"]) == 13 for frame in panel["frames"])
    assert panel["frames"][-1]["text"].startswith("turn   4   blue: ")
    assert NetworkDefence(config={"experiment": {"record_period": 0}}).recorders(tmp_path) == ()


def _sections(path: Path) -> list[dict[str, Any]]:
    view = RunView(path)
    view.refresh()
    view.close()
    return view.sections()


def test_the_recorded_return_has_the_rewards_of_the_game_not_their_weights(tmp_path: Path) -> None:
    experiment = {"epochs": 1, "max_turns": 40, "worlds": 1, "record_period": 1}
    texts = []
    for weighted in (False, True):
        config = {"experiment": experiment, "world": {"turn_weights": weighted}, "model": {"algorithm": "random"}}
        env = NetworkDefence(config=config)
        env.run_experiment(callbacks=env.recorders(tmp_path))
        (panel,) = json.loads((tmp_path / "network.panels.json").read_text())["panels"]
        texts.append(panel["frames"][-1]["text"])
    assert texts[0] == texts[1]
    assert "return     0.0" not in texts[0]


def test_a_training_shows_both_measures_and_leaves_out_episodes_without_repairs() -> None:
    history = TrainingHistory([float("nan"), 0.9], [0.5, 0.8], [-30.0, -20.0], [0.0, 2.0], True)
    panels = training_panels({"": history})
    values = {name: panel["lines"][0]["values"] for name, panel in panels.items()}
    assert values == {"compliance": [None, 0.9], "documented": [0.5, 0.8], "returns": [-30.0, -20.0]}
    assert panels["returns"]["lines"][0]["x"] == [1, 2]
    assert panels["returns"]["ylabel"] == "return"


def test_a_search_shows_its_orders_its_posterior_and_its_trainings() -> None:
    results = [
        WorkflowResult(
            ORDERS[k],
            TrainingHistory([0.5, 0.9], [0.4, 0.8], [-30.0, -20.0 - k], [1.0, 2.0], True),
            OrderEvaluation(-20.0 - k, 1.0, 0.9, 0.8, -25.0),
        )
        for k in (0, 50, 100)
    ]
    panels = search_panels(results)
    mean, tried = panels["posterior"]["lines"]
    assert len(mean["values"]) == 120
    assert mean["values"] == sorted(mean["values"], reverse=True)
    assert sorted(tried["values"]) == [-120.0, -70.0, -20.0]
    assert tried["x"] == sorted(tried["x"])
    assert [line["values"] for line in panels["compliance"]["lines"]] == [[0.5, 0.9]] * 3
    assert panels["returns"]["lines"][2]["values"] == [-30.0, -120.0]
    row = [1, " > ".join(ORDERS[0]), "-20.0", "2.0", "-25.0", "0.90", "0.80", 2, "yes"]
    assert panels["orders"]["rows"][0] == row
    json.dumps(panels, allow_nan=False)
    told = search_panels(results, noise=30.0)["posterior"]["lines"][0]["values"]
    assert max(told) - min(told) < max(mean["values"]) - min(mean["values"])  # noisy values tell less about orders


def test_an_order_that_was_tried_twice_is_drawn_twice() -> None:
    history = TrainingHistory([0.5], [0.5], [-30.0], [1.0])
    results = [WorkflowResult(ORDERS[7], history, OrderEvaluation(v, 1.0, 0.9, 0.8, -25.0)) for v in (-30.0, -20.0)]
    (_, tried) = search_panels(results)["posterior"]["lines"]
    assert (tried["values"], len(set(tried["x"]))) == ([-30.0, -20.0], 1)


def test_scores_are_a_table_and_means_with_intervals() -> None:
    means = {"B_line": (-1.0, -2.0, -3.0), "Meander": (-4.0, -5.0, -6.0)}
    errors = dict.fromkeys(means, (0.5, 0.5, 1.0))
    totals, nine = score_panels({"leaderboard": Score(means, errors, -21.0, 0.5, 10)})
    assert totals["rows"] == [["leaderboard", "-21.00", "0.98"]]
    assert len(nine["rows"]) == 6
    assert nine["rows"][2] == {"name": "leaderboard: B_line 100", "estimate": -3.0, "low": -4.96, "high": -1.04}
    assert "10 episodes" in totals["note"]


@pytest.fixture(scope="module")
def episode() -> Episode:
    worlds = NetworkWorlds(1, red="B_line", steps=20, late_start=10)
    return record_episode(worlds, scripted("react_remove", 0))


def test_frames_tell_what_happened_in_each_turn(episode: Episode) -> None:
    frames = network_frames(episode)
    assert [frame["levels"] for frame in frames] == episode.access.tolist()
    assert frames[0]["text"].startswith("turn  10   blue: start\nreturn     0.0")
    assert frames[-1]["text"].startswith(f"turn  20   blue: {episode.actions[-1]}\nreturn {-episode.costs.sum():7.1f}")
    assert f"red: {episode.red_actions[4]}   service " in frames[5]["text"]
    down = ["IS DOWN" in frame["text"] for frame in frames]
    assert down == (~episode.running).tolist()
    assert (down[0], down[-1]) == (False, True)


def test_an_animation_has_the_frames_of_the_episode(episode: Episode, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    imageio = pytest.importorskip("imageio.v3")
    assert episode_animation(episode, tmp_path / "episode.gif") == 11
    assert imageio.imread(tmp_path / "episode.gif").shape == (11, 528, 768, 3)


def test_timelines_and_maps_of_orders_are_pictures(episode: Episode, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    timeline_picture(episode, tmp_path / "timeline.png")
    orders_picture({"return": np.arange(120.0), "compliance": np.linspace(0, 1, 120)}, tmp_path / "orders.svg")
    assert (tmp_path / "timeline.png").read_bytes()[1:4] == b"PNG"
    assert "<svg" in (tmp_path / "orders.svg").read_text()
