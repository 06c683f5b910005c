"""Columns that fit into bytes are written so, and come back bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_agents.runtime.checkpoints.memory import narrowed


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.int32])
def test_whole_numbers_up_to_255_take_a_byte_each(dtype: type) -> None:
    column = np.arange(256, dtype=dtype).reshape(2, 128)
    assert narrowed(column).dtype == np.uint8
    assert narrowed(column).astype(dtype).tobytes() == column.tobytes()


@pytest.mark.parametrize("odd", [0.5, -1.0, 256.0, np.nan, np.inf, -0.0, 1e9])
def test_whatever_would_be_lost_keeps_its_form(odd: float) -> None:
    column = np.array([1.0, odd, 3.0], np.float32)
    assert narrowed(column) is column


def test_truth_and_nothing_are_left_alone() -> None:
    for column in (np.array([True, False]), np.zeros((0, 3), np.float32)):
        assert narrowed(column) is column
