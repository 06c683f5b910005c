"""32 agents whose rounds read more than 64 MB, run on some backends while the system has little to give.

    python -m tests.faults.crowd LIMIT COUNT WHEN BACKEND...

LIMIT: nofile or nproc, of which COUNT more can be had; anything else sets none. WHEN: start, or middle, when the
workers are killed too. Prints digest, backend and events of each run as one JSON object.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import scipy.linalg  # noqa: F401 - its own threads are there before any limit is

from parallel_agents import Agent, ParallelEnvironment
from parallel_agents.execution import auto
from parallel_agents.tracking.callbacks import BaseCallback
from tests.execution.conftest import worker_processes

AGENTS, SEES = 32, 256
LIMITS = {"nofile": (resource.RLIMIT_NOFILE, "/proc/self/fd"), "nproc": (resource.RLIMIT_NPROC, "/proc/self/task")}


class Crowd(ParallelEnvironment):
    """Everybody sees the same numbers."""

    default_config: ClassVar[dict[str, Any]] = {
        "experiment": {"epochs": 8, "max_turns": 4, "seed": 3},
        "model": {"hidden": (8,), "batch_size": 128, "updates_per_round": 4, "learning_starts": 4, "buffer_size": 50},
        "parallel": {"train_interval": 1, "num_workers": 1},
    }

    def setup_agents(self) -> None:
        self.agents = [Agent(model=self.make_model((SEES,), 3)) for _ in range(AGENTS)]

    def reset(self) -> None:
        pass

    def observe(self) -> Any:
        return np.full((AGENTS, self.n_worlds, SEES), self.turn, np.float32)

    def apply_actions(self, actions: Any) -> Any:
        return np.asarray(actions, np.float32)


class Events(BaseCallback):
    """Records events, and tightens a limit in the middle of a run."""

    def __init__(self, limit: str, count: int, when: str) -> None:
        self.events: list[tuple[str, dict[str, str]]] = []
        self._tighten = (limit, count) if when == "middle" else None

    def on_event(self, name: str, fields: Mapping[str, Any]) -> None:
        self.events.append((name, {key: str(value) for key, value in fields.items()}))

    def on_epoch(self, stats: Any) -> None:
        if stats.epoch == 4 and self._tighten is not None:
            limited(*self._tighten)
            for worker in worker_processes(os.getpid()):
                os.kill(worker, signal.SIGKILL)


def limited(limit: str, count: int) -> None:
    """Allow only so many more than there are now."""
    if limit in LIMITS:
        kind, used = LIMITS[limit]
        most = len(os.listdir(used)) + count
        resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))


def run(backend: str, recorded: Events) -> dict[str, Any]:
    parallel = {} if backend == "auto" else {"backend": backend}
    game = Crowd(config={"parallel": parallel, "model": {"kernels": "torch"}})
    summary = game.run_experiment(callbacks=[recorded])
    return {"digest": summary["digest"], "backend": summary["backend"], "events": recorded.events}


if __name__ == "__main__":
    auto.START_COST, auto.LONG_UPDATE = 0.0, 1e9  # a process is wanted as soon as it can be had
    limit, count, when, *backends = sys.argv[1:]
    if when == "start":
        limited(limit, int(count))
    sys.stdout.write(json.dumps({own: run(own, Events(limit, int(count), when)) for own in backends}) + "\n")
