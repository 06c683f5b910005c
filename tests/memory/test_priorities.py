"""Rows drawn by priority: right shares, right corrections, written back to the rows they came from."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_agents.memory import PRIORITY, Buffer, draw_by_priority, write_priorities
from parallel_agents.seeding import Purpose, generator


def filled(capacity: int, rows: int) -> Buffer:
    buffer = Buffer(capacity, (1,), priority=())
    for t in range(rows):
        buffer.add([float(t)], action=0, reward=float(t), done=True, priority=0.0)
    return buffer


def uniforms(count: int) -> np.ndarray:
    return generator(7, Purpose.SAMPLE).random(count)


def test_shares_are_those_of_the_priorities_and_corrections_undo_them() -> None:
    buffer = filled(16, 4)
    buffer.ring.extras[PRIORITY][0, :4, 0] = [1.0, 2.0, 4.0, 9.0]
    drawn = draw_by_priority(buffer.ring, 0, uniforms(200_000), alpha=0.5, beta=1.0)
    wanted = np.sqrt([1.0, 2.0, 4.0, 9.0])
    counts = np.bincount(drawn.serials, minlength=4) / 200_000
    np.testing.assert_allclose(counts, wanted / wanted.sum(), atol=0.005)
    corrected = np.array([drawn.weights[drawn.serials == k].sum() for k in range(4)])
    np.testing.assert_allclose(corrected / corrected.sum(), 0.25, atol=0.005)
    assert drawn.weights.max() == pytest.approx(1.0)


def test_new_rows_count_as_the_largest() -> None:
    buffer = filled(16, 3)
    buffer.ring.extras[PRIORITY][0, :2, 0] = [1.0, 5.0]
    drawn = draw_by_priority(buffer.ring, 0, uniforms(50_000), alpha=1.0, beta=0.0)
    np.testing.assert_allclose(np.bincount(drawn.serials) / 50_000, [1 / 11, 5 / 11, 5 / 11], atol=0.01)


def test_errors_come_back_to_their_rows_and_overwritten_ones_are_left_alone() -> None:
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


def test_what_was_not_learned_from_keeps_its_priority() -> None:
    buffer = filled(8, 4)
    write_priorities(buffer.ring, np.array([[0.0, 1.0]]), np.array([[np.nan, -2.0]]))
    assert buffer.ring.extras[PRIORITY][0, :2, 0].tolist() == [0.0, pytest.approx(2.0)]


def test_an_empty_buffer_gives_nothing_to_write() -> None:
    drawn = draw_by_priority(Buffer(8, (1,), priority=()).ring, 0, uniforms(3), alpha=0.5, beta=0.5)
    assert np.isnan(drawn.places).all()
