"""Schedules against numbers worked by hand, and as each agent's own."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from parallel_agents.learning import SHAPES, scheduled
from parallel_agents.learning.pace import LearningRates
from parallel_agents.types import State

LINEAR, EXPONENTIAL, COSINE = range(3)


def test_the_shapes_have_their_names() -> None:
    assert SHAPES == ("linear", "exponential", "cosine")


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (LINEAR, [8.0, 6.5, 5.0, 2.0, 2.0]),
        (EXPONENTIAL, [8.0, 8.0 * 0.25**0.25, 4.0, 2.0, 2.0]),  # a quarter of the way is 4^(-1/4)
        (COSINE, [8.0, 5.0 + 3.0 * math.sqrt(0.5), 5.0, 2.0, 2.0]),  # cos(π/4) = √½
    ],
)
def test_values_by_hand(shape: int, expected: list[float]) -> None:
    assert [scheduled(shape, 8.0, 2.0, count, 4) for count in (0, 1, 2, 4, 9)] == pytest.approx(expected)


@pytest.mark.parametrize("shape", range(3))
def test_without_a_span_a_value_is_constant(shape: int) -> None:
    assert scheduled(shape, 8.0, 2.0, 1000, 0) == 8.0


def test_every_agent_has_its_own_schedule_by_its_own_updates() -> None:
    rows = [(LINEAR, 1.0, 0.0, 4), (EXPONENTIAL, 1.0, 0.25, 4), (COSINE, 1.0, 0.0, 4), (LINEAR, 0.3, 0.3, 0)]
    names = ("lr_shape", "lr", "lr_final", "lr_updates")
    columns = {f"hyper.{name}": [row[place] for row in rows] for place, name in enumerate(names)}
    rates = LearningRates(State({name: torch.tensor(own, dtype=torch.float64) for name, own in columns.items()}))
    assert rates.at(np.array([2, 2, 2, 2])) == pytest.approx([0.5, 0.5, 0.5, 0.3])
    assert rates.at(np.array([0, 4, 1, 9])) == pytest.approx([1.0, 0.25, 0.5 + 0.5 * math.sqrt(0.5), 0.3])
