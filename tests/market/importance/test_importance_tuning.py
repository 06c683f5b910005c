"""A sweep as one stack: rows are independent, settings are ranked with intervals, on and off are paired."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_agents.errors import ConfigError
from parallel_agents.market.importance import SamplingSetting, Tuning, grid
from parallel_agents.seeding import Purpose, generator


class Mean:
    """Learn the mean reward of a constant state: 0.1 of the rows bring 0.9, the others 0.1, the truth is 0.18."""

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


def test_the_exact_correction_wins_the_sweep_and_is_ahead_beyond_chance():
    settings = grid(weights=(5.0,), betas=(0.0, 0.4, 1.0), temperatures=(1.0, 2.0))
    found = tuning().sweep(settings, range(5))
    assert found.scores.shape == (6, 5)
    assert found.best.beta == 1.0
    assert (np.diff(found.scores.mean(1)) <= 0).all()
    naive = found.settings.index(SamplingSetting(5.0, 1.0, 0.0, 1.0))
    assert found.leads[naive].low > 0.1
    assert found.leads[0] == (0.0, 0.0, 0.0)
    assert all(low <= mean <= high for mean, low, high in found.intervals)


def test_a_row_of_the_stack_is_that_row_alone():
    settings = [SamplingSetting(), SamplingSetting(2.0, 0.6, 0.4), SamplingSetting(enabled=False)]
    states = generator(0, Purpose.NOISE).standard_normal((5, 2))
    together = [values(states) for values in tuning(updates=40).train(settings, (3, 4))]
    for place, setting in enumerate(settings):
        for seed_place, seed in enumerate((3, 4)):
            (alone,) = tuning(updates=40).train([setting], (seed,))
            assert alone(states).tobytes() == together[2 * place + seed_place].tobytes()


def test_on_and_off_are_compared_on_paired_seeds():
    found = tuning().compare(SamplingSetting(beta=0.0), range(5))
    assert found.difference.high < 0  # oversampling without correction is worse than none
    assert found.difference.estimate == pytest.approx(found.on.estimate - found.off.estimate)
    same = tuning(updates=30).compare(SamplingSetting(enabled=False), range(3))
    assert same.difference == (0.0, 0.0, 0.0)


def test_a_sweep_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="0 settings and 2 seeds"):
        tuning().sweep([], (0, 1))
