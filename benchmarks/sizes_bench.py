"""Whole loops at other sizes: 8 learners with larger networks beside JAX and the other peers, 2 small ones beside JAX.

What is compared is that of `kernels_bench.py` (JAX) and `peers_bench.py`, where all networks are 8-64-64-4.

`python -m benchmarks.run sizes` takes about a quarter of an hour on two quiet cores, after the installation of the
peers.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.kernels_bench import BATCH, GAME, LARGE, SMALL, TURNS, Work, loop_beside_jax
from benchmarks.measure import Effort
from benchmarks.peers_bench import DQN, dqn_beside
from benchmarks.run import Bench

NETWORKS = {GAME: (32, 200, 8), LARGE: (64, 4, 1)}
"""By widths of the network: samples of an update, and epochs of a call beside JAX and beside the other peers."""


def benches(effort: Effort) -> Iterator[tuple[str, Bench]]:
    for cores in (1, 2):
        yield loop_beside_jax(effort, Work(SMALL, BATCH, 2, 800), cores, None)
    for sizes, (batch, beside_jax, beside_peers) in NETWORKS.items():
        rows = 10 * TURNS if sizes == LARGE else 80 * TURNS  # of 750 numbers each
        for cores in (1, 2):
            yield loop_beside_jax(effort, Work(sizes, batch, 8, beside_jax, rows), cores, None)
        for peer in DQN:
            epochs = 1 if peer == "rllib" else beside_peers
            yield dqn_beside(effort, Work(sizes, batch, 8, epochs, rows), peer, None)
