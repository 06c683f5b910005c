"""A buffer of a million rows with event types: batches of 256, gathered, compared with the prioritised
buffers of cpprb and, in a process of its own, of TorchRL.

Both sides of a row do the same: they draw, correct and gather a batch; or they do so and then give every row of the
batch a new priority. Seconds are processor time, which depends least on the load of the machine.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Done, Effort, Measured, Row, Side, compare
from benchmarks.peers import CPPRB, Unavailable, ask, cpprb, torchrl_python
from benchmarks.run import Bench
from parallel_agents.core import seeding
from parallel_agents.replay import ImportanceSampler, ImportanceSamplingReplayBuffer

FEATURES, BATCH, EPISODE = 32, 256, 100
ROWS = 1_000_000

Draw = Callable[[], Done]


def benches(effort: Effort) -> Iterator[tuple[str, Bench]]:
    yield "importance: memory of 1M rows of 32 features", _memory
    rows = effort.of(ROWS, 100_000)
    for name, goal, update in (
        ("importance: class draws with gather, beside cpprb's priority draws with gather", 5.0, False),
        ("importance: class and priority draws with gather and priority update, beside cpprb's", 1.5, True),
    ):
        yield name, partial(_beside, name, goal, update, rows, effort)
    name = "importance: class and priority draws with gather and priority update, beside TorchRL's"
    yield name, partial(_beside_torchrl, name, rows, effort)


def _memory() -> Iterator[Row]:
    """Measure the memory of a full buffer."""
    memory = our_buffer(ROWS, priorities=False)
    words = f"holds a million rows of {FEATURES} features with their next states, in episodes of {EPISODE}"
    yield Row(
        name="importance: memory of 1M rows of 32 features",
        ratio=memory.nbytes / 1e6,
        goal=150.0,
        at_most=True,
        unit="MB",
        repeats=1,
        sides=(Measured("buffer", words, {"rows": len(memory)}, 0.0, 0.0, 0.0),),
    )


def _beside(name: str, goal: float, update: bool, rows: int, effort: Effort) -> Iterator[Row]:
    """Compare our buffer with cpprb's, with or without an update of priorities."""
    theirs = f"{BATCH} rows drawn by priority, with corrections, gathered"
    ours = f"{BATCH} rows drawn by class{' and priority' if update else ''}, with corrections, gathered"
    also = "; then a new priority for each of them" if update else ""
    unit = "times cpprb's speed"
    try:
        library = cpprb()
    except Unavailable as reason:
        yield Row(name=name, ratio=None, goal=goal, unit=unit, repeats=0, skipped=str(reason))
        return
    yield compare(
        name,
        Side("cpprb", theirs + also, their_draw(library, rows, update=update)),
        Side("ours", ours + also, our_draw(rows, update=update)),
        goal=goal,
        unit=unit,
        repeats=effort.repeats(7),
        calls=effort.of(300, 50),
        clock=time.process_time,
        rows=rows,
        cpprb=CPPRB,
    )


def _beside_torchrl(name: str, rows: int, effort: Effort) -> Iterator[Row]:
    """Compare our buffer with TorchRL's, with an update of priorities."""
    unit, draws = "times TorchRL's speed", effort.of(300, 20)
    try:
        python = torchrl_python()
    except Unavailable as reason:
        yield Row(name=name, ratio=None, goal=None, unit=unit, repeats=0, skipped=str(reason))
        return
    draw = our_draw(rows, update=True)

    def ours() -> Done:
        start = time.process_time()
        done = [draw().counts for _ in range(draws)]
        seconds = time.process_time() - start
        counts = {what: sum(own[what] for own in done) for what in done[0]}
        return Done(counts, seconds=seconds, processor_time=True)

    asked = {"what": "importance", "rows": rows, "features": FEATURES, "batch": BATCH, "draws": draws}
    before, after = f"{draws} times {BATCH} rows drawn by", "with corrections, gathered; then a new priority for each"
    command = [python, Path(__file__).parent / "peers" / "torchrl_side.py"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        answer: dict[str, Any] = {}

        def theirs() -> Done:
            return replace(ask(process, asked, answer), processor_time=True)

        try:
            yield compare(
                name,
                Side("TorchRL", f"{before} priority, {after}", theirs),
                Side("ours", f"{before} class and priority, {after}", ours),
                goal=None,
                unit=unit,
                repeats=effort.repeats(7),
                rows=rows,
                peer=answer,
            )
        finally:
            process.kill()


def our_draw(rows: int, *, update: bool) -> Draw:
    """Return a function that draws a batch by class, and by priority if priorities are updated."""
    memory, errors = our_buffer(rows, priorities=update), _errors()

    def draw() -> Done:
        batch, weights, indices = memory.sample_importance_weighted(BATCH)
        counts = {"draws": len(indices), "corrections": len(weights), "rows_gathered": len(batch["states"])}
        if update:
            memory.update_priorities(indices, errors)
            counts["priority_updates"] = len(indices)
        return Done(counts)

    return draw


def their_draw(library: Any, rows: int, *, update: bool) -> Draw:
    """Return a function that draws a batch by priority from cpprb's buffer."""
    states, next_states, dones = _data(rows)
    shape = {
        "obs": {"shape": FEATURES},
        "act": {"dtype": np.int16},
        "rew": {},
        "next_obs": {"shape": FEATURES},
        "done": {},
    }
    buffer, errors = library.PrioritizedReplayBuffer(rows, shape, alpha=0.6), _errors()
    for part in np.array_split(np.arange(rows), max(1, rows // 50_000)):
        zeros = np.zeros(len(part))
        buffer.add(
            obs=states[part], act=zeros.astype(np.int16), rew=zeros, next_obs=next_states[part], done=dones[part]
        )

    def draw() -> Done:
        batch = buffer.sample(BATCH, beta=0.4)
        indices = batch["indexes"]
        counts = {"draws": len(indices), "corrections": len(batch["weights"]), "rows_gathered": len(batch["obs"])}
        if update:
            buffer.update_priorities(indices, errors)
            counts["priority_updates"] = len(indices)
        return Done(counts)

    return draw


def our_buffer(rows: int, *, priorities: bool) -> ImportanceSamplingReplayBuffer:
    """Return a full buffer, with a tenth of its rows in the rare class."""
    states, next_states, dones = _data(rows)
    memory = ImportanceSamplingReplayBuffer(rows, (FEATURES,), ImportanceSampler(priorities=priorities))
    rare = seeding.generator(0, seeding.Purpose.INIT).random(rows) < 0.1
    event_types = np.where(rare, "crisis_parent", "regular_parent").tolist()
    memory.add_many(states, np.zeros(rows, int), np.ones(rows), next_states, dones, event_types, np.ones(rows))
    if priorities:
        errors = seeding.generator(2, seeding.Purpose.NOISE).random(rows)
        memory.update_priorities(np.arange(rows), errors)
    return memory


@cache
def _data(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return states, next states and episode ends."""
    states = seeding.generator(0, seeding.Purpose.NOISE).standard_normal((rows, FEATURES), np.float32)
    next_states = np.roll(states, -1, 0)
    dones = np.arange(rows) % EPISODE == EPISODE - 1
    next_states[dones] += 1.0
    return states, next_states, dones


def _errors() -> np.ndarray:
    return seeding.generator(1, seeding.Purpose.NOISE).random(BATCH)
