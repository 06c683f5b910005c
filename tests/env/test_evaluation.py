"""Evaluation: with random numbers of its own, and without an effect on training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_agents.algorithms import RandomModel
from parallel_agents.checkpoint import Checkpointer, restore
from parallel_agents.core.config import merge
from parallel_agents.core.errors import CheckpointError
from tests.equivalence.worlds import Odd, treasure_hunt

SMALL: dict[str, Any] = {
    "experiment": {"epochs": 8, "max_turns": 15, "eval_episodes": 6},
    "world": {"agents": 3},
    "model": {"learning_starts": 20, "updates_per_round": 4},
    "parallel": {"train_interval": 2, "backend": "inline"},
}


def test_evaluations_do_not_change_the_digest_of_training() -> None:
    plain = treasure_hunt()(config=SMALL).run_experiment()
    monitored = treasure_hunt()(config=merge(SMALL, {"experiment": {"eval_every": 2}})).run_experiment()
    assert monitored["digest"] == plain["digest"]
    assert monitored["best_epochs"][0] in (2, 4, 6, 8)
    assert plain["best_epochs"] == []


def test_two_evaluations_give_the_same_returns_and_their_episodes_differ() -> None:
    game = treasure_hunt()(config=SMALL)
    game.run_experiment()
    first, again = game.evaluate(6), game.evaluate(6)
    assert np.array_equal(first.returns, again.returns)
    assert first.returns.shape == (3, 6)
    assert len({tuple(column) for column in first.returns.T}) > 1, "episodes differ from each other"


def test_an_evaluation_draws_with_another_seed_than_training() -> None:
    game = treasure_hunt()(config=SMALL)
    seeds: set[int] = set()
    game.evaluate(2, on_turn=lambda env: seeds.add(env.seed))
    assert len(seeds) == 1
    assert game.seed not in seeds


def test_an_evaluation_records_every_turn_and_calls_on_turn() -> None:
    game = treasure_hunt()(config=SMALL)
    seen: list[tuple[int, float]] = []
    found = game.evaluate(4, on_turn=lambda env: seen.append((env.turn, float(env.earned.sum()))))
    assert found.rewards.shape == found.acted.shape == (15, 3, 4)
    assert [turn for turn, _ in seen] == list(range(1, 16))
    assert np.allclose([earned for _, earned in seen], found.rewards.sum(axis=(1, 2)).cumsum(), atol=1e-4)
    assert np.allclose(found.returns, found.rewards.sum(axis=0))
    assert found.acted.all()


@pytest.mark.parametrize("flags", [{"enabled": False}, {"backend": "thread", "num_workers": 2}], ids=str)
def test_the_results_of_evaluations_are_equal_in_every_mode(flags: dict[str, Any]) -> None:
    config = merge(SMALL, {"experiment": {"eval_every": 3}})
    found = [treasure_hunt()(config=merge(config, {"parallel": own})).run_experiment() for own in ({}, flags)]
    assert found[0]["best_returns"] == found[1]["best_returns"]
    assert found[0]["best_epochs"] == found[1]["best_epochs"]


def test_an_evaluation_stores_nothing_in_the_memory_of_a_users_model() -> None:
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


def test_the_best_weights_are_stored_and_restored(tmp_path: Path) -> None:
    config = merge(SMALL, {"experiment": {"eval_every": 2, "keep_last": 1}})
    game = treasure_hunt()(config=config)
    run = game.prepare()
    run.checkpointer = Checkpointer(run, tmp_path, keep_last=1)
    summary = game.run_experiment()
    other = treasure_hunt()(config=config)
    restore(other.prepare(), tmp_path, best=True)
    assert other.prepare().best.epochs == summary["best_epochs"]
    assert [other.evaluate().mean_return] == summary["best_returns"]


def test_every_replica_stores_the_best_weights_of_its_single_run(tmp_path: Path) -> None:
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


def test_restoring_the_best_weights_without_evaluations_raises(tmp_path: Path) -> None:
    game = treasure_hunt()(config=SMALL)
    run = game.prepare()
    run.checkpointer = Checkpointer(run, tmp_path, keep_last=1)
    game.run_experiment()
    with pytest.raises(CheckpointError, match=r"knows no best weights: train with experiment\.eval_every"):
        restore(treasure_hunt()(config=SMALL).prepare(), tmp_path, best=True)
