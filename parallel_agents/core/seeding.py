"""One seed, addressed draws: every random number has an address, none has a position in a stream.

An address is (seed, purpose, agent, world, epoch, turn, slot). The number at an address does not depend on which
other numbers were drawn, in which order or how many at a time. So there is no generator to share, to lock or to
restore, and an agent that does not explore in a turn shifts nothing.

The numbers are those of numpy's Philox4x64-10 (Salmon et al. 2011), used as a counter-based function:
the key holds seed, purpose and agent, the counter holds world, epoch, turn and slot. `generator` gives a
numpy Generator standing at an address; `uniforms` fills whole blocks; `draw`, `uniform` and `shuffle` are the
same numbers for use inside other compiled kernels.

>>> a = generator(0, Purpose.ACT, agent=3, world=1, epoch=7, turn=2).random(2)
>>> b = uniforms([0], Purpose.ACT, [3], [1], epoch=7, turns=4, slots=2)[2, 0, 0]
>>> bool((a == b).all())
True
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from parallel_agents.core.compiled import njit
from parallel_agents.core.errors import ConfigError

MAX_SEED = 2**63 - 1
_MAX_AGENT = 2**32 - 1

_M0 = np.uint64(0xD2E7470EE14C6C93)
_M1 = np.uint64(0xCA5A826395121157)
_W0 = np.uint64(0x9E3779B97F4A7C15)
_W1 = np.uint64(0xBB67AE8584CAA73B)
_DROP = np.uint64(11)
_ONE = np.uint64(1)


class Purpose(IntEnum):
    """What a draw is for. Two purposes never share a number."""

    INIT = 1
    ACT = 2
    WORLD = 3
    SAMPLE = 4
    NOISE = 5
    QUANTILE = 6
    PERMUTATION = 7
    EVALUATION_WORLD = 9


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose draws the rows of a stack use: seed and agent id of each row. Positions in a stack never key a draw."""

    seeds: tuple[int, ...]
    agents: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.agents)

    def rows(self, part: slice) -> Identity:
        """Return the identity of some rows."""
        return Identity(self.seeds[part], self.agents[part])


def key(seed: int, purpose: Purpose, agent: int = 0) -> tuple[int, int]:
    """Return the Philox key of one agent's draws for one purpose."""
    if not isinstance(seed, int | np.integer) or not 0 <= seed <= MAX_SEED:
        raise ConfigError(f"seed {seed!r} is out of range: give a whole number from 0 to 2**63 - 1")
    if not isinstance(agent, int | np.integer) or not 0 <= agent <= _MAX_AGENT:
        raise ConfigError(f"agent id {agent!r} is out of range: give a whole number from 0 to 2**32 - 1")
    return int(seed), (int(purpose) << 32) | int(agent)


def generator(
    seed: int, purpose: Purpose, *, agent: int = 0, world: int = 0, epoch: int = 0, turn: int = 0
) -> np.random.Generator:
    """Return a numpy Generator that starts at slot 0 of an address."""
    counter = np.array([0, turn, epoch, world], np.uint64)  # numpy would convert a list of large numbers through floats
    return np.random.Generator(np.random.Philox(key=list(key(seed, purpose, agent)), counter=counter))


@intrinsic  # type: ignore[untyped-decorator]
def high_product(context: Any, a: np.uint64, b: np.uint64) -> tuple[Any, Callable[..., Any]]:
    """Return the upper 64 bits of a·b: one machine instruction that Python does not offer."""

    def multiply(context: Any, builder: Any, signature: Any, factors: Sequence[Any]) -> Any:
        wide, narrow = ir.IntType(128), ir.IntType(64)
        product = builder.mul(*(builder.zext(factor, wide) for factor in factors))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), narrow)

    return types.uint64(types.uint64, types.uint64), multiply


@njit(cache=True)  # type: ignore[untyped-decorator]
def draw(
    k0: np.uint64, k1: np.uint64, block: np.uint64, turn: np.uint64, epoch: np.uint64, world: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """Return four 64-bit words: slots 4·block … 4·block + 3 of an address. All arguments are uint64."""
    c0, c1, c2, c3 = block + _ONE, turn, epoch, world  # numpy increments its counter before it draws
    for _ in range(10):
        h0, l0 = high_product(_M0, c0), _M0 * c0
        h1, l1 = high_product(_M1, c2), _M1 * c2
        c0, c1, c2, c3 = h1 ^ c1 ^ k0, l1, h0 ^ c3 ^ k1, l0
        k0 += _W0
        k1 += _W1
    return c0, c1, c2, c3


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def uniform(word: np.uint64) -> float:
    """Return a word as a float in [0, 1), as numpy's `Generator.random` makes it."""
    return (word >> _DROP) * (1.0 / 9007199254740992.0)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def shuffle(
    items: NDArray[np.int64], k0: np.uint64, k1: np.uint64, turn: np.uint64, epoch: np.uint64, world: np.uint64
) -> None:
    """Shuffle fewer than 2**32 items in place, as numpy's `Generator.shuffle` does at an address."""
    words = draw(k0, k1, np.uint64(0), turn, epoch, world)
    drawn, mask = 0, np.uint64(1)
    while mask < len(items) - 1:
        mask = (mask << _ONE) | _ONE
    for i in range(len(items) - 1, 0, -1):
        if mask >> _ONE >= np.uint64(i):
            mask >>= _ONE
        j = np.uint64(i + 1)
        while j > np.uint64(i):  # numbers of as many bits as i has, until one is small enough
            if drawn and drawn % 8 == 0:
                words = draw(k0, k1, np.uint64(drawn // 8), turn, epoch, world)
            word = words[drawn // 2 % 4]  # of each word the lower half first
            j = (word >> np.uint64(32) if drawn % 2 else word) & mask
            drawn += 1
        other = np.int64(j)
        items[i], items[other] = items[other], items[i]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _fill(
    out: NDArray[np.float64],
    keys: NDArray[np.uint64],
    worlds: NDArray[np.uint64],
    epoch: np.uint64,
    first: np.uint64,
) -> None:
    turns, agents, columns, slots = out.shape
    for t in range(turns):
        for n in range(agents):
            for w in range(columns):
                for block in range((slots + 3) // 4):
                    words = draw(keys[n, 0], keys[n, 1], np.uint64(block), first + np.uint64(t), epoch, worlds[w])
                    for j in range(min(4, slots - 4 * block)):
                        out[t, n, w, 4 * block + j] = uniform(words[j])


def uniforms(
    seeds: Sequence[int],
    purpose: Purpose,
    agents: Sequence[int],
    worlds: Sequence[int],
    *,
    epoch: int,
    turns: int,
    slots: int,
    first_turn: int = 0,
) -> NDArray[np.float64]:
    """Return uniform draws in [0, 1) of shape (turns, agents, worlds, slots), one agent per (seed, agent) pair."""
    keys = np.array([key(s, purpose, a) for s, a in zip(seeds, agents, strict=True)], np.uint64).reshape(-1, 2)
    columns = np.asarray(worlds, np.uint64)
    out = np.empty((turns, len(keys), len(columns), slots))
    _fill(out, keys, columns, np.uint64(epoch), np.uint64(first_turn))
    return out
