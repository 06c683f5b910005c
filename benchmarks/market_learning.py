"""Measure what learning in the market gains, beside the baselines. It takes long: not part of `benchmarks.run`.

    python -m benchmarks.market_learning worlds       100 worlds compared with one, on unseen worlds and an unseen type
    python -m benchmarks.market_learning importance   batches with more crisis parents compared with uniform batches
    python -m benchmarks.market_learning worlds --seeds 4 --worlds 60 --epochs 150      a smaller study

Ten paired seeds each. Prints one JSON object and stores it in results/market_learning.json, from which
`python -m benchmarks.tables` writes the table of docs/market.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.run import provenance
from benchmarks.tables import measured
from parallel_agents.market.compare import Study, compare_importance, compare_worlds
from parallel_agents.market.pattern_source import load_patterns
from parallel_agents.market.world_types import WorldType

RESULTS = Path(__file__).parent / "results" / "market_learning.json"


def tell(text: str) -> None:
    """Print progress."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Run one study, print and store it."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("what", choices=("worlds", "importance"))
    options.add_argument("--patterns", default="")
    options.add_argument("--algo", choices=("ppo", "dqn"))
    options.add_argument("--seeds", type=int, default=10)
    options.add_argument("--worlds", type=int, default=100)
    options.add_argument("--epochs", type=int, default=300)
    options.add_argument("--episodes", type=int, default=200)
    chosen = options.parse_args()
    worlds = chosen.what == "worlds"
    study = Study(
        load_patterns(chosen.patterns),
        algorithm=chosen.algo or ("ppo" if worlds else "dqn"),
        worlds=chosen.worlds,
        epochs=chosen.epochs,
        seeds=chosen.seeds,
        held_out=WorldType.HIGH_COMPETITION if worlds else None,
        episodes=chosen.episodes,
    )
    found = (compare_worlds if worlds else compare_importance)(study, tell).as_dict()
    print(json.dumps(found), flush=True)
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    where = provenance()
    setting = f"{study.algorithm}, {study.worlds} worlds, {study.epochs} epochs, {study.seeds} seeds"
    name = "many worlds against one" if worlds else "importance sampling on against off"
    known[f"{name} ({setting})"] = {
        "measured": measured([where]),
        **where,
        "found": found["comparisons"],
        "baselines": found["baselines"],
    }
    RESULTS.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
