"""Prioritised drawing: from rings, with priorities written back to their rows, and from sum trees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from parallel_agents.core.errors import ConfigError, ContractError, NonFiniteError, ShapeError
from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.replay import PRIORITY, Buffer, draw_by_priority, write_priorities
from parallel_agents.replay.priorities import SumTree, positions_below, repeated


def filled(capacity: int, rows: int) -> Buffer:
    buffer = Buffer(capacity, (1,), priority=())
    for t in range(rows):
        buffer.add([float(t)], action=0, reward=float(t), done=True, priority=0.0)
    return buffer


def uniforms(count: int) -> np.ndarray:
    return generator(7, Purpose.SAMPLE).random(count)


def test_shares_follow_the_priorities_and_corrections_undo_them() -> None:
    buffer = filled(16, 4)
    buffer.ring.extras[PRIORITY][0, :4, 0] = [1.0, 2.0, 4.0, 9.0]
    drawn = draw_by_priority(buffer.ring, 0, uniforms(200_000), alpha=0.5, beta=1.0)
    wanted = np.sqrt([1.0, 2.0, 4.0, 9.0])
    counts = np.bincount(drawn.serials, minlength=4) / 200_000
    np.testing.assert_allclose(counts, wanted / wanted.sum(), atol=0.005)
    corrected = np.array([drawn.weights[drawn.serials == k].sum() for k in range(4)])
    np.testing.assert_allclose(corrected / corrected.sum(), 0.25, atol=0.005)
    assert drawn.weights.max() == pytest.approx(1.0)


def test_new_rows_are_drawn_with_the_largest_priority() -> None:
    buffer = filled(16, 3)
    buffer.ring.extras[PRIORITY][0, :2, 0] = [1.0, 5.0]
    drawn = draw_by_priority(buffer.ring, 0, uniforms(50_000), alpha=1.0, beta=0.0)
    np.testing.assert_allclose(np.bincount(drawn.serials) / 50_000, [1 / 11, 5 / 11, 5 / 11], atol=0.01)


def test_errors_are_written_to_their_rows_unless_these_were_overwritten() -> None:
    buffer = filled(8, 8)
    drawn = draw_by_priority(buffer.ring, 0, uniforms(64), alpha=0.6, beta=0.4)
    rewards = buffer.ring.gather(drawn.serials[None], n_step=1, gammas=np.ones(1))["returns"]
    for t in range(8, 11):  # three rows give way before the priorities arrive
        buffer.add([float(t)], action=0, reward=float(t), done=True, priority=0.0)
    write_priorities(buffer.ring, drawn.places[None], rewards.astype(np.float64))
    found = buffer.ring.extras[PRIORITY][0, :, 0]
    kept = buffer.ring.rewards[0, :, 0]
    for row in range(8):
        drawn_before = kept[row] in rewards and kept[row] < 8
        assert found[row] == pytest.approx(kept[row] + 1e-6 if drawn_before else 0.0)


def test_rows_that_were_not_learned_from_keep_their_priority() -> None:
    buffer = filled(8, 4)
    write_priorities(buffer.ring, np.array([[0.0, 1.0]]), np.array([[np.nan, -2.0]]))
    assert buffer.ring.extras[PRIORITY][0, :2, 0].tolist() == [0.0, pytest.approx(2.0)]


def test_an_empty_buffer_has_no_places_to_write_to() -> None:
    drawn = draw_by_priority(Buffer(8, (1,), priority=()).ring, 0, uniforms(3), alpha=0.5, beta=0.5)
    assert np.isnan(drawn.places).all()


# -- sum tree ---------------------------------------------------------------------------------------------------


@given(
    capacity=st.sampled_from([1, 2, 15, 16, 17, 256, 257, 5000]),
    seed=st.integers(0, 1000),
    empty=st.floats(0, 0.9),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_draws_equal_those_by_the_cumulative_sum(capacity: int, seed: int, empty: float) -> None:
    rng = np.random.default_rng(seed)
    priorities = np.where(rng.random(capacity) < empty, 0.0, rng.integers(1, 100, capacity)).astype(float)
    priorities[rng.integers(capacity)] = 7.0
    tree = SumTree(capacity)
    tree.update(np.arange(capacity), priorities)
    numbers = np.append(rng.random(200), [0.0, np.nextafter(1.0, 0.0)])
    expected = np.searchsorted(np.cumsum(priorities), numbers * priorities.sum(), side="right")
    positions, drawn = tree.draw(numbers)
    assert positions.tolist() == expected.tolist()
    assert drawn.tolist() == priorities[expected].tolist()
    assert tree.total()[0] == priorities.sum()
    assert tree.least()[0] == priorities[priorities > 0].min()


def test_draws_are_proportional_to_priorities() -> None:
    rng = np.random.default_rng(0)
    priorities = rng.random(300)
    tree = SumTree(300)
    tree.update(np.arange(300), priorities)
    counts = np.bincount(tree.draw(rng.random(500_000))[0], minlength=300)
    assert chisquare(counts, 500_000 * priorities / priorities.sum()).pvalue > 1e-3


def test_an_updated_tree_equals_one_built_anew() -> None:
    rng = np.random.default_rng(0)
    tree, leaves = SumTree(3000, trees=2), np.zeros((2, 3000))
    for _ in range(2000):
        where, which = rng.integers(0, 3000, 64), rng.integers(0, 2, 64)
        values = rng.random(64) * 10.0 ** rng.integers(-12, 12, 64)
        tree.update(where, values, which)
        leaves[which, where] = values
    fresh = SumTree(3000, trees=2)
    for number in range(2):
        fresh.update(np.arange(3000), leaves[number], number)
        assert tree.priorities(np.arange(3000), number).tolist() == leaves[number].tolist()
    assert fresh.total().tobytes() == tree.total().tobytes()
    assert fresh.least().tobytes() == tree.least().tobytes()
    numbers, which = rng.random(5000), rng.integers(0, 2, 5000)
    assert fresh.draw(numbers, which)[0].tobytes() == tree.draw(numbers, which)[0].tobytes()


def test_a_zero_priority_is_never_drawn_even_where_rounding_leaves_a_rest() -> None:
    rng = np.random.default_rng(3)
    many = SumTree(16, trees=2000)  # some add up to less from left to right than their sum
    for which in range(2000):
        many.update(np.arange(16), np.where(np.arange(16) < 12, rng.random(16), 0.0), which)
    positions, priorities = many.draw(np.full(2000, np.nextafter(1.0, 0.0)), np.arange(2000))
    assert (positions == 11).all()
    assert (priorities > 0).all()
    tree = SumTree(2000)
    priorities = np.where(rng.random(2000) < 0.5, 0.0, rng.random(2000) * 10.0 ** rng.integers(-9, 9, 2000))
    tree.update(np.arange(2000), priorities)
    numbers = np.concatenate([1.0 - 2.0**-53 * np.arange(1, 2000), rng.random(10_000)])
    assert (priorities[tree.draw(numbers)[0]] > 0).all()


def test_the_last_of_repeated_positions_counts_and_zero_removes() -> None:
    tree = SumTree(40)
    tree.update([5, 6, 5], [1.0, 2.0, 4.0])
    assert tree.priorities([5, 6]).tolist() == [4.0, 2.0]
    assert tree.total()[0] == 6.0
    tree.update([5, 6], 0.0)
    assert tree.total()[0] == 0.0
    assert tree.least()[0] == np.inf


def test_bad_input_changes_nothing_in_a_tree() -> None:
    tree = SumTree(10, trees=2)
    tree.update([1], [2.0])
    with pytest.raises(NonFiniteError, match="finite and not negative"):
        tree.update([1, 2], [1.0, np.nan])
    with pytest.raises(NonFiniteError, match="finite and not negative"):
        tree.update([1], [-1.0])
    with pytest.raises(ContractError, match=r"outside 0 \.\. 9: found 3 \.\. 10"):
        tree.update([3, 10], 1.0)
    with pytest.raises(ContractError, match=r"a tree is outside 0 \.\. 1"):
        tree.update([3], 1.0, 2)
    with pytest.raises(ContractError, match=r"a tree is outside 0 \.\. 1"):
        tree.draw(np.array([0.5]), -1)
    with pytest.raises(ContractError, match=r"a tree is outside 0 \.\. 1"):
        tree.priorities([1], 5)
    with pytest.raises(ShapeError, match="give whole numbers"):
        tree.update([0.5], 1.0)
    with pytest.raises(ContractError, match="cannot be drawn from"):
        tree.draw(np.array([0.5]), 1)
    with pytest.raises(ContractError, match=r"outside \[0, 1\)"):
        tree.draw(np.array([1.0]))
    with pytest.raises(ShapeError, match=r"values of shape \(2,\) for 3 positions"):
        tree.update([1, 2, 3], [1.0, 2.0])
    with pytest.raises(ConfigError, match="at least 1 of each"):
        SumTree(0)
    assert tree.total().tolist() == [2.0, 0.0]


def test_kernels_see_one_type_and_layout() -> None:
    for whole in (3, [3], np.array([3], np.int32), np.array([3, 0])[::2], np.uint8(3)):
        found = positions_below(4, whole)
        assert (found.tolist(), found.dtype, found.flags.c_contiguous) == ([3], np.int64, True)
    assert positions_below(4, []).dtype == np.int64
    for value in (2, [2, 2], np.array([2, 0, 2, 0])[::2], np.array([2])):
        values = repeated(value, 2, np.float64)
        assert (values.tolist(), values.dtype, values.flags.c_contiguous) == ([2.0, 2.0], np.float64, True)


def test_bad_positions_and_values_are_named() -> None:
    with pytest.raises(ContractError, match=r"outside 0 \.\. 3: found 0 \.\. 4"):
        positions_below(4, [0, 4])
    with pytest.raises(ShapeError, match="type float64: give whole numbers"):
        positions_below(4, [1.0])
    with pytest.raises(ShapeError, match=r"shape \(1, 2\)"):
        positions_below(4, [[1, 2]])
    with pytest.raises(ShapeError, match=r"values of shape \(2,\) for 3 positions"):
        repeated([1, 2], 3, np.int64)
