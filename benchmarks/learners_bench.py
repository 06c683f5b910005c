"""Every learner: acting and updating in a stack, against a loop over ordinary learners (benchmarks/plain.py).

Both sides do the same arithmetic on the same data; a stack must never be slower than the loop, from 2 agents on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.measure import Row, medians, row
from benchmarks.plain import PlainDQN, PlainIQN, PlainPPO
from parallel_agents.acting import Inference
from parallel_agents.adapters.gymnasium import gymnasium_environment
from parallel_agents.models import DQN, IQN, PPO, Model
from parallel_agents.networks.numerics import require
from parallel_agents.types import Identity, Snapshot, Weights

AGENTS = (2, 8, 32, 128)
ACTIONS = 4
SIZES = {"small": (8, 64), "sorrel": (750, 250)}
"""Inputs and units of a hidden layer."""
SECONDS = 0.1
"""That a measurement of one way takes, at least."""


@dataclass(frozen=True)
class Learner:
    """One algorithm on both sides, at a number of inputs and units."""

    ours: Callable[[int, int], Model]
    plain: Callable[[int, int], Any]
    updates: int
    """Of a round: what is done once for all of them counts for so many."""
    replays: bool = True
    """Learns from sampled batches; otherwise from whole trajectories."""


ROLLOUT = {"worlds": 8, "rollout": 32, "passes": 2, "minibatches": 4}
LEARNERS = {
    "dqn": Learner(
        lambda inputs, units: DQN((inputs,), ACTIONS, hidden=(units, units)),
        lambda inputs, units: PlainDQN(inputs, (units, units), ACTIONS),
        updates=8,
    ),
    "iqn": Learner(
        lambda inputs, units: IQN((inputs,), ACTIONS, layer=units, n_frames=1),
        lambda inputs, units: PlainIQN(inputs, units, ACTIONS),
        updates=2,
    ),
    "ppo": Learner(
        lambda inputs, units: PPO((inputs,), ACTIONS, hidden=(units, units), **ROLLOUT),
        lambda inputs, units: PlainPPO(inputs, (units, units), ACTIONS),
        updates=8,
        replays=False,
    ),
}


def rows() -> list[Row]:
    require()
    return [*_kernels(), _replicas()]


def _kernels() -> Iterator[Row]:
    for name, learner in LEARNERS.items():
        for size, (inputs, units) in SIZES.items():
            for agents in AGENTS:
                model = learner.ours(inputs, units)
                plain = [learner.plain(inputs, units) for _ in range(agents)]
                what = f"{name} {size} ({inputs} inputs, {units} units), {agents} agents: module loop / stack"
                yield _compared(f"acting, {what}", *_acting(model, plain, agents))
                yield _compared(f"updating, {what}", *_updating(model, plain, agents, learner))


def _acting(model: Model, plain: list[Any], agents: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """One turn of all agents in one world: observations as numpy in, chosen actions as numpy out."""
    blueprint = model.blueprint
    inference = Inference(blueprint.network, agents, 1, together=True)
    inference.publish(Weights(0, blueprint.network.init(_identity(agents))))
    draws = np.random.default_rng(0)
    seen = draws.random((agents, 1, blueprint.network.inputs), np.float32)
    numbers = draws.random((agents, 1, blueprint.slots))
    explore = np.full(agents, 0.1)

    def stack() -> None:
        blueprint.choose(inference.forward(seen), numbers, explore, None)

    def loop() -> None:
        for agent, own in enumerate(plain):
            own.act(torch.from_numpy(seen[agent]))

    return stack, loop


def _updating(
    model: Model, plain: list[Any], agents: int, learner: Learner
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A round of all agents, from the same columns."""
    ours = model.blueprint.learner(updates=learner.updates)
    state = ours.init(_identity(agents), [model.hyper] * agents)
    snapshot = model.blueprint.rehearsal(agents, updates=learner.updates)

    def stack() -> None:
        ours.learn(state, snapshot, _identity(agents))

    def loop() -> None:
        for agent, own in enumerate(plain):
            own.learn(_columns(snapshot, agent, as_tensors=learner.replays), learner.updates)

    return stack, loop


def _columns(snapshot: Snapshot, agent: int, *, as_tensors: bool) -> dict[str, Any]:
    own = {name: column[agent] for name, column in snapshot.columns.items() if name != "ready"}
    return {name: torch.from_numpy(column) for name, column in own.items()} if as_tensors else own


def _identity(agents: int) -> Identity:
    return Identity((0,) * agents, tuple(range(agents)))


def _compared(name: str, stack: Callable[[], Any], loop: Callable[[], Any]) -> Row:
    stack()
    began = time.perf_counter()
    stack()
    once = time.perf_counter() - began
    calls, repeats = max(1, min(100, int(SECONDS / once))), 5 if once < 0.3 else 2
    seconds = medians({"stack": stack, "loop": loop}, repeats=repeats, calls=calls)
    ratio = seconds["loop"] / seconds["stack"]
    return row(name, ratio, 1.0, "times", repeats, stack_us=seconds["stack"] * 1e6, loop_us=seconds["loop"] * 1e6)


def _replicas() -> Row:
    """Ten seeds of CartPole as ten agents of one stack, against the ten runs one by one: the same bytes."""
    small: dict[str, Any] = {"experiment": {"epochs": 16}, "model": {"algorithm": "dqn", "learning_starts": 500}}

    def run(seed: int, seeds: int) -> tuple[float, list[str]]:
        sections = {**small, "experiment": {**small["experiment"], "seed": seed, "seeds": seeds}}
        game = gymnasium_environment("CartPole-v1")(config={**sections, "parallel": {"backend": "inline"}})
        game.prepare()
        began = time.perf_counter()
        digests = game.run_experiment()["digests"]
        return time.perf_counter() - began, digests

    run(0, 10)
    together, digests = run(0, 10)
    alone = [run(seed, 1) for seed in range(10)]
    assert digests == [own for _, one in alone for own in one], "a stack of replicas must give the single runs' bytes"
    apart = sum(seconds for seconds, _ in alone)
    return row("CartPole, dqn: ten runs one by one / ten seeds in one stack", apart / together, 1.0, "times", 1,
               together_seconds=together, one_by_one_seconds=apart)  # fmt: skip
