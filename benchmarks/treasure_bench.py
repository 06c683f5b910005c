"""Whole runs of treasure hunt: the default mode compared with a plain loop over agents, sequential mode, and others.

Rows name the backend that was really used. Turns, transitions, updates and samples are counted on both sides; if both
sides are ours and have the same lag, their digests must be equal too.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from benchmarks.measure import Done, Effort, Measured, Row, Side, compare
from benchmarks.plain_run import plain_run
from benchmarks.run import Bench
from examples.treasure_hunt import TreasureHunt
from parallel_agents.algorithms.dqn import DQNOptions
from parallel_agents.core.config import build_section, merge

Layer = dict[str, Any]

SEQUENTIAL: Layer = {"parallel": {"enabled": False}}
DEFAULT: Layer = {"parallel": {}}
MANY_UPDATES: Layer = {"model": {"updates_per_round": 48}}
"""So many that training is about half of a sequential run."""


def benches(effort: Effort) -> Iterator[tuple[str, Bench]]:
    for agents, goal, epochs, layer in (
        (16, 3.0, effort.of(160, 12), {}),
        (3, 2.5, effort.of(600, 12), MANY_UPDATES),
    ):
        yield f"treasure hunt, {agents} agents, whole run", partial(_whole, agents, goal, epochs, layer, effort)
    for backend in ("thread", "process"):
        yield f"a learner {backend} in the background", partial(_background, backend, effort)
    for agents in (1, 2, 4, 8, 16, 32):
        yield f"treasure hunt, {agents} agents, short run", partial(_never_slower, agents, effort)
    yield "kernels within a run", partial(_kernel_shares, 16, effort)
    yield "a learner process beside collecting", partial(_overlap, effort)
    yield "a learner thread beside collecting", partial(_kept, effort)
    for agents in (32, 128, 512):
        yield f"cost per agent and turn, {agents} agents", partial(_scaling, agents, effort)


def _make(agents: int, epochs: int, *layers: Layer) -> TreasureHunt:
    experiment = {"epochs": epochs, "record_period": 0}
    return TreasureHunt(config=merge({"world": {"agents": agents}, "experiment": experiment}, *layers))


def _counts(summary: dict[str, Any]) -> dict[str, int]:
    batch = summary["config"]["model"].get("batch_size", DQNOptions().batch_size)
    counts = {name: summary[name] for name in ("turns", "transitions", "updates")}
    return counts | {"samples": summary["updates"] * batch}


def _ours(
    name: str, work: str, agents: int, epochs: int, *layers: Layer, digests: set[str | None] | None = None
) -> Side:
    """Return a whole run of ours, from making the game to the last update; its digest is added to `digests`."""

    def do() -> Done:
        summary = _make(agents, epochs, *layers).run_experiment()
        if digests is not None:
            digests.add(summary["digest"])
        return Done(_counts(summary), summary["backend"])

    return Side(name, work, do)


def _plain(work: str, agents: int, epochs: int, *layers: Layer) -> Side:
    def do() -> Done:
        game = _make(agents, epochs, DEFAULT, *layers)
        options = {key: value for key, value in game.config.model.items() if key != "algorithm"}
        return plain_run(game, build_section(DQNOptions, options, "model"), epochs)

    words = "one nn.Module, Adam and numpy ring per agent, asked and trained in a Python loop"
    return Side("plain loop", f"{work}; {words}", do)


def _same_bytes(row: Row, digests: set[str | None]) -> Row:
    """Return the row, or raise an error if the digests of its sides differ."""
    if len(digests) != 1 or None in digests:
        raise ValueError(f"{row.name}: the sides must give one and the same digest, but gave {digests}")
    return row


def _work(agents: int, epochs: int, *layers: Layer) -> str:
    updates = merge({"model": {"updates_per_round": DQNOptions().updates_per_round}}, *layers)["model"]
    return (
        f"{epochs} epochs of 100 turns, {agents} agents, "
        f"{updates['updates_per_round']} double DQN updates of each agent after every 4 epochs"
    )


def _whole(agents: int, goal: float, epochs: int, layer: Layer, effort: Effort) -> Iterator[Row]:
    """Compare the default mode with a plain loop over agents, and with our sequential mode."""
    what, work, repeats = f"treasure hunt, {agents} agents, whole run", _work(agents, epochs, layer), effort.repeats(3)
    default = _ours("default mode", work, agents, epochs, DEFAULT, layer)
    yield compare(
        f"{what}: plain loop over agents / default mode",
        _plain(work, agents, epochs, layer),
        default,
        goal=None,
        repeats=repeats,
    )
    digests: set[str | None] = set()
    row = compare(
        f"{what}: sequential mode / default mode",
        _ours("sequential mode", work, agents, epochs, SEQUENTIAL, layer, digests=digests),
        _ours("default mode", work, agents, epochs, DEFAULT, layer, digests=digests),
        goal=goal,
        repeats=repeats,
    )
    yield _same_bytes(row, digests)


def _background(backend: str, effort: Effort) -> Iterator[Row]:
    """Compare a learner in the background with the same run inline, and with a plain loop."""
    agents, epochs, layer = 16, effort.of(160, 12), {"model": {"updates_per_round": 64}}
    work, repeats, digests = _work(agents, epochs, layer), effort.repeats(3), set[str | None]()
    chosen: Layer = {"parallel": {"backend": backend}}
    name = f"learner {backend} in the background"
    behind = _ours(name, f"{work}; learning in a {backend}", agents, epochs, chosen, layer, digests=digests)
    inline: Layer = {"parallel": {"backend": "inline"}}
    aside = _ours("inline", f"{work}; learning between epochs", agents, epochs, inline, layer, digests=digests)
    what = f"treasure hunt, {agents} agents, 64 updates a round, whole run"
    yield _used(
        _same_bytes(compare(f"{what}: inline / {name}", aside, behind, goal=None, repeats=repeats), digests), backend
    )
    plain = _plain(work, agents, epochs, layer)
    yield _used(compare(f"{what}: plain loop over agents / {name}", plain, behind, goal=None, repeats=repeats), backend)


def _used(row: Row, backend: str) -> Row:
    """Return the row, or raise an error if another backend was used."""
    if row.sides[1].backend != backend:
        raise ValueError(f"{row.name}: learning took place in {row.sides[1].backend}, not in a {backend}")
    return row


def _never_slower(agents: int, effort: Effort) -> Iterator[Row]:
    """Compare short runs in sequential mode and in default mode."""
    epochs, digests = effort.of(40, 8), set[str | None]()
    work = _work(agents, epochs)
    row = compare(
        f"treasure hunt, {agents} agents, short run: sequential mode / default mode",
        _ours("sequential mode", work, agents, epochs, SEQUENTIAL, digests=digests),
        _ours("default mode", work, agents, epochs, DEFAULT, digests=digests),
        goal=0.95,
        repeats=effort.repeats(3),
    )
    yield _same_bytes(row, digests)


class Stopwatch:
    """Add up the seconds of all calls of some methods, none of which calls another of them."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def watch(self, owner: Any, method: str) -> None:
        """Replace a method by one that is timed."""
        original: Callable[..., Any] = getattr(owner, method)

        def timed(*arguments: Any, **keywords: Any) -> Any:
            start = time.perf_counter()
            try:
                return original(*arguments, **keywords)
            finally:
                self.seconds += time.perf_counter() - start

        object.__setattr__(owner, method, timed)


def _kernel_shares(agents: int, effort: Effort) -> Iterator[Row]:
    """Measure the seconds of compiled turns and updates within an inline run, as a share of the seconds of that run.

    Where compiled code plays no whole turns, acting is measured in their place.
    """
    epochs = effort.of(120, 12)
    inline: Layer = {"parallel": {"backend": "inline"}}
    for name, layer, goal in (("default mode", inline, 0.4), ("sequential mode", SEQUENTIAL, None)):
        _make(agents, 4, layer).run_experiment()  # so that nothing is compiled, or loaded, in the measured run
        game = _make(agents, epochs, layer)
        run = game.prepare()
        what, method = ("acting", "act") if run.loop.why_not_compiled() else ("compiled turns", "collect")
        turns, learning = Stopwatch(), Stopwatch()
        turns.watch(run.group, method)
        learning.watch(run.group.stacks[0].learner, "learn")
        start = time.perf_counter()
        summary = game.run_experiment()
        wall = time.perf_counter() - start
        yield Row(
            name=f"treasure hunt, {agents} agents, {name}: {what} and updates within the run",
            ratio=(turns.seconds + learning.seconds) / wall,
            goal=goal,
            unit="share of wall time",
            repeats=1,
            sides=(Measured(name, _work(agents, epochs), _counts(summary), wall, wall, wall, summary["backend"]),),
            detail={"turn_seconds": turns.seconds, "learn_seconds": learning.seconds},
        )


def _overlap(effort: Effort) -> Iterator[Row]:
    """Compare collecting and learning at the same time with the longer of the two alone."""
    agents, epochs, layer = 16, effort.of(400, 12), {"model": {"updates_per_round": 64}}

    def together() -> Done:
        summary = _make(agents, epochs, {"parallel": {"backend": "process"}}, layer).run_experiment()
        return Done(_counts(summary), summary["backend"], summary["wall_seconds"])

    def apart() -> Done:
        """Run all turns without learning, then all rounds without turns; the longer of the two counts."""
        inline: Layer = {"parallel": {"backend": "inline"}}
        collected = _make(agents, epochs, inline, layer, {"model": {"learning_starts": 10**9}}).run_experiment()
        game = _make(agents, 4, inline, layer)
        game.run_experiment()
        run = game.prepare()
        stack = run.group.stacks[0]
        state, snapshot, updates = run.rounds.newest[0], stack.snapshot(1), 0
        start = time.perf_counter()
        for _ in range(epochs // 4):
            state, result = stack.learner.learn(state, snapshot, stack.identity)
            updates += int(result.updates.sum())
        learning = time.perf_counter() - start
        counts = {"turns": collected["turns"], "transitions": collected["transitions"], "updates": updates}
        samples = updates * stack.learner.batch
        return Done(counts | {"samples": samples}, "inline", max(learning, collected["wall_seconds"]))

    work = _work(agents, epochs, layer)
    yield compare(
        "process learner in the background: wall / the longer of collecting alone and learning alone",
        Side("process learner", f"{work}; learning in a process beside the turns", together),
        Side("alone", f"{work}; turns and updates one after the other, of which the longer counts", apart),
        goal=1.35,
        at_most=True,
        unit="times as long",
        repeats=effort.repeats(3),
    )


def _kept(effort: Effort) -> Iterator[Row]:
    """Add the share of its speed that collecting keeps beside a learner thread to the share that learning keeps."""
    inline: Layer = {"parallel": {"backend": "inline"}}
    game, repeats = _make(8, 4, inline), max(1, effort.repeats(7))
    game.run_experiment()
    run = game.prepare()
    stack = run.group.stacks[0]
    state, snapshot = run.rounds.newest[0], stack.snapshot(1)
    collector = _make(8, 4, inline, {"model": {"learning_starts": 10**9}})
    collector.run_experiment()

    def collected(epochs: int) -> float:
        """Return the seconds of some epochs."""
        start, done = time.perf_counter(), collector.prepare().epoch
        collector.run_experiment(done + epochs)
        return time.perf_counter() - start

    def learned(go_on: Callable[[int], bool]) -> float:
        """Return the rounds of a second."""
        start, rounds = time.perf_counter(), 0
        while go_on(rounds):
            stack.learner.learn(state, snapshot, stack.identity)
            rounds += 1
        return rounds / (time.perf_counter() - start)

    epochs, kept = effort.of(100, 8), []
    without: list[float] = []
    with_learner: list[float] = []
    with ThreadPoolExecutor(1) as pool:
        for _ in range(repeats):
            alone, rounds = collected(epochs), learned(lambda done: done < effort.of(30, 4))
            stop = threading.Event()
            learning = pool.submit(learned, lambda _, stop=stop: not stop.is_set())
            beside = collected(epochs)
            stop.set()
            kept.append((alone / beside, learning.result() / rounds))
            without.append(alone)
            with_learner.append(beside)
    shares = sorted(kept, key=sum)[len(kept) // 2]
    work, counts = f"{epochs} epochs of 100 turns without rounds", {"turns": epochs * 100}
    yield Row(
        name="treasure hunt, 8 agents of 64 units: speed kept by collecting plus speed kept by learning in a thread",
        ratio=sum(shares),
        goal=1.7,
        unit="of 2",
        repeats=repeats,
        sides=tuple(
            Measured(name, work, counts, statistics.median(seconds), min(seconds), max(seconds), backend)
            for name, seconds, backend in (
                ("collecting alone", without, None),
                ("collecting beside a learner thread", with_learner, "thread"),
            )
        ),
        detail={"collecting": shares[0], "learning": shares[1]},
    )


def _scaling(agents: int, effort: Effort) -> Iterator[Row]:
    """Compare the cost of collecting per agent and turn with 8 agents on the same field, for as many agent-turns.

    Both runs go on from call to call, in buffers that are full: memory that is written for the first time costs the
    system as much as a turn. Both explore equally often, since who explores computes no network.
    """
    side, epochs = 21 if agents <= 32 else 61, effort.of(max(32, 4096 // agents), 2)
    model = {"learning_starts": 10**9, "buffer_size": 1000, "epsilon": 0.05, "epsilon_final": 0.05}
    layer: Layer = {"world": {"height": side, "width": side}, "model": model, "parallel": {"backend": "inline"}}
    work = f"{agents * epochs * 100} agent-turns without learning on a field of {side} x {side}"

    def collecting(count: int) -> Side:
        game, length = _make(count, 12, layer), epochs * agents // count
        last = game.run_experiment()

        def collect() -> Done:
            nonlocal last
            before, last = last, game.run_experiment(last["epochs"] + length)
            turns = last["transitions"] - before["transitions"]
            return Done({"agent_turns": turns}, last["backend"], last["wall_seconds"] - before["wall_seconds"])

        return Side(f"{count} agents", work, collect)

    yield compare(
        f"cost per agent and turn: {agents} agents / 8 agents",
        collecting(agents),
        collecting(8),
        goal=1.0,
        at_most=True,
        unit="times as long",
        repeats=effort.repeats(7),
    )
