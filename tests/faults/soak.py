"""Run for a long time with a learner in the background and watch what grows.

python -m tests.faults.soak --minutes 20 --backend thread
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from parallel_agents.core.errors import Interrupted
from parallel_agents.tracking.callbacks import BaseCallback
from parallel_agents.tracking.metrics import MetricsWriter
from tests.env.line_worlds import Line, tiny
from tests.execution.conftest import children, worker_processes

WARM_UP = 0.15
"""Share of the time after which everything must have its size."""


def family() -> list[int]:
    """Return this process, its children and its workers."""
    return [os.getpid(), *children(os.getpid()), *worker_processes(os.getpid())]


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Sampler(BaseCallback):
    """Memory, descriptors and shared memory, every few seconds; asks for the end when the time is over."""

    def __init__(self, minutes: float, run: Any) -> None:
        self.run, self.began, self.length = run, time.monotonic(), 60.0 * minutes
        self.samples: list[tuple[float, int, int, int]] = []
        self._next = 0.0
        self.used: set[str] = set()
        """Backends that really computed the rounds: on a starved machine processes may not start in time."""

    def on_epoch(self, stats: Any) -> None:
        now = time.monotonic() - self.began
        if now >= self._next:
            self.used.add(self.run.rounds.backend)
            pids = family()
            files = sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)
            self.samples.append((now, sum(map(resident, pids)), files, len(os.listdir("/dev/shm"))))
            self._next = now + max(0.5, self.length / 240)
        if now >= self.length:
            self.run.request_stop(15)


def soak(minutes: float, backend: str, folder: Path) -> dict[str, Any]:
    """What there was after warm-up, and what there was at most later."""
    flags = {"backend": backend, "num_workers": 1, "train_interval": 1}
    game = Line(config=tiny(experiment={"worlds": 2, "max_turns": 20}, parallel=flags, model={"buffer_size": 2000}))
    sampler = Sampler(minutes, game.prepare())
    folder.mkdir(parents=True, exist_ok=True)
    writer = MetricsWriter(folder / f"{backend}.jsonl", max_bytes=200_000)
    with contextlib.suppress(Interrupted):  # which is how the sampler ends it
        game.run_experiment(10**9, callbacks=[sampler, writer])
    later = [sample for sample in sampler.samples if sample[0] > WARM_UP * sampler.length]
    assert len(later) > 1, f"only {len(sampler.samples)} samples: too short, or the machine too busy"
    first, rest = later[0], later[1:]
    assert sampler.used == {backend}, f"{backend} was wanted, the rounds were computed by {sampler.used}"
    return {
        "backend": backend,
        "minutes": minutes,
        "epochs": game.prepare().epoch,
        "samples": len(rest),
        "resident_after_warm_up": first[1],
        "growth": max(sample[1] for sample in rest) / first[1] - 1.0,
        "growth_at_end": rest[-1][1] / first[1] - 1.0,
        "descriptors": [first[2], max(sample[2] for sample in rest), rest[-1][2]],
        "shared_memory": [first[3], rest[-1][3]],
    }


if __name__ == "__main__":
    words = argparse.ArgumentParser()
    words.add_argument("--minutes", type=float, default=20.0)
    words.add_argument("--backend", default="thread")
    words.add_argument("--folder", type=Path, default=Path("."))
    given = words.parse_args()
    sys.stdout.write(json.dumps(soak(given.minutes, given.backend, given.folder)) + "\n")
