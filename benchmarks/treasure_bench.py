"""Whole runs of treasure hunt: the parallel mode against the sequential mode of this same project.

Every pair does equal work, checked by the digest, which covers weights, buffers and counts of updates.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from benchmarks.measure import Row, medians, row
from examples.treasure_hunt import TreasureHunt
from parallel_agents.config import merge
from parallel_agents.types import Snapshot

SEQUENTIAL: dict[str, Any] = {"parallel": {"enabled": False}}
DEFAULT: dict[str, Any] = {"parallel": {}}


def rows() -> list[Row]:
    return [
        _speed_up(16, epochs=160, goal=3.0, repeats=3),
        _three_agents(),
        *(_never_slower(agents) for agents in (1, 2, 4, 8, 16, 32)),
        *_kernel_shares(16, epochs=120),
        _overlap(),
        *_scaling(),
    ]


def _make(agents: int, epochs: int, *layers: dict[str, Any]) -> TreasureHunt:
    return TreasureHunt(config=merge({"world": {"agents": agents}, "experiment": {"epochs": epochs}}, *layers))


def _timed(game: TreasureHunt) -> tuple[float, dict[str, Any]]:
    began = time.perf_counter()
    summary = game.run_experiment()
    return time.perf_counter() - began, summary


def _compare(agents: int, epochs: int, repeats: int) -> tuple[float, float, dict[str, Any]]:
    """Median seconds of the sequential and of the default run, in turn, and what the latter said."""
    slow, fast = [], []
    for _ in range(repeats):
        seconds, one = _timed(_make(agents, epochs, SEQUENTIAL))
        slow.append(seconds)
        seconds, other = _timed(_make(agents, epochs, DEFAULT, {"parallel": {"policy_lag": 1}}))
        fast.append(seconds)
        if one["digest"] != other["digest"]:
            raise SystemExit(f"unequal work: {one['digest']} and {other['digest']}")
    return statistics.median(slow), statistics.median(fast), other


def _speed_up(agents: int, *, epochs: int, goal: float, repeats: int) -> Row:
    slow, fast, summary = _compare(agents, epochs, repeats)
    return row(
        f"treasure hunt, {agents} agents, whole run: sequential / parallel",
        slow / fast,
        goal,
        "times",
        repeats,
        sequential_seconds=slow,
        parallel_seconds=fast,
        turns=summary["turns"],
        updates=summary["updates"],
        backend=summary["backend"],
        digests="equal",
    )


def _three_agents() -> Row:
    """The plan's own case: as many updates as make training about half of the sequential run."""
    epochs, model = 600, {"model": {"updates_per_round": 48}}
    slow, fast = [], []
    for _ in range(2):
        slow.append(_timed(_make(3, epochs, SEQUENTIAL, model))[0])
        fast.append(_timed(_make(3, epochs, DEFAULT, model))[0])
    ratio = statistics.median(slow) / statistics.median(fast)
    return row(
        "treasure hunt, 3 agents, whole run: sequential / parallel",
        ratio,
        2.5,
        "times",
        2,
        epoch_time_cut=1 - 1 / ratio,
        sequential_seconds=statistics.median(slow),
        parallel_seconds=statistics.median(fast),
    )


def _never_slower(agents: int) -> Row:
    slow, fast, summary = _compare(agents, 40, 3)
    return row(
        f"treasure hunt, {agents} agents, short run: sequential / parallel",
        slow / fast,
        0.95,
        "times",
        3,
        backend=summary["backend"],
    )


def _kernel_shares(agents: int, epochs: int) -> list[Row]:
    """Forwards and updates of a run alone, as a share of its wall time."""
    found = []
    for name, layer, goal in (("parallel", DEFAULT, 0.4), ("sequential", SEQUENTIAL, None)):
        game = _make(agents, epochs, layer)
        seconds, summary = _timed(game)
        assert game._run is not None
        kernels = _kernels_alone(game, summary)
        found.append(
            row(
                f"treasure hunt, {agents} agents, {name}: kernels alone / whole run",
                kernels / seconds,
                goal,
                "share",
                1,
                kernel_seconds=kernels,
                wall_seconds=seconds,
                backend=summary["backend"],
            )
        )
    return found


def _kernels_alone(game: TreasureHunt, summary: dict[str, Any]) -> float:
    """Seconds that the forwards and updates of a finished run take by themselves."""
    run = game._run
    assert run is not None
    stack = run.crew.stacks[0]
    seen = game.observe().copy()
    forward = medians({"forward": lambda: stack.inference.forward(seen)}, repeats=7, calls=100)["forward"]
    snapshot = stack.snapshot(1)
    part = slice(0, len(stack)) if run.plan.train_together else slice(0, 1)
    groups = 1 if run.plan.train_together else len(stack)
    state = run.rounds.newest[0].rows(part)
    sample = Snapshot(1, snapshot.rows(part).columns)
    learn = medians({"learn": lambda: stack.learner.learn(state, sample, stack.identity.rows(part))}, repeats=5)[
        "learn"
    ]
    rounds = summary["updates"] / (len(stack) * stack.learner.updates)
    return float(forward * summary["turns"] + learn * groups * rounds)


def _overlap() -> Row:
    """A process learner costs the collection what two cores make unavoidable."""
    agents, epochs = 16, 400
    model = {"model": {"updates_per_round": 64}}
    process = {"parallel": {"backend": "process"}}
    collect, _ = _timed(
        _make(agents, epochs, {"parallel": {"backend": "inline"}}, {"model": {"learning_starts": 10**9}})
    )
    game = _make(agents, epochs, process, model)
    wall, summary = _timed(game)
    run = game._run
    assert run is not None
    stack = run.crew.stacks[0]
    snapshot, state = stack.snapshot(1), run.rounds.newest[0]
    learn = medians({"learn": lambda: stack.learner.learn(state, snapshot, stack.identity)}, repeats=7)["learn"]
    learning = learn * summary["rounds"]
    return row(
        "process learner: wall / max(collect alone, learn alone)",
        wall / max(collect, learning),
        1.35,
        "times, at most",
        1,
        wall_seconds=wall,
        collect_seconds=collect,
        learn_seconds=learning,
    )


def _scaling() -> list[Row]:
    """Cost per agent and turn of collecting, relative to 8 agents, on a field that grows with them."""
    costs = {}
    for agents in (8, 32, 128, 256):
        side = 21 if agents <= 32 else 61
        game = _make(
            agents,
            30,
            {
                "world": {"height": side, "width": side},
                "model": {"learning_starts": 10**9},
                "parallel": {"backend": "inline"},
            },
        )
        seconds, summary = _timed(game)
        costs[agents] = seconds / (summary["turns"] * agents)
    return [
        row(
            f"cost per agent and turn, {agents} agents / 8 agents",
            costs[agents] / costs[8],
            1.0,
            "times, at most",
            1,
            microseconds=costs[agents] * 1e6,
        )
        for agents in (32, 128, 256)
    ]
