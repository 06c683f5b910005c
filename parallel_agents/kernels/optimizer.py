"""Gradient norm, Adam and target step of one agent's row, in flat float32 arrays.

Rows are padded to a multiple of 32 numbers, so every loop has whole vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from parallel_agents.core.compiled import compiled_once, njit
from parallel_agents.core.types import Array
from parallel_agents.kernels.intrinsics import NUMBERS, WHOLE, Vectors, data_of, fma, widest_vectors

CHAINS = 32
"""A sum of squares is that many chains of fma, over every 32nd number, added in ascending order."""
BETA1, BETA2, EPSILON = 0.9, 0.999, np.float32(1e-8)
_FIRST, _SECOND, _KEPT = np.float32(1.0 - BETA1), np.float32(1.0 - BETA2), np.float32(BETA2)
LEAST_FIRST, LEAST_SECOND = np.float32(1e-30), np.float32(1e-36)
"""Smaller moments become 0. Their effect on a weight is lost in rounding, and they would decay to denormal numbers,
with which the updates of a network that has inactive units take three times as long."""


@intrinsic  # type: ignore[untyped-decorator]
def _chains(context: Any, values: Any, at: Any, length: Any, out: Any) -> tuple[Any, Callable[..., Any]]:
    """Write the sums of squares of every 32nd number into `out`."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values, at, length, out = arguments
        vector = Vectors(builder, CHAINS)
        values, out = data_of(context, builder, values), data_of(context, builder, out)
        total, chains = vector.zeros(), ir.Constant(ir.IntType(64), CHAINS)
        with cgutils.for_range(builder, builder.sdiv(length, chains)) as loop:
            numbers = vector.load(values, builder.add(at, builder.mul(loop.index, chains)))
            builder.store(vector.fma(numbers, numbers, builder.load(total)), total)
        vector.store(builder.load(total), out, ir.Constant(ir.IntType(64), 0))
        return context.get_dummy_value()

    return types.void(NUMBERS, WHOLE, WHOLE, NUMBERS), emit


@compiled_once
def squared_norm(values: Array, at: int, length: int, sums: Array) -> float:
    """Return the sum of squares of a row; `sums` is room for 32 numbers."""
    _chains(values, at, length, sums)
    total = np.float32(0.0)
    for j in range(CHAINS):
        total += sums[j]
    return np.float64(total)


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def clip_factor(norm: float, limit: float) -> np.float32:
    """Return by what a gradient of this norm is multiplied, so that its norm does not exceed the limit."""
    factor = np.float32(limit) / (np.float32(norm) + np.float32(1e-6))
    return factor if factor < np.float32(1.0) else np.float32(1.0)


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _power(base: float, exponent: int) -> float:
    """Return a power by squaring, the same on every machine."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


@compiled_once
def adam(rows: Array, gradient: Array, first: Array, second: Array, step: int, rate: float, factor: np.float32) -> None:
    """Take one step of Adam (Kingma and Ba 2015) on one agent's row, moments included; `step` counts from 1.

    factor: by what the gradient is multiplied first.
    """
    widest_vectors()
    size = np.float32(rate / (1.0 - _power(BETA1, step)))
    scale = np.float32(1.0 / np.sqrt(1.0 - _power(BETA2, step)))
    for i in range(len(rows)):
        g = gradient[i] * factor
        m = fma(_FIRST, g - first[i], first[i])
        m = np.float32(0.0) if abs(m) < LEAST_FIRST else m
        v = fma(_SECOND * g, g, _KEPT * second[i])
        v = np.float32(0.0) if v < LEAST_SECOND else v
        first[i], second[i] = m, v
        rows[i] = fma(-size, m / fma(np.sqrt(v), scale, EPSILON), rows[i])


@compiled_once
def follow(target: Array, rows: Array, share: float) -> None:
    """Move one agent's target row towards its row by a share; 1: copy it."""
    if share == 1.0:
        for i in range(len(rows)):  # compiles in a tenth of the time of an assignment of arrays
            target[i] = rows[i]
        return
    part = np.float32(share)
    for i in range(len(rows)):
        target[i] = fma(part, rows[i] - target[i], target[i])
