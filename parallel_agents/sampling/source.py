"""What the sampler asks of a buffer, and the random numbers of an update."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from parallel_agents import seeding
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
    block = seeding.uniforms([seed], seeding.Purpose.SAMPLE, [agent], [0], epoch=update, turns=1, slots=2 * batch_size)
    return block.reshape(batch_size, 2)
