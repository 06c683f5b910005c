"""Kernels of the engine: acting and updating in a stack, against a loop over ordinary modules."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.measure import Row, medians, row
from benchmarks.plain import PlainDQN, mlp
from parallel_agents.acting import Inference
from parallel_agents.learning import DQNLearner
from parallel_agents.networks import MLP
from parallel_agents.networks.numerics import require
from parallel_agents.types import Identity, Snapshot, Weights

INPUTS, HIDDEN, ACTIONS, BATCH = 52, (64, 64), 54, 32
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


def rows() -> list[Row]:
    require()
    return [*(_acting(n, goal) for n, goal in ((8, 8.0), (32, 15.0))), _updating(32, 5.0), _updating(8, None)]


def _acting(agents: int, goal: float) -> Row:
    """One turn of all agents: observations as numpy in, greedy actions as numpy out."""
    network = MLP(INPUTS, HIDDEN, ACTIONS)
    inference = Inference(network, agents, 1, together=True)
    inference.publish(Weights(0, network.init(Identity((0,) * agents, tuple(range(agents))))))
    seen = np.random.default_rng(0).random((agents, 1, INPUTS), np.float32)
    modules = [mlp(INPUTS, HIDDEN, ACTIONS) for _ in range(agents)]

    def stacked() -> None:
        inference.forward(seen).argmax(-1)

    def loop() -> None:
        with torch.inference_mode():
            for agent, module in enumerate(modules):
                module(torch.from_numpy(seen[agent])).argmax(-1).numpy()

    seconds = medians({"stack": stacked, "loop": loop}, repeats=15, calls=200)
    return row(
        f"acting, {agents} agents, {INPUTS}-64-64-{ACTIONS}: module loop / stack",
        seconds["loop"] / seconds["stack"],
        goal,
        "times",
        15,
        stack_us=seconds["stack"] * 1e6,
        loop_us=seconds["loop"] * 1e6,
    )


def _updating(agents: int, goal: float | None) -> Row:
    """Double DQN updates of all agents, the same arithmetic on both sides; ten updates a call."""
    updates = 10
    learner = DQNLearner(MLP(INPUTS, HIDDEN, ACTIONS), updates, BATCH)
    identity = Identity((0,) * agents, tuple(range(agents)))
    state = learner.init(identity, [HYPER] * agents)
    draws = np.random.default_rng(0)
    block = (agents, updates * BATCH)
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

    def loop() -> None:
        for agent, own in enumerate(plain):
            own.learn({name: column[agent] for name, column in columns.items()}, updates)

    seconds = medians({"stack": lambda: learner.learn(state, snapshot, identity), "loop": loop}, repeats=7)
    return row(
        f"updating, {agents} agents, {INPUTS}-64-64-{ACTIONS}, batch {BATCH}: module loop / stack",
        seconds["loop"] / seconds["stack"],
        goal,
        "times",
        7,
        stack_agent_updates_per_second=agents * updates / seconds["stack"],
        loop_agent_updates_per_second=agents * updates / seconds["loop"],
        updates_each=updates,
    )
