"""Record every Philox (key, counter) of a run as it is drawn.

All draws come from three places: numpy's Philox at an address (`seeding.generator`), whole blocks (`seeding.uniforms`,
`replay.class_index`, `kernels.implicit_quantiles` and `kernels.policy_gradient`), and compiled kernels that call `seeding.draw` themselves. The
first two are recorded here; the last where nothing is compiled, see `tests/uncompiled_draws.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from parallel_agents.core import seeding
from parallel_agents.core.seeding import Purpose
from parallel_agents.kernels import implicit_quantiles, policy_gradient
from parallel_agents.replay import class_index

Address = tuple[int, int, int, int, int, int]
"""Two words of the key, then block, turn, epoch and world."""


class Addresses:
    """The addresses drawn since recording began."""

    def __init__(self) -> None:
        self.blocks: Counter[Address] = Counter()
        self._generators: list[tuple[tuple[int, int], list[int], Any]] = []

    def add(self, k0: int, k1: int, block: int, turn: int, epoch: int, world: int) -> None:
        self.blocks[(int(k0), int(k1), int(block), int(turn), int(epoch), int(world))] += 1

    def add_generator(self, key: Any, counter: Any, philox: Any) -> None:
        """Note a generator; how far it is read is known only at the end."""
        self._generators.append(((int(key[0]), int(key[1])), [int(word) for word in counter], philox))

    def read_generators(self) -> None:
        """Add the blocks that the noted generators have read."""
        for (k0, k1), (block, turn, epoch, world), philox in self._generators:
            after = int(philox.state["state"]["counter"][0])
            for read in range(block, after):
                self.add(k0, k1, read, turn, epoch, world)
        self._generators.clear()

    def of(self, seed: int) -> dict[Purpose, Counter[Address]]:
        """Return what was drawn with one seed, by purpose."""
        self.read_generators()
        found: dict[Purpose, Counter[Address]] = {}
        for address, count in self.blocks.items():
            if address[0] == seed:
                found.setdefault(Purpose(address[1] >> 32), Counter())[address] += count
        return found

    def repeated(self, seed: int) -> list[str]:
        """Describe the blocks of one seed that were drawn more than once. (Probes draw random data with seed 0.)"""
        return [
            f"{purpose.name} agent {k1 & 0xFFFFFFFF} world {world} epoch {epoch} turn {turn} block {block}: {count} times"
            for purpose, blocks in self.of(seed).items()
            for (_, k1, block, turn, epoch, world), count in blocks.items()
            if count > 1
        ]


@contextmanager
def recorded() -> Iterator[Addresses]:
    """Record the draws of this process that are not made inside kernels."""
    found = Addresses()
    plain, fill, sample_fill = np.random.Philox, seeding._fill, class_index._fill

    class Recorded(plain):  # type: ignore[misc, valid-type]
        def __init__(self, *, key: Any, counter: Any) -> None:
            super().__init__(key=key, counter=counter)
            found.add_generator(key, counter, self)

    def filled(out: Any, keys: Any, worlds: Any, epoch: Any, first: Any) -> None:
        turns, _, _, slots = out.shape
        for k0, k1 in keys:
            for world in worlds:
                for turn in range(turns):
                    for block in range(-(-slots // 4)):
                        found.add(k0, k1, block, int(first) + turn, epoch, world)
        fill(out, keys, worlds, epoch, first)

    def sample_filled(k0: Any, k1: Any, update: Any, pairs: Any) -> None:
        for block in range(-(-len(pairs) // 2)):
            found.add(k0, k1, block, 0, update, 0)
        sample_fill(k0, k1, update, pairs)

    def recording(function: Any, numbers: int) -> Any:
        def drawn(keys: Any, updates: int, joined: int, out: Any) -> None:
            for block in range(-(-len(out) // numbers)):
                found.add(*keys, block, joined, updates, 0)
            function(keys, updates, joined, out)

        drawn.callee = function.callee  # type: ignore[attr-defined]  # its callers load it under this name
        return drawn

    fill_minibatches = policy_gradient.fill_minibatches

    def permuted(valid: Any, keys: Any, round_: Any, parts: int, places: Any, shares: Any, chosen: Any, w: Any) -> None:
        for k0, k1 in keys:
            for number in range(chosen.shape[1] // parts):
                found.add(k0, k1, 0, number, round_, 0)
        fill_minibatches(valid, keys, round_, parts, places, shares, chosen, w)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(policy_gradient, "fill_minibatches", permuted)
        for name, numbers in (("fill_quantiles", 8), ("fill_noise", 2)):
            patched.setattr(implicit_quantiles, name, recording(getattr(implicit_quantiles, name), numbers))
        patched.setattr(np.random, "Philox", Recorded)
        patched.setattr(seeding, "_fill", filled)
        patched.setattr(class_index, "_fill", sample_filled)
        yield found
    found.read_generators()
