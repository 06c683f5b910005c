"""N independent learners of Stable-Baselines3, one after the other, run by the Python of its own environment.

One line of JSON asks, one answers with what was done and the seconds of the call; it ends with its input:

    {"what": "dqn", "agents": 8, "sizes": [8, 64, 64, 4], "batch": 64, "turns": 512, "interval": 4, "rows": 1024}
    {"what": "ppo", "agents": 8, "hidden": [64, 64], "worlds": 8, "turns": 128, "epochs": 5, "passes": 4,
     "minibatches": 4}

DQN: each agent has a model, a buffer and a world of its own; an update follows every `interval` turns. The world is
that of `benchmarks/drift.py`. SB3's DQN takes the target network's best action where ours takes the online network's,
so SB3 computes one forward pass of a batch less. PPO: each agent has a model and `worlds` CartPoles of its own.
"""

import time
from functools import cache, partial
from typing import Any

import gymnasium
import stable_baselines3
import torch
from answering import serve
from gym_drift import GymDrift
from stable_baselines3.common.vec_env import DummyVecEnv

torch.set_num_threads(1)


@cache
def dqn_models(
    kind: Any, agents: int, sizes: tuple[int, ...], batch: int, interval: int, rows: int, **options: Any
) -> list[Any]:
    """Return one model per agent, each with its own world."""
    return [
        kind(
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
            policy_kwargs={"net_arch": list(sizes[1:-1])},
            seed=k,
            **options,
        )
        for k in range(agents)
    ]


@cache
def ppo_models(
    kind: Any, agents: int, hidden: tuple[int, ...], worlds: int, turns: int, passes: int, minibatches: int
) -> list[Any]:
    """Return one model per agent, each with its own CartPoles."""
    return [
        kind(
            "MlpPolicy",
            DummyVecEnv([partial(gymnasium.make, "CartPole-v1")] * worlds),
            learning_rate=3e-4,
            n_steps=turns,
            batch_size=turns * worlds // minibatches,
            n_epochs=passes,
            policy_kwargs={"net_arch": list(hidden)},
            seed=k,
            device="cpu",
        )
        for k in range(agents)
    ]


def dqn(
    kind: Any, agents: int, sizes: list[int], batch: int, turns: int, interval: int, rows: int, **options: Any
) -> dict[str, Any]:
    """Let every agent take its turns and updates."""
    learners = dqn_models(kind, agents, tuple(sizes), batch, interval, rows, **options)
    before = [model._n_updates for model in learners]
    start = time.perf_counter()
    for model in learners:
        model.learn(turns, log_interval=None)
    seconds = time.perf_counter() - start
    updates = sum(model._n_updates - n for model, n in zip(learners, before, strict=True))
    counts = {"agent turns": agents * turns, "updates": updates, "samples": updates * batch}
    return {"counts": counts, "seconds": seconds}


def ppo(
    kind: Any, agents: int, hidden: list[int], worlds: int, turns: int, epochs: int, passes: int, minibatches: int
) -> dict[str, Any]:
    """Let every agent play its epochs and learn from each."""
    learners = ppo_models(kind, agents, tuple(hidden), worlds, turns, passes, minibatches)
    before = [model._n_updates for model in learners]
    start = time.perf_counter()
    for model in learners:
        model.learn(turns * worlds * epochs, log_interval=None)
    seconds = time.perf_counter() - start
    rounds = sum(model._n_updates - n for model, n in zip(learners, before, strict=True)) // passes
    steps = sum(model.num_timesteps for model in learners)
    updates = rounds * passes * minibatches
    counts = {"world turns": steps, "updates": updates, "samples": updates * turns * worlds // minibatches}
    return {"counts": counts, "seconds": seconds}


if __name__ == "__main__":
    both = {
        "dqn": partial(dqn, stable_baselines3.DQN, max_grad_norm=10.0, device="cpu"),
        "ppo": partial(ppo, stable_baselines3.PPO),
    }
    serve(both, f"stable-baselines3 {stable_baselines3.__version__}, torch {torch.__version__}")
