"""Measure what learning in the market gains, beside the baselines. It takes long: not part of `benchmarks.run`.

    python -m benchmarks.market_learning              both studies; `worlds` or `importance` runs one of them
    python -m benchmarks.market_learning worlds --seeds 4 --worlds 60 --epochs 80      a smaller study

worlds       100 worlds compared with one, on unseen worlds and an unseen type
importance   batches with more crisis parents compared with uniform batches

Ten paired seeds each, two at a time in a process, and as many processes as cores. Stores results/market_learning.json,
from which `python -m benchmarks.tables` writes the table of docs/market.md.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from benchmarks.run import provenance
from benchmarks.tables import measured
from parallel_agents.market.compare import COMPARED, Study, compare_ways, play_baselines
from parallel_agents.market.pattern_source import load_patterns
from parallel_agents.market.world_types import WorldType

RESULTS = Path(__file__).parent / "results" / "market_learning.json"
PATTERNS = Path(__file__).parent / "market_patterns.json"
"""Patterns of a sample export, stored, so that figures stay comparable when discovery changes."""


def main() -> None:
    """Run the studies, print and store them."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("what", nargs="?", choices=("both", *COMPARED), default="both")
    options.add_argument("--patterns", type=Path, default=PATTERNS)
    options.add_argument("--algo", choices=("ppo", "dqn"), default="ppo")
    options.add_argument("--seeds", type=int, default=10)
    options.add_argument("--worlds", type=int, default=100)
    options.add_argument("--epochs", type=int, default=150)
    options.add_argument("--episodes", type=int, default=300)
    chosen = options.parse_args()
    if chosen.seeds % 2:
        options.error("--seeds: give an even number, as every process trains two")
    study = Study(
        load_patterns(chosen.patterns),
        algorithm=chosen.algo,
        worlds=chosen.worlds,
        epochs=chosen.epochs,
        seeds=chosen.seeds,
        held_out=WorldType.HIGH_COMPETITION,
        episodes=chosen.episodes,
        threads=1,
    )
    studies = list(COMPARED) if chosen.what == "both" else [chosen.what]
    ways = list(dict.fromkeys(way for what in studies for way in COMPARED[what]))
    parts = [replace(study, first_seed=first, seeds=2) for first in range(0, study.seeds, 2)]
    setting = f"{study.algorithm}, {study.worlds} worlds, {study.epochs} epochs, {study.seeds} seeds"
    where = provenance()
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        baselines = pool.submit(play_baselines, study)
        started = {way: [pool.submit(part.train, way) for part in parts] for way in ways}
        for what in studies:  # stored one after the other: a study that is stopped keeps what is finished
            trained = {way: [seed for future in started[way] for seed in future.result()] for way in COMPARED[what]}
            compared = compare_ways(study, what, trained, baselines.result())
            found = {f"{what} ({setting})": {"measured": measured([where]), **where, **compared.as_dict()}}
            print(json.dumps(found), flush=True)
            known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            RESULTS.write_text(json.dumps(known | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
