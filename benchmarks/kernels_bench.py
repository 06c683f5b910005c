"""Updates by compiled kernels, compared with JAX (`vmap` over agents, `scan` over updates, jit): alternately.

JAX runs in an environment of its own (`benchmarks/peers`), as a process that waits while ours computes. Both sides
train N independent double-DQN learners from given samples: Huber loss, clip by each agent's norm, Adam, soft target. On
one core both are bound to it; on two, JAX has two devices with half of the agents each, and ours two threads.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from benchmarks.measure import Done, Effort, Row, Side, compare, measure
from benchmarks.peers import Unavailable, jax_python
from benchmarks.run import Bench
from parallel_agents.algorithms.dqn import DQNLearner, QLearningOptions
from parallel_agents.algorithms.learner import LearnerState, Snapshot
from parallel_agents.core.seeding import Identity
from parallel_agents.execution.backend import shares
from parallel_agents.kernels.products import product
from parallel_agents.nn import MLP

SMALL, GAME, LARGE = (8, 64, 64, 4), (52, 64, 64, 4), (750, 250, 250, 4)
CASES = [(SMALL, 64, agents, cores, 1.2) for cores in (1, 2) for agents in (8, 32, 128)]
CASES += [(GAME, 32, 8, 1, 1.0), (LARGE, 64, 8, 1, 1.0)]
"""Widths, samples of a batch, agents, cores, and the goal."""
PATIENCE = 600.0
"""Seconds to wait for one answer of JAX."""


def benches(effort: Effort) -> Iterator[tuple[str, Bench]]:
    for case in CASES:
        yield _name(*case[:4]), partial(_beside_jax, effort, *case)
    yield PEAK, partial(_peak, effort)


PEAK = "update alone, 8-64-64-4, batch 64: share of the multiplications of the best product"


def _name(sizes: tuple[int, ...], batch: int, agents: int, cores: int) -> str:
    return f"update alone, {'-'.join(map(str, sizes))}, batch {batch}, {agents} agents, {cores} cores: JAX / ours"


def _beside_jax(
    effort: Effort, sizes: tuple[int, ...], batch: int, agents: int, cores: int, goal: float
) -> Iterator[Row]:
    """Compare rounds of JAX and of ours."""
    name, updates = _name(sizes, batch, agents, cores), 4 if sizes == LARGE else max(4, 256 // agents)
    if len(os.sched_getaffinity(0)) < cores:
        yield Row(
            name=name, ratio=None, goal=goal, unit="times as fast", repeats=0, skipped=f"fewer than {cores} cores"
        )
        return
    try:
        python = jax_python()
    except Unavailable as reason:
        yield Row(name=name, ratio=None, goal=goal, unit="times as fast", repeats=0, skipped=str(reason))
        return
    words = (
        f"{updates} updates of {batch} samples for each of {agents} agents: double DQN, Huber, clip, Adam, soft target"
    )
    script = Path(__file__).parent / "peers" / "jax_side.py"
    whole = os.sched_getaffinity(0)
    with subprocess.Popen(
        [python, script, str(cores)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as peer:
        answer: dict[str, Any] = {}
        asked = {"agents": agents, "sizes": sizes, "batch": batch, "updates": updates}
        try:
            os.sched_setaffinity(0, sorted(whole)[:cores])
            with ThreadPoolExecutor(cores) as pool:
                yield compare(
                    name,
                    Side("JAX", words, partial(_theirs, peer, asked, answer)),
                    Side("ours", words, Rounds(sizes, batch, agents, updates, cores, pool)),
                    goal=goal,
                    repeats=effort.repeats(15),
                    jax=answer,
                )
        finally:
            os.sched_setaffinity(0, whole)
            peer.kill()


def _theirs(peer: subprocess.Popen[str], asked: dict[str, Any], answer: dict[str, Any]) -> Done:
    """Let JAX's process compute a round; write what it says about itself into `answer`."""
    assert peer.stdin is not None
    assert peer.stdout is not None
    peer.stdin.write(json.dumps(asked) + "\n")
    peer.stdin.flush()
    if not select.select([peer.stdout], [], [], PATIENCE)[0]:
        raise TimeoutError(f"JAX gave no answer within {PATIENCE:g} s")
    line = peer.stdout.readline()
    if not line:
        raise RuntimeError(f"JAX's process ended with {peer.wait(10)}; its message is above")
    answer.update(json.loads(line))
    return Done(answer.pop("counts"), None, answer.pop("seconds"))


class Rounds:
    """Our side: rounds of a learner, its agents shared by threads."""

    def __init__(
        self, sizes: tuple[int, ...], batch: int, agents: int, updates: int, threads: int, pool: ThreadPoolExecutor
    ) -> None:
        self._learner = DQNLearner(MLP(sizes[0], sizes[1:-1], sizes[-1]), updates, batch)
        self._batch, self._pool = batch, pool
        identity = Identity((0,) * agents, tuple(range(agents)))
        draws, shape = np.random.default_rng(0), (agents, updates * batch)
        columns = {
            "states": draws.standard_normal((*shape, sizes[0]), np.float32),
            "next_states": draws.standard_normal((*shape, sizes[0]), np.float32),
            "actions": draws.integers(0, sizes[-1], shape),
            "returns": draws.standard_normal(shape, np.float32),
            "discounts": np.full(shape, 0.95, np.float32),
            "ready": np.ones(agents, np.bool_),
        }
        snapshot, state = Snapshot(1, columns), self._learner.init(identity, [QLearningOptions().hyper()] * agents)
        self._parts = [(snapshot.rows(part), identity.rows(part)) for part in shares(agents, threads)]
        self._states: list[LearnerState] = [state.rows(part).clone() for part in shares(agents, threads)]

    def __call__(self) -> Done:
        start = time.perf_counter()
        learned = list(self._pool.map(self._learn, self._states, self._parts))
        seconds = time.perf_counter() - start
        self._states = [state for state, _ in learned]
        updates = int(sum(result.updates.sum() for _, result in learned))
        return Done({"updates": updates, "samples": updates * self._batch}, None, seconds)

    def _learn(self, state: LearnerState, part: Any) -> Any:
        snapshot, identity = part
        return self._learner.learn(state, snapshot, identity)


def _peak(effort: Effort) -> Iterator[Row]:
    """Compare the multiplications of a second's updates with those of the best product: 384 × 64 × 256 in cache."""
    calls, repeats = 40, effort.repeats(300)
    seconds = min(_seconds_of_product(calls) for _ in range(max(2, repeats)))
    peak = 2 * 384 * 64 * 256 * calls / seconds
    pairs = [a * b for a, b in pairwise(SMALL)]
    of_update = 2 * 64 * (3 * sum(pairs) + sum(pairs) + sum(pairs[1:]))  # three forward passes, weights, inputs
    words = "4 updates of 64 samples for each of 8 agents: short calls, of which the best was not interrupted"
    with ThreadPoolExecutor(1) as pool:
        side = Side("ours", words, Rounds(SMALL, 64, 8, 4, 1, pool))
        (measured,) = measure([side], repeats=repeats)
    share = measured.counts["updates"] / measured.lowest * of_update / peak
    detail = {"peak_gflops": peak / 1e9, "flops_of_an_update": of_update}
    yield Row(
        name=PEAK, ratio=share, goal=0.5, unit="share of the peak", repeats=repeats, sides=(measured,), detail=detail
    )


def _seconds_of_product(calls: int) -> float:
    a, b, c = np.ones(384 * 256, np.float32), np.ones(256 * 64, np.float32), np.zeros(384 * 64, np.float32)
    start = time.perf_counter()
    _multiply(a, b, c, calls)
    return time.perf_counter() - start


@njit(nogil=True, error_model="numpy")
def _multiply(a: Any, b: Any, c: Any, calls: int) -> None:
    for _ in range(calls):
        product(a, 0, 256, 1, b, 0, 64, c, 0, 64, 384, 64, 256)
