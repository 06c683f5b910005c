"""From random words to what a market needs: half words, normal quantiles, categories. For use inside kernels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parallel_agents.compiled import njit

__all__ = ["category", "lower", "quantile", "upper"]

Floats = NDArray[np.float64]

_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_PER_WORD = 1.0 / 4294967296.0


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def upper(word: np.uint64) -> float:
    """The upper half of a word as a number in [0, 1)."""
    return (word >> _SHIFT) * _PER_WORD


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def lower(word: np.uint64) -> float:
    """The lower half of a word as a number in [0, 1)."""
    return (word & _LOW) * _PER_WORD


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def quantile(table: Floats, u: float) -> float:
    """The normal quantile of u in [0, 1), by linear interpolation."""
    at = u * (len(table) - 1)
    cell = int(at)
    return float(table[cell] + (at - cell) * (table[cell + 1] - table[cell]))


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def category(edges: Floats, u: float) -> int:
    """The first category whose cumulative chance exceeds u."""
    last = len(edges) - 1
    for i in range(last):
        if u < edges[i]:
            return i
    return last
