"""Measure how well each effective order is followed after the documented budget, 50 episodes in 25 environments each.

python -m benchmarks.order_compliance [RED [ALIGNMENT_WEIGHT [EPISODES]]]

It writes results/order_compliance_RED_WEIGHT_EPISODES.json. More episodes show how many are needed where 50 are too
few. The defender host is never compromised, so that its position has no effect: 24 of the 120 orders differ.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.run import provenance
from parallel_agents.workflows.trainer import ParallelWorkflowRLTrainer, effective_orders

WINDOW = 5


def study(red: str, weight: float, episodes: int) -> list[dict[str, Any]]:
    """Return one row per order: whether and when it was learned, its compliance, and the return of the policy."""
    torch.set_num_threads(1)
    trainer = ParallelWorkflowRLTrainer(alignment_weight=weight, worlds={"red": red}, train_episodes_per_env=episodes)
    rows, where = [], provenance()
    for number, order in enumerate(effective_orders()):
        start = time.process_time()
        result = trainer.run_workflow(number, order)
        rates = result.training.compliance
        rows.append(
            {
                "order": order,
                "learnt": result.training.stopped,
                "episodes": result.training.episodes,
                "last": float(np.mean(rates[-WINDOW:])),
                "evaluated": result.verdict.compliance,
                "return": result.verdict.value,
                "seconds": time.process_time() - start,
                **where,
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


if __name__ == "__main__":
    attacker = sys.argv[1] if len(sys.argv) > 1 else "B_line"
    strength = float(sys.argv[2]) if len(sys.argv) > 2 else 30.0
    budget = int(sys.argv[3]) if len(sys.argv) > 3 else 50
    target = Path(__file__).parent / "results" / f"order_compliance_{attacker}_{strength:g}_{budget}.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(study(attacker, strength, budget), indent=1) + "\n")
