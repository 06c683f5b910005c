"""The same bytes on every machine: digests of rounds and of whole runs, stored in the repository.

`python -m tests.kernels.test_portable` prints them all, `parts` that of products and functions alone, `worlds` that of
the worlds of a market; `--write` stores them. They change only if the arithmetic of the kernels does; then the number in `numerics.PORTABLE` grows.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from numba import njit
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

from examples.coins import Coins
from examples.stag_hunt import StagHunt
from examples.treasure_hunt import TreasureHunt
from parallel_agents.algorithms.dqn import DQNLearner, QLearningOptions
from parallel_agents.algorithms.iqn import IQNLearner
from parallel_agents.algorithms.ppo import PPOLearner, PPOOptions
from parallel_agents.core.seeding import Purpose, uniforms
from parallel_agents.kernels import mlp, optimizer
from parallel_agents.kernels.functions import cospi, exp, expf, log1pf, logf, tanhf
from parallel_agents.market.discovery import sample_patterns
from parallel_agents.market.market_environment import MarketEnvironment
from parallel_agents.market.simulation.world_arrays import episode_goals, stack_worlds
from parallel_agents.market.worlds import create_world_variants
from parallel_agents.nn import MLP, ActorCritic, Discrete, QuantileNetwork, SquashedGaussian, numerics
from parallel_agents.workflows.defence import NetworkDefence
from tests.kernels import test_rounds as rounds

STORED = Path(__file__).with_name("portable.json")
ROOT = Path(__file__).parents[2]
GAUSSIAN = SquashedGaussian((-1.0, -2.0), (1.0, 2.0))


def numbers(count: int, agent: int = 0) -> Any:
    """Return float32 numbers between -2 and 2 that no library has a part in."""
    return (4.0 * uniforms([0], Purpose.NOISE, [agent], [0], epoch=0, turns=1, slots=count).reshape(-1) - 2.0).astype(
        np.float32
    )


def addressed(snapshot: Any) -> Any:
    """Replace the normal numbers of a snapshot, which numpy draws, by ones that are the same everywhere."""
    for index, (name, column) in enumerate(sorted(snapshot.columns.items())):
        if column.dtype == np.float32 and name not in ("discounts", "weights", "sample_weights"):
            snapshot.columns[name] = numbers(column.size, index).reshape(column.shape)
    return snapshot


def round_digest(learner: Any, options: list[Any], snapshot: Any) -> str:
    state = learner.init(rounds.AGENTS, [own.hyper() for own in options])
    for _ in range(2):
        state, _ = learner.learn(state, addressed(snapshot), rounds.AGENTS)
    text = hashlib.sha256()
    for name in sorted(state.tensors):
        text.update(name.encode() + state[name].numpy().tobytes())
    return text.hexdigest()


def round_digests() -> dict[str, str]:
    """Return the digests of two rounds of every algorithm."""
    replay, policy = [QLearningOptions(**own) for own in rounds.REPLAY], [PPOOptions(**own) for own in rounds.POLICY]
    updates = (rounds.UPDATES, rounds.BATCH)
    samples = partial(rounds.samples, weights=True, masks=True)
    return {
        "dqn": round_digest(DQNLearner(MLP(5, (70, 33), 3, True), *updates), replay, samples(3)),
        "iqn": round_digest(IQNLearner(QuantileNetwork(5, 33, 3), *updates, quantiles=4), replay, samples(3)),
        **{
            f"ppo {type(distribution).__name__}": round_digest(
                PPOLearner(ActorCritic(5, (33, 20), distribution), 4, 4, 15),
                policy,
                rounds.trajectories(distribution, weights=True, masks=True),
            )
            for distribution in (Discrete(3), GAUSSIAN)
        },
    }


def parts_digest() -> str:
    """Return a digest of products, functions and optimizer alone: quick to compile."""
    network, rows = MLP(9, (70, 20), 5, activation="tanh"), 21
    layers = network.layout.table(0, network.widths())
    row, inputs = numbers(network.size) * np.float32(0.1), numbers(rows * 9, 1)
    outputs = np.zeros(rows * int(layers[:, mlp.STRIDE].sum()), np.float32)
    deltas, gradient = np.zeros_like(outputs), np.zeros_like(row)
    room = np.zeros(70 * 20, np.float32)
    at = mlp.forward(row, 0, layers, mlp.TANH, inputs, 0, rows, outputs, 0, room)
    deltas[at:] = numbers(rows * 5, 2)
    mlp.backward(row, 0, layers, mlp.TANH, inputs, 0, rows, outputs, deltas, 0, gradient, 0, room)
    first, second, sums = np.zeros_like(row), np.zeros_like(row), np.zeros(32, np.float32)
    norm = optimizer.squared_norm(gradient, 0, len(row), sums)
    optimizer.adam(row, gradient, first, second, 3, 1e-2, np.float32(0.7))
    text = hashlib.sha256(outputs.tobytes() + gradient.tobytes() + row.tobytes() + np.float64(norm).tobytes())
    for function in (expf, logf, tanhf, log1pf):
        text.update(np.array([function(abs(x)) for x in inputs], np.float32).tobytes())
    for wide in (exp, cospi):
        text.update(np.array([wide(float(x)) for x in inputs]).tobytes())
    return text.hexdigest()


def worlds_digest() -> str:
    """Return a digest of the worlds of a market: what they are drawn from, their users, and the goals of an episode."""
    worlds = create_world_variants(sample_patterns(), 200, seed=1)  # fewer would miss functions that seldom differ
    arrays = stack_worlds(worlds, steps=24, decisions_per_day=24, auctions_per_step=None, seed=1)
    goals = episode_goals(worlds, arrays, budget=None, target=None, seed=1, epoch=2)
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in (*arrays, *goals))).hexdigest()


def run_digest(game: Callable[..., Any], algorithm: str, worlds: int = 1, **options: Any) -> str:
    """Return the digest of a short run."""
    config = {
        "experiment": {"epochs": 4, "max_turns": 20, "record_period": 0, "seed": 3, "worlds": worlds},
        "model": {"algorithm": algorithm, **options} | ({} if algorithm == "ppo" else {"learning_starts": 10}),
        "parallel": {"train_interval": 1, "backend": "inline"},
    }
    summary = game(config=config).run_experiment()
    assert summary["fingerprint"] == {"arithmetic": numerics.PORTABLE}
    return str(summary["digest"])


def all_digests() -> dict[str, str]:
    """Return every digest that is stored."""
    runs = {name: run() for name, run in RUNS.items()}
    return round_digests() | {"parts": parts_digest(), "worlds": worlds_digest()} | runs


RUNS: dict[str, Callable[[], str]] = {
    "treasure hunt, dqn": partial(run_digest, TreasureHunt, "dqn"),
    "coins, ppo": partial(run_digest, Coins, "ppo"),
    "stag hunt, iqn": partial(run_digest, StagHunt, "iqn"),
    "treasure hunt, dqn by event class": partial(run_digest, TreasureHunt, "dqn", importance={"beta": 0.4}),
    "market, ppo": partial(run_digest, MarketEnvironment, "ppo", worlds=3),
    "network defence, ppo": partial(run_digest, NetworkDefence, "ppo", worlds=3),
}


def stored() -> dict[str, str]:
    return dict(json.loads(STORED.read_text(encoding="utf-8")))


def test_rounds_have_the_stored_digests() -> None:
    found = round_digests() | {"parts": parts_digest(), "worlds": worlds_digest()}
    assert found == {name: stored()[name] for name in found}


@pytest.mark.parametrize("name", RUNS)
def test_runs_have_the_stored_digests(name: str) -> None:
    assert RUNS[name]() == stored()[name]


def other_cpu(cpu: str) -> dict[str, str]:
    """Return environment variables with which numba compiles for a CPU, and C library, numpy and torch use none of the
    newer instructions: their functions differ in the last digits then.

    Code for nehalem calls the C library for fused operations, which it would compute in software, for many minutes.
    """
    instructions = {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX,-AVX2,-FMA,-AVX512F"} if cpu != "nehalem" else {}
    return instructions | {
        "NUMBA_CPU_NAME": cpu,
        "NUMBA_CPU_FEATURES": "",
        "NPY_DISABLE_CPU_FEATURES": " ".join(name for name in __cpu_dispatch__ if __cpu_features__[name]),
        "ATEN_CPU_CAPABILITY": "default",
    }


def digests_for(cpu: str, what: str) -> Any:
    """Return the digests in a process that computes as on another CPU."""
    command, environment = [sys.executable, "-m", "tests.kernels.test_portable", what], {**os.environ, **other_cpu(cpu)}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800, check=True)
    return json.loads(ended.stdout)


def test_functions_of_the_c_library_and_of_numpy_differ_on_the_other_cpu() -> None:
    """Otherwise the next test would show nothing about them."""
    if llvm.get_host_cpu_features().get("fma") is not True or platform.libc_ver()[0] != "glibc":
        pytest.skip("this machine has no newer instructions that could be left out")
    script = "import numpy, math; x = numpy.arange(1, 2000) / 7; print([math.exp(v) for v in x], numpy.log(x).tolist())"
    here, there = (
        subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, **own}, capture_output=True, timeout=100, check=True
        ).stdout
        for own in ({}, other_cpu("haswell"))
    )
    assert here != there


def runnable(cpu: str) -> bool:
    needed = {"nehalem": "sse4.2", "haswell": "fma", "skylake-avx512": "avx512vl"}[cpu]
    return bool(llvm.get_host_cpu_features().get(needed))


@pytest.mark.parametrize(("cpu", "what"), [("nehalem", "parts"), ("haswell", "worlds")])
def test_other_cpus_give_the_same_bytes(cpu: str, what: str) -> None:
    if not runnable(cpu):
        pytest.skip(f"this machine cannot run code for {cpu}")
    assert digests_for(cpu, what) == stored()[what]


@pytest.mark.slow
@pytest.mark.timeout(1900)  # everything is compiled for another CPU, and slow on one without fused operations
@pytest.mark.parametrize("cpu", ["nehalem", "haswell", "skylake-avx512"])
def test_rounds_and_runs_compiled_for_other_cpus_have_the_stored_digests(cpu: str) -> None:
    if not runnable(cpu):
        pytest.skip(f"this machine cannot run code for {cpu}")
    assert digests_for(cpu, "all") == stored()


def test_a_mutant_that_lets_the_compiler_fuse_changes_bytes() -> None:
    found = []
    for slope in (mlp._slope, njit(fastmath={"contract"})(mlp._slope.py_func)):
        deltas = numbers(640, 1)
        slope(np.float32(0.5) * numbers(640), deltas, mlp.TANH)
        found.append(deltas.tobytes())
    assert llvm.get_host_cpu_features().get("fma") is not True or found[0] != found[1]


def test_a_mutant_that_lets_the_compiler_reorder_changes_bytes() -> None:
    norms, room = [], np.zeros(32, np.float32)
    source = optimizer.squared_norm.py_func  # type: ignore[attr-defined]
    for norm in (optimizer.squared_norm, njit(fastmath={"reassoc", "nsz"})(source)):
        norms.append([norm(numbers(640, k), 0, 640, room) for k in range(20)])
    assert norms[0] != norms[1]


if __name__ == "__main__":
    parts = {"parts": parts_digest, "worlds": worlds_digest}
    digests = next((parts[what]() for what in sys.argv if what in parts), None) or all_digests()
    if "--write" in sys.argv:
        STORED.write_text(json.dumps(digests, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(digests) + "\n")
