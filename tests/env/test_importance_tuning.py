"""Sweeps of sampling settings: rows are independent, settings are ranked, comparisons are paired."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.env.importance_tuning import SamplingSetting, Tuning, grid


class Mean:
    """Learn the mean reward of a constant state: 10 % of the rows have 0.9, the others 0.1, so it is 0.18."""

    def fill(self, memory, seed):
        draws = generator(seed, Purpose.WORLD)
        rows = memory.capacity
        rare = np.arange(rows) % 10 == 0
        rewards = np.where(rare, 0.9, 0.1) + 0.01 * draws.standard_normal(rows)
        kinds = np.where(rare, "crisis_parent", "regular_parent").tolist()
        ones = np.ones((rows, 2))
        memory.add_many(ones, np.zeros(rows, int), rewards, ones, np.ones(rows, bool), kinds, rewards)

    def score(self, values, seed):
        return -abs(float(values(np.ones((1, 2)))[0, 0]) - 0.18)


def tuning(**changes):
    options = {"rows": 200, "updates": 150, "batch_size": 16, "model": {"hidden": (8,), "lr": 5e-3, "gamma": 0.0}}
    return Tuning(Mean(), (2,), 2, **{**options, **changes})


def test_the_exact_correction_wins_the_sweep_significantly():
    settings = grid(weights=(5.0,), betas=(0.0, 0.4, 1.0), temperatures=(1.0, 2.0))
    result = tuning().sweep(settings, range(5))
    assert result.scores.shape == (6, 5)
    assert result.best.beta == 1.0
    assert (np.diff(result.scores.mean(1)) <= 0).all()
    naive = result.settings.index(SamplingSetting(5.0, 1.0, 0.0, 1.0))
    assert result.leads[naive].low > 0.1
    assert result.leads[0] == (0.0, 0.0, 0.0)
    assert all(low <= mean <= high for mean, low, high in result.intervals)


def test_a_row_of_the_stack_equals_the_same_row_trained_alone():
    settings = [SamplingSetting(), SamplingSetting(2.0, 0.6, 0.4), SamplingSetting(enabled=False)]
    states = generator(0, Purpose.NOISE).standard_normal((5, 2))
    together = [values(states) for values in tuning(updates=40).train(settings, (3, 4))]
    for place, setting in enumerate(settings):
        for seed_place, seed in enumerate((3, 4)):
            (alone,) = tuning(updates=40).train([setting], (seed,))
            assert alone(states).tobytes() == together[2 * place + seed_place].tobytes()


def test_a_setting_is_compared_with_uniform_draws_on_paired_seeds():
    result = tuning().compare(SamplingSetting(beta=0.0), range(5))
    assert result.difference.high < 0  # oversampling without correction is worse than none
    assert result.difference.estimate == pytest.approx(result.on.estimate - result.off.estimate)
    same = tuning(updates=30).compare(SamplingSetting(enabled=False), range(3))
    assert same.difference == (0.0, 0.0, 0.0)


def test_a_sweep_without_settings_is_refused():
    with pytest.raises(ConfigError, match="0 settings and 2 seeds"):
        tuning().sweep([], (0, 1))
