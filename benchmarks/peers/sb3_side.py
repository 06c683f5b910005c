"""N independent DQN learners of Stable-Baselines3, one after the other, run by the Python of its own environment.

One line of JSON asks, one answers with what was done and the seconds of the call; it ends with its input:

    {"agents": 8, "sizes": [8, 64, 64, 4], "batch": 64, "turns": 512, "interval": 4, "rows": 1024}

Each agent has a model, a buffer and a world of its own; an update follows every `interval` turns. The world is that of
`benchmarks/drift.py`. SB3's DQN takes the target network's best action where ours takes the online network's, so SB3
computes one forward pass of a batch less.
"""

import json
import sys
import time
from functools import cache
from typing import Any

import stable_baselines3
import torch
from gym_drift import GymDrift
from stable_baselines3 import DQN

torch.set_num_threads(1)


@cache
def models(agents: int, sizes: tuple[int, ...], batch: int, interval: int, rows: int) -> list[DQN]:
    """Return one model per agent, each with its own world."""
    return [
        DQN(
            "MlpPolicy",
            GymDrift(sizes[0], sizes[-1]),
            learning_rate=1e-3,
            buffer_size=rows,
            learning_starts=0,
            batch_size=batch,
            tau=0.01,
            gamma=0.95,
            train_freq=interval,
            gradient_steps=1,
            target_update_interval=1,
            exploration_initial_eps=0.05,
            exploration_final_eps=0.05,
            max_grad_norm=10.0,
            policy_kwargs={"net_arch": list(sizes[1:-1])},
            seed=k,
            device="cpu",
        )
        for k in range(agents)
    ]


def answer(agents: int, sizes: list[int], batch: int, turns: int, interval: int, rows: int) -> dict[str, Any]:
    """Let every agent take its turns and updates."""
    learners = models(agents, tuple(sizes), batch, interval, rows)
    before = [model._n_updates for model in learners]
    start = time.perf_counter()
    for model in learners:
        model.learn(turns, log_interval=None)
    seconds = time.perf_counter() - start
    updates = sum(model._n_updates - n for model, n in zip(learners, before, strict=True))
    return {
        "counts": {"agent turns": agents * turns, "updates": updates, "samples": updates * batch},
        "seconds": seconds,
        "version": f"stable-baselines3 {stable_baselines3.__version__}, torch {torch.__version__}",
    }


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(answer(**json.loads(line))), flush=True)
