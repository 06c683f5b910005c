"""N independent double-DQN learners of Tianshou, one after the other: questions and answers as in `sb3_side.py`.

Tianshou updates the target network every so many updates where ours moves it a little after each, and does not clip
gradients unless asked: a little less work for Tianshou.
"""

import time
from functools import cache
from typing import Any

import tianshou
import torch
from answering import serve
from gym_drift import GymDrift
from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, ReplayBuffer
from tianshou.utils.net.common import Net
from tianshou.utils.torch_utils import policy_within_training_step

torch.set_num_threads(1)


@cache
def learners(agents: int, sizes: tuple[int, ...], batch: int, rows: int) -> list[tuple[DQN, Collector]]:
    """Return the algorithm and the collector of every agent, with a buffer that holds a batch."""
    made = []
    for k in range(agents):
        torch.manual_seed(k)
        world = GymDrift(sizes[0], sizes[-1])
        network = Net(state_shape=(sizes[0],), action_shape=sizes[-1], hidden_sizes=sizes[1:-1])
        policy = DiscreteQLearningPolicy(model=network, action_space=world.action_space, eps_training=0.05)
        algorithm = DQN(
            policy=policy, optim=AdamOptimizerFactory(lr=1e-3), gamma=0.95, target_update_freq=100, is_double=True,
            huber_loss_delta=1.0,
        )  # fmt: skip
        collector = Collector(algorithm, world, ReplayBuffer(rows), exploration_noise=True)
        collector.reset()
        collector.collect(n_step=batch)
        made.append((algorithm, collector))
    return made


def answer(agents: int, sizes: list[int], batch: int, turns: int, interval: int, rows: int) -> dict[str, Any]:
    """Let every agent take its turns and updates."""
    own, taken, updates = learners(agents, tuple(sizes), batch, rows), 0, 0
    start = time.perf_counter()
    for algorithm, collector in own:
        with policy_within_training_step(algorithm.policy):
            for _ in range(turns // interval):
                taken += collector.collect(n_step=interval).n_collected_steps
                algorithm.update(buffer=collector.buffer, sample_size=batch)
                updates += 1
    seconds = time.perf_counter() - start
    return {
        "counts": {"agent turns": taken, "updates": updates, "samples": updates * batch},
        "seconds": seconds,
    }


if __name__ == "__main__":
    serve({"dqn": answer}, f"tianshou {tianshou.__version__}, torch {torch.__version__}")
