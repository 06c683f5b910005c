from __future__ import annotations

import numpy as np
import pytest

from parallel_agents.errors import CheckpointError, ContractError, NonFiniteError, ShapeError
from parallel_agents.sampling.spread import ClassSpread


def test_deviation_over_batches_is_that_of_all_fading_values() -> None:
    rng = np.random.default_rng(0)
    spread, fade = ClassSpread(1), 0.99
    batches = [rng.normal(3 * step, 2.0, 20) for step in range(6)]
    for batch in batches:
        spread.update(batch, np.zeros(20, np.int64))
    values = np.concatenate(batches)
    weights = np.repeat(fade ** np.arange(5, -1, -1.0), 20)
    mean = np.average(values, weights=weights)
    variance = np.average((values - mean) ** 2, weights=weights)
    state = spread.state()
    assert state["squares"][0] / state["mass"][0] == pytest.approx(variance)
    assert state["mean"][0, 0] == pytest.approx(mean)


def test_gradients_spread_in_every_direction() -> None:
    rng = np.random.default_rng(0)
    spread = ClassSpread(2)
    angle = rng.random(4000) * 2 * np.pi
    circle = np.stack([np.cos(angle), np.sin(angle)], 1)  # every norm is equal, and yet they spread
    classes = np.arange(4000) % 2
    spread.update(circle * np.where(classes == 0, 3.0, 1.0)[:, None], classes)
    multipliers = spread.multipliers()
    assert multipliers is not None
    assert multipliers == pytest.approx([1.0, 1 / 3], rel=0.02)


def test_it_says_nothing_until_every_class_was_seen_enough() -> None:
    spread = ClassSpread(2)
    spread.update(np.arange(100.0), np.zeros(100, np.int64))
    assert spread.multipliers() is None


def test_a_constant_class_keeps_a_share() -> None:
    spread = ClassSpread(2)
    spread.update(np.where(np.arange(200) % 2, 1.0, np.arange(200)), np.arange(200) % 2)
    multipliers = spread.multipliers()
    assert multipliers is not None
    assert multipliers.tolist() == [1.0, 0.02]
    still = ClassSpread(2)
    still.update(np.ones(200), np.arange(200) % 2)
    found = still.multipliers()
    assert found is not None
    assert found.tolist() == [1.0, 1.0]


def test_bad_input_changes_nothing() -> None:
    spread = ClassSpread(2)
    spread.update(np.ones((4, 3)), np.array([0, 1, 0, 1]))
    before = spread.state()
    with pytest.raises(NonFiniteError, match="cannot be learned from NaN"):
        spread.update(np.full((1, 3), np.nan), np.array([0]))
    with pytest.raises(ShapeError, match="4 values for classes of shape"):
        spread.update(np.ones((4, 3)), np.array([0]))
    with pytest.raises(ShapeError, match="values of width 1 after values of width 3"):
        spread.update(np.ones(1), np.array([0]))
    with pytest.raises(ContractError, match=r"outside 0 \.\. 1: found \[2\]"):
        spread.update(np.ones((1, 3)), np.array([2]))
    with pytest.raises(CheckpointError, match="expected 2 classes"):
        spread.load_state({**before, "mass": np.ones(3)})
    after = spread.state()
    assert all(before[name].tolist() == after[name].tolist() for name in before)
