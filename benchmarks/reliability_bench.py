"""What reliability costs: supervision with logging, and a checkpoint every 50 epochs, as a share of turns/s.

The noise of the machine must meet both sides alike: neighbouring blocks differ by a tenth on a shared machine, which
would drown what is looked for. So supervision is switched on and off every few epochs of one and the same run, and the
processor time of all threads is counted; and the epochs beside which a checkpoint is written are compared with the
others around them, by the clock.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
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
EVERY, ROUND, WARM = 50, 4, 5
"""Epochs between two checkpoints and between two rounds; checkpoints until buffers are full and all is compiled."""


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
    """What the epochs after a checkpoint, beside which it is written, take longer than others of the same 50."""
    game = TreasureHunt(config=merge(CONFIG, {"experiment": {"checkpoint_every": EVERY}}))
    run = game.prepare()
    run.checkpointer = Checkpointer(run, folder, keep_last=3)

    class Clock(SilentListener):
        """When each epoch ended; the checkpoint of an epoch begins right after that."""

        def __init__(self) -> None:
            self.times = [time.perf_counter()]

        def on_epoch(self, stats: EpochStats) -> None:
            self.times.append(time.perf_counter())

    clock = Clock()
    game.run_experiment(EVERY * (WARM + 2 * BLOCKS), listeners=[clock])
    costs, usual = [], []
    for first in range(EVERY * WARM, len(clock.times) - EVERY, EVERY):
        ends = clock.times[first : first + EVERY : ROUND]  # windows of as many epochs, with as many rounds in each
        written, *others = [after - before for before, after in pairwise(ends)]
        usual.append(EVERY / ROUND * statistics.median(others))
        costs.append(written - statistics.median(others))
    return row(
        "a checkpoint every 50 epochs, treasure hunt with 8 agents: turns/s kept",
        1.0 / (1.0 + statistics.median(costs) / statistics.median(usual)),
        0.97,
        "of turns/s",
        len(costs),
        checkpoint_ms=1e3 * statistics.median(costs),
        epoch_ms=1e3 * statistics.median(usual) / EVERY,
    )


def _row(name: str, plain: list[float], other: list[float]) -> Row:
    return row(
        f"{name}: turns/s kept",
        statistics.median(plain) / statistics.median(other),
        0.97,
        "of turns/s",
        len(plain),
        plain_ms=1e3 * statistics.median(plain) / BLOCK,
        with_ms=1e3 * statistics.median(other) / BLOCK,
    )
