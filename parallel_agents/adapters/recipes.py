"""Settings that are known to learn well on foreign environments, by algorithm and, where one is tuned, by name.

A recipe is laid under what a user gives: every key can be set otherwise. The figures reached with them are in
`docs/learners.md`, and `tests/adapters/test_recipes.py` trains with them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parallel_agents.config import merge

__all__ = ["recipe"]

Sections = Mapping[str, Mapping[str, Any]]

BY_ALGORITHM: dict[str, Sections] = {
    "ppo": {  # rounds of 32 turns and many passes over each: quick on small tasks
        "experiment": {"epochs": 586},
        "model": {
            "lr": 1e-3,
            "lr_final": 1e-5,
            "lr_updates": 11_720,
            "passes": 20,
            "minibatches": 1,
            "gamma": 0.98,
            "gae_lambda": 0.8,
        },
    },
    "dqn": {  # 64 updates for 256 transitions; returns over 4 steps, slow targets and a falling rate keep it steady
        "experiment": {"epochs": 780, "eval_every": 30},
        "model": {
            "lr": 1e-3,
            "lr_final": 1e-5,
            "lr_updates": 49_920,
            "gamma": 0.99,
            "n_step": 4,
            "batch_size": 64,
            "updates_per_round": 64,
            "learning_starts": 1_000,
            "buffer_size": 100_000,
            "tau": 0.005,
            "epsilon_epochs": 125,
            "epsilon_final": 0.04,
        },
    },
}

BY_NAME: dict[tuple[str, str], Sections] = {
    ("ppo", "Pendulum-v1"): {  # rounds of 1024 transitions; what is earned soon is what counts
        "experiment": {"epochs": 100, "max_turns": 128},
        "model": {
            "lr_updates": 16_000,
            "passes": 10,
            "minibatches": 16,
            "gamma": 0.9,
            "gae_lambda": 0.95,
            "normalise_rewards": True,
        },
    },
    ("ppo", "minigrid:MiniGrid-Empty-5x5-v0"): {  # a rare reward: the haste of small tasks ends exploration too soon
        "experiment": {"epochs": 60, "max_turns": 64},
        "model": {
            "lr": 3e-4,
            "lr_final": None,
            "lr_updates": 0,
            "passes": 4,
            "minibatches": 4,
            "gamma": 0.99,
            "gae_lambda": 0.95,
        },
    },
}


def recipe(algorithm: str, name: str) -> Sections:
    """The sections for an algorithm on an environment; empty where nothing is known.

    >>> recipe("ppo", "CartPole-v1")["model"]["gamma"]
    0.98
    """
    return merge(BY_ALGORITHM.get(algorithm, {}), BY_NAME.get((algorithm, name), {}))
