"""TorchRL: N independent double-DQN learners, and its prioritised buffer; questions and answers as in `sb3_side.py`.

The strongest form that TorchRL offers: `MultiAgentMLP` with parameters of their own for every agent, computed by
`vmap`; one buffer whose rows hold the transitions of all agents, so all agents of an update share their sampled rows;
one fused Adam over all parameters, no clipping. Ours does more: own rows, own clipping, own Adam for each agent.
"""

import os
import time
from functools import cache
from typing import Any

os.environ["RL_LOGGING_LEVEL"] = "ERROR"  # it would write between the answers

import numpy as np
import torch
import torchrl
from answering import serve
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.data import (
    LazyTensorStorage,
    RandomSampler,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from torchrl.modules import MultiAgentMLP, QValueModule
from torchrl.objectives import DQNLoss, SoftUpdate

torch.set_num_threads(1)


class Learners:
    """All agents: network, loss, target, optimizer, buffer and world."""

    def __init__(self, agents: int, sizes: tuple[int, ...], batch: int, rows: int) -> None:
        torch.manual_seed(0)
        self.agents, self.actions = agents, sizes[-1]
        network = MultiAgentMLP(
            sizes[0], sizes[-1], agents, centralized=False, share_params=False, depth=len(sizes) - 2,
            num_cells=list(sizes[1:-1]), activation_class=torch.nn.ReLU,
        )  # fmt: skip
        values = TensorDictModule(network, [("agents", "observation")], [("agents", "action_value")])
        choice = QValueModule(
            action_value_key=("agents", "action_value"),
            out_keys=[("agents", "action"), ("agents", "action_value"), ("agents", "chosen_action_value")],
            action_space="categorical",
        )
        self.policy = TensorDictSequential(values, choice)
        self.loss = DQNLoss(
            self.policy, action_space="categorical", delay_value=True, double_dqn=True, loss_function="smooth_l1"
        )
        self.loss.set_keys(
            action_value=("agents", "action_value"),
            action=("agents", "action"),
            value=("agents", "chosen_action_value"),
            reward=("agents", "reward"),
            done=("agents", "done"),
            terminated=("agents", "terminated"),
        )
        self.loss.make_value_estimator(gamma=0.95)
        self.target = SoftUpdate(self.loss, eps=0.99)
        self.optimizer = torch.optim.Adam(self.loss.parameters(), 1e-3, fused=True)
        self.buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(rows), sampler=RandomSampler(), batch_size=batch)
        self.pushes = torch.from_numpy(
            np.sin(np.arange(sizes[-1] * sizes[0])).reshape(sizes[-1], sizes[0]).astype(np.float32)
        )
        self.x = torch.zeros(agents, sizes[0])
        self.ends = torch.zeros(agents, 1, dtype=torch.bool)

    def turn(self) -> None:
        """Act, step the world, store."""
        with torch.no_grad():
            seen = TensorDict({"agents": TensorDict({"observation": self.x}, [self.agents])}, [])
            greedy = self.policy(seen)["agents", "action"]
            explores = torch.rand(self.agents) < 0.05
            action = torch.where(explores, torch.randint(self.actions, (self.agents,)), greedy)
            after = 0.9 * self.x + self.pushes[action]
        rest = {"reward": -after[:, :1].abs(), "done": self.ends, "terminated": self.ends, "observation": after}
        row = TensorDict(
            {
                "agents": TensorDict({"observation": self.x, "action": action}, [self.agents]),
                "next": TensorDict({"agents": TensorDict(rest, [self.agents])}, []),
            },
            [],
        )
        self.buffer.add(row)
        self.x = after

    def update(self) -> int:
        """Update every agent once; return the number of sampled rows."""
        batch = self.buffer.sample()
        loss = self.loss(batch)["loss"]
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.target.step()
        return len(batch)


@cache
def learners(agents: int, sizes: tuple[int, ...], batch: int, rows: int) -> Learners:
    """Return the learners, with a buffer that holds a batch."""
    made = Learners(agents, sizes, batch, rows)
    for _ in range(batch):
        made.turn()
    return made


def answer(agents: int, sizes: list[int], batch: int, turns: int, interval: int, rows: int) -> dict[str, Any]:
    """Let every agent take its turns and updates."""
    own, sampled = learners(agents, tuple(sizes), batch, rows), 0
    start = time.perf_counter()
    for turn in range(1, turns + 1):
        own.turn()
        if turn % interval == 0:
            sampled += own.update()
    seconds = time.perf_counter() - start
    updates = agents * (turns // interval)
    return {
        "counts": {"agent turns": agents * turns, "updates": updates, "samples": agents * sampled},
        "seconds": seconds,
    }


@cache
def prioritized(rows: int, features: int, batch: int) -> Any:
    """Return a full buffer with random priorities."""
    buffer = TensorDictPrioritizedReplayBuffer(alpha=0.6, beta=0.4, storage=LazyTensorStorage(rows), batch_size=batch)
    states = torch.randn(rows, features)
    columns = {
        "observation": states, "action": torch.zeros(rows, dtype=torch.int64), "reward": torch.ones(rows),
        "next_observation": states.roll(-1, 0), "done": torch.zeros(rows, dtype=torch.bool),
    }  # fmt: skip
    buffer.extend(TensorDict(columns, [rows]))
    buffer.update_priority(torch.arange(rows), torch.rand(rows))
    return buffer


def importance(rows: int, features: int, batch: int, draws: int) -> dict[str, Any]:
    """Draw batches by priority, with corrections, gather them, and give every row of them a new priority."""
    buffer, errors = prioritized(rows, features, batch), torch.rand(batch)
    counts = {"draws": 0, "corrections": 0, "rows_gathered": 0, "priority_updates": 0}
    start = time.process_time()
    for _ in range(draws):
        drawn = buffer.sample()
        buffer.update_priority(drawn["index"], errors)
        counts["draws"] += len(drawn["index"])
        counts["corrections"] += len(drawn["priority_weight"])
        counts["rows_gathered"] += len(drawn["observation"])
        counts["priority_updates"] += len(drawn["index"])
    return {"counts": counts, "seconds": time.process_time() - start}


if __name__ == "__main__":
    serve({"dqn": answer, "importance": importance}, f"torchrl {torchrl.__version__}, torch {torch.__version__}")
