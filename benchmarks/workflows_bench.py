"""The network-defence worlds against their goals, and the searches against each other.

`rows()` measures; every speed is one core, random actions, red agents included, the median of some repeats. Seconds
are this process's own, so that neighbours on a busy machine do not count. The ratio of a speed row is speed / goal
speed: 1 and above has reached it.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from parallel_agents.workflows.foreign import NetworkEnv
from parallel_agents.workflows.landscape import landscape
from parallel_agents.workflows.network import RED_AGENTS, NetworkWorlds
from parallel_agents.workflows.search import METHODS, search_regrets
from parallel_agents.workflows.trainer import ParallelWorkflowRLTrainer
from parallel_agents.workflows.wrapper import ParallelEnvWrapper

STEPS = 100
SPEED_GOALS = {1000: 1_000_000, 25: 250_000, 1: 60_000}
EPISODES = {1000: 10, 25: 100, 1: 50}
NOISE = 3.3  # the deviation of an evaluation's mean over 25 episodes
EVALUATIONS = 10
WITHIN = 1.0


def rows(repeats: int = 7, searches: int = 100) -> list[dict[str, Any]]:
    """Everything, as rows of the benchmark's table."""
    torch.set_num_threads(1)
    return [*speed_rows(repeats), process_row(), *search_rows(searches), trainer_row()]


def speed_rows(repeats: int) -> list[dict[str, Any]]:
    """Steps a second per batch size and attacking red agent."""
    table = []
    for batch, goal in SPEED_GOALS.items():
        for red in RED_AGENTS[:2]:
            speeds = [_speed(batch, red) for _ in range(repeats + 1)][1:]  # the first one compiles
            median = statistics.median(speeds)
            table.append(
                {
                    "name": f"network defence, {batch} worlds against {red}",
                    "ratio": median / goal,
                    "goal": 1.0,
                    "unit": f"of {goal:,} steps/s",
                    "repeats": repeats,
                    "detail": {"steps_per_second": median, "lowest": min(speeds), "highest": max(speeds)},
                }
            )
    return table


def _speed(batch: int, red: str) -> float:
    worlds = NetworkWorlds(batch, red=red, steps=STEPS)
    plan = np.random.default_rng(0).integers(0, 145, (STEPS, batch))
    episodes = EPISODES[batch]

    def play() -> None:
        for epoch in range(episodes):
            worlds.reset(epoch)
            for actions in plan:
                worlds.step(actions)

    return episodes * STEPS * batch / _seconds(play)


def process_row(steps: int = 200) -> dict[str, Any]:
    """25 environments in this process against 25 processes of one each, by the clock: both wait for each other."""
    speeds = {}
    for name, envs in (
        ("batch", ParallelEnvWrapper(25, red="Meander", steps=steps + 1)),
        ("processes", ParallelEnvWrapper(25, lambda: NetworkEnv(red="Meander", steps=steps + 1), workers=25)),
    ):
        plan = np.random.default_rng(0).integers(0, 145, (steps, 25))
        envs.reset()
        envs.step(plan[0])
        begin = time.perf_counter()
        for actions in plan[1:]:
            envs.step(actions)
        speeds[name] = 25 * (steps - 1) / (time.perf_counter() - begin)
        envs.close()
    return {
        "name": "25 network environments in one process against 25 processes",
        "ratio": speeds["batch"] / speeds["processes"],
        "goal": None,
        "unit": "times as fast",
        "repeats": 1,
        "detail": speeds,
    }


def trainer_row(workflows: int = 2) -> dict[str, Any]:
    """The documented search takes 20 orders of at most 50 episodes in 25 environments: some of them, times the rest."""
    trainer = ParallelWorkflowRLTrainer(n_workflows=workflows, compliance_threshold=1.0)
    seconds = _seconds(trainer.run_workflow_search) * 20 / workflows
    return {
        "name": "the documented search, 20 orders x 50 episodes x 25 environments, on one core",
        "ratio": 300.0 / seconds,
        "goal": 1.0,
        "unit": "of 300 s, inverted",
        "repeats": workflows,
        "detail": {"seconds": seconds},
    }


def search_rows(searches: int) -> list[dict[str, Any]]:
    """How often each search has found an order within a point of the best after ten evaluations."""
    values = landscape().means
    table = []
    for method in METHODS:
        regrets: list[float] = []
        seconds = _seconds(
            lambda method=method, regrets=regrets: regrets.extend(  # type: ignore[misc]
                search_regrets(values, NOISE, EVALUATIONS, method, seed)[-1] for seed in range(searches)
            )
        )
        table.append(
            {
                "name": f"order search by {method}, within {WITHIN:g} of the best after {EVALUATIONS}",
                "ratio": float(np.mean(np.array(regrets) < WITHIN)),
                "goal": 0.95 if method == "gp_ucb" else None,
                "unit": "share of searches",
                "repeats": searches,
                "detail": {"mean_regret": float(np.mean(regrets)), "seconds_per_search": seconds / searches},
            }
        )
    return table


def _seconds(work: Callable[[], Any]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


if __name__ == "__main__":
    print(json.dumps(rows(), indent=2))
