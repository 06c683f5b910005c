"""Foreign worlds: a game written for sorrel against itself, and slow worlds in processes.

The game is the tests' stand-in with sorrel's interface (sorrel itself needs Python 3.12): Python worlds, 16 agents,
a small network each, one `train_step` per agent and epoch in every way, which is checked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch

from benchmarks.measure import Row, medians, row
from parallel_agents.adapters.gymnasium import GymnasiumGuest
from parallel_agents.adapters.processes import ProcessWorlds
from parallel_agents.adapters.sorrel import parallelize
from parallel_agents.adapters.worlds import Worlds
from tests.adapters.rooms import Counter
from tests.adapters.standin import Gems, World

EPOCHS, AGENTS = 1, 16
WAYS: dict[str, dict[str, Any] | None] = {
    "sorrel's own loop": None,
    "default: in turn, learning in the background": {},
    "all at once, learning inline": {"turn_order": "simultaneous", "async_learning": False},
    "all at once, learning in the background": {"turn_order": "simultaneous"},
}


def rows() -> list[Row]:
    return [*_sorrel(), _processes()]


def _play(parallel: dict[str, Any] | None) -> Callable[[], None]:
    config = {
        "experiment": {"epochs": EPOCHS, "max_turns": 100},
        "model": {"epsilon": 0.05, "epsilon_decay": 0.0, "width": 250},
        "world": {"agents": AGENTS},
        "parallel": parallel or {},
    }
    kind = Gems if parallel is None else parallelize(Gems)

    def play() -> None:
        game = kind(World(15), config)
        game.run_experiment()
        trained = sum(agent.model.trained for agent in game.agents)
        assert trained == AGENTS * (EPOCHS + 1), trained

    return play


def _sorrel() -> list[Row]:
    torch.set_num_threads(1)
    repeats = 3
    seconds = medians({name: _play(parallel) for name, parallel in WAYS.items()}, repeats=repeats)
    turns = 100 * (EPOCHS + 1)
    own = seconds["sorrel's own loop"]
    return [
        row(
            f"a sorrel game, unmodified, {AGENTS} agents: {name}",
            own / spent,
            None,
            "times",
            repeats,
            turns_per_second=turns / spent,
        )
        for name, spent in seconds.items()
    ]


class Slow(Counter):
    """Takes a tenth of a second for twenty steps, as simulators do."""

    def step(self, action: Any) -> Any:
        until = time.perf_counter() + 0.005
        while time.perf_counter() < until:
            pass
        return super().step(action)


def _guest() -> GymnasiumGuest:
    made: Callable[[], gymnasium.Env[Any, Any]] = partial(Slow, length=1000)
    return GymnasiumGuest(made)


def _processes() -> Row:
    """Worlds of 5 ms a step: two processes against none."""
    worlds, repeats, actions = 8, 5, np.zeros(8, np.int64)
    inside, outside = Worlds(_guest, worlds), ProcessWorlds(_guest, worlds, workers=2)
    inside.reset(), outside.reset()
    seconds = medians(
        {"in": lambda: inside.step(actions), "out": lambda: outside.step(actions)}, repeats=repeats, calls=20
    )
    outside.close()
    return row(
        "8 worlds of 5 ms a step: 2 processes against none",
        seconds["in"] / seconds["out"],
        None,
        "times",
        repeats,
        **seconds,
    )
