"""Arguments as arrays of one fixed type and layout: checked once, and compiled kernels see one signature."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallel_agents.compiled import njit
from parallel_agents.errors import ContractError, ShapeError

__all__ = ["filled", "positions_below", "within"]


def positions_below(capacity: int, positions: ArrayLike) -> NDArray[np.int64]:
    """Buffer positions (n,), or a single one, as whole numbers in 0 .. capacity - 1."""
    given = np.atleast_1d(np.asarray(positions))
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise ShapeError(f"positions of shape {given.shape} and type {given.dtype}: give whole numbers, shape (n,)")
    whole = np.ascontiguousarray(given, np.int64)
    if not within(whole, 0, capacity):
        raise ContractError(f"a position is outside 0 .. {capacity - 1}: found {given.min()} .. {given.max()}")
    return whole


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def within(numbers: NDArray[np.int64], low: int, end: int) -> bool:
    """True if every number (n,) lies in low .. end - 1; one pass, which numpy needs several for."""
    for number in numbers:  # noqa: SIM110 - compiled
        if not low <= number < end:
            return False
    return True


def filled(values: ArrayLike, count: int, kind: type[np.generic]) -> NDArray[Any]:
    """Values (count,), or a single one repeated, as a contiguous array."""
    given = np.asarray(values, kind)
    if given.shape == (count,):
        return np.ascontiguousarray(given)
    if given.shape not in ((), (1,)):
        raise ShapeError(f"values of shape {given.shape} for {count} positions: give one for each, or one for all")
    return np.full(count, given)
