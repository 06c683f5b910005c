"""Orthogonal matrices for initial weights (Saxe et al. 2014), the same on every machine."""

from __future__ import annotations

import numpy as np

from parallel_agents.core.compiled import njit
from parallel_agents.core.types import Array
from parallel_agents.kernels.functions import normal
from parallel_agents.kernels.intrinsics import fma


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def orthonormal_rows(uniforms: Array, out: Array) -> None:
    """Write random orthonormal rows (K, L), K up to L, from uniform draws (2, K, L), all float64.

    Rows of normal numbers are made orthogonal one after the other, twice each, since once leaves rounding errors.
    """
    rows, length = out.shape
    for i in range(rows):
        for j in range(length):
            out[i, j] = normal(uniforms[0, i, j], uniforms[1, i, j])
        for _ in range(2):
            for before in range(i):
                shared = 0.0
                for j in range(length):
                    shared = fma(out[i, j], out[before, j], shared)
                for j in range(length):
                    out[i, j] = fma(-shared, out[before, j], out[i, j])
        square = 0.0
        for j in range(length):
            square = fma(out[i, j], out[i, j], square)
        size = np.sqrt(square)
        for j in range(length):
            out[i, j] /= size
