"""Whole loops of N independent DQN learners beside Stable-Baselines3, TorchRL and Tianshou, alternately.

Each peer runs in an environment of its own (`benchmarks/peers`), as a process that waits while ours computes. Every
agent has a network 8-64-64-4, a buffer and a world of its own (`benchmarks/drift.py`); an update of 64 samples follows
every 4 turns. Ours is the whole framework with its default backend. JAX stands in `kernels_bench.py`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.kernels_bench import BATCH, ROWS, SMALL, TURNS, UPDATES, Run, drift
from benchmarks.measure import Done, Effort, Row, Side, compare
from benchmarks.peers import Unavailable, ask, peer_python
from benchmarks.run import Bench

PEERS = {
    "torchrl": ("TorchRL", 15.0),
    "sb3": ("Stable-Baselines3, one model per agent", 20.0),
    "tianshou": ("Tianshou, one learner per agent", 50.0),
}
"""Name and goal of each peer, with 8 agents; at other sizes the ratio is shown without a goal."""


def benches(effort: Effort) -> Iterator[tuple[str, Bench]]:
    for agents in (2, 8, 32, 128):
        for peer, (title, goal) in PEERS.items():
            name = f"whole loop, 8-64-64-4, batch 64, {agents} agents: {title} / ours"
            yield name, partial(_beside, effort, name, peer, title, agents, goal if agents == 8 else None)


def _beside(effort: Effort, name: str, peer: str, title: str, agents: int, goal: float | None) -> Iterator[Row]:
    """Compare a peer and ours on the same work."""
    if effort.quick and agents > 8:
        reason = "left out of a quick run"
        yield Row(name=name, ratio=None, goal=goal, unit="times as fast", repeats=0, skipped=reason)
        return
    try:
        python = peer_python(peer)
    except Unavailable as reason:
        yield Row(name=name, ratio=None, goal=goal, unit="times as fast", repeats=0, skipped=str(reason))
        return
    epochs = effort.of(max(1, 64 // agents), 1)
    turns, updates = epochs * TURNS, epochs * UPDATES
    words = f"{turns} turns of each of {agents} agents, and {updates} updates of {BATCH} samples of each"
    asked = {
        "agents": agents, "sizes": SMALL, "batch": BATCH, "turns": turns, "interval": TURNS // UPDATES, "rows": ROWS,
    }  # fmt: skip
    ours = Run(drift(agents, {"train_interval": 1}), epochs, {"turns": "turns", "updates": "updates"})
    command = [python, Path(__file__).parent / "peers" / f"{peer}_side.py"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        answer: dict[str, Any] = {}
        try:
            yield compare(
                name,
                Side(title, words, partial(ask, process, asked, answer)),
                Side("ours", words, partial(_counted, ours, agents)),
                goal=goal,
                repeats=effort.repeats(5),
                peer=answer,
            )
        finally:
            process.kill()


def _counted(ours: Run, agents: int) -> Done:
    """Let ours do its work, and count it as the peers do."""
    done = ours()
    turns, updates = done.counts["turns"], done.counts["updates"]
    counts = {"agent turns": agents * turns, "updates": updates, "samples": BATCH * updates}
    return Done(counts, done.backend, done.seconds)
