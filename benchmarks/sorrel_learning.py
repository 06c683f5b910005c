"""Does background training learn as well as sorrel at equal turns? Run it with the Python of sorrel's environment:

    benchmarks/.venvs/sorrel-3.12/bin/python -m benchmarks.sorrel_learning --seeds 6 --epochs 500

For each seed, sorrel's treasure hunt is played twice with the same turns and trainings: by sorrel itself, and by the
adapter with `parallel.backend = "process"`. (Inline the adapter gives sorrel's results bit for bit, which the tests
check.) Prints the mean reward per turn and agent in the first and last fifth of the epochs, and the paired difference
of the last fifth with its 95 % interval.
"""

from __future__ import annotations

import argparse
import random
from typing import Any

import numpy as np
import torch
from sorrel.examples.treasurehunt.entities import EmptyEntity  # type: ignore[import-not-found]
from sorrel.examples.treasurehunt.env import TreasurehuntEnv  # type: ignore[import-not-found]
from sorrel.examples.treasurehunt.world import TreasurehuntWorld  # type: ignore[import-not-found]

from parallel_agents.env.adapters.sorrel import parallelize
from parallel_agents.tracking.statistics import mean_interval

WORLD = {"height": 9, "width": 9, "gem_value": 10, "food_value": 5, "bone_value": -10, "spawn_prob": 0.02}
AGENTS, TURNS = 2, 15


class Rewards:
    """A logger of sorrel that keeps the reward of every epoch."""

    def __init__(self) -> None:
        self.epochs: list[float] = []

    def record_step(self, stats: Any) -> None: ...

    def record_epoch(self, epoch: int, loss: Any, reward: float, epsilon: float, **_: Any) -> None:
        self.epochs.append(float(reward) / (AGENTS * TURNS))


def play(game: Any, seed: int, epochs: int, parallel: dict[str, Any]) -> np.ndarray:
    """Return the mean reward per turn and agent of every epoch."""
    random.seed(seed)
    np.random.seed(seed)
    torch.random.seed = lambda: seed  # type: ignore[assignment]  # the games take their networks' seeds from it
    config = {
        "experiment": {"epochs": epochs - 1, "max_turns": TURNS, "record_period": 10**9},  # sorrel runs one more
        "model": {"num_agents": AGENTS, "agent_vision_radius": 2, "epsilon_decay": 0.01, "save_weights": False},
        "world": WORLD,
        "parallel": parallel,
    }
    env = game(TreasurehuntWorld(config=config, default_entity=EmptyEntity()), config)
    rewards = Rewards()
    env.run_experiment(animate=False, logger=rewards)
    return np.array(rewards.epochs)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=500)
    options = parser.parse_args()
    torch.set_num_threads(1)
    fifth = options.epochs // 5
    sides = {
        "sorrel": (TreasurehuntEnv, {}),
        "in the background": (parallelize(TreasurehuntEnv), {"backend": "process"}),
    }
    last: dict[str, list[float]] = {name: [] for name in sides}
    for seed in range(options.seeds):
        for name, (game, parallel) in sides.items():
            rewards = play(game, seed, options.epochs, parallel)
            last[name].append(float(rewards[-fifth:].mean()))
            print(f"seed {seed}, {name}: {rewards[:fifth].mean():.3f} -> {last[name][-1]:.3f}", flush=True)
    theirs, ours = last.values()
    for name, values in {**last, "difference": np.subtract(ours, theirs)}.items():
        mean, low, high = mean_interval(values)
        print(f"{name}: {mean:.3f} [{low:.3f}, {high:.3f}]")


if __name__ == "__main__":
    main()
