"""Estimates and estimators, each against a known truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from parallel_agents.core.errors import NonFiniteError, RunError
from parallel_agents.kernels.functions import each
from parallel_agents.market.discovery.estimation import (
    LEVEL,
    Estimate,
    Fit,
    dummies,
    fit_normal,
    fit_poisson,
    fit_probit,
    fit_weibull,
    normal_cdf,
    ratio_of_totals,
)


def test_intervals_are_symmetric_on_their_scale_and_hold_their_quantiles():
    for scale, value, error in (("linear", -3.0, 1.0), ("log", 2.0, 0.5), ("logit", 0.1, 0.03)):
        e = Estimate.from_error(value, error, scale, count=10, source="test")
        assert e.low < e.value < e.high
        points = [e.quantile(u) for u in np.linspace(0, 1, 21)]
        assert points == sorted(points)
        assert points[0] == pytest.approx(e.low)
        assert points[-1] == pytest.approx(e.high)
        assert e.quantile(0.5) == pytest.approx(value)
    assert LEVEL == 0.90
    with pytest.raises(NonFiniteError, match="estimate of nowhere"):
        Estimate.from_log(np.nan, 1.0, count=1, source="nowhere")


def test_normal_cdf_equals_that_of_scipy():
    x = np.linspace(-8, 8, 101).reshape(1, -1)
    np.testing.assert_allclose(each(normal_cdf, x), stats.norm.cdf(x), atol=1e-15)


def test_the_error_of_a_ratio_of_totals_is_that_of_a_share(rng):
    hits = (rng.random(4000) < 0.2).astype(float)
    value, error = ratio_of_totals(hits, np.ones(4000))
    assert error == pytest.approx(np.sqrt(value * (1 - value) / 4000), rel=0.01)


def test_copies_within_a_cluster_do_not_reduce_errors(rng):
    """Every row repeated ten times carries no new information, if the copies are one cluster."""
    x, y = rng.standard_normal(300), rng.poisson(2.0, 300).astype(float)
    design = np.column_stack([np.ones(300), x])
    once = fit_poisson(design, y, np.ones(300), np.ones(300), np.arange(300))
    many = [np.repeat(a, 10, axis=0) for a in (design, y)]
    copied = fit_poisson(*many, np.ones(3000), np.ones(3000), np.repeat(np.arange(300), 10))
    np.testing.assert_allclose(copied.errors, once.errors, rtol=0.01)


def test_poisson_probit_and_linear_recover_their_parameters(rng):
    x = np.column_stack([np.ones(4000), rng.standard_normal(4000)])
    rows = np.arange(4000)
    exposure = rng.uniform(0.5, 3.0, 4000)
    fits = {
        (0.3, -0.4): fit_poisson(
            x, rng.poisson(exposure * np.exp(x @ [0.3, -0.4])).astype(float), exposure, np.ones(4000), rows
        ),
        (0.5, 0.8): fit_probit(
            x, rng.binomial(20, stats.norm.cdf(x @ [0.5, 0.8])).astype(float), np.full(4000, 20.0), rows
        ),
    }
    for truth, fit in fits.items():
        assert (np.abs(fit.values - truth) < 4 * fit.errors).all()
        assert (fit.errors < 0.03).all()


def test_an_average_of_fits_is_as_uncertain_as_they_and_their_differences():
    fits = [Fit(np.array([0.0, 5.0]), np.diag([1.0, 2.0])), Fit(np.array([4.0, 5.0]), np.diag([3.0, 2.0]))]
    mean, share = Fit.averaged(fits, [-1000.0, -1000.0])
    assert mean.values.tolist() == [2.0, 5.0]
    np.testing.assert_allclose(mean.covariance, np.diag([2.0 + 4.0, 2.0]))
    assert share.tolist() == [0.5, 0.5]
    assert Fit.averaged(fits, [-1000.0, 0.0])[0].values.tolist() == [4.0, 5.0]


def test_weibull_recovers_delays_although_late_ones_are_not_seen(rng):
    """Half of the delays end after the monitored time: a fit that ignores this finds a scale far too short."""
    delay, monitored = 40.0 * rng.weibull(1.3, 4000), rng.uniform(5.0, 70.0, 4000)
    seen = delay < monitored
    assert seen.mean() < 0.6
    one = np.ones((seen.sum(), 1, 1))
    prior, rows, weak = np.ones((seen.sum(), 1)), np.arange(seen.sum()), np.full(2, 1e-3)
    fit = fit_weibull(one, one, delay[seen], monitored[seen], prior, rows, weak)
    naive = fit_weibull(one, one, delay[seen], np.full(seen.sum(), 1e9), prior, rows, weak)
    truth = np.log([40.0, 1.3])
    assert (np.abs(fit.values - truth) < 3.5 * fit.errors).all()
    assert np.abs(naive.values - truth)[0] > 10 * naive.errors[0]


def test_a_spread_from_few_values_is_not_biased(rng):
    """Mean over 200 samples of 30 values: the plain estimate of a spread would be 1/60 too low, on the log scale."""
    found = []
    for _ in range(200):
        one = np.ones((30, 1, 1))
        fit = fit_normal(one, one, rng.standard_normal(30), np.ones((30, 1)), np.arange(30), np.full(2, 1e-6))
        found.append(fit.values[1])
    assert np.mean(found) == pytest.approx(0.0, abs=3 * np.std(found) / np.sqrt(200))


def test_a_regression_that_does_not_converge_raises():
    x = np.ones((4, 1))
    with pytest.raises(RunError, match="did not converge"):
        fit_poisson(x, np.full(4, np.nan), np.ones(4), np.ones(4), np.arange(4))


def test_dummies_leave_out_the_reference_and_unknown_levels():
    table = dummies(np.array([0, 2, -1]), 3, drop=1)
    np.testing.assert_array_equal(table, [[1, 0], [0, 1], [0, 0]])
