"""Kill nodes of a real Ray cluster, all on this machine, while runs go on, and compare digests with an inline run.

    python -m tests.faults.ray_kills --kills 30 --seed 0

The cluster has a head, where the run is, and three nodes with room for one learner and one world shard each. In every
run nodes are killed by SIGKILL right after a round was submitted, while the shards play an epoch, and when a checkpoint
begins; the seed decides which node and when. All nodes are replaced before the next run; half of them at once. The last
line printed is JSON with the number of kills by moment and the digests.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.update(
    RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",  # listen on the loopback interface only
    RAY_AUTH_MODE="disabled",
    RAY_USAGE_STATS_ENABLED="0",
    RAY_worker_niceness="0",
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
)

from parallel_agents.checkpoint import Checkpointer, restore
from parallel_agents.core.config import merge
from parallel_agents.engine.shards import ShardedLoop
from tests.equivalence.worlds import Odd

NODES, WORLDS, STORE = 3, 6, 2**27
CONFIG: dict[str, Any] = {
    "experiment": {"epochs": 12, "checkpoint_every": 4, "worlds": WORLDS},
    "world": {"agents": 6},
    "model": {"buffer_size": 40 * WORLDS},
    "parallel": {"train_interval": 1},
}
SECONDS_OF_A_TURN = 0.03


class Nodes:
    """The nodes of the cluster, and how many of them were killed at which moment."""

    def __init__(self, draw: random.Random) -> None:
        from ray.cluster_utils import Cluster

        # A killed node is noticed sooner than by default, and a busy machine is still no dead one.
        checks = {"health_check_period_ms": 1000, "health_check_failure_threshold": 5}
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": checks, "object_store_memory": STORE}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes: list[Any] = []
        self.killed: Counter[str] = Counter()
        self._draw = draw
        self.fill()

    def fill(self) -> None:
        """Start nodes until there are three."""
        while len(self.nodes) < NODES:
            self.nodes.append(self.cluster.add_node(num_cpus=2, object_store_memory=STORE))

    def kill(self, moment: str) -> None:
        """Kill a node with everything on it."""
        node = self.nodes.pop(self._draw.randrange(len(self.nodes)))
        self.cluster.remove_node(node, allow_graceful=False)
        self.killed[moment] += 1

    def fill_or_not(self) -> None:
        """Replace the nodes that were killed, or go on with two; only the main thread can start nodes."""
        if self._draw.random() < 0.5 or len(self.nodes) < 2:
            self.fill()


class Slow(Odd):
    """A game whose turns take a while where its worlds are a shard, so that a kill meets an epoch that is played."""

    shardable = True

    def begin_turn(self) -> None:
        if self.n_worlds < WORLDS:
            time.sleep(SECONDS_OF_A_TURN)
        super().begin_turn()


def run_once(nodes: Nodes, draw: random.Random, folder: Path, most: int) -> dict[str, Any]:
    """Run once with a kill at each of the three moments (at most `most`), and return its digests and events."""
    events: list[str] = []
    address = nodes.cluster.address
    flags = {"backend": "ray", "num_workers": NODES, "world_shards": NODES, "address": address, "round_deadline": 400.0}
    game = Slow(config=merge(CONFIG, {"parallel": flags}))
    run = game.prepare()
    checkpointer = Checkpointer(run, folder, keep_last=3)
    run.checkpointer = checkpointer
    loop = run.loop
    assert isinstance(loop, ShardedLoop)
    run.emit = lambda name, fields: events.append(name)  # type: ignore[method-assign]
    run.rounds._emit = run.rounds._launcher._emit = loop._emit = run.emit
    left = [most]

    def kill(moment: str) -> None:
        if left[0] > 0:
            left[0] -= 1
            nodes.kill(moment)

    round_, epoch = draw.randint(2, 5), draw.randint(9, 11)
    submit, begin, play = run.rounds._submit, checkpointer.begin, loop._play_elsewhere

    def kill_after_submit(number: int) -> None:
        submit(number)
        if number == round_:
            kill("round")
            nodes.fill_or_not()

    def kill_in_checkpoint() -> None:
        if run.epoch == 8:
            kill("checkpoint")
        begin()
        nodes.fill_or_not()

    def kill_in_epoch(number: int) -> Any:
        if number != epoch:
            return play(number)
        killer = threading.Timer(draw.uniform(1.0, 8.0) * SECONDS_OF_A_TURN, kill, ("collection",))
        killer.start()
        try:
            return play(number)
        finally:
            killer.join()

    run.rounds._submit = kill_after_submit  # type: ignore[method-assign]
    checkpointer.begin = kill_in_checkpoint  # type: ignore[method-assign]
    loop._play_elsewhere = kill_in_epoch  # type: ignore[method-assign]
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
    nodes, found, began = Nodes(draw), list[dict[str, Any]](), time.monotonic()
    try:
        while (killed := nodes.killed.total()) < arguments.kills:
            with tempfile.TemporaryDirectory() as folder:
                found.append(run_once(nodes, draw, Path(folder), arguments.kills - killed))
            sys.stderr.write(f"{nodes.killed.total()} kills, {time.monotonic() - began:.0f} s: {found[-1]}\n")
    finally:
        nodes.cluster.shutdown()
    digests = sorted({str(one[key]) for one in found for key in ("digest", "stored")})
    repeated = sum(one["events"].count("round_failed") + one["events"].count("worker_replaced") for one in found)
    json.dump(
        {
            "kills": nodes.killed.total(),
            "moments": nodes.killed,
            "runs": len(found),
            "recovered": repeated,
            "wanted": wanted,
            "digests": digests,
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
