"""What the sampler asks of a buffer, and the random numbers of an update."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from parallel_agents import seeding
from parallel_agents.compiled import njit
from parallel_agents.sampling.classes import ClassIndex

__all__ = ["Source", "sample_uniforms"]


class Source(Protocol):
    """A buffer, as the sampler sees it."""

    @property
    def index(self) -> ClassIndex:
        """Which live positions belong to which class; made by `ImportanceSampler.make_index`."""

    def rows(self, positions: NDArray[np.int64]) -> Any:
        """The rows at positions (B,)."""


def sample_uniforms(seed: int, agent: int, update: int, batch_size: int) -> NDArray[np.float64]:
    """The uniforms (B, 2) of an agent's update; a smaller batch sees the first of a larger one's."""
    pairs = np.empty((batch_size, 2))
    _fill(*_key(seed, agent), np.uint64(update), pairs)
    return pairs


@lru_cache(maxsize=1024)
def _key(seed: int, agent: int) -> tuple[np.uint64, np.uint64]:
    first, second = seeding.key(seed, seeding.Purpose.SAMPLE, agent)
    return np.uint64(first), np.uint64(second)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _fill(k0: np.uint64, k1: np.uint64, update: np.uint64, pairs: NDArray[np.float64]) -> None:
    """As `seeding.uniforms` of one address, without what it does for many."""
    zero = np.uint64(0)
    for block in range((len(pairs) + 1) // 2):
        a, b, c, d = seeding.draw(k0, k1, np.uint64(block), zero, update, zero)
        pairs[2 * block, 0], pairs[2 * block, 1] = seeding.uniform(a), seeding.uniform(b)
        if 2 * block + 1 < len(pairs):
            pairs[2 * block + 1, 0], pairs[2 * block + 1, 1] = seeding.uniform(c), seeding.uniform(d)
