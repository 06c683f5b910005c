"""Compare one environment with 25, at equal transitions: gradient variance, spread of final returns, wall time.

python -m benchmarks.one_or_many            10 seeds, 50,000 transitions each; writes results/one_or_many.json

Both learn with the same PPO (4 epochs over the whole batch) from batches of whole 100-turn episodes: one environment
gives 100 transitions per update, 25 give 2500. The seeds of a setting are replicas in one stack, which does not change
what each learns; wall time is measured on one seed alone.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.run import provenance
from parallel_agents.nn import gradient_rows
from parallel_agents.workflows.defence import NetworkDefence

COUNTS = (1, 25)
STEPS = 100
BATCHES = 40


def environment(worlds: int, seeds: int, transitions: int, seed: int = 0) -> NetworkDefence:
    """Return a defender that observes only the current bits, against B_line."""
    return NetworkDefence(
        config={
            "experiment": {"worlds": worlds, "seeds": seeds, "seed": seed, "epochs": transitions // (worlds * STEPS)},
            "world": {"red": "B_line", "history": False},
            "model": {"lr": 0.002, "hidden": (64, 64), "n_minibatches": 1, "lr_final": None, "lr_updates": 0},
        }
    )


def returns(worlds: int, seeds: int, transitions: int) -> list[float]:
    """Return the evaluated return of every seed after training."""
    env = environment(worlds, seeds, transitions)
    env.run_experiment()
    return [float(replica.evaluate(200).mean_return) for replica in env.prepare().environments]


def seconds(worlds: int, transitions: int) -> float:
    """Return the processor seconds of one training."""
    env = environment(worlds, 1, transitions)
    env.prepare()
    start = time.process_time()
    env.run_experiment()
    return time.process_time() - start


def noise(worlds: int) -> float:
    """Return the variance of the policy gradient of one batch at the initial weights, summed over the weights."""
    env = environment(worlds, 1, worlds * STEPS)
    run = env.prepare()
    stack = run.group.stacks[0]
    network, rows = stack.spec.network, stack.state["online"]
    gradients = []
    for epoch in range(1, BATCHES + 1):
        run.loop.run_epoch(epoch)
        snapshot = stack.snapshot(epoch)
        stack.publish(epoch, stack.state)  # the same weights under the next version: nothing has been learned
        valid = snapshot["valid"][0]
        discounted = np.zeros(snapshot["rewards"].shape[2])
        sums = np.zeros(snapshot["rewards"][0].shape, np.float32)
        for turn in range(len(sums) - 1, -1, -1):
            discounted = snapshot["rewards"][0, turn] + 0.99 * discounted
            sums[turn] = discounted
        advantages = (sums[valid] - sums[valid].mean()) / (sums[valid].std() + 1e-8)
        leaves, gradient = network.leaves(rows), torch.zeros_like(rows)
        observations = torch.from_numpy(snapshot["observations"][0][valid])[None]
        actions = torch.from_numpy(snapshot["actions"][0][valid])[None]
        log_prob = network.distribution.log_prob(network.forward(leaves, observations)[..., :-1], actions)
        gradient_rows(-(log_prob * torch.from_numpy(advantages)).mean(), network.layout, leaves, gradient)
        gradients.append(gradient[0].numpy().copy())
    return float(np.stack(gradients).var(axis=0, ddof=1).sum())


def study(seeds: int = 10, transitions: int = 50_000) -> dict[str, Any]:
    """Return all figures, per number of environments."""
    torch.set_num_threads(1)
    results: dict[str, Any] = {"seeds": seeds, "transitions": transitions, **provenance()}
    for count in COUNTS:
        final = returns(count, seeds, transitions)
        results[str(count)] = {
            "gradient_variance": noise(count),
            "final_return_mean": float(np.mean(final)),
            "final_return_deviation": float(np.std(final, ddof=1)),
            "final_returns": final,
            "seconds": seconds(count, transitions // 5) * 5,
        }
        print(count, json.dumps(results[str(count)]), flush=True)
    return results


if __name__ == "__main__":
    result = study()
    target = Path(__file__).parent / "results" / "one_or_many.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(result, indent=1) + "\n")
