"""Returns and lengths of episodes, where they end by themselves, with the epoch, or in a later one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from parallel_agents import Agent, ParallelEnvironment
from parallel_agents.algorithms import RandomModel
from parallel_agents.checkpoint import Checkpointer, restore
from parallel_agents.core.types import Array, EpochStats
from parallel_agents.tracking.callbacks import BaseCallback


class Count(ParallelEnvironment):
    """Agent i of world w earns i + 1 a turn; its episode ends after its world's number of turns."""

    lengths: ClassVar[tuple[int, ...]] = (3, 7)
    default_config: ClassVar[dict[str, Any]] = {"experiment": {"epochs": 4, "max_turns": 5, "worlds": 2}}

    def setup_agents(self) -> None:
        self.agents = [Agent(model=RandomModel((1,), 2)) for _ in range(2)]

    def reset(self) -> None:
        self.reset_worlds(np.ones(self.n_worlds, np.bool_))

    def reset_worlds(self, which: Array) -> None:
        self.turns = np.where(which, 0, getattr(self, "turns", np.zeros(self.n_worlds, int)))

    def observe(self) -> Array:
        return np.zeros((2, self.n_worlds, 1), np.float32)

    def apply_actions(self, actions: Array) -> Array:
        self.turns = self.turns + self.active
        return np.outer([1.0, 2.0], np.ones(self.n_worlds)).astype(np.float32)

    def dones(self) -> tuple[Array, Array]:
        ended = np.tile(self.turns >= np.array(self.lengths[: self.n_worlds]), (2, 1))
        return ended, np.zeros_like(ended)

    def state(self) -> dict[str, Array]:
        return {"turns": self.turns}

    def load_state(self, state: Any) -> None:
        self.turns = state["turns"]


class Epochs(BaseCallback):
    def __init__(self) -> None:
        self.seen: list[EpochStats] = []

    def on_epoch(self, stats: EpochStats) -> None:
        self.seen.append(stats)


def run(epochs: int = 4, **experiment: Any) -> tuple[list[EpochStats], dict[str, Any]]:
    callback = Epochs()
    summary = Count(config={"experiment": experiment}).run_experiment(epochs, callbacks=[callback])
    return callback.seen, summary


def test_what_has_not_ended_by_itself_ends_with_the_epoch() -> None:
    (first, *_), summary = run()
    assert first.episodes.tolist() == [[2, 2], [3 + 5, 2 * (3 + 5)], [3 + 5, 3 + 5]]
    assert (first.timesteps, summary["total_timesteps"]) == (8, 4 * 8)
    assert summary["ep_len_mean"] == 4.0
    assert summary["ep_rew_mean"] == 6.0


def test_with_autoreset_an_episode_counts_in_the_epoch_in_which_it_ends() -> None:
    epochs, summary = run(autoreset=True)
    assert epochs[0].episodes[:, 0].tolist() == [1, 3, 3], "world 0 ends in turn 3, world 1 goes on"
    assert epochs[1].episodes[:, 0].tolist() == [2, 10, 10], "both: world 1 has taken 7 turns"
    assert summary["ep_len_mean"] < 7


def test_a_resumed_run_knows_the_episodes_that_were_going_on(tmp_path: Path) -> None:
    whole, summary = run(autoreset=True)
    first = Count(config={"experiment": {"autoreset": True}})
    first.prepare().checkpointer = Checkpointer(first.prepare(), tmp_path, keep_last=1)
    first.run_experiment(1)
    second, callback = Count(config={"experiment": {"autoreset": True}}), Epochs()
    restore(second.prepare(), tmp_path)
    resumed = second.run_experiment(callbacks=[callback])
    assert [stats.episodes.tolist() for stats in callback.seen] == [stats.episodes.tolist() for stats in whole[1:]]
    names = ("digest", "ep_rew_mean", "ep_len_mean", "total_timesteps")
    assert [resumed[name] for name in names] == [summary[name] for name in names]


@pytest.mark.parametrize(("steps", "epochs"), [(1, 1), (10, 1), (11, 2), (100, 10)])
def test_total_timesteps_says_how_many_epochs_there_are(steps: int, epochs: int) -> None:
    game = Count(config={"experiment": {"total_timesteps": steps}})
    assert game.config.experiment.epochs == epochs


def test_without_any_finished_episode_the_means_are_none() -> None:
    _, summary = run(epochs=1, autoreset=True, max_turns=2)
    assert summary["ep_rew_mean"] is None
    assert summary["replicas"][0]["ep_rew_mean"] is None


def test_every_replica_has_its_own_episodes() -> None:
    _, summary = run(seeds=2)
    assert [replica["ep_rew_mean"] for replica in summary["replicas"]] == [6.0, 6.0]
