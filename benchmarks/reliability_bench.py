"""What reliability costs: supervision with logging, and a checkpoint every 50 epochs.

The noise of the machine must meet both sides alike: neighbouring blocks differ by a tenth on a shared machine, which
would drown what is looked for. So supervision is switched on and off every few epochs of one and the same run, and the
processor time of all threads is counted; and the epochs beside which a checkpoint is written are compared with the
others around them, by the clock.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

from benchmarks.measure import Done, Effort, Measured, Row, Side, compare, ratio_of
from benchmarks.run import Bench
from examples.treasure_hunt import TreasureHunt
from parallel_agents.config import merge
from parallel_agents.runtime.checkpoints import Checkpointer
from parallel_agents.tracking.listeners import SilentListener
from parallel_agents.tracking.logs import EventLog, bind, configure_logs
from parallel_agents.tracking.metrics import MetricsWriter
from parallel_agents.types import EpochStats

CONFIG = {
    "world": {"agents": 8},
    "experiment": {"max_turns": 100, "record_period": 0, "epochs": 10_000},
    "parallel": {"backend": "inline", "train_interval": 4},
}
BLOCK, BLOCKS = 20, 14
"""Epochs of a block, and blocks of each side."""
EVERY, ROUND, WARM = 50, 4, 5
"""Epochs between two checkpoints and between two rounds; checkpoints until buffers are full and all is compiled."""


def benches(effort: Effort) -> Iterator[tuple[str, Bench]]:
    yield "supervision and logging", partial(_watched, effort)
    yield "a checkpoint every 50 epochs", partial(_checkpoint, effort)


def _watched(effort: Effort) -> Iterator[Row]:
    """A supervisor, a log, a metrics file and a timeline, against none of them."""
    game = TreasureHunt(config=CONFIG)
    run = game.prepare()
    supervisor = run.supervisor
    done = {"epochs": 0, "turns": 0}

    class Nobody:
        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    def go_on(listeners: list[SilentListener]) -> Done:
        summary = game.run_experiment(done["epochs"] + BLOCK, listeners=listeners)
        turns = summary["turns"] - done["turns"]
        done.update(epochs=summary["epochs"], turns=summary["turns"])
        return Done({"turns": turns}, summary["backend"])

    def alone() -> Done:
        run.supervisor = Nobody()  # type: ignore[assignment]
        game.timeline.enabled = False
        return go_on([])

    def watched(folder: Path) -> Done:
        run.supervisor = supervisor
        game.timeline.enabled = True
        with configure_logs(folder / "log.jsonl", run="bench", console=False), bind(role="conductor"):
            return go_on([EventLog(), MetricsWriter(folder / "metrics.jsonl")])

    words = f"{BLOCK} more epochs of 100 turns of one run, 8 agents"
    with tempfile.TemporaryDirectory() as folder:
        yield compare(
            "treasure hunt with 8 agents: processor time without / with supervision and logging",
            Side("without", words, alone),
            Side("with", f"{words}; supervisor, log, metrics and timeline on", partial(watched, Path(folder))),
            goal=0.97,
            repeats=effort.repeats(BLOCKS),
            clock=time.process_time,
        )


def _checkpoint(effort: Effort) -> Iterator[Row]:
    """What the epochs after a checkpoint, beside which it is written, take longer than others of the same 50."""
    game = TreasureHunt(config=merge(CONFIG, {"experiment": {"checkpoint_every": EVERY}}))
    run = game.prepare()

    class Clock(SilentListener):
        """When each epoch ended; the checkpoint of an epoch begins right after that."""

        def __init__(self) -> None:
            self.times = [time.perf_counter()]

        def on_epoch(self, stats: EpochStats) -> None:
            self.times.append(time.perf_counter())

    clock = Clock()
    warm = effort.of(WARM, 1)
    with tempfile.TemporaryDirectory() as folder:
        run.checkpointer = Checkpointer(run, Path(folder), keep_last=3)
        summary = game.run_experiment(EVERY * (warm + effort.of(2 * BLOCKS)), listeners=[clock])
    extra, usual = [], []
    for first in range(EVERY * warm, len(clock.times) - EVERY, EVERY):
        ends = clock.times[first : first + EVERY : ROUND]  # windows of as many epochs, with as many rounds in each
        written, *others = [after - before for before, after in pairwise(ends)]
        usual.append(statistics.median(others))
        extra.append(written - usual[-1])
    window, cost = statistics.median(usual), statistics.median(extra)

    def side(name: str, work: str, seconds: float) -> Measured:
        return Measured(name, work, {"epochs": EVERY}, seconds, seconds, seconds, summary["backend"])

    plain = EVERY / ROUND * window
    yield ratio_of(
        "treasure hunt with 8 agents: 50 epochs without / with a checkpoint",
        side("without", "50 epochs, from windows of 4 of them", plain),
        side("with", "the same, and what the 4 epochs beside which a checkpoint is written take longer", plain + cost),
        goal=0.97,
        repeats=len(extra),
        checkpoint_ms=1e3 * cost,
    )
