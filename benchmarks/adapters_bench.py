"""Adapters: a game written for sorrel in its own loop and in ours, and slow worlds in processes.

The game is the stand-in of the tests with sorrel's interface (sorrel itself needs Python 3.12): Python worlds, 16
agents with a small network each, and one `train_step` per agent and epoch in every variant.
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
from parallel_agents.env.adapters.gymnasium import GymnasiumAdapter
from parallel_agents.env.adapters.sorrel import parallelize
from parallel_agents.env.adapters.sync_envs import SyncEnvs
from parallel_agents.env.adapters.worker_envs import WorkerEnvs
from tests.env.adapters.fake_sorrel import Gems, World
from tests.env.adapters.small_envs import Counter

EPOCHS, AGENTS, TURNS = 1, 16, 100
PLANS: dict[str, dict[str, Any]] = {
    "default: learning inline": {},
    "learning in the background": {"backend": "process"},
}


def benches(effort: Effort) -> Iterator[tuple[str, Bench]]:
    yield "a sorrel game, unmodified", partial(_sorrel, effort)
    yield "8 worlds of 5 ms a step: in this process / in 2 processes", partial(_processes, effort)


def _play(parallel: dict[str, Any] | None) -> Done:
    """Run the game with a plan, or in sorrel's own loop without one, and count its turns and updates."""
    config = {
        "experiment": {"epochs": EPOCHS, "max_turns": TURNS},
        "model": {"epsilon": 0.05, "epsilon_decay": 0.0, "width": 250},
        "world": {"agents": AGENTS},
        "parallel": parallel or {},
    }
    game = (Gems if parallel is None else parallelize(Gems))(World(15), config)
    turns, backend = 0, "inline"
    original_take_turn = game.take_turn

    def take_turn(*arguments: Any) -> None:
        nonlocal turns, backend
        turns += 1
        if parallel is not None and game._adapter.trainer is not None:
            backend = "process"
        original_take_turn(*arguments)

    game.take_turn = take_turn
    game.run_experiment()
    return Done({"turns": turns, "updates": sum(agent.model.trained for agent in game.agents)}, backend)


def _sorrel(effort: Effort) -> Iterator[Row]:
    """Compare sorrel's own loop with the plans."""
    torch.set_num_threads(1)
    repeats = effort.repeats(3)
    words = f"{EPOCHS + 1} epochs of {TURNS} turns, {AGENTS} agents, a train_step of each agent after each epoch"
    sorrel, *variants = measure(
        [
            Side("sorrel's own loop", words, partial(_play, None)),
            *(Side(name, words, partial(_play, plan)) for name, plan in PLANS.items()),
        ],
        repeats=repeats,
    )
    for variant in variants:
        name = f"a sorrel game, unmodified, {AGENTS} agents: sorrel's own loop / {variant.name}"
        yield ratio_of(name, sorrel, variant, goal=None, repeats=repeats)


class Slow(Counter):
    """A world whose steps take 5 ms of processor time, as in slow simulators."""

    def step(self, action: Any) -> Any:
        until = time.perf_counter() + 0.005
        while time.perf_counter() < until:
            pass
        return super().step(action)


def _adapter() -> GymnasiumAdapter:
    factory: Callable[[], gymnasium.Env[Any, Any]] = partial(Slow, length=1000)
    return GymnasiumAdapter(factory)


def _processes(effort: Effort) -> Iterator[Row]:
    """Compare worlds of 5 ms per step in this process and in two others."""
    actions = np.zeros(8, np.int64)
    inside, outside = SyncEnvs(_adapter, 8), WorkerEnvs(_adapter, 8, workers=2)

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
