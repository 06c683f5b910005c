"""The cost of reliability: the watchdog with logging, and a checkpoint every 50 epochs.

The noise of the machine must be the same for both sides: on a shared machine, successive blocks differ by a tenth, more
than the measured cost. The watchdog is therefore switched on and off in turn within the same run, and the
processor time of all threads is counted. The epochs during which a checkpoint is written are compared with the epochs
around them, in wall time.
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
from parallel_agents.checkpoint import Checkpointer
from parallel_agents.core.config import merge
from parallel_agents.core.types import EpochStats
from parallel_agents.tracking.callbacks import BaseCallback
from parallel_agents.tracking.logs import EventLog, bind, configure_logs
from parallel_agents.tracking.metrics import MetricsWriter

CONFIG = {
    "world": {"agents": 8},
    "experiment": {"max_turns": 100, "record_period": 0, "epochs": 10_000},
    "parallel": {"backend": "inline", "train_interval": 4},
}
BLOCK, BLOCKS = 100, 14
"""Epochs per block, and blocks per side. A block is long enough that opening and closing the files does not weigh."""
EVERY, ROUND, WARM = 50, 4, 5
"""Epochs between two checkpoints and between two rounds; checkpoints to skip while buffers fill and kernels compile."""


def benches(effort: Effort) -> Iterator[tuple[str, Bench]]:
    yield "supervision and logging", partial(_watched, effort)
    yield "a checkpoint every 50 epochs", partial(_checkpoint, effort)


def _watched(effort: Effort) -> Iterator[Row]:
    """Compare a run with a watchdog, a log, a metrics file and a timeline to one without them."""
    game = TreasureHunt(config=CONFIG)
    run = game.prepare()
    watchdog = run.watchdog
    done = {"epochs": 0, "turns": 0}

    class NoWatchdog:
        """A context that does nothing."""

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    def continue_run(callbacks: list[BaseCallback]) -> Done:
        summary = game.run_experiment(done["epochs"] + BLOCK, callbacks=callbacks)
        turns = summary["turns"] - done["turns"]
        done.update(epochs=summary["epochs"], turns=summary["turns"])
        return Done({"turns": turns}, summary["backend"])

    def unmonitored() -> Done:
        run.watchdog = NoWatchdog()  # type: ignore[assignment]
        game.timeline.enabled = False
        return continue_run([])

    def monitored(folder: Path) -> Done:
        run.watchdog = watchdog
        game.timeline.enabled = True
        with configure_logs(folder / "log.jsonl", run="bench", console=False), bind(role="conductor"):
            return continue_run([EventLog(), MetricsWriter(folder / "metrics.jsonl")])

    words = f"{BLOCK} more epochs of 100 turns of one run, 8 agents"
    with tempfile.TemporaryDirectory() as folder:
        yield compare(
            "treasure hunt with 8 agents: processor time without / with supervision and logging",
            Side("without", words, unmonitored),
            Side("with", f"{words}; watchdog, log, metrics and timeline on", partial(monitored, Path(folder))),
            goal=0.97,
            repeats=effort.repeats(BLOCKS),
            clock=time.process_time,
        )


def _checkpoint(effort: Effort) -> Iterator[Row]:
    """Measure how much longer the epochs during which a checkpoint is written take than the others."""
    game = TreasureHunt(config=merge(CONFIG, {"experiment": {"checkpoint_every": EVERY}}))
    run = game.prepare()

    class Clock(BaseCallback):
        """The times at which epochs ended; the checkpoint of an epoch begins right afterwards."""

        def __init__(self) -> None:
            self.times = [time.perf_counter()]

        def on_epoch(self, stats: EpochStats) -> None:
            self.times.append(time.perf_counter())

    clock = Clock()
    warm = effort.of(WARM, 1)
    with tempfile.TemporaryDirectory() as folder:
        run.checkpointer = Checkpointer(run, Path(folder), keep_last=3)
        summary = game.run_experiment(EVERY * (warm + effort.of(2 * BLOCKS)), callbacks=[clock])
    extra, usual = [], []
    for first in range(EVERY * warm, len(clock.times) - EVERY, EVERY):
        ends = clock.times[first : first + EVERY : ROUND]  # windows with equal numbers of epochs and rounds
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
