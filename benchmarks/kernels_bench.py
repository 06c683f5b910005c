"""Compiled kernels beside JAX (`vmap` over agents, `scan` over updates and turns, jit), alternately.

JAX runs in an environment of its own (`benchmarks/peers`), as a process that waits while ours computes. On one core
both are bound to it; on two, JAX has two devices with half of the agents each, and ours two threads. The work:

- update alone: N independent double-DQN learners, from given samples;
- whole loop: the same updates, with acting, a world that costs nothing (`benchmarks/drift.py`), storing and sampling;
  one update of 64 samples for every 4 turns of an agent;
- PPO on CartPole, whose steps are compiled on both sides: 8 agents with 8 worlds each.

Two rows have no JAX side: the share of the best product's speed that updates reach, and what a turn of a world in
Python costs beside that world.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from benchmarks.drift import Drift
from benchmarks.measure import Done, Effort, Row, Side, compare, measure
from benchmarks.peers import Unavailable, ask, peer_python
from benchmarks.run import Bench
from parallel_agents.algorithms.dqn import DQNLearner, QLearningOptions
from parallel_agents.algorithms.learner import LearnerState, Snapshot
from parallel_agents.core.seeding import Identity
from parallel_agents.env.adapters.gymnasium import gymnasium_environment
from parallel_agents.execution.backend import shares
from parallel_agents.kernels.products import product
from parallel_agents.nn import MLP

SMALL, GAME, LARGE = (8, 64, 64, 4), (52, 64, 64, 4), (750, 250, 250, 4)
CASES = [(SMALL, 64, agents, cores, 1.2) for cores in (1, 2) for agents in (8, 32, 128)]
CASES += [(GAME, 32, 8, 1, 1.0), (LARGE, 64, 8, 1, 1.0)]
"""Updates alone: widths, samples of a batch, agents, cores, and the goal."""
LOOPS = [(agents, cores) for cores in (1, 2) for agents in (8, 32, 128)]
"""Whole loops: agents and cores."""
TURNS, UPDATES, BATCH, ROWS = 128, 32, 64, 10_240
"""Turns of an epoch and updates after it, samples of an update, and rows of a buffer."""

Ours = Callable[[ThreadPoolExecutor], Callable[[], Done]]
"""Makes our side, given as many threads as there are cores."""


def benches(effort: Effort) -> Iterator[tuple[str, Bench]]:
    for agents, cores in LOOPS:
        epochs = max(40, 1600 // agents)  # about a second: how a call begins and ends should not weigh
        yield loop_beside_jax(effort, Work(SMALL, BATCH, agents, epochs), cores, 1.3)
    for cores in (1, 2):
        yield _ppo(effort, cores)
    for case in CASES:
        yield _update(effort, *case)
    yield PEAK, partial(_peak, effort)
    yield PYTHON_TURN, partial(_python_turn, effort)


PYTHON_TURN = "a turn of 8 agents in one world in Python: all but the world itself"
PEAK = "update alone, 8-64-64-4, batch 64: share of the multiplications of the best product"


def _update(
    effort: Effort, sizes: tuple[int, ...], batch: int, agents: int, cores: int, goal: float
) -> tuple[str, Bench]:
    widths, updates = "-".join(map(str, sizes)), 4 if sizes == LARGE else max(4, 256 // agents)
    name = f"update alone, {widths}, batch {batch}, {agents} agents, {cores} cores: JAX / ours"
    words = f"{updates} updates of {batch} samples for each of {agents} agents: double DQN, Huber, clip, Adam, target"
    asked = {"what": "update", "agents": agents, "sizes": sizes, "batch": batch, "updates": updates}

    def ours(pool: ThreadPoolExecutor) -> Callable[[], Done]:
        return Rounds(sizes, batch, agents, updates, cores, pool)

    return name, partial(_beside_jax, effort, name, words, asked, ours, cores, goal)


@dataclass(frozen=True)
class Work:
    """Whole loops of DQN learners: widths of the network, samples of an update, agents, epochs, rows of a buffer."""

    sizes: tuple[int, ...]
    batch: int
    agents: int
    epochs: int
    rows: int = ROWS

    @property
    def name(self) -> str:
        return f"whole loop, {'-'.join(map(str, self.sizes))}, batch {self.batch}, {self.agents} agents"

    def asked(self) -> dict[str, Any]:
        """Return what every peer is told."""
        return {"agents": self.agents, "sizes": self.sizes, "batch": self.batch, "rows": self.rows}

    def ours(self, parallel: dict[str, Any]) -> Run:
        """Return our side."""
        model = {"hidden": list(self.sizes[1:-1]), "batch_size": self.batch, "buffer_size": self.rows}
        world = drift(self.agents, parallel, inputs=self.sizes[0], **model)
        return Run(world, self.epochs, {"turns": "turns", "updates": "updates"})


def loop_beside_jax(effort: Effort, work: Work, cores: int, goal: float | None) -> tuple[str, Bench]:
    """Return the row of whole loops beside JAX."""
    work = replace(work, epochs=effort.of(work.epochs, 2))
    name = f"{work.name}, {cores} cores: JAX / ours"
    words = f"{work.epochs} epochs of {TURNS} turns, each followed by {UPDATES} updates of {work.agents} agents"
    asked = {"what": "loop", **work.asked(), "updates": UPDATES, "turns": TURNS, "epochs": work.epochs}

    def ours(_: ThreadPoolExecutor) -> Callable[[], Done]:
        return work.ours(_where(cores))

    return name, partial(_beside_jax, effort, name, words, asked, ours, cores, goal)


def drift(agents: int, parallel: dict[str, Any], *, inputs: int = SMALL[0], **model: Any) -> Drift:
    """Return the environment of whole loops, with an epoch as large as those of the peers; model: other options."""
    options = {
        "algorithm": "dqn",
        "hidden": [64, 64],
        "batch_size": BATCH,
        "updates_per_round": UPDATES,
        "buffer_size": ROWS,
        "learning_starts": 1,
        "epsilon": 0.05,
        "epsilon_final": 0.05,
        **model,
    }
    world, experiment = {"agents": agents, "inputs": inputs}, {"max_turns": TURNS, "record_period": 0}
    return Drift(config={"world": world, "experiment": experiment, "model": options, "parallel": parallel})


def _ppo(effort: Effort, cores: int) -> tuple[str, Bench]:
    name = f"PPO on CartPole, 8 agents, 8 worlds each, {cores} cores: JAX / ours"
    asked, words = ppo_question(effort.of(20, 2))

    def ours(_: ThreadPoolExecutor) -> Callable[[], Done]:
        return ppo_run(asked, _where(cores))

    return name, partial(_beside_jax, effort, name, words, asked, ours, cores, 1.0)


def ppo_question(epochs: int) -> tuple[dict[str, Any], str]:
    """Return what a peer is asked for about PPO on CartPole, and the same in words."""
    asked = {
        "what": "ppo", "agents": 8, "hidden": [64, 64], "worlds": 8, "turns": TURNS, "epochs": epochs, "passes": 4,
        "minibatches": 4,
    }  # fmt: skip
    return asked, f"{epochs} epochs of {TURNS} turns in 64 worlds; after each 4 passes of 4 minibatches"


def ppo_run(asked: dict[str, Any], parallel: dict[str, Any]) -> Callable[[], Done]:
    """Return our side of PPO on CartPole.

    Every turn of every world is counted. In the turn after an episode's end ours starts the next episode, and stores
    nothing: about one turn in an episode's length.
    """
    passes, minibatches, worlds = asked["passes"], asked["minibatches"], asked["worlds"]
    config = {
        "experiment": {"max_turns": TURNS, "worlds": worlds, "seeds": asked["agents"], "record_period": 0},
        "model": {
            "algorithm": "ppo", "hidden": asked["hidden"], "n_epochs": passes, "n_minibatches": minibatches,
            "gamma": 0.99, "gae_lambda": 0.95, "lr": 3e-4, "lr_final": None, "lr_updates": 0,
        },
        "parallel": parallel,
    }  # fmt: skip
    environment = gymnasium_environment("CartPole-v1")(config=config)
    run = Run(environment, asked["epochs"], {"turns": "turns", "updates": "updates"})

    def do() -> Done:
        done = run()
        turns, updates = done.counts["turns"], done.counts["updates"]
        counts = {
            "world turns": asked["agents"] * worlds * turns,
            "updates": updates,
            "samples": updates * TURNS * worlds // minibatches,
        }
        return Done(counts, done.backend, done.seconds)

    return do


def _where(cores: int) -> dict[str, Any]:
    return {"train_interval": 1} | (
        {"backend": "inline"} if cores == 1 else {"backend": "thread", "num_workers": cores}
    )


def _beside_jax(
    effort: Effort, name: str, words: str, asked: dict[str, Any], ours: Ours, cores: int, goal: float | None
) -> Iterator[Row]:
    """Compare JAX and ours on the same work."""
    if len(os.sched_getaffinity(0)) < cores:
        reason = f"fewer than {cores} cores"
        yield Row(name=name, ratio=None, goal=goal, unit="times as fast", repeats=0, skipped=reason)
        return
    try:
        python = peer_python("jax")
    except Unavailable as reason:
        yield Row(name=name, ratio=None, goal=goal, unit="times as fast", repeats=0, skipped=str(reason))
        return
    script = Path(__file__).parent / "peers" / "jax_side.py"
    whole = os.sched_getaffinity(0)
    with subprocess.Popen(
        [python, script, str(cores)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as peer:
        answer: dict[str, Any] = {}
        try:
            os.sched_setaffinity(0, sorted(whole)[:cores])
            with ThreadPoolExecutor(cores) as pool:
                yield compare(
                    name,
                    Side("JAX", words, partial(ask, peer, asked, answer)),
                    Side("ours", words, ours(pool)),
                    goal=goal,
                    repeats=effort.repeats(15 if asked["what"] == "update" else 7),
                    jax=answer,
                )
        finally:
            os.sched_setaffinity(0, whole)
            peer.kill()


class Run:
    """Our side of whole loops: a run that goes on by some epochs at each call."""

    def __init__(self, environment: Any, epochs: int, counted: dict[str, str]) -> None:
        self._environment, self._epochs, self._counted = environment, epochs, counted
        self._last = environment.run_experiment(epochs)

    def __call__(self) -> Done:
        start, before = time.perf_counter(), self._last
        self._last = self._environment.run_experiment(before["epochs"] + self._epochs)
        seconds = time.perf_counter() - start
        counts = {name: self._last[own] - before[own] for own, name in self._counted.items()}
        return Done(counts, self._last["backend"], seconds)


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
        parts = map if len(self._parts) == 1 else self._pool.map  # one share needs no other thread
        learned = list(parts(self._learn, self._states, self._parts))
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
    seconds = min(seconds_of_products(calls) for _ in range(max(2, repeats)))
    peak = 2 * 384 * 64 * 256 * calls / seconds
    of_update = flops_of_update(SMALL, 64)
    words = "4 updates of 64 samples for each of 8 agents: short calls, of which the best was not interrupted"
    with ThreadPoolExecutor(1) as pool:
        side = Side("ours", words, Rounds(SMALL, 64, 8, 4, 1, pool))
        (measured,) = measure([side], repeats=repeats)
    share = measured.counts["updates"] / measured.lowest * of_update / peak
    detail = {"peak_gflops": peak / 1e9, "flops_of_an_update": of_update}
    yield Row(
        name=PEAK, ratio=share, goal=0.5, unit="share of the peak", repeats=repeats, sides=(measured,), detail=detail
    )


class PythonDrift(Drift):
    """`Drift` turn by turn."""

    def compiled_world(self) -> str:
        return "its turns are to be taken in Python"


def _python_turn(effort: Effort) -> Iterator[Row]:
    """Subtract the seconds of the world's own hooks from those of a run that stores and does not learn.

    What is left is of turns, and also of starting and ending the run, which the detail shows, and of the boundary after
    every epoch, where a round is submitted from which nobody learns.
    """
    epochs, repeats = effort.of(20, 2), effort.repeats(7)
    model = {"algorithm": "dqn", "hidden": [64, 64], "buffer_size": ROWS, "learning_starts": 10**9}
    experiment = {"max_turns": TURNS, "record_period": 0}
    environment = PythonDrift(config={"experiment": experiment, "model": model, "parallel": _where(1)})
    actions = np.zeros((len(environment.agents), 1), np.int64)

    def world() -> Done:
        for _ in range(epochs * TURNS):
            environment.observe()
            environment.apply_actions(actions)
        return Done({"turns": epochs * TURNS})

    def ends() -> Done:
        environment.run_experiment(environment.prepare().epoch)
        return Done({"turns": 0})

    words = f"{epochs * TURNS} turns"
    sides = [
        Side("world", f"{words} of the world alone", world),
        Side("run", f"{words}: observing, acting, the world, storing", Run(environment, epochs, {"turns": "turns"})),
        Side("ends", "starting and ending a run of no turns", ends),
    ]
    measured = measure(sides, repeats=repeats)
    micros = 1e6 / (epochs * TURNS)
    yield Row(
        name=PYTHON_TURN,
        ratio=(measured[1].seconds - measured[0].seconds) * micros,
        goal=40.0,
        at_most=True,
        unit="µs",
        repeats=repeats,
        sides=tuple(measured[:2]),
        detail={"of_starting_and_ending_the_run": measured[2].seconds * micros},
    )


def flops_of_update(sizes: tuple[int, ...], batch: int) -> int:
    """Return the multiplications and additions of an update: three forward passes, gradients of weights and inputs."""
    pairs = [a * b for a, b in pairwise(sizes)]
    return 2 * batch * (3 * sum(pairs) + sum(pairs) + sum(pairs[1:]))


def seconds_of_products(calls: int) -> float:
    """Return the seconds of some products 384 × 64 × 256, which fit the cache."""
    a, b, c = np.ones(384 * 256, np.float32), np.ones(256 * 64, np.float32), np.zeros(384 * 64, np.float32)
    start = time.perf_counter()
    _multiply(a, b, c, calls)
    return time.perf_counter() - start


@njit(nogil=True, error_model="numpy")
def _multiply(a: Any, b: Any, c: Any, calls: int) -> None:
    for _ in range(calls):
        product(a, 0, 256, 1, b, 0, 64, c, 0, 64, 384, 64, 256)
