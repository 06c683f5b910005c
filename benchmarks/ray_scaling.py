"""Simulate learning on up to 1,000 nodes, from what one machine can measure.

    python -m benchmarks.ray_scaling
    python -m benchmarks.ray_scaling --agents 4096 --learn 0.05 --collect 0.5 --failures 0.01

A round of N agents on n nodes takes the longest of its nodes: agents / n updates each, stretched by a factor per node
and round (log-normal, so that some are stragglers). The process of the run hands over n parts one after the other (a
call each, and the bytes through its network card), while it collects the next epoch: with lag 1 a round counts only
where it takes longer than collecting. A node that is lost, at a rate per node and hour, costs the round and the start
of fresh workers on all nodes, as the engine does it.

What the model leaves out: networks with several switches, other jobs, Ray's own limits beyond about a thousand nodes,
memory. Every draw follows from the seed.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

NODES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)


@dataclass(frozen=True)
class Machine:
    """Measured constants: see docs/ray.md for where they come from."""

    call: float = 0.0015
    """Seconds of the run's process for the hand-over of one part, beside its bytes."""
    bandwidth: float = 1.0e9
    """Bytes per second that the run's process can hand over: serialisation and a network card of 10 Gbit/s."""
    start: float = 10.0
    """Seconds until fresh workers have started everywhere."""
    noticed: float = 10.0
    """Seconds until a lost node is noticed."""


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
    stretch: float = 0.1
    """Spread (sigma of the logarithm) of the time of the same work on different nodes and in different rounds."""
    failures: float = 0.001
    """Failures of one node per hour."""


def simulate(work: Work, machine: Machine, nodes: int, *, rounds: int = 500, seed: int = 0) -> dict[str, float]:
    """Return the mean seconds of a round and the share of rounds that were lost, on so many nodes."""
    draw = np.random.Generator(np.random.Philox(key=[seed, nodes]))
    used = min(nodes, work.agents)
    share = -(-work.agents // used)
    learning = work.learn * share * np.exp(work.stretch * draw.standard_normal((rounds, used))).max(axis=1)
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


def main() -> None:
    """Print the table for an experiment."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in vars(Work()).items():
        options.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    work = Work(**vars(options.parse_args()))
    print("\n".join(table(work, Machine())))


if __name__ == "__main__":
    main()
