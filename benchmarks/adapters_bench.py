"""Foreign worlds: a game written for sorrel against itself, and slow worlds in processes.

The game is the tests' stand-in with sorrel's interface (sorrel itself needs Python 3.12): Python worlds, 16 agents,
a small network each, one `train_step` per agent and epoch in every way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch

from benchmarks.measure import Done, Effort, Row, Side, compare, measure, ratio_of
from benchmarks.run import Bench
from parallel_agents.adapters.gymnasium import GymnasiumGuest
from parallel_agents.adapters.processes import ProcessWorlds
from parallel_agents.adapters.sorrel import parallelize
from parallel_agents.adapters.worlds import Worlds
from tests.adapters.rooms import Counter
from tests.adapters.standin import Gems, World

EPOCHS, AGENTS, TURNS = 1, 16, 100
WAYS: dict[str, dict[str, Any]] = {
    "default: in turn, learning in the background": {},
    "all at once, learning inline": {"turn_order": "simultaneous", "async_learning": False},
    "all at once, learning in the background": {"turn_order": "simultaneous"},
}


def benches(effort: Effort) -> Iterator[tuple[str, Bench]]:
    yield "a sorrel game, unmodified", partial(_sorrel, effort)
    yield "8 worlds of 5 ms a step: in this process / in 2 processes", partial(_processes, effort)


def _play(parallel: dict[str, Any] | None) -> Done:
    config = {
        "experiment": {"epochs": EPOCHS, "max_turns": TURNS},
        "model": {"epsilon": 0.05, "epsilon_decay": 0.0, "width": 250},
        "world": {"agents": AGENTS},
        "parallel": parallel or {},
    }
    game = (Gems if parallel is None else parallelize(Gems))(World(15), config)
    turns, backend = 0, "inline"
    own_turn = game.take_turn

    def take_turn(*arguments: Any) -> None:
        nonlocal turns, backend
        turns += 1
        if parallel is not None and game._bench.tutor is not None:
            backend = "thread"
        own_turn(*arguments)

    game.take_turn = take_turn
    game.run_experiment()
    return Done({"turns": turns, "updates": sum(agent.model.trained for agent in game.agents)}, backend)


def _sorrel(effort: Effort) -> Iterator[Row]:
    torch.set_num_threads(1)
    repeats = effort.repeats(3)
    words = f"{EPOCHS + 1} epochs of {TURNS} turns, {AGENTS} agents, a train_step of each agent after each epoch"
    own, *ways = measure(
        [
            Side("sorrel's own loop", words, partial(_play, None)),
            *(Side(name, words, partial(_play, way)) for name, way in WAYS.items()),
        ],
        repeats=repeats,
    )
    for way in ways:
        name = f"a sorrel game, unmodified, {AGENTS} agents: sorrel's own loop / {way.name}"
        yield ratio_of(name, own, way, goal=None, repeats=repeats)


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


def _processes(effort: Effort) -> Iterator[Row]:
    """Worlds of 5 ms a step: two processes against none."""
    actions = np.zeros(8, np.int64)
    inside, outside = Worlds(_guest, 8), ProcessWorlds(_guest, 8, workers=2)

    def step(worlds: Any) -> Done:
        return Done({"world_steps": len(worlds.step(actions)[1])})

    try:
        inside.reset(), outside.reset()
        yield compare(
            "8 worlds of 5 ms a step: in this process / in 2 processes",
            Side("in this process", "a step of each of 8 worlds, one after the other", partial(step, inside)),
            Side("in 2 processes", "a step of each of 8 worlds, four in each process", partial(step, outside)),
            goal=None,
            repeats=effort.repeats(5),
            calls=effort.of(20, 5),
        )
    finally:
        outside.close()
