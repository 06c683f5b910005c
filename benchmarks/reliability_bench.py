"""What reliability costs: supervision with logging, and a checkpoint every 50 epochs, as a share of turns/s.

The switch that is measured flips every few epochs within one and the same run, first one side and then the other, so
that the noise of the machine meets both alike. Processor time of all threads is counted, and the two medians compared:
neighbouring blocks differ by a tenth on a shared machine, which would drown what is looked for.
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
from parallel_agents.runtime.checkpoints import Checkpointer
from parallel_agents.tracking.logs import EventLog, bind, configure_logs
from parallel_agents.tracking.metrics import MetricsWriter

CONFIG = {
    "world": {"agents": 8},
    "experiment": {"max_turns": 100, "record_period": 0, "epochs": 10_000},
    "parallel": {"backend": "inline", "train_interval": 4},
}
BLOCK, BLOCKS = 20, 14
"""Epochs of a block, and blocks of each side."""


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
    """The median time of one checkpoint, spread over 50 epochs."""
    game = TreasureHunt(config=CONFIG)
    run = game.prepare()
    times: list[float] = []
    epochs: list[float] = []
    game.run_experiment(2 * BLOCK)
    checkpointer = Checkpointer(run, folder, keep_last=3)
    checkpointer.write()
    for _ in range(5):
        began = time.perf_counter()
        game.run_experiment(run.epoch + 50)
        epochs.append((time.perf_counter() - began) / 50)
        began = time.perf_counter()
        checkpointer.write()
        times.append(time.perf_counter() - began)
    share = statistics.median(times) / (50 * statistics.median(epochs))
    return row(
        "a checkpoint every 50 epochs, treasure hunt with 8 agents: turns/s kept",
        1.0 / (1.0 + share),
        0.97,
        "of turns/s",
        len(times),
        checkpoint_ms=1e3 * statistics.median(times),
        epoch_ms=1e3 * statistics.median(epochs),
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
