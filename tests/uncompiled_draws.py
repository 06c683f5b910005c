"""Run games whose kernels draw for themselves, uncompiled, and print which numbers were read twice.

`NUMBA_DISABLE_JIT=1 python -m tests.uncompiled_draws treasure_hunt …`: kernels are then Python functions, and `draw` and
`uniform` are replaced before any of them is imported. One draw gives four words: a number is read where a word is made
one, so a kernel may draw the same block again for another of its words.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import numpy as np

from parallel_agents.core import seeding
from tests.addresses import Addresses

SEED = 3
found = Addresses()


class Word(int):
    """A word with its address and slot."""

    address: tuple[Any, ...]


def recorded_draw(k0: Any, k1: Any, block: Any, turn: Any, epoch: Any, world: Any) -> tuple[Word, ...]:
    """Return the four words of a block, by numpy."""
    key, counter = np.array([k0, k1], np.uint64), np.array([block, turn, epoch, world], np.uint64)
    words = tuple(Word(word) for word in np.random.Philox(key=key, counter=counter).random_raw(4))
    for slot, word in enumerate(words):
        word.address = (k0, k1, 4 * int(block) + slot, turn, epoch, world)
    return words


def recorded_uniform(word: Word) -> float:
    """Return what `seeding.uniform` returns, and record that the word was read."""
    found.add(*word.address)
    return (int(word) >> 11) / 2**53


def run_game(name: str) -> None:
    """Run a few epochs in two worlds, long enough for games that draw only where agents enter a cell."""
    module = importlib.import_module(f"examples.{name}")
    (game,) = (
        own
        for own in vars(module).values()
        if isinstance(own, type) and own.__module__ == module.__name__ and hasattr(own, "run_experiment")
    )
    config: dict[str, Any] = {
        "experiment": {"epochs": 3, "max_turns": 40, "seed": SEED, "worlds": 2, "record_period": 0},
        "model": {"hidden": (4,), "kernels": "torch"},
        "parallel": {"backend": "inline", "train_interval": 100},
    }
    game(config=config).run_experiment()


if __name__ == "__main__":
    np.seterr(over="ignore")  # kernels count with unsigned numbers, which Python's warn about
    seeding.draw, seeding.uniform = recorded_draw, recorded_uniform
    results = {}
    for target in sys.argv[1:]:
        found.blocks.clear()
        run_game(target)
        drawn = found.of(SEED)
        results[target] = {"read": len(drawn[seeding.Purpose.WORLD]), "repeated": found.repeated(SEED)}
    sys.stdout.write(json.dumps(results))
