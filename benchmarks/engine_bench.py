"""Kernels of the engine: acting and updating in a stack, against a loop over ordinary modules."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from benchmarks.measure import Done, Effort, Row, Side, compare
from benchmarks.plain import PlainDQN, mlp
from benchmarks.run import Bench
from parallel_agents.acting import Inference
from parallel_agents.learning import DQNLearner
from parallel_agents.networks import MLP
from parallel_agents.networks.numerics import require
from parallel_agents.types import Identity, Snapshot, Weights

INPUTS, HIDDEN, ACTIONS, BATCH, UPDATES = 52, (64, 64), 54, 32, 10
HYPER = {
    "lr": 1e-3,
    "lr_final": 1e-3,
    "lr_updates": 0,
    "lr_shape": 0,
    "clip": 10.0,
    "tau": 0.01,
    "target_interval": 0,
    "batch_growth": 1,
}


def benches(effort: Effort) -> Iterator[tuple[str, Bench]]:
    require()
    for agents, goal in ((8, 8.0), (32, 15.0)):
        yield f"acting, {agents} agents", partial(_acting, agents, goal, effort)
    for agents, least in ((32, 5.0), (8, None)):
        yield f"updating, {agents} agents", partial(_updating, agents, least, effort)


def _acting(agents: int, goal: float, effort: Effort) -> Iterator[Row]:
    """One turn of all agents: observations as numpy in, greedy actions as numpy out."""
    network = MLP(INPUTS, HIDDEN, ACTIONS)
    inference = Inference(network, agents, 1, together=True)
    inference.publish(Weights(0, network.init(Identity((0,) * agents, tuple(range(agents))))))
    seen = np.random.default_rng(0).random((agents, 1, INPUTS), np.float32)
    modules = [mlp(INPUTS, HIDDEN, ACTIONS) for _ in range(agents)]

    def stacked() -> Done:
        return Done({"actions": inference.forward(seen).argmax(-1).size})

    def loop() -> Done:
        chosen = 0
        with torch.inference_mode():
            for agent, module in enumerate(modules):
                chosen += module(torch.from_numpy(seen[agent])).argmax(-1).numpy().size
        return Done({"actions": chosen})

    yield compare(
        f"acting, {agents} agents, {INPUTS}-64-64-{ACTIONS}: module loop / stack",
        Side("module loop", "a forward and the greedy action of every agent, one after the other", loop),
        Side("stack", "a forward and the greedy action of every agent, all at once", stacked),
        goal=goal,
        repeats=effort.repeats(15),
        calls=effort.of(200, 50),
    )


def _updating(agents: int, goal: float | None, effort: Effort) -> Iterator[Row]:
    """Double DQN updates of all agents, the same arithmetic on both sides."""
    learner = DQNLearner(MLP(INPUTS, HIDDEN, ACTIONS), UPDATES, BATCH)
    identity = Identity((0,) * agents, tuple(range(agents)))
    state = learner.init(identity, [HYPER] * agents)
    draws = np.random.default_rng(0)
    block = (agents, UPDATES * BATCH)
    snapshot = Snapshot(
        1,
        {
            "states": draws.random((*block, INPUTS), np.float32),
            "next_states": draws.random((*block, INPUTS), np.float32),
            "actions": draws.integers(0, ACTIONS, block),
            "returns": draws.random(block, np.float32),
            "discounts": np.full(block, 0.99, np.float32),
            "ready": np.ones(agents, np.bool_),
        },
    )
    plain = [PlainDQN(mlp(INPUTS, HIDDEN, ACTIONS)) for _ in range(agents)]
    columns = {name: torch.from_numpy(column) for name, column in snapshot.columns.items() if name != "ready"}

    def stacked() -> Done:
        _, result = learner.learn(state, snapshot, identity)
        return Done({"updates": int(result.updates.sum()), "samples": snapshot["returns"].size})

    def loop() -> Done:
        before = sum(own.updates for own in plain), sum(own.samples for own in plain)
        for agent, own in enumerate(plain):
            own.learn({name: column[agent] for name, column in columns.items()}, UPDATES)
        after = sum(own.updates for own in plain), sum(own.samples for own in plain)
        return Done({"updates": after[0] - before[0], "samples": after[1] - before[1]})

    words = f"{UPDATES} double DQN updates of every agent, batch {BATCH}, with clip, Adam and soft target"
    yield compare(
        f"updating, {agents} agents, {INPUTS}-64-64-{ACTIONS}, batch {BATCH}: module loop / stack",
        Side("module loop", f"{words}, one agent after the other", loop),
        Side("stack", f"{words}, all at once", stacked),
        goal=goal,
        repeats=effort.repeats(7),
    )
