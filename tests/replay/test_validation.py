from __future__ import annotations

import numpy as np
import pytest

from parallel_agents.core.errors import ContractError, ShapeError
from parallel_agents.replay.validation import positions_below, repeated


def test_kernels_see_one_type_and_layout() -> None:
    for given in (3, [3], np.array([3], np.int32), np.array([3, 0])[::2], np.uint8(3)):
        found = positions_below(4, given)
        assert (found.tolist(), found.dtype, found.flags.c_contiguous) == ([3], np.int64, True)
    assert positions_below(4, []).dtype == np.int64
    for value in (2, [2, 2], np.array([2, 0, 2, 0])[::2], np.array([2])):
        values = repeated(value, 2, np.float64)
        assert (values.tolist(), values.dtype, values.flags.c_contiguous) == (
            [2.0, 2.0],
            np.float64,
            True,
        )


def test_bad_input_is_named() -> None:
    with pytest.raises(ContractError, match=r"outside 0 \.\. 3: found 0 \.\. 4"):
        positions_below(4, [0, 4])
    with pytest.raises(ShapeError, match="type float64: give whole numbers"):
        positions_below(4, [1.0])
    with pytest.raises(ShapeError, match=r"shape \(1, 2\)"):
        positions_below(4, [[1, 2]])
    with pytest.raises(ShapeError, match=r"values of shape \(2,\) for 3 positions"):
        repeated([1, 2], 3, np.int64)
