"""Acting and updating in a stack, compared with a loop over ordinary modules."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from benchmarks.measure import Done, Effort, Row, Side, compare
from benchmarks.plain import PlainDQN, mlp
from benchmarks.run import Bench
from parallel_agents.algorithms.acting import Inference, Weights
from parallel_agents.algorithms.dqn import DQNLearner
from parallel_agents.algorithms.learner import Snapshot
from parallel_agents.core.seeding import Identity
from parallel_agents.nn import MLP
from parallel_agents.nn.numerics import require

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
    """Compare one turn of all agents: numpy observations in, greedy numpy actions out."""
    network = MLP(INPUTS, HIDDEN, ACTIONS)
    inference = Inference(network, agents, 1, together=True)
    inference.weights = Weights(0, network.init(Identity((0,) * agents, tuple(range(agents)))))
    observations = np.random.default_rng(0).random((agents, 1, INPUTS), np.float32)
    modules = [mlp(INPUTS, HIDDEN, ACTIONS) for _ in range(agents)]

    def stacked() -> Done:
        return Done({"actions": inference.forward(observations).argmax(-1).size})

    def loop() -> Done:
        actions = 0
        with torch.inference_mode():
            for agent, module in enumerate(modules):
                actions += module(torch.from_numpy(observations[agent])).argmax(-1).numpy().size
        return Done({"actions": actions})

    yield compare(
        f"acting, {agents} agents, {INPUTS}-64-64-{ACTIONS}: module loop / stack",
        Side("module loop", "a forward and the greedy action of every agent, one after the other", loop),
        Side("stack", "a forward and the greedy action of every agent, all at once", stacked),
        goal=goal,
        repeats=effort.repeats(15),
        calls=effort.of(200, 50),
    )


def _updating(agents: int, goal: float | None, effort: Effort) -> Iterator[Row]:
    """Compare double DQN updates of all agents, with the same arithmetic on both sides."""
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
        before = sum(module.updates for module in plain), sum(module.samples for module in plain)
        for agent, module in enumerate(plain):
            module.learn({name: column[agent] for name, column in columns.items()}, UPDATES)
        after = sum(module.updates for module in plain), sum(module.samples for module in plain)
        return Done({"updates": after[0] - before[0], "samples": after[1] - before[1]})

    words = f"{UPDATES} double DQN updates of every agent, batch {BATCH}, with clip, Adam and soft target"
    yield compare(
        f"updating, {agents} agents, {INPUTS}-64-64-{ACTIONS}, batch {BATCH}: module loop / stack",
        Side("module loop", f"{words}, one agent after the other", loop),
        Side("stack", f"{words}, all at once", stacked),
        goal=goal,
        repeats=effort.repeats(7),
    )
