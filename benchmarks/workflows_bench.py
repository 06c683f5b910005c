"""The speed of network-defence worlds compared with its goals, and searches compared with each other.

Every speed is measured on one core with random actions, red agents included. Seconds are processor time, so that other
processes do not count. The ratio of a speed row is speed / goal: 1 or more reaches the goal.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from benchmarks.measure import Done, Effort, Measured, Row, Side, compare, rate
from benchmarks.order_search import search_regrets
from benchmarks.run import Bench
from parallel_agents.workflows.network import RED_AGENTS, NetworkWorlds
from parallel_agents.workflows.search import METHODS, landscape
from parallel_agents.workflows.trainer import ParallelWorkflowRLTrainer
from parallel_agents.workflows.wrapper import NetworkEnv, ParallelEnvWrapper

STEPS = 100
SPEED_GOALS = {1000: 1_000_000, 25: 250_000, 1: 60_000}
EPISODES = {1000: 10, 25: 100, 1: 50}
NOISE = 3.3  # standard deviation of the mean return over 25 episodes
EVALUATIONS = 15
WITHIN = 3.0


def benches(effort: Effort) -> Iterator[tuple[str, Bench]]:
    torch.set_num_threads(1)
    for batch, goal in SPEED_GOALS.items():
        for red in RED_AGENTS[:2]:
            name = f"network defence, {batch} worlds against {red}"
            yield name, partial(_speed, name, batch, red, goal, effort)
    yield "25 network environments", partial(_processes, effort)
    for method in METHODS:
        name = f"order search by {method}, within {WITHIN:g} of the best after {EVALUATIONS}"
        yield name, partial(_search, name, method, effort)
    yield "the documented search", partial(_trainer, effort)


def _speed(name: str, batch: int, red: str, goal: int, effort: Effort) -> Iterator[Row]:
    """Measure steps per second of a batch of worlds."""
    worlds = NetworkWorlds(batch, red=red, steps=STEPS)
    plan = np.random.default_rng(0).integers(0, 145, (STEPS, batch))
    episodes = effort.of(EPISODES[batch])

    def play() -> Done:
        steps = 0
        for epoch in range(episodes):
            worlds.reset(epoch)
            for actions in plan:
                worlds.step(actions)
                steps += len(actions)
        return Done({"world_steps": steps})

    side = Side("worlds", f"{episodes} episodes of {STEPS} steps in {batch} worlds against {red}, random actions", play)
    unit = f"of {goal:,} steps/CPU-s"
    repeats = effort.repeats(7)
    yield rate(name, side, "world_steps", goal=1.0, unit=unit, per=goal, repeats=repeats, clock=time.process_time)


def _processes(effort: Effort) -> Iterator[Row]:
    """Compare 25 environments in this process with 25 processes of one each, in wall time."""
    repeats, calls = effort.repeats(3), effort.of(50, 5)
    length = (repeats * calls + 2) * 2
    actions = np.random.default_rng(0).integers(0, 145, 25)
    here = ParallelEnvWrapper(25, red="Meander", steps=length)
    there = ParallelEnvWrapper(25, lambda: NetworkEnv(red="Meander", steps=length), workers=25)

    def step(envs: ParallelEnvWrapper) -> Done:
        return Done({"world_steps": len(envs.step(actions)[1])})

    try:
        here.reset(), there.reset()
        yield compare(
            "25 network environments: 25 processes / one process",
            Side("25 processes", "a step of each of 25 environments, a process each", partial(step, there)),
            Side("one process", "a step of each of 25 environments, as one batch", partial(step, here)),
            goal=None,
            repeats=repeats,
            calls=calls,
        )
    finally:
        here.close()
        there.close()


def _trainer(effort: Effort) -> Iterator[Row]:
    """Measure some of the orders of the documented search: 20 orders, at most 50 episodes, 25 environments."""
    workflows = effort.of(2, 1)

    def search() -> Done:
        trainer = ParallelWorkflowRLTrainer(n_workflows=workflows, compliance_threshold=1.0)
        results = trainer.run_workflow_search().results
        return Done({"orders": len(results), "episodes": sum(result.training.episodes for result in results)})

    side = Side(
        "search", f"{workflows} of the 20 orders x 50 episodes x 25 environments, trained and evaluated", search
    )
    yield rate(
        "the documented search, 20 orders x 50 episodes x 25 environments, on one core",
        side,
        "orders",
        goal=1.0,
        unit="of 20 orders in 300 CPU-s",
        per=20 / 300,
        repeats=1,
        clock=time.process_time,
    )


def _search(name: str, method: str, effort: Effort) -> Iterator[Row]:
    """Measure how often a search recommends an order close to the best."""
    values, searches = landscape().means, effort.of(100, 20)
    start = time.process_time()
    regrets = [search_regrets(values, NOISE, EVALUATIONS, method, seed)[-1] for seed in range(searches)]
    seconds = time.process_time() - start
    words = f"{searches} searches of {EVALUATIONS} noisy evaluations each on the stored landscape"
    counts = {"searches": len(regrets), "evaluations": len(regrets) * EVALUATIONS}
    yield Row(
        name=name,
        ratio=float(np.mean(np.array(regrets) < WITHIN)),
        goal=0.95 if method == "gp_ucb" else None,
        unit="share of searches",
        repeats=searches,
        sides=(Measured(method, words, counts, seconds, seconds, seconds, processor_time=True),),
        detail={"mean_regret": float(np.mean(regrets))},
    )
