"""Simulate learning on up to 1,000 nodes, from what one machine can measure.

    python -m benchmarks.ray_scaling --measure      # measure the constants here, into results/ray_scaling.json
    python -m benchmarks.ray_scaling                # simulate from them
    python -m benchmarks.ray_scaling --agents 4096 --learn 0.05 --collect 0.5 --failures 0.01

A round of N agents on n nodes takes the longest of its nodes: agents / n updates each, stretched by a factor per node
and round (log-normal, so that some are stragglers). The process of the run hands over n parts one after the other (a
call each, and the bytes), while it collects the next epoch: with lag 1 a round counts only where it takes longer than
collecting. A node that is lost, at a rate per node and hour, costs the round and the start of fresh workers on all
nodes, as the engine does it.

Measured are the hand-over (a line through rounds of 0.5 to 49 MB), the start of workers, and the spread of equal
rounds. `--measure` also compares the model with rounds that compute, on one worker and on as many as there are cores,
and plays epochs of the network defence in this process and in shards. Assumed are the rate of failures and the seconds
until a lost node is noticed. The model leaves out networks with several switches, other jobs, Ray's own limits beyond
about a thousand nodes, and memory. Every draw follows from the seed.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Effort
from benchmarks.run import provenance
from parallel_agents.algorithms.learner import LearnerState, RoundResult, Snapshot
from parallel_agents.core.seeding import Identity
from parallel_agents.execution.resources import cores

NODES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
RESULTS = Path(__file__).parent / "results" / "ray_scaling.json"


@dataclass(frozen=True)
class Machine:
    """What a machine and its network cost."""

    call: float
    """Seconds of the run's process for the hand-over of one part, beside its bytes."""
    bandwidth: float
    """Bytes per second that the run's process can hand over."""
    start: float
    """Seconds until fresh workers have started."""
    stretch: float
    """Spread (sigma of the logarithm) of the time of the same work in different rounds."""
    noticed: float = 20.0
    """Seconds until a lost node is noticed: Ray's health check asks every 3 seconds and gives up after 5 failures."""

    @classmethod
    def measured(cls) -> Machine:
        """Return the constants that were measured last."""
        return cls(**json.loads(RESULTS.read_text(encoding="utf-8"))["constants"])


@dataclass(frozen=True)
class Work:
    """One experiment."""

    agents: int = 4096
    learn: float = 0.05
    """Seconds that one agent's round takes on one core."""
    collect: float = 2.0
    """Seconds between two rounds for collecting."""
    bytes_per_agent: int = 190_000
    """Snapshot and state of one agent."""
    failures: float = 0.001
    """Failures of one node per hour."""


def simulate(work: Work, machine: Machine, nodes: int, *, rounds: int = 500, seed: int = 0) -> dict[str, float]:
    """Return the mean seconds of a round and the share of rounds that were lost, on so many nodes."""
    draw = np.random.Generator(np.random.Philox(key=[seed, nodes]))
    used = min(nodes, work.agents)
    share = -(-work.agents // used)
    learning = work.learn * share * np.exp(machine.stretch * draw.standard_normal((rounds, used))).max(axis=1)
    handing = used * machine.call + work.agents * work.bytes_per_agent / machine.bandwidth
    seconds = np.maximum(work.collect, learning) + handing
    lost = draw.random(rounds) < 1.0 - np.exp(-work.failures / 3600.0 * used * seconds)
    seconds = seconds + lost * (machine.noticed + machine.start + learning)
    return {"seconds": float(seconds.mean()), "lost": float(lost.mean()), "handing": handing}


def table(work: Work, machine: Machine) -> list[str]:
    """Return lines of a table: nodes, seconds of a round, speed-up over inline on one core, efficiency, lost rounds."""
    inline = work.collect + work.learn * work.agents
    lines = ["| nodes | s a round | speed-up | of ideal | handing over | lost rounds |", "|---|---|---|---|---|---|"]
    for nodes in NODES:
        found = simulate(work, machine, nodes)
        speed = inline / found["seconds"]
        ideal = inline / max(work.collect, work.learn * work.agents / nodes)
        lines.append(
            f"| {nodes:,} | {found['seconds']:.2f} | {speed:.1f} | {speed / ideal:.0%} | {found['handing']:.2f} s | "
            f"{found['lost']:.1%} |"
        )
    return lines


# -- measuring ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ComputingLearner:
    """Multiplies matrices for each agent, one after the other."""

    products: int
    device: str = "cpu"
    updates: int = 1

    def learn(self, state: LearnerState, snapshot: Snapshot, identity: Identity) -> tuple[LearnerState, RoundResult]:
        block = np.ones((64, 64), np.float32)
        for _ in range(len(identity) * self.products):
            block = block @ block / 64.0
        ones = np.ones(len(identity), np.int64)
        return state.clone(), RoundResult(snapshot.round, ones, 0 * ones, {"sum": np.full(len(ones), block[0, 0])})


def fit(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Return the seconds of a call and the bytes per second that fit measured rounds best, in relative error."""
    workers, size, seconds = (np.array([row[key] for row in rows], float) for key in ("workers", "bytes", "ray"))
    factors = np.stack([workers, size], axis=1) / seconds[:, None]
    call, per_byte = np.linalg.lstsq(factors, np.ones(len(rows)), rcond=None)[0]
    return float(max(call, 0.0)), float(1.0 / max(per_byte, 1e-12))


def epoch(cluster: Any, worlds: int, shards: int, repeats: int = 3) -> dict[str, Any]:
    """Return the seconds and the bytes of an epoch of the network defence, played here (no shards) or on Ray."""
    from parallel_agents.engine.shards import ShardedLoop
    from parallel_agents.workflows.defence import NetworkDefence

    experiment = {"worlds": worlds, "max_turns": 48, "record_period": 0}
    flags = {"backend": "ray", "num_workers": 1, "world_shards": shards}
    run = NetworkDefence(config={"experiment": experiment, "parallel": flags}).prepare()
    loop, [stack] = run.loop, run.group.stacks
    if isinstance(loop, ShardedLoop):
        loop.open(cluster, lambda: None)
    seconds = []
    for number in range(1, repeats + 2):
        stack.ring.renew()
        began = time.perf_counter()
        loop.run_epoch(number)
        seconds.append(time.perf_counter() - began)
    if isinstance(loop, ShardedLoop):
        loop.close()
    travelled = stack.ring.lasting_bytes if shards else 0
    return {"worlds": worlds, "shards": shards, "bytes": travelled, "seconds": float(np.median(seconds[1:]))}


def measure(repeats: int = 9, agents: int = 8, products: int = 2000) -> dict[str, Any]:
    """Measure the constants, and compare the model with rounds that compute."""
    from benchmarks.ray_bench import compare_rounds, hand_over, stack_of
    from parallel_agents.execution.ray import RayBackend, RayCluster

    before, most = os.getloadavg()[0], cores()
    cluster = RayCluster(None, workers=most)
    try:
        rows = [
            {
                "name": row.name.rpartition("processes, ")[2],
                "bytes": row.detail["bytes_per_round"],
                "workers": row.detail["workers"],
                "process": row.sides[0].seconds,
                "ray": row.sides[1].seconds,
                "lowest on ray": row.sides[1].lowest,
            }
            for row in compare_rounds(cluster, Effort(), repeats)
        ]
        call, bandwidth = fit(rows)
        starts, rounds = list[float](), dict[int, list[float]]()
        for workers in sorted({1, most}):
            stack = stack_of(agents, 1, 1)
            stack.learner = ComputingLearner(products)
            began = time.perf_counter()
            options: dict[str, Any] = {"resources": {"CPU": 1.0}, "deadline": 300.0, "together": True, "first_round": 1}
            backend = RayBackend(cluster, [stack], [stack.state], workers=workers, **options)
            starts.append(time.perf_counter() - began)
            do = hand_over(backend, stack)
            do()
            rounds[workers] = []
            for _ in range(repeats):
                began = time.perf_counter()
                do()
                rounds[workers].append(time.perf_counter() - began)
            backend.close()
        epochs = [epoch(cluster, worlds, shards) for worlds in (100, 1_000) for shards in (0, 1, most)]
    finally:
        cluster.close()
    stretch = float(np.std(np.log(rounds[1])))
    machine = Machine(call=call, bandwidth=bandwidth, start=max(starts), stretch=stretch)
    size = stack.bytes_per_round() // agents
    handing = call + size * agents / bandwidth
    learn = (float(np.median(rounds[1])) - handing) / agents
    work = Work(agents=agents, learn=learn, collect=0.0, bytes_per_agent=size, failures=0.0)
    validation = [
        {"workers": n, "measured": float(np.median(found)), "model": simulate(work, machine, n)["seconds"]}
        for n, found in rounds.items()
    ]
    return {
        **provenance(),
        "load": [before, os.getloadavg()[0]],
        "repeats": repeats,
        "rounds": rows,
        "constants": asdict(machine),
        "validation": validation,
        "epochs": epochs,
    }


def main() -> None:
    """Print the table for an experiment, or measure."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--measure", action="store_true", help="measure the constants on this machine first")
    for name, default in vars(Work()).items():
        options.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    given = vars(options.parse_args())
    if given.pop("measure"):
        RESULTS.write_text(json.dumps(measure(), indent=2) + "\n", encoding="utf-8")
    print("\n".join(table(Work(**given), Machine.measured())))


if __name__ == "__main__":
    main()
