"""Products of matrices, each output one chain of `fma` over ascending k.

A tile decides which outputs are computed side by side, never the order of a sum. So a result does not depend on tile,
vector width, number of rows or CPU. Matrices stand in flat float32 arrays, each with the place of its first number and
the distances between its rows and columns. So a transposed left factor costs nothing.

>>> import numpy as np
>>> a, b, c = np.arange(6, dtype=np.float32), np.arange(6, dtype=np.float32), np.zeros(4, np.float32)
>>> product(a, 0, 3, 1, b, 0, 2, c, 0, 2, 2, 2, 3)  # (2, 3) · (3, 2)
>>> c.reshape(2, 2).tolist()
[[10.0, 13.0], [28.0, 40.0]]
"""

from __future__ import annotations

from typing import Any

from parallel_agents.core.compiled import compiled_once, njit
from parallel_agents.core.types import Array
from parallel_agents.kernels.intrinsics import PLAIN, tile, vector_lanes

_LANES = vector_lanes()
_VECTORS = 4 if _LANES == 16 else 2
"""Vectors of a wide tile: with 6 rows they fill the registers."""
_WIDE, _LONG, _FEW = _LANES * _VECTORS, _LANES * 4, 4
"""Columns of a wide tile, columns of a tile of one row, and rows from which on wide tiles are used."""


def _panel(rows: int, last: int, lanes: int, vectors: int) -> Any:
    """Return a function for all rows, at least `last`, of a few columns: in tiles of `rows` rows, or of `last` rows.

    The last tile overlaps the one before where the rows do not divide: the same outputs are computed twice.
    """
    many, few = tile(rows, lanes, vectors), tile(last, lanes, vectors)

    @njit(nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
    def compute(
        a: Array, a_at: int, a_row: int, a_k: int, b: Array, b_at: int, b_k: int, c: Array, c_at: int, c_row: int,
        m: int, k: int, bias: Array, bias_at: int, ending: int,
    ) -> None:  # fmt: skip
        row = 0
        while row < m:
            if m >= rows and m - row > last:
                row = min(row, m - rows)
                many(
                    a, a_at + row * a_row, a_row, a_k, b, b_at, b_k, c, c_at + row * c_row, c_row, k, bias, bias_at,
                    ending,
                )  # fmt: skip
                row += rows
            else:
                row = min(row, m - last)
                few(
                    a, a_at + row * a_row, a_row, a_k, b, b_at, b_k, c, c_at + row * c_row, c_row, k, bias, bias_at,
                    ending,
                )  # fmt: skip
                row += last

    return compute


_wide, _vector = _panel(6, _FEW, _LANES, _VECTORS), _panel(8, 1, _LANES, 1)
_four, _single = _panel(8, 1, 4, 1), _panel(8, 1, 1, 1)
_long = tile(1, _LANES, _LONG // _LANES)


@compiled_once
def multiply(
    a: Array, a_at: int, a_row: int, a_k: int, b: Array, b_at: int, b_k: int, c: Array, c_at: int, c_row: int,
    m: int, n: int, k: int, bias: Array, bias_at: int, ending: int,
) -> None:  # fmt: skip
    """Write C = A · B for A (m, k), B (k, n), C (m, n), in flat float32 arrays, plus a bias (n) if asked.

    A[i, j] is a[a_at + i * a_row + j * a_k], B[i, j] is b[b_at + i * b_k + j], C[i, j] is c[c_at + i * c_row + j].
    C must not overlap A or B. ending: PLAIN, WITH_BIAS or WITH_RELU. Each output is one chain of fma from 0, then plus
    the bias.
    """
    if n >= _WIDE and m >= _FEW:
        for start in range(0, n, _WIDE):
            at = min(start, n - _WIDE)
            _wide(a, a_at, a_row, a_k, b, b_at + at, b_k, c, c_at + at, c_row, m, k, bias, bias_at + at, ending)
    elif n >= _LONG:
        for row in range(m):
            for start in range(0, n, _LONG):
                at = min(start, n - _LONG)
                _long(
                    a, a_at + row * a_row, a_row, a_k, b, b_at + at, b_k, c, c_at + row * c_row + at, c_row, k, bias,
                    bias_at + at, ending,
                )  # fmt: skip
    elif n >= _LANES:
        for start in range(0, n, _LANES):
            at = min(start, n - _LANES)
            _vector(a, a_at, a_row, a_k, b, b_at + at, b_k, c, c_at + at, c_row, m, k, bias, bias_at + at, ending)
    elif n >= 4:
        for start in range(0, n, 4):
            at = min(start, n - 4)
            _four(a, a_at, a_row, a_k, b, b_at + at, b_k, c, c_at + at, c_row, m, k, bias, bias_at + at, ending)
    else:
        for at in range(n):
            _single(a, a_at, a_row, a_k, b, b_at + at, b_k, c, c_at + at, c_row, m, k, bias, bias_at + at, ending)


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def product(
    a: Array, a_at: int, a_row: int, a_k: int, b: Array, b_at: int, b_k: int, c: Array, c_at: int, c_row: int,
    m: int, n: int, k: int,
) -> None:  # fmt: skip
    """Write C = A · B, without a bias: see `multiply`."""
    multiply(a, a_at, a_row, a_k, b, b_at, b_k, c, c_at, c_row, m, n, k, c, 0, PLAIN)
