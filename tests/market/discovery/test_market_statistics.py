"""The estimators, each against a truth that is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from parallel_agents.errors import NonFiniteError, RunError
from parallel_agents.market.discovery.estimates import LEVEL, Estimate, normal_cdf, of_totals
from parallel_agents.market.discovery.mixture import Features, _Parameters, find_classes
from parallel_agents.market.discovery.periods import clusters, shrink
from parallel_agents.market.discovery.statistics import dummies, linear, normal, poisson, probit, weibull


@pytest.fixture
def rng():
    from parallel_agents.seeding import Purpose, generator

    return generator(7, Purpose.WORLD)


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


def test_normal_cdf_is_the_normal_cdf():
    x = np.linspace(-8, 8, 101).reshape(1, -1)
    np.testing.assert_allclose(normal_cdf(x), stats.norm.cdf(x), atol=1e-15)


def test_a_share_has_the_error_of_a_share(rng):
    hits = (rng.random(4000) < 0.2).astype(float)
    value, error = of_totals(lambda t: t[:1] / t[1:], np.stack([hits, np.ones(4000)], axis=1))
    assert error[0] == pytest.approx(np.sqrt(value[0] * (1 - value[0]) / 4000), rel=0.01)


def test_clustered_errors_do_not_believe_copies(rng):
    """Every row ten times over says nothing new, if the copies are one cluster."""
    x, y = rng.standard_normal(300), rng.poisson(2.0, 300).astype(float)
    design = np.column_stack([np.ones(300), x])
    once = poisson(design, y, np.ones(300), np.ones(300), np.arange(300))
    many = [np.repeat(a, 10, axis=0) for a in (design, y)]
    copied = poisson(*many, np.ones(3000), np.ones(3000), np.repeat(np.arange(300), 10))
    np.testing.assert_allclose(copied.errors, once.errors, rtol=0.01)


def test_poisson_probit_and_linear_recover_their_parameters(rng):
    x = np.column_stack([np.ones(4000), rng.standard_normal(4000)])
    rows = np.arange(4000)
    exposure = rng.uniform(0.5, 3.0, 4000)
    fits = {
        (0.3, -0.4): poisson(
            x, rng.poisson(exposure * np.exp(x @ [0.3, -0.4])).astype(float), exposure, np.ones(4000), rows
        ),
        (0.5, 0.8): probit(
            x, rng.binomial(20, stats.norm.cdf(x @ [0.5, 0.8])).astype(float), np.full(4000, 20.0), rows
        ),
        (1.0, 2.0): linear(x, x @ [1.0, 2.0] + rng.standard_normal(4000), np.ones(4000), rows),
    }
    for truth, fit in fits.items():
        assert (np.abs(fit.values - truth) < 4 * fit.errors).all()
        assert (fit.errors < 0.03).all()


def test_delays_are_found_though_late_ones_are_not_seen(rng):
    """Half of the delays end after the watch: taking those seen for all would make the scale far too short."""
    delay, watched = 40.0 * rng.weibull(1.3, 4000), rng.uniform(5.0, 70.0, 4000)
    seen = delay < watched
    assert seen.mean() < 0.6
    one = np.ones((seen.sum(), 1, 1))
    prior, rows, weak = np.ones((seen.sum(), 1)), np.arange(seen.sum()), np.full(2, 1e-3)
    fit = weibull(one, one, delay[seen], watched[seen], prior, rows, weak)
    naive = weibull(one, one, delay[seen], np.full(seen.sum(), 1e9), prior, rows, weak)
    truth = np.log([40.0, 1.3])
    assert (np.abs(fit.values - truth) < 3.5 * fit.errors).all()
    assert np.abs(naive.values - truth)[0] > 10 * naive.errors[0]


def test_small_samples_are_not_biased(rng):
    """Mean over 200 samples of 30 values: the plain estimate of a spread would be 1/60 too low, on the log scale."""
    found = []
    for _ in range(200):
        one = np.ones((30, 1, 1))
        fit = normal(one, one, rng.standard_normal(30), np.ones((30, 1)), np.arange(30), np.full(2, 1e-6))
        found.append(fit.values[1])
    assert np.mean(found) == pytest.approx(0.0, abs=3 * np.std(found) / np.sqrt(200))


def test_a_regression_that_cannot_be_says_so():
    x = np.ones((4, 1))
    with pytest.raises(RunError, match="did not converge"):
        poisson(x, np.full(4, np.nan), np.ones(4), np.ones(4), np.arange(4))


def users(rng, share, topics, pages=9):
    k = rng.choice(len(share), 1500, p=share)
    counts = np.array([rng.multinomial(n, topics[c]) for n, c in zip(rng.poisson(pages, 1500) + 3, k, strict=True)])
    return k, Features(counts.astype(float), np.zeros((1500, 3)))


def test_classes_are_found_and_counted(rng):
    share, topics = [0.15, 0.35, 0.5], np.array([[0.7, 0.1, 0.2], [0.1, 0.7, 0.2], [0.15, 0.15, 0.7]])
    k, x = users(rng, share, topics)
    found = find_classes(x, most=6, seed=0)
    assert len(found.share) == 3
    order = found.topics[:, :2].argmax(axis=1)
    rare = int(np.flatnonzero(found.topics[:, 0] > 0.5)[0])
    assert found.share[rare] == pytest.approx(0.15, abs=4 * found.share_error[rare])
    assert found.share_error[rare] == pytest.approx(
        np.sqrt(0.15 * 0.85 / 1500), rel=0.15
    )  # hardly more than a count has
    assert np.mean((found.chance[:, rare] > 0.5) == (k == 0)) > 0.95
    assert len(set(order)) >= 2


def test_one_kind_of_user_is_one_class(rng):
    _, x = users(rng, [1.0], np.array([[0.4, 0.3, 0.3]]))
    assert len(find_classes(x, most=6, seed=0).share) == 1


def test_a_class_too_many_dies_out_without_a_warning(rng):
    _, x = users(rng, [0.3, 0.7], np.array([[0.9, 0.05, 0.05], [0.05, 0.05, 0.9]]))
    chance = np.zeros((1500, 3))
    chance[:, 0], chance[:, 1] = 0.5, 0.5
    fitted = _Parameters.fit(x, chance)
    assert np.isfinite(fitted.log_likelihood(x)).all()


def test_corrected_weights_undo_misclassification(rng):
    """Classes hard to tell apart: the mean of an outcome by corrected weights is right, by plain chances it is not."""
    k, x = users(rng, [0.3, 0.7], np.array([[0.65, 0.1, 0.25], [0.2, 0.5, 0.3]]), pages=3)
    found = find_classes(x, most=2, seed=0)
    assert len(found.share) == 2
    rare = int(found.topics[:, 0].argmax())
    outcome = np.where(k == 0, 10.0, 0.0)
    weights = found.weights(np.ones(1500))[:, rare]
    plain = found.chance[:, rare]
    assert weights @ outcome / weights.sum() == pytest.approx(10.0, abs=0.6)
    assert plain @ outcome / plain.sum() < 9.3


def test_periods_are_shrunk_by_their_evidence(rng):
    error = np.full(12, 0.2)
    noise = shrink(0.1 * rng.standard_normal(12) * 0, error, "nothing")
    assert noise is None
    effect = np.linspace(-1, 1, 12)
    kept = shrink(effect, error, "something")
    assert kept is not None
    ratio = np.array([e.value for e in kept]) / effect
    assert ((ratio > 0.8) & (ratio < 1.0)).all()


def test_clusters_find_groups_and_admit_when_there_are_none(rng):
    centres = np.repeat(np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 5.0]]), 4, axis=0)
    found = clusters(centres + 0.2 * rng.standard_normal((12, 2)))
    assert [len(set(found[i : i + 4])) for i in (0, 4, 8)] == [1, 1, 1]
    assert len(set(found)) == 3
    assert len(set(clusters(rng.uniform(0, 1, (1, 3))))) == 1


def test_dummies_leave_out_the_reference_and_unknown_levels():
    table = dummies(np.array([0, 2, -1]), 3, drop=1)
    np.testing.assert_array_equal(table, [[1, 0], [0, 1], [0, 0]])
