"""Evaluation: on draws of its own, noticed by nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_agents.config import merge
from parallel_agents.errors import CheckpointError
from parallel_agents.models import RandomModel
from parallel_agents.runtime.checkpoints import Checkpointer, restore
from tests.equivalence.worlds import Odd, treasure_hunt

SMALL: dict[str, Any] = {
    "experiment": {"epochs": 8, "max_turns": 15, "eval_episodes": 6},
    "world": {"agents": 3},
    "model": {"learning_starts": 20, "updates_per_round": 4},
    "parallel": {"train_interval": 2, "backend": "inline"},
}


def test_training_notices_nothing_of_an_evaluation() -> None:
    plain = treasure_hunt()(config=SMALL).run_experiment()
    watched = treasure_hunt()(config=merge(SMALL, {"experiment": {"eval_every": 2}})).run_experiment()
    assert watched["digest"] == plain["digest"]
    assert watched["best_epochs"][0] in (2, 4, 6, 8)
    assert plain["best_epochs"] == []


def test_evaluated_twice_it_is_the_same_and_not_what_was_trained_on() -> None:
    game = treasure_hunt()(config=SMALL)
    game.run_experiment()
    first, again = game.evaluate(6), game.evaluate(6)
    assert np.array_equal(first.returns, again.returns)
    assert first.returns.shape == (3, 6)
    assert len({tuple(column) for column in first.returns.T}) > 1, "episodes differ from each other"


def test_an_evaluation_keeps_every_turn_and_shows_it_to_who_looks_on() -> None:
    game = treasure_hunt()(config=SMALL)
    seen: list[tuple[int, float]] = []
    found = game.evaluate(4, onlooker=lambda stage: seen.append((stage.turn, float(stage.earned.sum()))))
    assert found.rewards.shape == found.acted.shape == (15, 3, 4)
    assert [turn for turn, _ in seen] == list(range(1, 16))
    assert np.allclose([earned for _, earned in seen], found.rewards.sum(axis=(1, 2)).cumsum(), atol=1e-4)
    assert np.allclose(found.returns, found.rewards.sum(axis=0))
    assert found.acted.all()


@pytest.mark.parametrize("flags", [{"enabled": False}, {"backend": "thread", "num_workers": 2}], ids=str)
def test_what_an_evaluation_finds_does_not_depend_on_how_the_work_is_run(flags: dict[str, Any]) -> None:
    config = merge(SMALL, {"experiment": {"eval_every": 3}})
    found = [treasure_hunt()(config=merge(config, {"parallel": own})).run_experiment() for own in ({}, flags)]
    assert found[0]["best_returns"] == found[1]["best_returns"]
    assert found[0]["best_epochs"] == found[1]["best_epochs"]


def test_models_of_the_users_own_keep_their_memory_to_themselves() -> None:
    class Diary(RandomModel):
        def __init__(self) -> None:
            super().__init__((3,), 3)
            self.memory = self
            self.kept = 0

        def add(self, *_: Any) -> None:
            self.kept += 1

    class Game(Odd):
        def setup_agents(self) -> None:
            super().setup_agents()
            self.agents[0].model = Diary()

    game = Game(config={"parallel": {"backend": "inline"}})
    game.run_experiment()
    before = game.agents[0].model.kept
    game.evaluate(4)
    assert before > 0
    assert game.agents[0].model.kept == before


def test_the_best_weights_are_kept_and_found_again(tmp_path: Path) -> None:
    config = merge(SMALL, {"experiment": {"eval_every": 2, "keep_last": 1}})
    game = treasure_hunt()(config=config)
    run = game.prepare()
    run.checkpointer = Checkpointer(run, tmp_path, keep_last=1)
    summary = game.run_experiment()
    other = treasure_hunt()(config=config)
    restore(other.prepare(), tmp_path, best=True)
    assert other.prepare().best.epochs == summary["best_epochs"]
    assert [other.evaluate().mean_return] == summary["best_returns"]


def test_every_replica_keeps_the_best_weights_it_would_keep_alone(tmp_path: Path) -> None:
    config = merge(SMALL, {"experiment": {"eval_every": 1, "max_turns": 8, "seeds": 3}})
    game = treasure_hunt()(config=config)
    run = game.prepare()
    run.checkpointer = Checkpointer(run, tmp_path, keep_last=1)
    together = game.run_experiment()
    alone = [
        treasure_hunt()(config=merge(config, {"experiment": {"seeds": 1, "seed": seed}})).run_experiment()
        for seed in range(3)
    ]
    assert together["best_epochs"] == [own["best_epochs"][0] for own in alone]
    assert together["best_returns"] == [own["best_returns"][0] for own in alone]
    assert len(set(together["best_epochs"])) > 1, "all best at the same time: the test shows nothing"
    other = treasure_hunt()(config=config)
    restore(other.prepare(), tmp_path, best=True)
    assert [env.evaluate().mean_return for env in other.prepare().environments] == together["best_returns"]


def test_no_best_without_evaluations(tmp_path: Path) -> None:
    game = treasure_hunt()(config=SMALL)
    run = game.prepare()
    run.checkpointer = Checkpointer(run, tmp_path, keep_last=1)
    game.run_experiment()
    with pytest.raises(CheckpointError, match=r"knows no best weights: train with experiment\.eval_every"):
        restore(treasure_hunt()(config=SMALL).prepare(), tmp_path, best=True)
