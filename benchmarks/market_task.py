"""Measure whether the market is worth learning: baselines in unseen worlds. Not part of `benchmarks.run`.

    python -m benchmarks.market_task            100 unseen worlds, 3 episodes each; results/market_task.json

The design is accepted if knowing the world (a pacer that reads the world's parameters, tuned for every world, budget
and target in other episodes) scores at least 20 % more than the best constant, and a PID pacer at least 15 % more.
Constants and gains are chosen in 60 training worlds. Differences are paired by world; intervals are 95 %, over worlds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.run import provenance
from parallel_agents.market.baselines import compare_baselines
from parallel_agents.market.compare import UNSEEN_SEED, study_baselines
from parallel_agents.market.discovery import load_patterns
from parallel_agents.market.simulation import MarketWorlds
from parallel_agents.market.worlds import create_world_variants
from parallel_agents.tracking.statistics import mean_interval

RESULTS = Path(__file__).parent / "results" / "market_task.json"
GOALS = {"oracle": 0.20, "pid pacer": 0.15}


def study(patterns: str = "", worlds: int = 100, episodes: int = 3) -> dict[str, Any]:
    """Return the score of every baseline, and what each is worth beside the best constant."""
    found = load_patterns(patterns)
    baselines = study_baselines(found)
    with MarketWorlds(create_world_variants(found, worlds, seed=UNSEEN_SEED)) as market:
        results = compare_baselines(baselines, market, range(episodes))
        auctions = float(market.parameters.auctions.sum(axis=1).mean())
    constant = results["best constant"]
    rows = {}
    for name, played in results.items():
        gain = (played.by_world() - constant.by_world()) / constant.score.mean()
        rows[name] = {
            "score": list(mean_interval(played.by_world())),
            "over_best_constant": list(mean_interval(gain)),
            "profit_over_budget": float(played.profit.mean()),
            "spent": float(played.spent.mean()),
            "goal": GOALS.get(name),
        }
    return {
        "worlds": worlds,
        "episodes": episodes,
        "auctions_per_episode": auctions,
        "alphas": np.asarray(baselines["best constant"].alpha).tolist(),  # type: ignore[attr-defined]
        "results": rows,
        **provenance(),
    }


if __name__ == "__main__":
    result = study(sys.argv[1] if len(sys.argv) > 1 else "")
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["results"], indent=1))
