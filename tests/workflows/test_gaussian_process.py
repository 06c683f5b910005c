from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from parallel_agents.core.errors import NonFiniteError, ShapeError
from parallel_agents.workflows.gaussian_process import (
    Hyperparameters,
    condition,
    fit,
    log_marginal_likelihood,
)
from parallel_agents.workflows.orders import ORDER_FEATURES

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 3))
Y = np.sin(X[:, 0]) * 5 + 40.0
HYPER = Hyperparameters(np.array([0.7, 1.3, 2.0]), signal=1.4, noise=0.3)


def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    apart = (a[:, None] - b[None]) / HYPER.lengths
    return HYPER.signal**2 * np.exp(-0.5 * (apart**2).sum(axis=2))


def test_one_observation_by_hand():
    """k(0, 1) = e^(-1/2) with unit scales; the targets' deviation of a single one is taken as 1."""
    process = condition(np.zeros((1, 1)), np.array([5.0]), Hyperparameters(np.ones(1), signal=1.0, noise=1.0))
    mean, deviation = process.predict(np.array([[0.0], [1.0]]))
    assert mean.tolist() == [5.0, 5.0]  # standardised, the only target is 0
    assert deviation == pytest.approx([np.sqrt(1 - 1 / 2), np.sqrt(1 - np.exp(-1) / 2)])


def test_two_observations_by_hand():
    """Targets ±1, far apart, noise 1: each mean shrinks to half."""
    process = condition(np.array([[0.0], [100.0]]), np.array([-1.0, 1.0]), Hyperparameters(np.ones(1), 1.0, 1.0))
    mean, deviation = process.predict(np.array([[0.0], [100.0], [50.0]]))
    assert mean == pytest.approx([-0.5, 0.5, 0.0])
    assert deviation == pytest.approx([np.sqrt(0.5), np.sqrt(0.5), 1.0])


def test_the_posterior_is_the_closed_form():
    process = condition(X, Y, HYPER)
    at = RNG.normal(size=(7, 3))
    inverse = np.linalg.inv(kernel(X, X) + HYPER.noise**2 * np.eye(12))
    standard = (Y - Y.mean()) / Y.std()
    mean = Y.mean() + Y.std() * kernel(at, X) @ inverse @ standard
    variance = HYPER.signal**2 - np.einsum("ij,jk,ik->i", kernel(at, X), inverse, kernel(at, X))
    found_mean, found_deviation = process.predict(at)
    assert np.allclose(found_mean, mean, atol=1e-6)
    assert np.allclose(found_deviation, Y.std() * np.sqrt(variance), atol=1e-6)


def test_the_marginal_likelihood_is_the_normal_density():
    logs = np.log([*HYPER.lengths, HYPER.signal, HYPER.noise])
    standard = (Y - Y.mean()) / Y.std()
    likelihood = log_marginal_likelihood(torch.as_tensor(X), torch.as_tensor(standard), torch.as_tensor(logs))
    covariance = kernel(X, X) + HYPER.noise**2 * np.eye(12)
    assert float(likelihood) == pytest.approx(multivariate_normal(np.zeros(12), covariance).logpdf(standard), abs=1e-5)


def test_autograd_is_the_gradient():
    x, y = torch.as_tensor(X), torch.as_tensor((Y - Y.mean()) / Y.std())
    logs = torch.tensor(np.log([*HYPER.lengths, HYPER.signal, HYPER.noise]), requires_grad=True)
    assert torch.autograd.gradcheck(lambda p: log_marginal_likelihood(x, y, p), logs)


def test_fitting_finds_which_features_matter_and_how_noisy_targets_are():
    rng = np.random.default_rng(3)
    features = rng.integers(0, 2, (60, 4)).astype(np.float64)
    targets = 10 * features[:, 1] + rng.normal(0.0, 0.5, 60)
    process = fit(features, targets)
    lengths = process.hyperparameters.lengths
    assert lengths[1] < np.delete(lengths, 1).min()
    assert process.hyperparameters.noise * targets.std() == pytest.approx(0.5, rel=0.3)
    mean, _ = process.predict(np.array([[0.0, 0, 0, 0], [1.0, 0, 1, 0], [1.0, 1, 1, 1]]))
    assert mean == pytest.approx([0.0, 0.0, 10.0], abs=0.6)


def test_fitting_never_lowers_the_posterior_of_hyperparameters():
    process, start = fit(X, Y), Hyperparameters(np.full(3, np.exp(0.7)), np.exp(0.3), np.exp(-2.5))

    def likelihood(h: Hyperparameters) -> float:
        logs = torch.as_tensor(np.log([*h.lengths, h.signal, h.noise]))
        return float(log_marginal_likelihood(torch.as_tensor(X), torch.as_tensor((Y - Y.mean()) / Y.std()), logs))

    assert likelihood(process.hyperparameters) > likelihood(start)  # the start is the priors' own maximum


def test_equal_data_give_equal_bytes():
    first, second = fit(X, Y).predict(X), fit(X.copy(), Y.copy()).predict(X)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))


def test_the_order_of_observations_does_not_matter():
    """A historical fault: the process was fitted on the place of an evaluation in the list."""
    turned = np.arange(12)[::-1]
    for a, b in zip(fit(X, Y).predict(X), fit(X[turned], Y[turned]).predict(X), strict=True):
        assert np.allclose(a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("features", "targets"),
    [
        (ORDER_FEATURES[:1], np.array([-40.0])),
        (ORDER_FEATURES[[3, 3, 3]], np.array([-40.0, -41.0, -39.0])),  # one order, three times
        (ORDER_FEATURES[:20], np.full(20, -50.0)),  # a flat landscape
        (ORDER_FEATURES[:4], np.array([1e-9, 2e-9, 3e-9, 1e-9])),
        (ORDER_FEATURES[:4], np.array([1e9, 2e9, 3e9, 1e9])),
    ],
)
def test_awkward_data_give_finite_answers(features, targets):
    mean, deviation = fit(features, targets).predict(ORDER_FEATURES)
    assert np.isfinite(mean).all()
    assert np.isfinite(deviation).all()
    assert (deviation >= 0).all()


def test_bad_input_is_refused():
    with pytest.raises(ShapeError, match=r"features \(12, 3\) and targets \(11,\) do not fit"):
        fit(X, Y[:11])
    with pytest.raises(ShapeError, match="n at least 1"):
        fit(X[:0], Y[:0])
    with pytest.raises(NonFiniteError, match="must be finite: drop failed evaluations"):
        fit(X, np.where(np.arange(12) == 3, np.nan, Y))
