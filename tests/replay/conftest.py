"""A buffer in miniature: arrays, a class index, and a sampler attached to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from parallel_agents.replay import ImportanceSampler


class ArraySource:
    """Rows are (position, value); class ids are given by counts, rare class first."""

    def __init__(self, sampler: ImportanceSampler, counts: Sequence[int], values: Any = None) -> None:
        self.index = sampler.make_index(max(sum(counts), 1))
        self.classes = np.repeat(np.arange(len(counts)), counts)
        self.index.assign(np.arange(sum(counts)), self.classes)
        self.values = np.arange(sum(counts), dtype=float) if values is None else np.asarray(values, float)

    def rows(self, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        return self.values[positions]


@pytest.fixture(scope="session")
def attach() -> Callable[..., ArraySource]:
    """attach(sampler, counts, values) -> the source, already attached."""

    def build(sampler: ImportanceSampler, counts: Sequence[int], values: Any = None) -> ArraySource:
        source = ArraySource(sampler, counts, values)
        sampler.attach(source)
        return source

    return build
