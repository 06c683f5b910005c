"""Adam's moments: small ones end at 0 before they become denormal, and what is not a number is never hidden."""

from __future__ import annotations

import numpy as np

from parallel_agents.kernels.optimizer import adam

RATE, FACTOR = 1e-3, np.float32(1.0)


def moments_after(steps: int, gradient: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, set[bool]]:
    """Return row, first and second moments after one gradient and many of zero, and whether any was ever denormal."""
    row, first, second = (np.zeros(32, np.float32) for _ in range(3))
    least, seen = np.finfo(np.float32).tiny, set()
    for step in range(1, steps + 1):
        adam(row, np.full(32, gradient if step == 1 else 0.0, np.float32), first, second, step, RATE, FACTOR)
        seen |= {bool(((abs(own) > 0) & (abs(own) < least)).any()) for own in (first, second)}
    return row, first, second, seen


def test_moments_of_a_unit_without_gradients_become_zero_and_never_denormal() -> None:
    row, first, second, denormal = moments_after(900, 0.3)
    assert denormal == {False}
    assert not first.any()
    assert (second > 0).all(), "second moments decay a hundred times more slowly"
    assert np.isfinite(row).all()
    *_, second, denormal = moments_after(900, 3.5e-17)
    assert denormal == {False}
    assert not second.any()


def test_moments_that_are_kept_are_those_of_adam() -> None:
    row, first, second, _ = moments_after(50, 0.3)
    m = v = x = 0.0
    for step in range(1, 51):
        g = 0.3 if step == 1 else 0.0
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        x -= RATE * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
    assert np.allclose(first, m, rtol=1e-5)
    assert np.allclose(second, v, rtol=1e-5)
    assert np.allclose(row, x, rtol=1e-5)


def test_a_gradient_that_is_not_a_number_shows_in_weights_and_moments() -> None:
    for own in moments_after(3, np.nan)[:3]:
        assert np.isnan(own).all()
