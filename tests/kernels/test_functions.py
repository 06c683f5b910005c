"""Own functions: errors in units in the last place over their whole range, and values where numbers end."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
from numba import njit

from parallel_agents.kernels import functions

PI = np.longdouble("3.14159265358979323846264338327950288")
SMALL = np.logspace(-30, 0, 20_001)
CASES: dict[str, tuple[Any, Any, float]] = {
    "expf": (np.linspace(-104, 88.7, 200_001), np.exp, 2),
    "expm1f": (np.concatenate([np.linspace(-30, 87, 200_001), SMALL, -SMALL]), np.expm1, 2),
    "tanhf": (np.concatenate([np.linspace(-12, 12, 200_001), SMALL, -SMALL]), np.tanh, 4),
    "logf": (np.concatenate([np.logspace(-44, 38, 100_001), np.linspace(0.5, 2, 100_001)]), np.log, 3),
    "log1pf": (np.concatenate([np.linspace(-0.99, 2, 200_001), SMALL, -0.99 * SMALL]), np.log1p, 3),
    "exp": (np.concatenate([np.linspace(-707, 709.7, 100_001), SMALL]), np.exp, 2),
    "log": (np.concatenate([np.logspace(-307, 300, 100_001), np.linspace(0.5, 2, 100_001)]), np.log, 3),
    "log1p": (np.concatenate([np.linspace(-0.99, 2, 100_001), SMALL, -0.99 * SMALL]), np.log1p, 3),
    "sinpi": (np.linspace(-4, 4, 100_001), lambda x: np.sin(PI * x), 2),
    "cospi": (np.linspace(-4, 4, 100_001), lambda x: np.cos(PI * x), 2),
}


@pytest.mark.parametrize("name", CASES)
def test_the_stated_error(name: str) -> None:
    points, exact, bound = CASES[name]
    function, kind = getattr(functions, name), np.float32 if name.endswith("f") else np.float64
    numbers = points.astype(kind)

    @njit(error_model="numpy")
    def loop(given: Any, out: Any) -> None:
        for i in range(len(given)):
            out[i] = function(given[i])

    found = np.empty_like(numbers)
    loop(numbers, found)
    expected = exact(numbers.astype(np.longdouble))
    unit = np.spacing(np.ones(1, kind)) if name in ("sinpi", "cospi") else np.spacing(np.abs(expected.astype(kind)))
    assert float(np.max(np.abs(found.astype(np.longdouble) - expected) / unit)) < bound


def test_the_stated_error_of_the_normal_quantile() -> None:
    points = np.concatenate([np.linspace(0.0005, 0.9995, 2_000), np.logspace(-10, -4, 100)])
    with mpmath.workdps(40):
        exact = [float(mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(p) - 1)) for p in points.tolist()]
    found = functions.each(functions.normal_quantile, points)
    assert float(np.max(np.abs(found - exact) / np.spacing(np.abs(exact)))) < 6


def test_where_numbers_end() -> None:
    one = np.float32(1.0)
    assert [float(functions.expf(one * x)) for x in (np.inf, -np.inf, 0.0)] == [np.inf, 0.0, 1.0]
    assert [float(functions.logf(one * x)) for x in (0.0, np.inf)] == [-np.inf, np.inf]
    assert [float(functions.tanhf(one * x)) for x in (-np.inf, np.inf, 0.0)] == [-1.0, 1.0, 0.0]
    assert [functions.log(0.0), functions.exp(-np.inf), functions.exp(np.inf)] == [-np.inf, 0.0, np.inf]
    assert [functions.power(3.0, 0.0), functions.power(0.0, 0.5)] == [1.0, 0.0]
    for name in ("expf", "expm1f", "logf", "tanhf", "log1pf"):
        assert np.isnan(getattr(functions, name)(np.float32(np.nan)))
    assert np.isnan(functions.logf(np.float32(-1.0)))
    assert np.isnan(functions.log(-1.0))
    assert np.isnan(functions.exp(np.nan))


def test_normal_numbers_have_the_moments_of_a_normal_distribution() -> None:
    uniforms = np.random.default_rng(0).random((2, 20_000))
    numbers = np.array([functions.normal(*pair) for pair in uniforms.T])
    np.testing.assert_allclose([numbers.mean(), numbers.var(), (numbers**4).mean()], [0, 1, 3], atol=0.1)
    expected = np.sqrt(-2 * np.log1p(-uniforms[0])) * np.cos(2 * np.pi * uniforms[1])
    np.testing.assert_allclose(numbers, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (3, 50)])
def test_rows_are_orthonormal(shape: tuple[int, int]) -> None:
    rows = np.empty(shape)
    functions.orthonormal_rows(np.random.default_rng(0).random((2, *shape)), rows)
    np.testing.assert_allclose(rows @ rows.T, np.eye(shape[0]), atol=1e-14)
