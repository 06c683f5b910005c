"""Causes, drift and noise of daily levels, recovered from levels that were drawn by them."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_agents.market.discovery.day_levels import DayLevels, fit_days
from parallel_agents.market.discovery.estimation import Fit

DAYS, RIVALS, SAMPLING, STEP, EFFECT = 70, 5, 0.02, 0.04, 0.3


def drawn(rng: np.random.Generator) -> list[DayLevels]:
    """Return rivals with a level of their own, an effect of a cause, a drift that they share, and errors of sampling."""
    drift = np.zeros(DAYS)
    for day in range(1, DAYS):
        drift[day] = 0.8 * drift[day - 1] + STEP * rng.standard_normal()
    rivals = []
    for level in range(RIVALS):
        cause = rng.standard_normal(DAYS)
        values = level + EFFECT * cause + drift + SAMPLING * rng.standard_normal(DAYS)
        met = rng.random(DAYS) > 0.1
        levels = Fit(np.where(met, values, 99.0), SAMPLING**2 * np.eye(DAYS))  # days without a meeting say nothing
        rivals.append(DayLevels(levels, met, np.column_stack([np.ones(DAYS), cause])))
    return rivals


def test_causes_and_the_step_of_the_drift_are_recovered(rng):
    found = [fit_days(drawn(rng), None) for _ in range(8)]
    errors = [(own.values[1] - EFFECT) / own.errors[1] for one in found for own in one.effects]
    steps = [(one.log_step - np.log(STEP)) / one.log_step_error for one in found]
    assert 0.7 < np.std(errors) < 1.3
    assert abs(np.mean(steps)) < 1.0
    assert np.mean([one.log_step_error for one in found]) == pytest.approx(0.1, abs=0.03)


def test_a_rival_whose_levels_scatter_tells_less_of_the_drift_and_of_itself(rng):
    """Its noise is no drift, and does not make the others uncertain."""
    scatter, off = 10.0 * SAMPLING, []
    for _ in range(4):
        *others, last = drawn(rng)
        values = last.levels.values + scatter * rng.standard_normal(DAYS)
        noisy = DayLevels(Fit(values, last.levels.covariance), last.met, last.design)
        with_it, without_it = fit_days([*others, noisy], None), fit_days(others, None)
        off.append(with_it.log_step - without_it.log_step)
        assert with_it.log_step_error == pytest.approx(without_it.log_step_error, rel=0.1)
        assert with_it.effects[0].errors[1] == pytest.approx(without_it.effects[0].errors[1], rel=0.1)
        assert with_it.effects[-1].errors[1] == pytest.approx(scatter / np.sqrt(noisy.met.sum()), rel=0.3)
    assert np.abs(off).max() < 0.05
