"""Named tuples that compiled code takes by their address."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from numba.core.dispatcher import _DispatcherBase

from parallel_agents.core.by_reference import by_reference
from parallel_agents.core.compiled import compiled_once
from parallel_agents.core.errors import ContractError


class Inner(NamedTuple):
    count: int
    table: Any


class Outer(NamedTuple):
    inner: Inner
    row: Any
    last: int


@compiled_once
def add_up(outer: Outer, out: Any) -> None:
    """Write the sums of all fields, and change an array of the tuple."""
    out[0] = outer.inner.count + outer.last
    for i in range(outer.inner.table.shape[0]):
        out[1] += outer.inner.table[i].sum()
    out[2] = outer.row[-1]
    outer.row[0] = 9


def test_compiled_code_reads_and_writes_the_fields() -> None:
    row, table = np.array([1, 2, 7], np.int16), np.arange(12.0).reshape(3, 4).T  # of another order and type
    outer, out = by_reference(Outer(by_reference(Inner(5, table)), row, 3)), np.zeros(3)
    add_up(outer, out)
    assert out.tolist() == [8.0, 66.0, 7.0]
    assert outer.row.tolist() == [9, 2, 7]
    assert outer.inner.count == 5


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")
def test_a_call_does_not_look_for_types_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    outer, out = by_reference(Outer(by_reference(Inner(5, np.zeros((1, 1)))), np.zeros(1, np.int16), 3)), np.zeros(3)
    add_up(outer, out)
    monkeypatch.delattr(_DispatcherBase, "typeof_pyval")
    add_up(outer, out)
    assert out[0] == 8.0


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")
def test_tuples_of_other_classes_or_arrays_are_other_types() -> None:
    class Similar(NamedTuple):
        count: int
        table: Any

    kinds = [
        numba.typeof(by_reference(kind(1, np.zeros(shape))))
        for kind, shape in ((Inner, 2), (Inner, 3), (Inner, (2, 2)), (Similar, 2))
    ]
    kinds += [numba.typeof(by_reference(Inner(1, table))) for table in (np.zeros(2, np.int64), np.zeros(4)[::2])]
    assert kinds[0] is kinds[1]
    assert len(set(kinds)) == 5


def test_copies_are_refused() -> None:
    with pytest.raises(ContractError, match="has one address and cannot be copied"):
        copy.deepcopy(by_reference(Inner(1, np.zeros(2))))


def test_other_fields_are_refused() -> None:
    with pytest.raises(ContractError, match="a field is a float: give arrays, whole numbers"):
        by_reference(Inner(1, 2.0))
