"""Products: right, and the same bytes for every number of rows, order of storage and tile."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_agents.kernels import mlp
from parallel_agents.kernels.products import product
from parallel_agents.nn import MLP

SIZE = st.one_of(st.integers(1, 20), st.sampled_from([31, 32, 33, 63, 64, 65, 130]))


def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    (m, k), n = a.shape, b.shape[1]
    c = np.full(m * n + 8, 7.0, np.float32)
    product(np.ascontiguousarray(a).reshape(-1), 0, k, 1, np.ascontiguousarray(b).reshape(-1), 0, n, c, 0, n, m, n, k)
    assert (c[m * n :] == 7.0).all()  # nothing beyond the end is written
    return c[: m * n].reshape(m, n)


def chain(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """One chain of fused operations over ascending k: each product is exact in float64, each sum is rounded once.

    Adding in float64 first rounds twice; random numbers hardly ever show it, and those that do are few.
    """
    total = np.zeros((len(a), b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        total = (total.astype(np.longdouble) + a[:, k, None].astype(np.longdouble) * b[None, k]).astype(np.float32)
    return total


@settings(max_examples=60, deadline=None)
@given(m=SIZE, n=SIZE, k=SIZE, seed=st.integers(0, 99))
def test_each_output_is_one_chain_of_fma(m: int, n: int, k: int, seed: int) -> None:
    draws = np.random.default_rng(seed)
    a, b = draws.standard_normal((m, k)).astype(np.float32), draws.standard_normal((k, n)).astype(np.float32)
    found = multiply(a, b)
    assert found.tobytes() == chain(a, b).tobytes()
    row, column = draws.integers(m), draws.integers(n)
    assert multiply(a[row : row + 1], b).tobytes() == found[row].tobytes()
    assert multiply(a, b[:, column : column + 1]).tobytes() == found[:, column].tobytes()
    turned = np.zeros(m * n, np.float32)
    product(np.ascontiguousarray(a.T).reshape(-1), 0, 1, m, b.reshape(-1), 0, n, turned, 0, n, m, n, k)
    assert turned.tobytes() == found.tobytes()


@pytest.mark.parametrize(("rows", "columns", "stride"), [(8, 8, 8), (3, 20, 25), (13, 9, 9), (64, 33, 40), (1, 1, 2)])
def test_transpose(rows: int, columns: int, stride: int) -> None:
    values = np.arange(rows * stride + 3, dtype=np.float32)
    out = np.full(rows * columns + 1, -1.0, np.float32)
    mlp.transpose(values, 3, rows, columns, stride, out)
    expected = values[3 : 3 + rows * stride].reshape(rows, stride)[:, :columns].T
    assert np.array_equal(out[:-1].reshape(columns, rows), expected)
    assert out[-1] == -1.0


@pytest.mark.parametrize("outputs", [1, 4, 7, 8])
def test_a_forward_pass_gives_a_row_the_same_bytes_alone_and_among_others(outputs: int) -> None:
    network, rows = MLP(5, (33, 20), outputs), 21
    draws = np.random.default_rng(0)
    parameters = draws.standard_normal(network.size).astype(np.float32)
    inputs, layers = draws.standard_normal(rows * 5).astype(np.float32), network.layout.table(0, network.widths())
    stride, room = int(layers[-1, mlp.STRIDE]), np.zeros(1000, np.float32)

    def last_layer(first: int, count: int) -> np.ndarray:
        out = np.zeros(count * int(layers[:, mlp.STRIDE].sum()), np.float32)
        at = mlp.forward(parameters, 0, layers, mlp.RELU, inputs, first * 5, count, out, 0, room)
        return out[at:].reshape(count, stride)[:, :outputs]

    together = last_layer(0, rows)
    assert np.abs(together).max() > 0.0
    assert all(last_layer(row, 1).tobytes() == together[row].tobytes() for row in range(rows))
