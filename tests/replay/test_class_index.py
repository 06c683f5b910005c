"""The class index: members, draws by class, draws by class and priority, stored state, bad input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import binomtest, chisquare

from parallel_agents.core.errors import CheckpointError, ConfigError, ContractError, NonFiniteError, ShapeError
from parallel_agents.replay.class_index import ClassIndex, uniform_positions

STEP = st.tuples(st.integers(0, 11), st.integers(0, 3))


def uniforms(count: int, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).random((count, 2))


@given(st.lists(STEP, max_size=80))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_members_equal_those_of_a_dictionary(steps: list[tuple[int, int]]) -> None:
    index, model = ClassIndex(12, 4), dict[int, int]()
    for position, which in steps:
        index.assign(position, which)
        model[position] = which
    assert len(index) == len(model)
    for which in range(4):
        expected = sorted(p for p, c in model.items() if c == which)
        assert sorted(index.members(which).tolist()) == expected
        assert index.counts[which] == len(expected)
    assert index.classes_at(sorted(model)).tolist() == [model[p] for p in sorted(model)]


def test_a_million_writes_around_the_ring_keep_every_position_in_its_class() -> None:
    rng = np.random.default_rng(1)
    capacity = 10_007
    index, model = ClassIndex(capacity, 3), np.full(capacity, -1)
    for start in range(0, 1_000_000, 1000):
        positions = np.arange(start, start + 1000) % capacity
        classes = rng.choice(3, 1000, p=[0.1, 0.3, 0.6])
        index.assign(positions, classes)
        model[positions] = classes
        if start % 50_000 == 0 and len(index) == capacity:
            drawn = index.draw(rng.random((512, 2)), np.array([0.4, 0.4, 0.2]))
            assert (model[drawn.positions] == drawn.classes).all()
    for which in range(3):
        assert sorted(index.members(which).tolist()) == np.flatnonzero(model == which).tolist()


def test_draws_follow_the_shares_and_are_uniform_within_a_class() -> None:
    index = ClassIndex(50, 3)
    index.assign(np.arange(50), np.arange(50) % 3)
    shares = np.array([0.5, 0.2, 0.3])
    drawn = index.draw(uniforms(300_000), shares)
    assert (drawn.classes == drawn.positions % 3).all()
    expected = shares[np.arange(50) % 3] / index.counts[np.arange(50) % 3] * 300_000
    assert chisquare(np.bincount(drawn.positions, minlength=50), expected).pvalue > 1e-3
    assert drawn.density.size == 0  # uniform within a class


def test_a_single_class_stays_in_ring_order_and_draws_as_uniform_sampling_does() -> None:
    index = ClassIndex(100, 2)
    for turn in range(250):
        index.assign(turn % 100, 1)
    assert index.members(1).tolist() == list(range(100))
    numbers = uniforms(1000)
    drawn = index.draw(numbers, np.array([0.0, 1.0])).positions
    assert drawn.tobytes() == uniform_positions(numbers, 100).tobytes()


def test_the_ends_of_the_unit_interval_draw_the_first_and_the_last_row() -> None:
    index = ClassIndex(1_000_003, 3)
    index.assign(np.arange(1_000_003), 1)
    top = np.nextafter(1.0, 0.0)
    drawn = index.draw(np.array([[0.0, 0.0], [top, top]]), np.array([0.0, 1.0, 0.0]))
    assert drawn.positions.tolist() == [0, 1_000_002]


def test_a_number_beyond_the_last_running_sum_draws_the_last_class_with_a_share() -> None:
    shares = np.array([0.7, 0.2, 0.1, 0.0])
    assert np.cumsum(shares)[-1] <= np.nextafter(1.0, 0.0)
    index = ClassIndex(3, 4)
    index.assign([0, 1, 2], [0, 1, 2])
    assert index.draw(np.array([[np.nextafter(1.0, 0.0), 0.0]]), shares).classes.tolist() == [2]


def test_a_loaded_index_draws_as_the_stored_one() -> None:
    rng = np.random.default_rng(2)
    index = ClassIndex(64, 3)
    index.assign(rng.permutation(64)[:44], rng.integers(0, 3, 44))
    copy = ClassIndex(64, 3)
    copy.assign(np.arange(64), 0)
    copy.load_state(index.state())
    for step in range(20):
        added, which = rng.integers(0, 64, 2) % (64, 3)
        for each in (index, copy):
            each.assign(added, which)
        numbers, shares = uniforms(50, step), np.array([0.2, 0.3, 0.5])
        assert index.draw(numbers, shares).positions.tolist() == copy.draw(numbers, shares).positions.tolist()


def test_bad_input_changes_nothing() -> None:
    index = ClassIndex(4, 2)
    index.assign([0, 1], [0, 1])
    before = index.state()
    with pytest.raises(ContractError, match=r"outside 0 \.\. 3: found -1 \.\. 2"):
        index.assign([2, -1], 0)
    with pytest.raises(ContractError, match=r"class id is outside 0 \.\. 1: found \[0, 2\]"):
        index.assign([2, 3], [0, 2])
    with pytest.raises(ShapeError, match="give whole numbers"):
        index.assign([0.5], 0)
    with pytest.raises(ContractError, match="position 3 holds no row"):
        index.classes_at([0, 3])
    after = index.state()
    assert all((before[name] == after[name]).all() for name in before)


def test_undrawable_batches_raise() -> None:
    index = ClassIndex(4, 2)
    index.assign([0, 1], 1)
    with pytest.raises(ContractError, match=r"a class without rows came up: shares \[0.5, 0.5\], rows \[0, 2\]"):
        index.draw(uniforms(50), np.array([0.5, 0.5]))
    with pytest.raises(ContractError, match=r"outside \[0, 1\)"):
        index.draw(np.array([[0.1, 1.0]]), np.array([0.0, 1.0]))
    with pytest.raises(ContractError, match=r"outside \[0, 1\)"):
        index.draw(np.array([[np.nan, 0.1]]), np.array([0.0, 1.0]))
    with pytest.raises(ShapeError, match=r"give \(batch, 2\)"):
        index.draw(np.zeros(4), np.array([0.0, 1.0]))
    with pytest.raises(ShapeError, match="give one for each of 2 classes"):
        index.draw(uniforms(4), np.ones(3))


def test_sizes_and_stored_states_are_checked() -> None:
    with pytest.raises(ConfigError, match="capacity 0 is out of range"):
        ClassIndex(0, 2)
    with pytest.raises(ConfigError, match="200 classes are out of range"):
        ClassIndex(4, 200)
    index = ClassIndex(4, 2)
    with pytest.raises(CheckpointError, match="do not fit 2 classes and 3 positions"):
        index.load_state({"order": np.arange(3), "counts": np.array([1, 1])})
    huge = ClassIndex(4, 4)
    with pytest.raises(CheckpointError, match="do not fit 4 classes and 0 positions"):  # their sum overflows to 0
        huge.load_state({"order": np.zeros(0, np.int64), "counts": np.full(4, 2**62)})
    with pytest.raises(CheckpointError, match="do not fit 2 classes and 2 positions"):
        index.load_state({"order": np.array([0.5, 1.5]), "counts": np.array([1, 1])})
    with pytest.raises(CheckpointError, match="repeat or lie outside"):
        index.load_state({"order": np.array([1, 1]), "counts": np.array([1, 1])})
    with pytest.raises(CheckpointError, match=r"needs order and counts: found \['order'\]"):
        index.load_state({"order": np.array([1, 1])})
    assert len(index) == 0


# -- priorities within classes ----------------------------------------------------------------------------------


SHARES = np.array([0.3, 0.7])
PRIORITY_STEP = st.tuples(st.booleans(), st.integers(0, 19), st.integers(0, 1))


def test_the_class_follows_its_share_and_the_row_its_priority() -> None:
    rng = np.random.default_rng(0)
    index, priorities = ClassIndex(60, 2, priorities=True), rng.random(60) + 0.1
    classes = (np.arange(60) >= 20).astype(int)
    index.assign(np.arange(60), classes, priorities)
    drawn = index.draw(rng.random((400_000, 2)), SHARES)
    assert binomtest(int((drawn.classes == 0).sum()), 400_000, 0.3).pvalue > 1e-3
    totals = np.bincount(classes, priorities)
    chance = SHARES[classes] * priorities / totals[classes]
    assert chisquare(np.bincount(drawn.positions, minlength=60), 400_000 * chance).pvalue > 1e-3
    expected = np.bincount(classes)[drawn.classes] * priorities[drawn.positions] / totals[drawn.classes]
    assert drawn.density == pytest.approx(expected)
    least = [20 * priorities[:20].min() / totals[0], 40 * priorities[20:].min() / totals[1]]
    assert index.least_density() == pytest.approx(least)


@given(st.lists(PRIORITY_STEP, max_size=60))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_priorities_follow_their_rows_through_any_history(steps: list[tuple[bool, int, int]]) -> None:
    index, model = ClassIndex(20, 2, priorities=True), dict[int, tuple[int, float]]()
    for number, (add, position, which) in enumerate(steps):
        if add:
            index.assign([position], [which], [number + 1.0])
            model[position] = which, number + 1.0
        elif position in model:
            index.update_priorities([position], [number + 0.5])
            model[position] = model[position][0], number + 0.5
    state = index.state()
    found = dict(zip(state["order"].tolist(), state["priorities"].tolist(), strict=True))
    assert found == {p: priority for p, (_, priority) in model.items()}
    for which in range(2):
        total = sum(priority for c, priority in model.values() if c == which)
        assert index._tree.total()[which] == pytest.approx(total)


def test_new_rows_get_the_largest_priority_so_far() -> None:
    index = ClassIndex(4, 1, priorities=True)
    index.assign([0, 1], 0)
    index.update_priorities([0], [9.0])
    index.update_priorities([0], [2.0])
    index.assign([2], 0)
    assert index.state()["priorities"].tolist() == [2.0, 1.0, 9.0]


def test_a_loaded_priority_index_draws_as_the_stored_one() -> None:
    rng = np.random.default_rng(1)
    index = ClassIndex(300, 2, priorities=True)
    stored = np.flatnonzero(np.arange(300) % 7)
    index.assign(stored, rng.integers(0, 2, len(stored)))
    index.update_priorities(stored, rng.random(len(stored)) * 5)
    copy = ClassIndex(300, 2, priorities=True)
    copy.assign([3], [0], [100.0])
    copy.load_state(index.state())
    for each in (index, copy):
        each.assign([0, 5], [1, 0])
    numbers = rng.random((2000, 2))
    for mine, other in zip(index.draw(numbers, SHARES), copy.draw(numbers, SHARES), strict=True):
        assert mine.tobytes() == other.tobytes()


def test_bad_input_changes_nothing_in_a_priority_index() -> None:
    index = ClassIndex(4, 2, priorities=True)
    index.assign([0, 1], [0, 1], [1.0, 2.0])
    before = index.state()
    with pytest.raises(NonFiniteError, match="finite and above 0"):
        index.update_priorities([0], [0.0])
    with pytest.raises(NonFiniteError, match="finite and above 0"):
        index.assign([2], [0], [np.nan])
    with pytest.raises(ContractError, match="position 3 holds no row"):
        index.update_priorities([0, 3], [5.0, 5.0])
    with pytest.raises(ContractError, match="class id is outside"):
        index.assign([0], [5])
    with pytest.raises(CheckpointError, match="do not fit the stored positions"):
        index.load_state({**before, "priorities": np.array([1.0])})
    with pytest.raises(CheckpointError, match="needs priorities and largest"):
        index.load_state({"order": before["order"], "counts": before["counts"]})
    after = index.state()
    assert all(before[name].tolist() == after[name].tolist() for name in before)
    assert index._tree.total().tolist() == [1.0, 2.0]
