"""Nested values come back as they were; values that are not data are refused."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parallel_agents.core.errors import ContractError, CorruptCheckpoint
from parallel_agents.core.serialization import pack, unpack

SIMPLE = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = st.text() | st.integers() | st.tuples(st.integers(), st.text())
NESTED = st.recursive(
    SIMPLE, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner) | st.tuples(inner, inner), max_leaves=12
)


def back(value: Any) -> Any:
    arrays: dict[str, Any] = {}
    return unpack(json.loads(json.dumps(pack(value, arrays, "x"))), arrays)


@given(NESTED)
def test_what_is_packed_comes_back(value: Any) -> None:
    found = back(value)
    assert found == value
    assert type(found) is type(value)


def test_arrays_tensors_and_odd_floats_come_back_exactly() -> None:
    module = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    found = back(optimizer.state_dict())
    torch.optim.Adam(module.parameters()).load_state_dict(found)
    assert torch.equal(found["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])
    assert math.isnan(back(math.nan))
    assert back(-math.inf) == -math.inf
    number = back(np.int64(3))
    assert (int(number), number.dtype) == (3, np.int64)
    state = np.random.Generator(np.random.PCG64(3)).bit_generator.state
    assert back(state) == state


def test_arrays_are_copies() -> None:
    array, arrays = np.zeros(2), {}
    packed = pack(array, arrays, "x")
    array += 1.0
    found = unpack(packed, arrays)
    found += 5.0
    assert unpack(packed, arrays).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": [1, {2}]}, r"the state\['a'\]\[1\] is a set: give numbers"),
        (object(), "the state is a object"),
        (np.array(["a"]), "is an array of <U1: give an array of numbers"),
        (np.array([None]), "is an array of object"),
        (torch.zeros(2, dtype=torch.bfloat16), r"is a tensor of bfloat16: give it as float32"),
    ],
)
def test_values_that_are_not_data_are_refused_with_their_place(value: Any, words: str) -> None:
    with pytest.raises(ContractError, match=words):
        pack(value, {}, "x")


@pytest.mark.parametrize("packed", [None, 3, {}, {"array": "y"}, {"call": "os.system"}, {"float": "x"}, {"list": 3}])
def test_what_was_not_packed_is_refused(packed: Any) -> None:
    with pytest.raises(CorruptCheckpoint, match="a state in the checkpoint cannot be read"):
        unpack(packed, {})


def test_a_value_nested_too_deeply_is_refused() -> None:
    deep: Any = {"value": 1}
    for _ in range(100_000):
        deep = {"list": [deep]}
    with pytest.raises(CorruptCheckpoint, match="RecursionError"):
        unpack(deep, {})
