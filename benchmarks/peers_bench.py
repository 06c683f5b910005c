"""Whole loops of N independent learners beside Stable-Baselines3, SBX, TorchRL, Tianshou and RLlib, alternately.

Each peer runs in an environment of its own (`benchmarks/peers`), as a process that waits while ours computes. Ours is
the whole framework with its default backend. JAX stands in `kernels_bench.py`.

- DQN: every agent has a network 8-64-64-4, a buffer and a world of its own (`benchmarks/drift.py`); an update of 64
  samples follows every 4 turns;
- PPO: every agent has a network and 8 CartPoles of its own.

`python -m benchmarks.run peers` takes about 25 minutes on two quiet cores, after the installation of the peers.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.kernels_bench import BATCH, SMALL, TURNS, UPDATES, Run, Work, ppo_question, ppo_run
from benchmarks.measure import Done, Effort, Row, Side, compare
from benchmarks.peers import Unavailable, ask, peer_python
from benchmarks.run import Bench

DQN = {
    "torchrl": ("TorchRL", 15.0, (2, 8, 32, 128)),
    "sb3": ("Stable-Baselines3, one model per agent", 20.0, (2, 8, 32, 128)),
    "sbx": ("SBX, one model per agent", 20.0, (2, 8)),
    "tianshou": ("Tianshou, one learner per agent", 50.0, (2, 8, 32, 128)),
    "rllib": ("RLlib, one module per agent", 100.0, (2, 8)),
}
"""Name of each peer, its goal with 8 agents, and sizes. At other sizes the ratio is shown without a goal.

SBX compiles every model by itself, and an update of RLlib takes a hundredth of a second: more agents take too long."""
PPO = {"sb3": "Stable-Baselines3, one model per agent", "rllib": "RLlib, one module per agent"}


def benches(effort: Effort) -> Iterator[tuple[str, Bench]]:
    for agents in (2, 8, 32, 128):
        for peer, (_, goal, sizes) in DQN.items():
            if agents in sizes:
                work = Work(SMALL, BATCH, agents, max(1, (8 if peer == "rllib" else 64) // agents))
                yield dqn_beside(effort, work, peer, goal if agents == 8 else None)
    for peer, title in PPO.items():
        name = f"PPO on CartPole, 8 agents, 8 worlds each: {title} / ours"
        yield name, partial(_ppo, effort, name, peer, title)


def dqn_beside(effort: Effort, work: Work, peer: str, goal: float | None) -> tuple[str, Bench]:
    """Return the row of DQN of a peer beside ours on the same work."""
    title = DQN[peer][0]
    name = f"{work.name}: {title} / ours"
    return name, partial(_dqn, effort, name, work, peer, title, goal)


def _dqn(effort: Effort, name: str, work: Work, peer: str, title: str, goal: float | None) -> Iterator[Row]:
    """Compare DQN of a peer and ours on the same work."""
    if effort.quick and work.agents > 8:
        reason = "left out of a quick run"
        yield Row(name=name, ratio=None, goal=goal, unit="times as fast", repeats=0, skipped=reason)
        return
    work = replace(work, epochs=effort.of(work.epochs, 1))
    turns, updates = work.epochs * TURNS, work.epochs * UPDATES
    words = f"{turns} turns of each of {work.agents} agents, and {updates} updates of {work.batch} samples of each"
    asked = {"what": "dqn", **work.asked(), "turns": turns, "interval": TURNS // UPDATES}

    def ours() -> Callable[[], Done]:
        return partial(_counted, work.ours({"train_interval": 1}), work)

    yield _beside(effort, name, peer, title, words, asked, ours, goal)


def _ppo(effort: Effort, name: str, peer: str, title: str) -> Iterator[Row]:
    """Compare PPO of a peer and ours on the same work."""
    asked, words = ppo_question(effort.of(4, 1))
    yield _beside(effort, name, peer, title, words, asked, partial(ppo_run, asked, {"train_interval": 1}), None)


def _beside(
    effort: Effort,
    name: str,
    peer: str,
    title: str,
    words: str,
    asked: dict[str, Any],
    ours: Callable[[], Callable[[], Done]],
    goal: float | None,
) -> Row:
    """Return the row of a peer and ours on the same work; `ours` makes our side."""
    try:
        python = peer_python(peer)
    except Unavailable as reason:
        return Row(name=name, ratio=None, goal=goal, unit="times as fast", repeats=0, skipped=str(reason))
    command = [python, Path(__file__).parent / "peers" / f"{peer}_side.py"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        answer: dict[str, Any] = {}
        try:
            return compare(
                name,
                Side(title, words, partial(ask, process, asked, answer)),
                Side("ours", words, ours()),
                goal=goal,
                repeats=effort.repeats(5),
                peer=answer,
            )
        finally:
            process.kill()


def _counted(ours: Run, work: Work) -> Done:
    """Let ours do its work, and count it as the peers do."""
    done = ours()
    turns, updates = done.counts["turns"], done.counts["updates"]
    counts = {"agent turns": work.agents * turns, "updates": updates, "samples": work.batch * updates}
    return Done(counts, done.backend, done.seconds)
