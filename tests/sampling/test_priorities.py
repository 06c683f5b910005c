from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, chisquare

from parallel_agents.errors import CheckpointError, ContractError, NonFiniteError
from parallel_agents.sampling import PriorityIndex

SHARES = np.array([0.3, 0.7])
STEP = st.tuples(st.sampled_from(["add", "evict", "update"]), st.integers(0, 19), st.integers(0, 1))


def test_the_class_follows_its_share_and_the_row_its_priority() -> None:
    rng = np.random.default_rng(0)
    index, priorities = PriorityIndex(60, 2), rng.random(60) + 0.1
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


@given(st.lists(STEP, max_size=60))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_priorities_follow_their_rows_through_any_history(steps: list[tuple[str, int, int]]) -> None:
    index, model = PriorityIndex(20, 2), dict[int, tuple[int, float]]()
    for number, (kind, position, which) in enumerate(steps):
        if kind == "add":
            index.assign([position], [which], [number + 1.0])
            model[position] = which, number + 1.0
        elif kind == "evict":
            index.evict([position])
            model.pop(position, None)
        elif position in model:
            index.update_priorities([position], [number + 0.5])
            model[position] = model[position][0], number + 0.5
    state = index.state()
    found = dict(zip(state["order"].tolist(), state["priorities"].tolist(), strict=True))
    assert found == {p: priority for p, (_, priority) in model.items()}
    for which in range(2):
        total = sum(priority for c, priority in model.values() if c == which)
        assert index._tree.total()[which] == pytest.approx(total)


def test_new_rows_get_the_largest_priority_seen() -> None:
    index = PriorityIndex(4, 1)
    index.assign([0, 1], 0)
    index.update_priorities([0], [9.0])
    index.update_priorities([0], [2.0])
    index.assign([2], 0)
    assert index.state()["priorities"].tolist() == [2.0, 1.0, 9.0]


def test_a_stored_index_draws_on_as_if_never_stored() -> None:
    rng = np.random.default_rng(1)
    index = PriorityIndex(300, 2)
    index.assign(np.arange(300), rng.integers(0, 2, 300))
    index.update_priorities(np.arange(300), rng.random(300) * 5)
    index.evict(np.arange(0, 300, 7))
    copy = PriorityIndex(300, 2)
    copy.assign([3], [0], [100.0])
    copy.load_state(index.state())
    for each in (index, copy):
        each.assign([0, 5], [1, 0])
    numbers = rng.random((2000, 2))
    for mine, other in zip(index.draw(numbers, SHARES), copy.draw(numbers, SHARES), strict=True):
        assert mine.tobytes() == other.tobytes()


def test_bad_input_changes_nothing() -> None:
    index = PriorityIndex(4, 2)
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
