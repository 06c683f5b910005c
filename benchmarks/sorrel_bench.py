"""Treasure hunt with sorrel's sizes, and sorrel's own game through the adapter, compared with sorrel 1.6.0 itself.

sorrel runs in an environment of its own with Python 3.12 (`benchmarks/peers`), as a process that waits while ours runs;
the adapter runs in the same process. Sides alternate within one run.
Both sides play as many turns with as many agents in sequential order, explore with the same ε, ask networks of as many
inputs and units for the other actions, and train each agent once per epoch from a batch of the same size.
"""

from __future__ import annotations

import json
import select
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import Done, Effort, Row, Side, compare
from benchmarks.peers import Unavailable, sorrel_python
from benchmarks.run import Bench
from examples.treasure_hunt import TreasureHunt

NAME = "treasure hunt with sorrel's sizes (16 agents, IQN, 750 inputs), whole run: sorrel 1.6.0 / ours"
ADAPTED = {
    "inline": "sorrel's treasure hunt, unmodified, 16 agents, whole run: sorrel 1.6.0 / adapter, equal results",
    "process": "sorrel's treasure hunt, unmodified, 16 agents, whole run: sorrel 1.6.0 / adapter, background training",
}
AGENTS, TURNS, EPSILON, BATCH = 16, 100, 0.6, 64
MODEL = {
    "algorithm": "iqn",
    "layer": 250,
    "quantiles": 12,
    "acting_quantiles": 12,
    "n_frames": 6,  # of 125 numbers each; sorrel stacks 5 of 150: 750 inputs
    "n_step": 1,
    "batch_size": BATCH,
    "updates_per_round": 1,
    "learning_starts": 64,
    "buffer_size": 1024,
    "lr": 0.00025,
    "tau": 0.001,
    "max_grad_norm": 1.0,
    "epsilon": EPSILON,
    "epsilon_final": EPSILON,
}
PATIENCE = 600.0
"""Seconds to wait for one answer of sorrel."""


def benches(effort: Effort) -> Iterator[tuple[str, Bench]]:
    yield NAME, partial(_beside, NAME, 8.0, effort)
    for backend, name in ADAPTED.items():
        yield name, partial(_beside, name, 2.0 if backend == "process" else None, effort, backend)


def _beside(name: str, goal: float | None, effort: Effort, backend: str | None = None) -> Iterator[Row]:
    """Compare whole runs of sorrel and of ours: our own game, or sorrel's through the adapter with a backend."""
    epochs, repeats = effort.of(15 if backend else 60, 3), effort.repeats(3)
    try:
        python = sorrel_python()
    except Unavailable as reason:
        yield Row(name=name, ratio=None, goal=goal, unit="times as fast", repeats=0, skipped=str(reason))
        return
    words = (
        f"{epochs} epochs of {TURNS} turns, {AGENTS} agents in sequential turn order, ε {EPSILON}, "
        f"an update of {BATCH} samples for each agent after each epoch"
    )
    script = Path(__file__).parent / "peers" / "sorrel_side.py"
    with subprocess.Popen([python, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
        answer: dict[str, Any] = {}
        theirs = partial(_asked, peer, epochs, answer, None)
        ours = partial(_asked, peer, epochs, {}, backend) if backend else partial(_ours, epochs)
        try:
            row = compare(
                name,
                Side("sorrel", words + ", as sorrel's own run_experiment does it", theirs),
                Side("ours", words, ours),
                goal=goal,
                repeats=repeats,
                sorrel=answer,
                epsilon=EPSILON,
            )
        finally:
            peer.kill()
    yield row


def _asked(peer: subprocess.Popen[str], epochs: int, answer: dict[str, Any], backend: str | None) -> Done:
    """Let sorrel's process run its game; write what it says about the run into `answer`."""
    assert peer.stdin is not None
    assert peer.stdout is not None
    request = {"agents": AGENTS, "epochs": epochs, "max_turns": TURNS, "epsilon": EPSILON, "backend": backend}
    peer.stdin.write(json.dumps(request) + "\n")
    peer.stdin.flush()
    if not select.select([peer.stdout], [], [], PATIENCE)[0]:
        raise TimeoutError(f"sorrel gave no answer within {PATIENCE:g} s")
    line = peer.stdout.readline()
    if not line:
        raise RuntimeError(f"sorrel's process ended with {peer.wait(10)}; its message is above")
    answer.update(json.loads(line))
    return Done(answer.pop("counts"), backend or "inline", answer.pop("seconds"))


def _ours(epochs: int) -> Done:
    """Run our treasure hunt with sorrel's sizes."""
    experiment = {"epochs": epochs, "max_turns": TURNS, "record_period": 0}
    game = TreasureHunt(
        config={
            "experiment": experiment,
            "world": {"agents": AGENTS},
            "model": MODEL,
            "parallel": {"train_interval": 1, "turn_order": "sequential"},
        }
    )
    game.prepare()
    start = time.perf_counter()
    summary = game.run_experiment()
    seconds = time.perf_counter() - start
    counts = {
        "turns": summary["turns"],
        "agent_steps": summary["transitions"],
        "updates": summary["updates"],
        "samples": summary["updates"] * BATCH,
    }
    return Done(counts, summary["backend"], seconds)
