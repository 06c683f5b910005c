"""Measure what learning in the market gains, beside the baselines. It takes long: not part of `benchmarks.run`.

    python -m benchmarks.market_learning              both studies; `worlds` or `importance` runs one of them
    python -m benchmarks.market_learning worlds --seeds 4 --worlds 60 --epochs 80      a smaller study
    python -m benchmarks.market_learning importance --objective profit --epochs 40 --seeds 20      trained for profit

worlds       100 worlds compared with one, on unseen worlds and an unseen type
importance   batches with more crisis parents compared with uniform batches

Ten paired seeds each; every way to train has a process of its own. Stores results/market_learning.json, from which
`python -m benchmarks.tables` writes the table of docs/market.md, and pictures of the learning curves in docs/images.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import get_args

import numpy as np

from benchmarks.run import provenance
from benchmarks.tables import measured
from parallel_agents.core.types import Array, EpochStats
from parallel_agents.market.actions import Objective
from parallel_agents.market.baselines import Played
from parallel_agents.market.compare import COMPARED, Study, compare_ways, play_baselines
from parallel_agents.market.discovery import load_patterns
from parallel_agents.market.worlds import WorldType
from parallel_agents.tracking.callbacks import BaseCallback
from parallel_agents.tracking.plots import new_figure, save_figure

RESULTS = Path(__file__).parent / "results" / "market_learning.json"
PICTURES = Path(__file__).parents[1] / "docs" / "images"
PATTERNS = Path(__file__).parent / "market_patterns.json"
"""Patterns of a sample export, stored, so that figures stay comparable when discovery changes."""


def main() -> None:
    """Run the studies, print and store them."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("what", nargs="?", choices=("both", *COMPARED), default="both")
    options.add_argument("--patterns", type=Path, default=PATTERNS)
    options.add_argument("--algo", choices=("ppo", "dqn"), default="ppo")
    options.add_argument("--objective", choices=get_args(Objective), default="score")
    options.add_argument("--seeds", type=int, default=10)
    options.add_argument("--worlds", type=int, default=100)
    options.add_argument("--epochs", type=int, default=200)
    options.add_argument("--episodes", type=int, default=100)
    chosen = options.parse_args()
    study = Study(
        load_patterns(chosen.patterns),
        algorithm=chosen.algo,
        objective=chosen.objective,
        worlds=chosen.worlds,
        epochs=chosen.epochs,
        seeds=chosen.seeds,
        held_out=WorldType.HIGH_COMPETITION,
        episodes=chosen.episodes,
        threads=1,
    )
    studies = list(COMPARED) if chosen.what == "both" else [chosen.what]
    ways = list(dict.fromkeys(way for what in studies for way in COMPARED[what]))
    aim, picture = ("", "") if study.objective == "score" else (" for profit", "_profit")
    setting = f"{study.algorithm}{aim}, {study.worlds} worlds, {study.epochs} epochs, {study.seeds} seeds"
    where = provenance()  # of the code that runs, whatever is committed meanwhile
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        started = {way: pool.submit(_train, study, way) for way in ways}
        baselines = pool.submit(play_baselines, study)
        for what in studies:  # stored one after the other: a study that is stopped keeps what is finished
            trained, curves = (
                dict(zip(COMPARED[what], part, strict=True))
                for part in zip(*(started[way].result() for way in COMPARED[what]), strict=True)
            )
            compared = compare_ways(study, what, trained, baselines.result()).as_dict()
            found = {f"{what} ({setting})": {"measured": measured([where]), **where, **compared, "curves": curves}}
            print(json.dumps(compared), flush=True)
            known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            RESULTS.write_text(json.dumps(known | found, indent=1) + "\n")
            _draw(PICTURES / f"market_{what}{picture}.png", study.objective, compared["baselines"], curves)


class _Curve(BaseCallback):
    """Keeps the rewards (seeds,) of every epoch: the mean expected score, or profit, in the worlds of the training."""

    def __init__(self) -> None:
        self.rewards: list[Array] = []

    def on_epoch(self, stats: EpochStats) -> None:
        self.rewards.append(stats.rewards.round(3))


def _train(study: Study, way: str) -> tuple[list[list[Played]], list[list[float]]]:
    """Train all seeds in one way; return their results, and the rewards of every seed by epoch."""
    curve = _Curve()
    return study.train(way, [curve]), np.transpose(curve.rewards).tolist()


def _draw(
    out: Path,
    objective: str,
    baselines: Mapping[str, Sequence[float]],
    curves: Mapping[str, Sequence[Sequence[float]]],
) -> None:
    """Draw the rewards of all seeds by epoch, beside what the baselines reach in unseen worlds."""
    figure = new_figure(8.0, 4.5)
    axes = figure.subplots()
    for i, (way, rows) in enumerate(curves.items()):
        axes.plot(np.transpose(rows), color=f"C{i}", alpha=0.2, linewidth=0.7)
        axes.plot(np.mean(rows, axis=0), color=f"C{i}", label=f"trained, {way}")
    for i, (name, (mean, *_)) in enumerate(baselines.items()):
        axes.axhline(mean, color=f"C{len(curves) + i}", linestyle="--", linewidth=1.0, label=f"{name}, unseen worlds")
    axes.set(xlabel="epoch", ylabel=f"{objective} while learning (with exploration)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small")
    save_figure(figure, out)


if __name__ == "__main__":
    main()
