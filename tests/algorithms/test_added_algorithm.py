"""An algorithm written outside of the package is stacked, trained in the background, digested and resumed like others."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from parallel_agents import Agent, ParallelEnvironment, register_algorithm
from parallel_agents.checkpoint import Checkpointer, restore
from parallel_agents.core.errors import ConfigError
from parallel_agents.core.types import Array
from tests.algorithms import tabular_q

STATES = 6


class Corridor(ParallelEnvironment):
    """Agents walk along a corridor of six cells; the last cell pays 1 and ends the episode."""

    default_config: ClassVar[dict[str, Any]] = {
        "experiment": {"epochs": 24, "max_turns": 20, "worlds": 2, "seed": 3},
        "model": {
            "algorithm": "tabular_q", "states": STATES, "gamma": 0.9, "learning_starts": 20, "batch_size": 16,
            "updates_per_round": 8, "epsilon_epochs": 12, "epsilon_final": 0.0,
        },
        "parallel": {"train_interval": 2},
    }  # fmt: skip

    def setup_agents(self) -> None:
        self.agents = [Agent(model=self.make_model((1,), n_actions=2)) for _ in range(3)]

    def reset(self) -> None:
        self.cell = np.zeros((len(self.agents), self.n_worlds), np.int64)

    def observe(self) -> Array:
        return self.cell[..., None].astype(np.float32)

    def apply_actions(self, actions: Array) -> Array:
        self.cell = np.clip(self.cell + 2 * actions - 1, 0, STATES - 1)
        return (self.cell == STATES - 1).astype(np.float32)

    def dones(self) -> tuple[Array, Array]:
        ended = self.cell == STATES - 1
        return ended, np.zeros_like(ended)


def digest(**parallel: Any) -> str:
    return str(Corridor(config={"parallel": parallel}).run_experiment()["digest"])


def test_it_is_under_150_lines() -> None:
    assert len(Path(tabular_q.__file__).read_text(encoding="utf-8").splitlines()) < 150


def test_agents_learn_to_walk_to_the_end() -> None:
    game = Corridor()
    game.run_experiment()
    assert game.evaluate(10).mean_return == 1.0
    assert game.evaluate(10, exploration=1.0).mean_return < 1.0


@pytest.mark.parametrize("backend", ["inline", "thread", "process"])
def test_every_backend_gives_the_bytes_of_the_sequential_run(backend: str) -> None:
    assert digest(backend=backend, num_workers=2) == digest(enabled=False)


def test_a_resumed_run_ends_with_the_digest_of_the_whole_run(tmp_path: Path) -> None:
    first = Corridor()
    first.prepare().checkpointer = Checkpointer(first.prepare(), tmp_path, keep_last=1)
    first.run_experiment(13)
    second = Corridor()
    restore(second.prepare(), tmp_path)
    assert second.run_experiment()["digest"] == digest()


def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"an algorithm named 'dqn' exists already: choose another name"):
        register_algorithm("dqn", tabular_q.TabularQ)
