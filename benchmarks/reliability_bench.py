"""What reliability costs: supervision with logging, and a checkpoint every 50 epochs, as a share of turns/s.

The switch that is measured flips every few epochs within one and the same run, first one side and then the other, so
that the noise of the machine meets both alike, and the two medians are compared. For supervision the processor time of
all threads is counted: neighbouring blocks differ by a tenth on a shared machine, which would drown what is looked for.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, row
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
WARM = 5
"""Blocks of 50 epochs before buffers are full and all is compiled."""


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        return [_watched(Path(folder)), _checkpoint(Path(folder))]


def _blocks(plain: Callable[[int], Any], other: Callable[[int], Any]) -> tuple[list[float], list[float]]:
    """Processor seconds of each block, the sides in turn and in changing order; both run the same environment on."""
    times: tuple[list[float], list[float]] = ([], [])
    epoch = 2 * BLOCK
    plain(epoch)  # compiled, buffers warm
    for number in range(BLOCKS):
        for side in (0, 1) if number % 2 else (1, 0):
            epoch += BLOCK
            began = time.process_time()
            (plain, other)[side](epoch)
            times[side].append(time.process_time() - began)
    return times


def _watched(folder: Path) -> Row:
    """A supervisor, a log, a metrics file and a timeline, against none of them."""
    game = TreasureHunt(config=CONFIG)
    run = game.prepare()
    supervisor = run.supervisor

    class Nobody:
        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    def alone(epochs: int) -> None:
        run.supervisor = Nobody()  # type: ignore[assignment]
        game.timeline.enabled = False
        game.run_experiment(epochs)

    def watched(epochs: int) -> None:
        run.supervisor = supervisor
        game.timeline.enabled = True
        with configure_logs(folder / "log.jsonl", run="bench", console=False), bind(role="conductor"):
            game.run_experiment(epochs, listeners=[EventLog(), MetricsWriter(folder / "metrics.jsonl")])

    plain, other = _blocks(alone, watched)
    return _row("supervision and logging, treasure hunt with 8 agents", plain, other)


def _checkpoint(folder: Path) -> Row:
    """The same run with a checkpoint every 50 epochs and without: wall time, for it is written beside the run."""
    game = TreasureHunt(config=merge(CONFIG, {"experiment": {"checkpoint_every": 50}}))
    run = game.prepare()
    checkpointer = Checkpointer(run, folder, keep_last=3)

    class Clock(SilentListener):
        """Seconds from one 50th epoch to the next; the run itself never stops, for its end waits for the disk.

        The switch flips every third block, and the first one after it does not count: its checkpoint would hold what
        was added while there were none.
        """

        def __init__(self) -> None:
            self.began = time.perf_counter()
            self.seconds: tuple[list[float], list[float]] = ([], [])

        def on_epoch(self, stats: EpochStats) -> None:
            block, place = divmod(stats.epoch, 50)
            if place != 49:  # the checkpoint of the 50th epoch, if there is one, is in the next block
                return
            now = time.perf_counter()
            if block > WARM and block % 3:
                self.seconds[run.checkpointer is not None].append(now - self.began)
            if block % 3 == 2:
                run.checkpointer = None if run.checkpointer else checkpointer
            self.began = now

    clock = Clock()
    game.run_experiment(50 * (WARM + 3 * BLOCKS + 1), listeners=[clock])
    plain, other = clock.seconds
    return _row("a checkpoint every 50 epochs, treasure hunt with 8 agents", plain, other, 50)


def _row(name: str, plain: list[float], other: list[float], epochs: int = BLOCK) -> Row:
    return row(
        f"{name}: turns/s kept",
        statistics.median(plain) / statistics.median(other),
        0.97,
        "of turns/s",
        len(plain),
        plain_ms=1e3 * statistics.median(plain) / epochs,
        with_ms=1e3 * statistics.median(other) / epochs,
    )
