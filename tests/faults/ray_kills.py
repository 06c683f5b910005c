"""Kill nodes of a real Ray cluster, all on this machine, while runs go on, and compare digests with an inline run.

    python -m tests.faults.ray_kills --kills 30 --seed 0

The cluster has a head, where the run is, and three nodes with one worker each. Nodes are killed right after a round was
submitted, in the middle of collecting, and when a checkpoint begins; the seed decides which node and when. Half of the
lost nodes are replaced. The last line printed is JSON with the number of kills and the digests.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.update(
    RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",  # listen on the loopback interface only
    RAY_AUTH_MODE="disabled",
    RAY_USAGE_STATS_ENABLED="0",
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
)

from parallel_agents.checkpoint import Checkpointer, restore
from parallel_agents.core.config import merge
from tests.equivalence.worlds import Odd

NODES = 3
CONFIG: dict[str, Any] = {
    "experiment": {"epochs": 12, "checkpoint_every": 4},
    "world": {"agents": 6},
    "parallel": {"train_interval": 1},
}


class Nodes:
    """The nodes of the cluster, and how many of them were killed."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        # A killed node is noticed sooner than by default, and a busy machine is still no dead one.
        checks = {"health_check_period_ms": 1000, "health_check_failure_threshold": 10}
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": checks, "object_store_memory": 2**27}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes: list[Any] = []
        self.killed = 0
        self.fill()

    def fill(self) -> None:
        """Start nodes until there are three."""
        while len(self.nodes) < NODES:
            self.nodes.append(self.cluster.add_node(num_cpus=1, object_store_memory=2**27))

    def kill(self, index: int) -> None:
        """Kill a node with everything on it, by SIGKILL."""
        self.cluster.remove_node(self.nodes.pop(index % len(self.nodes)), allow_graceful=False)
        self.killed += 1


class Killing(Odd):
    """A game in which a node is killed at given turns."""

    kills: dict[tuple[int, int], Any] = {}

    def begin_turn(self) -> None:
        if kill := self.kills.pop((self.epoch, self.turn), None):
            kill()
        super().begin_turn()


def run_once(nodes: Nodes, draw: random.Random, folder: Path, most: int) -> dict[str, Any]:
    """Run once with a kill at each of the three moments (at most `most`), and return its digests and events."""
    events: list[str] = []
    parallel = {"backend": "ray", "num_workers": NODES, "address": nodes.cluster.address, "round_deadline": 400.0}
    game = Killing(config=merge(CONFIG, {"parallel": parallel}))
    run = game.prepare()
    checkpointer = Checkpointer(run, folder, keep_last=3)
    run.checkpointer = checkpointer
    run.emit = lambda name, fields: events.append(name)  # type: ignore[method-assign]
    run.rounds._emit = run.rounds._launcher._emit = run.emit
    left = [most]

    def kill() -> None:
        if left[0] > 0:
            left[0] -= 1
            nodes.kill(draw.randrange(NODES))
            if draw.random() < 0.5 or len(nodes.nodes) < 2:
                nodes.fill()

    round_, submit, begin = draw.randint(2, 10), run.rounds._submit, checkpointer.begin

    def kill_after_submit(number: int) -> None:
        submit(number)
        if number == round_:
            kill()

    def kill_in_checkpoint() -> None:
        if run.epoch == 8:
            kill()
        begin()

    run.rounds._submit = kill_after_submit  # type: ignore[method-assign]
    checkpointer.begin = kill_in_checkpoint  # type: ignore[method-assign]
    Killing.kills = {(draw.randint(2, 11), draw.randint(1, 3)): kill}
    try:
        summary = game.run_experiment()
    finally:
        nodes.fill()
    resumed = Odd(config=merge(CONFIG, {"parallel": {"backend": "inline"}}))
    troubles = restore(resumed.prepare(), folder)[1]
    return {
        "digest": summary["digest"],
        "stored": resumed.prepare().summary()["digest"],
        "events": events,
        "troubles": troubles,
    }


def main() -> None:
    """Kill as many nodes as asked for, and print what came of it."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kills", type=int, default=3)
    options.add_argument("--seed", type=int, default=0)
    arguments = options.parse_args()
    draw = random.Random(arguments.seed)
    wanted = Odd(config=merge(CONFIG, {"parallel": {"backend": "inline"}})).run_experiment()["digest"]
    nodes, found, began = Nodes(), list[dict[str, Any]](), time.monotonic()
    try:
        while nodes.killed < arguments.kills:
            with tempfile.TemporaryDirectory() as folder:
                found.append(run_once(nodes, draw, Path(folder), arguments.kills - nodes.killed))
            sys.stderr.write(f"{nodes.killed} kills, {time.monotonic() - began:.0f} s: {found[-1]}\n")
    finally:
        nodes.cluster.shutdown()
    digests = sorted({str(one[key]) for one in found for key in ("digest", "stored")})
    repeated = sum(one["events"].count("round_failed") + one["events"].count("worker_replaced") for one in found)
    json.dump(
        {"kills": nodes.killed, "runs": len(found), "recovered": repeated, "wanted": wanted, "digests": digests},
        sys.stdout,
    )


if __name__ == "__main__":
    main()
