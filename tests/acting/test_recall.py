"""What recurrent networks carry from turn to turn."""

from __future__ import annotations

import numpy as np

from parallel_agents.acting import Recall


def array(*values: float) -> np.ndarray:
    """One agent, one number each world."""
    return np.array(values, np.float32).reshape(1, -1, 1)


def test_a_state_goes_from_turn_to_turn_and_starts_afresh_with_an_episode() -> None:
    recall = Recall(agents=1, worlds=2, size=1)
    first = np.array([[True, True]])
    assert recall.inputs(array(5, 6), first).tolist() == [[[5, 0], [6, 0]]]
    assert recall.outputs(np.array([[[50.0, 0.5], [60.0, 0.6]]], np.float32)).tolist() == [[[50], [60]]]
    assert np.allclose(recall.inputs(array(7, 8), np.array([[False, True]])), [[[7, 0.5], [8, 0]]])
    assert np.allclose(recall.columns()["hidden"], array(0.5, 0))


def test_who_looks_again_starts_from_the_same_state() -> None:
    recall = Recall(agents=2, worlds=1, size=1)
    recall.after = np.array([[[0.1]], [[0.2]]], np.float32)
    recall.inputs(np.zeros((2, 1, 1), np.float32), np.zeros((2, 1), np.bool_))
    recall.outputs(np.array([[[0.0, 1.0]], [[0.0, 2.0]]], np.float32))
    assert np.allclose(recall.inputs_again(1, np.array([[9.0]], np.float32)), [[9, 0.2]])
    assert recall.outputs_again(1, np.array([[4.0, 3.0]], np.float32)).tolist() == [[4.0]]
    assert recall.after[:, 0, 0].tolist() == [1.0, 3.0]
    assert np.allclose(recall.columns()["hidden"][:, 0, 0], [0.1, 0.2])


def test_looking_ahead_changes_nothing() -> None:
    recall = Recall(agents=1, worlds=1, size=1)
    recall.after = array(0.7)
    assert np.allclose(recall.inputs_ahead(array(3)), [[[3, 0.7]]])
    assert recall.outputs_ahead(np.array([[[1.0, 2.0]]], np.float32)).tolist() == [[[1.0]]]
    assert np.allclose(recall.after, array(0.7))


def test_without_a_state_nothing_is_touched() -> None:
    recall = Recall(agents=1, worlds=2, size=0)
    seen = array(1, 2)
    assert recall.inputs(seen, np.ones((1, 2), np.bool_)) is seen
    assert recall.outputs(seen) is seen
    assert recall.inputs_again(0, seen[0]).tolist() == seen[0].tolist()
    assert recall.inputs_ahead(seen) is seen
    assert recall.columns() == {}
