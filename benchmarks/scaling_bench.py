"""How the cost of a turn and of an update grows with agents, worlds, network and buffer, and which backend is fastest.

- turn: an agent's turn in a world that costs next to nothing (`benchmarks/drift.py`): observing, acting, storing;
- update: an update of one agent from given samples, beside the roofline of this machine: the multiplications and the
  bytes of a second, both measured in the same run;
- buffer: an update with the sampling before it, from 10^3 to 10^6 rows, and the memory of those rows;
- backend: whole loops in each backend, in steady state: the seconds in which processes start are left out.

`python -m benchmarks.run scaling` takes about 6 minutes on two quiet cores. Figures and plots: docs/performance.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.drift import Drift
from benchmarks.kernels_bench import (
    BATCH,
    GAME,
    LARGE,
    SMALL,
    TURNS,
    UPDATES,
    Rounds,
    Run,
    drift,
    flops_of_update,
    seconds_of_products,
)
from benchmarks.measure import Done, Effort, Row, Side, measure
from benchmarks.run import Bench
from parallel_agents.tracking.callbacks import BaseCallback

AGENTS, WORLDS, MOST = (1, 8, 64, 512), (1, 16, 256, 4096), 2**17
"""Turns: every pair with at most `MOST` agents times worlds, whose observations fit into memory many times."""
NETWORKS = {SMALL: 512, GAME: 512, LARGE: 64}
"""Updates: the most agents of each network. The large one takes 5 MB for each."""
ROWS = (10**3, 10**4, 10**5, 10**6)
BACKENDS = ("inline", "thread", "process")
MODELS: dict[str, dict[str, Any]] = {
    "compiled 8-64-64-4": {},
    "compiled 8-256-256-4": {"hidden": [256, 256]},
    "torch 8-64-64-4": {"kernels": "torch"},
}
"""Backends: the networks of whole loops, and what computes them."""


def benches(effort: Effort) -> Iterator[tuple[str, Bench]]:
    for agents in AGENTS:
        for worlds in WORLDS:
            if agents * worlds <= MOST:
                yield f"turn: {agents} agents, {worlds} worlds", partial(_turn, effort, agents, worlds)
    for sizes, most in NETWORKS.items():
        for agents in (count for count in AGENTS if count <= most):
            yield f"update: {_name(sizes)}, {agents} agents", partial(_update, effort, sizes, agents)
    for rows in ROWS:
        yield f"buffer: {rows} rows", partial(_buffer, effort, rows)
    for model in MODELS:
        for agents in (1, 8, 64):
            yield f"backend: {model}, {agents} agents", partial(_backend, effort, model, agents)


def _name(sizes: tuple[int, ...]) -> str:
    return "-".join(map(str, sizes))


def _turn(effort: Effort, agents: int, worlds: int) -> Iterator[Row]:
    """Measure the turns of an epoch without learning."""
    turns = effort.of(min(4096, max(8, 2**18 // (agents * worlds))), 8)
    model = {"algorithm": "dqn", "hidden": [64, 64], "buffer_size": max(1024, 4 * worlds), "learning_starts": 10**9}
    environment = Drift(
        config={
            "world": {"agents": agents},
            "experiment": {"max_turns": turns, "worlds": worlds, "record_period": 0},
            "model": model,
            "parallel": {"train_interval": 1, "backend": "inline"},
        }
    )
    words = f"{turns} turns of each of {agents} agents in each of {worlds} worlds"
    side = Side("ours", words, Run(environment, 1, {"transitions": "agent turns"}))
    row = _cost(effort, f"turn: {agents} agents, {worlds} worlds", side, "agent turns")
    yield replace(row, detail={"agents": agents, "worlds": worlds})


def _update(effort: Effort, sizes: tuple[int, ...], agents: int) -> Iterator[Row]:
    """Measure updates from given samples on one core, and compare their speed with the roofline.

    A round reads its samples once, and reads and writes weights, moments and target of an agent once: fewer bytes than
    that cannot be moved.
    """
    updates = 2 if sizes == LARGE else max(4, 256 // agents)
    words = f"{updates} updates of {BATCH} samples for each of {agents} agents: double DQN, Huber, clip, Adam, target"
    weights, flops = sum((a + 1) * b for a, b in pairwise(sizes)), flops_of_update(sizes, BATCH)
    moved = 4 * (BATCH * (2 * sizes[0] + 3) + 8 * weights / updates)
    with ThreadPoolExecutor(1) as pool:
        side = Side("ours", words, Rounds(sizes, BATCH, agents, updates, 1, pool))
        row = _cost(effort, f"update: {_name(sizes)}, {agents} agents", side, "updates")
    reached = flops * row.sides[0].counts["updates"] / row.sides[0].seconds
    detail = {
        "network": _name(sizes),
        "agents": agents,
        "gflops": reached / 1e9,
        "flops_per_byte": flops / moved,
        "peak_gflops": peak_flops() / 1e9,
        "bandwidth_gb": bandwidth() / 1e9,
        "share_of_roofline": reached / min(peak_flops(), bandwidth() * flops / moved),
    }
    yield replace(row, detail=detail)


def _buffer(effort: Effort, rows: int) -> Iterator[Row]:
    """Measure a round of two agents: sampling from full buffers, gathering, updating."""
    worlds = min(1000, rows // 10)
    model = {"hidden": [64, 64], "batch_size": BATCH, "updates_per_round": UPDATES, "buffer_size": rows}
    environment = Drift(
        config={
            "world": {"agents": 2},
            "experiment": {"max_turns": rows // worlds, "worlds": worlds, "record_period": 0},
            "model": {"algorithm": "dqn", "learning_starts": 10**9, **model},
            "parallel": {"train_interval": 1, "backend": "inline"},
        }
    )
    environment.run_experiment(1)
    run = environment.prepare()
    (stack,) = run.group.stacks
    for own in stack.models:
        assert len(own.memory) == rows - worlds, "every epoch leaves a row of each world that is no sample"
    state = [run.rounds.newest[0]]

    def learn() -> Done:
        taken = stack.example(1)
        taken.columns["ready"][:] = True
        state[0], result = stack.learner.learn(state[0], taken, stack.identity)
        updates = int(result.updates.sum())
        return Done({"updates": updates, "samples": updates * BATCH})

    words = f"{UPDATES} updates of {BATCH} samples for each of 2 agents, drawn from {rows} rows of 8 numbers each"
    row = _cost(effort, f"buffer: {rows} rows", Side("ours", words, learn), "updates")
    yield replace(row, detail={"rows": rows, "bytes_per_row": stack.ring.lasting_bytes / (2 * rows)})


def _backend(effort: Effort, model: str, agents: int) -> Iterator[Row]:
    """Compare whole loops in all backends; the ratio is that of the fastest to learning between epochs."""
    epochs = effort.of(12, 3)
    words = f"{epochs} epochs of {TURNS} turns, each followed by {UPDATES} updates of {agents} agents"
    repeats = effort.repeats(3)
    sides = [Side(name, words, Steady(model, agents, name, epochs)) for name in BACKENDS]
    measured = measure(sides, repeats=repeats)
    wrong = [side.name for side in measured if side.backend != side.name]
    if wrong:
        raise RuntimeError(f"learning was asked for in {', '.join(wrong)} and took place elsewhere")
    fastest = min(measured, key=lambda side: side.seconds)
    detail = {
        "network": model,
        "agents": agents,
        "fastest": fastest.name,
        "updates_per_second": {side.name: side.counts["updates"] / side.seconds for side in measured},
    }
    yield Row(
        name=f"backend: {model}, {agents} agents",
        ratio=measured[0].seconds / fastest.seconds,
        goal=None,
        unit="times inline's speed",
        repeats=repeats,
        sides=tuple(measured),
        detail=detail,
    )


class Steady:
    """A run of one backend that goes on by some epochs at each call, timed from the end of its first epoch."""

    def __init__(self, model: str, agents: int, backend: str, epochs: int) -> None:
        self._environment = drift(agents, {"train_interval": 1, "backend": backend}, **MODELS[model])
        self._epochs, self._updates = epochs, 0

    def __call__(self) -> Done:
        clock = EpochClock()
        first = self._environment.prepare().epoch
        last = self._environment.run_experiment(first + self._epochs + 1, callbacks=[clock])
        per_epoch = (last["updates"] - self._updates) // (self._epochs + 1)
        self._updates = last["updates"]
        counts = {"turns": self._epochs * TURNS, "updates": self._epochs * per_epoch}
        return Done(counts, last["backend"], clock.ends[-1] - clock.ends[0])


class EpochClock(BaseCallback):
    """Notes when each epoch ends."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_epoch(self, stats: Any) -> None:
        self.ends.append(time.perf_counter())


def _cost(effort: Effort, name: str, side: Side, counted: str) -> Row:
    """Return the row of what one of the counted units costs."""
    repeats = effort.repeats(7)
    (measured,) = measure([side], repeats=repeats)
    microseconds = measured.seconds / measured.counts[counted] * 1e6
    unit = f"µs per {counted.removesuffix('s')}"
    return Row(name=name, ratio=microseconds, goal=None, unit=unit, repeats=repeats, sides=(measured,))


@cache
def peak_flops() -> float:
    """Return the most multiplications and additions in a second of one core: those of the best product, in cache."""
    calls = 40
    return 2 * 384 * 64 * 256 * calls / min(seconds_of_products(calls) for _ in range(50))


@cache
def bandwidth() -> float:
    """Return the most bytes that one core reads and writes in a second, between arrays far larger than the caches."""
    source = np.ones(2**26, np.float32)
    target = np.zeros_like(source)
    return 2 * source.nbytes / min(_seconds(partial(np.copyto, target, source)) for _ in range(5))


def _seconds(do: Callable[[], Any]) -> float:
    start = time.perf_counter()
    do()
    return time.perf_counter() - start
