"""Batches joined by the noise of the gradient: estimates, steps and counts."""

from __future__ import annotations

import numpy as np
import torch

from parallel_agents.learning.batches import Joining, joining_state, noise_scale
from parallel_agents.seeding import Purpose, generator
from parallel_agents.types import State


def state(growth: list[float], width: int = 2) -> State:
    own = {"online": torch.zeros(len(growth), width), "hyper.batch_growth": torch.tensor(growth)}
    return State({**own, **joining_state(growth)})


def test_noise_and_signal_are_those_that_the_data_were_made_with() -> None:
    """Gradients with mean (3, 0) and covariance 16 per number: noise 32, signal 9."""
    draws = generator(3, Purpose.SAMPLE)
    each = np.array([3.0, 0.0]) + 4.0 * draws.standard_normal((20_000, 4, 8, 2))  # repeats, joined, batch
    batches = each.mean(axis=2)
    small = (batches**2).sum(-1).mean(axis=1)
    large = (batches.mean(axis=1) ** 2).sum(-1)
    noise, signal = noise_scale(small.mean(keepdims=True), large.mean(keepdims=True), 8, np.array([4]))
    np.testing.assert_allclose(noise, 32.0, rtol=0.05)
    np.testing.assert_allclose(signal, 9.0, rtol=0.05)


def test_gradients_are_means_and_steps_come_when_due() -> None:
    joining = Joining(state([2.0, 1.0]), batch=4, updates=5)
    seen, dues = [], []
    for number in range(1, 6):
        gradients = torch.full((2, 2), float(number))
        dues.append(joining.take(gradients))
        seen.append(gradients[:, 0].tolist())
    assert dues == [[False, True], [True, True], [False, True], [True, True], [True, True]]
    assert [own for own, _ in seen] == [1.0, 1.5, 3.0, 3.5, 5.0]
    assert [own for _, own in seen] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert joining.attempts.tolist() == [3, 5]


def test_noise_makes_batches_grow_and_agreement_lets_them_shrink() -> None:
    now = state([16.0, 16.0, 1.0], width=50)
    draws = generator(5, Purpose.SAMPLE)
    for _ in range(40):
        joining = Joining(now, batch=4, updates=16)
        for _ in range(16):
            noisy = draws.standard_normal(50)
            joining.take(torch.from_numpy(np.stack([noisy, np.ones(50) + 0.01 * noisy, noisy])).float())
        joining.settle(now, np.ones(3, np.bool_))
    assert now["batch.joined"].tolist() == [16, 2, 1]


def test_without_growth_nothing_is_kept_or_changed() -> None:
    now = state([1.0])
    joining = Joining(now, batch=4, updates=2)
    gradients = torch.tensor([[1.0, 2.0]])
    assert joining.take(gradients) == [True]
    assert gradients.tolist() == [[1.0, 2.0]]
    joining.settle(now, np.ones(1, np.bool_))
    assert not joining.active
