"""Conversion between spaces and numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from parallel_agents.core.errors import ContractError
from parallel_agents.env.adapters.spaces import ActionSpace, ObservationSpace
from parallel_agents.nn import SquashedGaussian


@pytest.mark.parametrize(
    ("space", "value", "wanted"),
    [
        (spaces.Box(0, 255, (2, 2), np.uint8), [[0, 255], [3, 4]], [[0, 255], [3, 4]]),
        (spaces.Box(-1, 1, ()), 0.5, [0.5]),
        (spaces.Discrete(3, start=2), 3, [0, 1, 0]),
        (spaces.MultiDiscrete([2, 3]), [1, 2], [0, 1, 0, 0, 1]),
        (spaces.MultiDiscrete([2, 3], start=[5, 0]), [5, 1], [1, 0, 0, 1, 0]),
        (spaces.MultiBinary(3), [1, 0, 1], [1, 0, 1]),
        (
            spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Tuple((spaces.Box(0, 9, (2,)), spaces.Discrete(2)))}),
            {"a": ([7, 8], 0), "b": 1},
            [7, 8, 1, 0, 0, 1],  # Gymnasium sorts the keys of a Dict
        ),
        (
            spaces.Dict({"observation": spaces.Box(0, 9, (2, 1)), "action_mask": spaces.Box(0, 1, (5,), np.int8)}),
            {"observation": [[3], [4]], "action_mask": None},
            [[3], [4]],
        ),
    ],
    ids=str,
)
def test_observations_become_numbers(space: Any, value: Any, wanted: Any) -> None:
    encoded = ObservationSpace.of(space, "somebody")
    out = np.full(encoded.size, np.nan, np.float32)  # nothing of an older value may stay
    encoded.write(value, out)
    assert out.reshape(encoded.shape).tolist() == wanted
    assert encoded.has_mask == ("action_mask" in str(space))


def test_text_is_left_out_of_a_dict_and_refused_on_its_own() -> None:
    space = spaces.Dict({"words": spaces.Text(9), "number": spaces.Discrete(2)})
    assert ObservationSpace.of(space, "somebody").left_out == ("words",)
    with pytest.raises(ContractError, match=r"the observation space of somebody is Text.*read as numbers"):
        ObservationSpace.of(spaces.Text(9), "somebody")


@pytest.mark.parametrize(
    ("space", "model", "numbers", "wanted"),
    [
        (spaces.Discrete(3), 3, [2.0], 2),
        (spaces.Discrete(3, start=-1), 3, [0.0], -1),
        (spaces.MultiDiscrete([[2], [3]]), (2, 3), [1.0, 2.0], [[1], [2]]),
        (spaces.MultiBinary(2), (2, 2), [1.0, 0.0], [1, 0]),
        (spaces.Box(-1, 2, (1, 2), np.float32), SquashedGaussian((-1.0, -1.0), (2.0, 2.0)), [0.5, 1.5], [[0.5, 1.5]]),
    ],
    ids=str,
)
def test_numbers_become_actions_of_the_space(space: Any, model: Any, numbers: Any, wanted: Any) -> None:
    decoded = ActionSpace.of(space, "somebody")
    assert decoded.model == model
    native = decoded.decode(np.array(numbers))
    assert np.asarray(native).tolist() == wanted
    assert space.contains(native)


@pytest.mark.parametrize("space", [spaces.Box(-np.inf, 1, (2,)), spaces.Text(3), spaces.Tuple((spaces.Discrete(2),))])
def test_unsupported_action_spaces_raise(space: Any) -> None:
    with pytest.raises(ContractError, match=r"the action space of somebody is .* finite bounds"):
        ActionSpace.of(space, "somebody")
