"""Searches among orders whose returns are known."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.order_search import search_regrets
from parallel_agents.workflows.orders import ORDER_FEATURES
from parallel_agents.workflows.search import METHODS, landscape

# A landscape in which two precedences matter.
VALUES = -100.0 + 40.0 * ORDER_FEATURES[:, 5] + 20.0 * (1 - ORDER_FEATURES[:, 8])


def test_regrets_are_those_of_the_recommended_order():
    regrets = search_regrets(VALUES, noise=1.0, n_trials=12, seed=2)
    assert regrets.shape == (12,)
    assert regrets[-1] == 0.0 < regrets[0]
    assert search_regrets(VALUES, 1.0, 12, "random", seed=2)[0] == regrets[0]


def test_measured_returns_are_drawn_and_their_mean_is_the_value():
    draws = np.random.default_rng(0)
    measured = VALUES[:, None] + draws.normal(0.0, 5.0, (120, 4))
    regrets = search_regrets(measured, noise=5.0, n_trials=15, seed=1)
    assert (regrets >= 0.0).all()
    assert regrets[-1] < np.ptp(measured.mean(axis=1)) / 2
    assert any(np.isclose(measured.mean(axis=1).max() - regrets[-1], measured.mean(axis=1)))


def test_regrets_can_be_counted_by_values_that_the_search_does_not_see():
    shown = VALUES[:, None]
    np.testing.assert_array_equal(
        search_regrets(shown, 1.0, 4, seed=1, judge=VALUES), search_regrets(shown, 1.0, 4, seed=1)
    )
    upside_down = search_regrets(shown, 1.0, 12, seed=1, judge=-VALUES)
    assert upside_down[-1] == np.ptp(VALUES)


@pytest.mark.slow
def test_gp_ucb_finds_a_good_order_within_ten_evaluations():
    values = landscape(episodes=200).means
    hit_rates = {
        method: np.mean([search_regrets(values, 3.3, 10, method, seed)[-1] < 3.0 for seed in range(30)])
        for method in METHODS
    }
    assert hit_rates["gp_ucb"] > 2 * hit_rates["random"], hit_rates
