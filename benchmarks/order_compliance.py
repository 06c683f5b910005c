"""Train one policy for all orders from a clone of the script, and measure which orders it has learnt.

python -m benchmarks.order_compliance [SEED...]

For each seed it clones the script (40 episodes of 120 environments), improves the policy with PPO (50 episodes) and
evaluates it greedily under the 24 orders that differ (the Defender host is never compromised, so that its place has no
effect), in 200 worlds per attacker that no training uses. An order is learnt if compliance is at least 0.95 and the
return is no worse than the script's in the same worlds. After each seed it writes results/order_compliance.json, and
keeps the seeds that were measured before.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.run import provenance
from parallel_agents.core.seeding import Purpose
from parallel_agents.workflows.conditioned import ParallelOrderConditionedPPO
from parallel_agents.workflows.network import NetworkWorlds
from parallel_agents.workflows.trainer import effective_orders, evaluate_order, train_all_orders
from parallel_agents.workflows.wrapper import ParallelEnvWrapper

ENVS, CLONING, EPISODES, WORLDS = 120, 40, 50, 200
REDS = ("B_line", "Meander")
OPTIONS: dict[str, Any] = {
    "hidden": (128, 128), "lr": 3e-4, "K_epochs": 3, "n_minibatches": 8, "ent_coef": 0.003, "target_kl": 0.02,
}  # fmt: skip


def trained_agent(seed: int, **game: Any) -> tuple[ParallelOrderConditionedPPO, dict[str, Any]]:
    """Return a policy for all orders, and how its training went."""
    agent = ParallelOrderConditionedPPO(n_envs=ENVS, seed=seed, **OPTIONS)
    envs = ParallelEnvWrapper(ENVS, seed=seed, red=[REDS[i % 2] for i in range(ENVS)], **game)
    start = time.process_time()
    agreement = agent.clone_script(envs, CLONING)
    cloned = time.process_time()
    history = train_all_orders(agent, envs, EPISODES, seed=seed)
    return agent, {
        "seed": seed, "agreement_with_script": agreement[-1], "cloning_seconds": cloned - start,
        "training_seconds": time.process_time() - cloned, "last_training_return": history.returns[-1],
    }  # fmt: skip


def study(seed: int) -> list[dict[str, Any]]:
    """Return one row per attacker and order."""
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    agent, course = trained_agent(seed)
    for red in REDS:
        worlds = NetworkWorlds(WORLDS, red=red, purpose=Purpose.EVALUATION_WORLD)
        results = {order: evaluate_order(agent, order, worlds) for order in effective_orders()}
        rows += [
            {"red": red, "order": order, **asdict(result), "learnt": result.learnt(), **course}
            for order, result in results.items()
        ]
        values, least = [r.value for r in results.values()], min(r.compliance for r in results.values())
        gains = np.array([r.value - r.script for r in results.values()])
        print(
            f"seed {seed}  {red}: {sum(r.learnt() for r in results.values())} of {len(results)} learnt, compliance "
            f"at least {least:.3f}, return {min(values):.1f} to {max(values):.1f}, better than the script by "
            f"{gains.min():.1f} to {gains.max():.1f}",
            flush=True,
        )
    return rows


if __name__ == "__main__":
    target = Path(__file__).parent / "results" / "order_compliance.json"
    for number in [int(word) for word in sys.argv[1:]] or [0]:
        measured = study(number)
        earlier = json.loads(target.read_text())["rows"] if target.exists() else []
        kept = [row for row in earlier if row["seed"] != number]
        target.write_text(json.dumps({**provenance(), "rows": kept + measured}, indent=1) + "\n")
