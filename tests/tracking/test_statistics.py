from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from parallel_agents.core.errors import ConfigError, NonFiniteError, ShapeError
from parallel_agents.tracking.statistics import (
    Interval,
    bootstrap_interval,
    interquartile_mean,
    mean_half_width,
    mean_interval,
    probability_of_improvement,
    student_quantile,
)

SCORES = np.array([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]])


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([5.0], 5.0),
        ([1.0, 2.0, 9.0], 4.0),  # 3 // 4 = 0 are cut
        ([1.0, 2.0, 3.0, 100.0], 2.5),
        ([100.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, -50.0], 2.5),
        ([[1.0, 2.0], [3.0, 100.0]], 2.5),  # over everything
    ],
)
def test_interquartile_mean_by_hand(scores: list[float], expected: float) -> None:
    assert interquartile_mean(scores) == expected


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50))
def test_interquartile_mean_is_the_trimmed_mean(scores: list[float]) -> None:
    assert interquartile_mean(scores) == pytest.approx(stats.trim_mean(scores, 0.25), rel=1e-12, abs=1e-9)


@pytest.mark.parametrize("freedom", [*range(1, 41), 99, 100, 499, 500, 501, 10_000])
@pytest.mark.parametrize("probability", [0.55, 0.9, 0.975, 0.995])
def test_student_quantile_equals_scipys(freedom: int, probability: float) -> None:
    assert student_quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=1e-7)


def test_mean_interval_by_hand() -> None:
    # mean 2.5, deviation sqrt(5/3), standard error sqrt(5/12), t(0.975, 3) = 3.182446
    estimate, low, high = mean_interval([1.0, 2.0, 3.0, 4.0])
    half = 3.182446305284263 * math.sqrt(5 / 12)
    assert estimate == 2.5
    assert low == pytest.approx(2.5 - half)
    assert high == pytest.approx(2.5 + half)


def test_the_interval_of_one_sample_is_nan() -> None:
    estimate, low, high = mean_interval([3.0])
    assert estimate == 3.0
    assert math.isnan(low)
    assert math.isnan(high)


def test_half_widths_are_per_column() -> None:
    mean, half = mean_half_width(SCORES)
    for column in range(2):
        estimate, low, _ = mean_interval(SCORES[:, column])
        assert mean[column] == pytest.approx(estimate)
        assert half[column] == pytest.approx(estimate - low)


def test_the_bootstrap_equals_enumeration() -> None:
    # of {0, 1} two draws: the mean is 0 or 1 with probability 1/4 each, 1/2 else
    assert bootstrap_interval([0.0, 1.0]) == Interval(0.5, 0.0, 1.0)
    # of {0, 0, 0, 1} four draws: the mean of the middle two is 0 with probability 0.7383, 1/2 with 0.2109, else 1
    assert bootstrap_interval([0.0, 0.0, 0.0, 1.0]) == Interval(0.0, 0.0, 1.0)


def test_equal_seeds_give_equal_intervals_and_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = np.sqrt(np.arange(40.0))
    whole = bootstrap_interval(scores, seed=3)
    assert whole == bootstrap_interval(scores, seed=3)
    assert whole != bootstrap_interval(scores, seed=4)
    monkeypatch.setattr("parallel_agents.tracking.statistics._BLOCK", 640)
    assert whole == bootstrap_interval(scores, seed=3)


def test_the_global_generator_is_not_touched() -> None:
    before = np.random.get_state()[1].tolist()  # type: ignore[index]
    bootstrap_interval(SCORES[:, 0])
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index]


def test_intervals_cover_as_often_as_they_say() -> None:
    samples = np.random.default_rng(0).normal(5.0, 2.0, (2000, 8))
    t_covers = np.mean([low <= 5 <= high for _, low, high in (mean_interval(s) for s in samples)])
    assert 0.935 <= t_covers <= 0.965
    intervals = (bootstrap_interval(s, seed=i) for i, s in enumerate(samples[:600]))
    covers = np.mean([low <= 5 <= high for _, low, high in intervals])
    assert 0.80 <= covers <= 0.97  # the percentile bootstrap is known to be a little narrow for 8 samples


def test_invalid_input_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"scores have shape \(0,\): give at least one"):
        interquartile_mean([])
    with pytest.raises(NonFiniteError, match="2 of 3 scores are NaN or infinite: leave them out"):
        mean_interval([1.0, math.nan, math.inf])
    for interval in (mean_interval, bootstrap_interval):
        with pytest.raises(ShapeError, match=r"scores have shape \(3, 2\): give \(n,\)"):
            interval(SCORES)
    with pytest.raises(ConfigError, match="at least 1 degree"):
        student_quantile(0.975, 0)


def test_the_probability_of_improvement_counts_pairs_and_ties() -> None:
    estimate, low, high = probability_of_improvement([1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 2.0, 5.0])
    assert estimate == (0.5 * 2 + 2 + 0.5 + 3 + 3) / 16
    assert 0.0 <= low < estimate < high <= 1.0
    assert probability_of_improvement([2.0, 3.0], [0.0, 1.0]) == (1.0, 1.0, 1.0)
    assert probability_of_improvement([1.0, 2.0], [1.5, 3.0], seed=4) == probability_of_improvement(
        [1.0, 2.0], [1.5, 3.0], seed=4
    )
