"""IQN is at least as good as DQN on treasure hunt: the same seeds, the same number of updates of the same batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from examples.treasure_hunt import TreasureHunt
from parallel_agents.tracking.statistics import mean_interval

SEEDS = 10
SHARED = {"batch_size": 64, "updates_per_round": 32, "n_step": 3, "n_frames": 1, "gamma": 0.95, "lr": 1e-3, "tau": 0.01}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "dqn": {**SHARED, "algorithm": "dqn", "hidden": (64, 64)},
    "iqn": {**SHARED, "algorithm": "iqn", "layer": 64, "quantiles": 8},
}


def returns(algorithm: str, epochs: int = 80) -> tuple[int, Any]:
    """Updates made, and each seed's mean return of an agent in fresh episodes."""
    game = TreasureHunt(
        config={
            "experiment": {"epochs": epochs, "max_turns": 50, "worlds": 8, "seeds": SEEDS},
            "world": {"agents": 2},
            "model": {**ALGORITHMS[algorithm], "epsilon_epochs": epochs // 2, "buffer_size": 40_000},
            "parallel": {"train_interval": 1, "backend": "inline"},
        }
    )
    updates = game.run_experiment()["updates"]
    return updates, np.array([env.evaluate(40).mean_return for env in game.prepare().environments])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_iqn_is_at_least_as_good_as_dqn() -> None:
    (updates, dqn), (same, iqn) = returns("dqn"), returns("iqn")
    assert updates == same
    difference = mean_interval(iqn - dqn)
    assert difference.high > 0.0, (dqn, iqn)
    assert iqn.mean() > 0.9 * dqn.mean(), (dqn, iqn)
