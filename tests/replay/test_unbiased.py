"""The proof: corrected means and gradients have the buffer's expectation, and four ways of getting it wrong do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.func import functional_call, grad, vmap

from parallel_agents.replay import ImportanceSampler

Floats = NDArray[np.float64]
Attach = Callable[..., Any]
Estimator = Callable[[Floats, Floats, float], Floats]

RARE, COMMON, GROUP, DRAWS = 100, 900, 8, 1_000_000


def corrected(values: Floats, weights: Floats, scale: float) -> Floats:
    """Groups (R, GROUP, D) of values and (R, GROUP) of weights -> one estimate (R, D) per group."""
    return (values * weights[..., None]).mean(1) / scale


def uncorrected(values: Floats, weights: Floats, scale: float) -> Floats:
    return values.mean(1)


def twice(values: Floats, weights: Floats, scale: float) -> Floats:
    return (values * weights[..., None] ** 2).mean(1) / scale**2


def over_batch_maximum(values: Floats, weights: Floats, scale: float) -> Floats:
    return corrected(values, weights / weights.max(1, keepdims=True), scale)


def scaled_average(values: Floats, weights: Floats, scale: float) -> Floats:
    return values.mean(1) * weights.mean(1)[:, None] / scale


MUTANTS = [uncorrected, twice, over_batch_maximum, scaled_average]


def z_scores(sampler: ImportanceSampler, values: Floats, estimator: Estimator) -> Floats:
    """z (D,) of the estimates from at least DRAWS draws of rows with values (N, D) against the mean over all rows."""
    total, squares, groups = np.zeros(values.shape[1]), np.zeros(values.shape[1]), 0
    truth = values.mean(0)
    while groups * GROUP < DRAWS:
        batch = sampler.draw(len(values))
        weights = batch.weights.reshape(-1, GROUP)
        found = estimator(values[batch.positions].reshape(-1, GROUP, values.shape[1]), weights, batch.scale)
        total, squares = total + (found - truth).sum(0), squares + ((found - truth) ** 2).sum(0)
        groups += len(found)
    mean = total / groups
    return mean / np.sqrt((squares / groups - mean**2) / groups)


def assert_unbiased(scores: Floats) -> None:
    assert np.abs(scores).max() < 4


@pytest.fixture
def user_values() -> Floats:
    """10 % of users bring half of the value: means 9 and 1."""
    rng = np.random.default_rng(0)
    return np.concatenate([rng.normal(9, 5, RARE), rng.normal(1, 1, COMMON)])[:, None]


@pytest.fixture
def gradients() -> Floats:
    """Per-sample gradients (N, D) of a real network, whose rare rows have other inputs and targets."""
    draws = torch.Generator().manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1)).double()
    parameters = {
        name: 0.5 * torch.randn(p.shape, generator=draws, dtype=p.dtype) for name, p in network.named_parameters()
    }
    rare = torch.arange(RARE + COMMON)[:, None] < RARE
    inputs = torch.randn(RARE + COMMON, 3, generator=draws, dtype=torch.float64) + 0.7 * rare
    targets = inputs.sum(1, keepdim=True) + 4.0 * rare

    def loss(params: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((functional_call(network, params, (x,)) - y) ** 2).sum()

    found = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, inputs, targets)
    return torch.cat([g.reshape(len(inputs), -1) for g in found.values()], 1).numpy()


OPTIONS: list[dict[str, Any]] = [
    {"crisis_parent_weight": 5.0, "alpha": 0.6},
    {"crisis_parent_weight": 5.0, "alpha": 1.0},
    {"focus_rare_events": True},
    {"min_crisis_parent_ratio": 0.4},
    {"normalise": False, "focus_rare_events": True},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_corrected_means_are_those_of_the_buffer(attach: Attach, user_values: Floats, options: dict[str, Any]) -> None:
    sampler = ImportanceSampler(beta=1.0, seed=1, **options)
    attach(sampler, [RARE, COMMON])
    assert_unbiased(z_scores(sampler, user_values, corrected))


def test_corrected_means_are_those_of_the_buffer_with_priorities(attach: Attach, user_values: Floats) -> None:
    sampler = ImportanceSampler(beta=1.0, priorities=True, seed=2)
    attach(sampler, [RARE, COMMON])
    sampler.update_priorities(np.arange(RARE + COMMON), np.abs(user_values[:, 0]) + 0.1)
    assert_unbiased(z_scores(sampler, user_values, corrected))


def test_corrected_gradients_are_those_of_the_buffer(attach: Attach, gradients: Floats) -> None:
    sampler = ImportanceSampler(beta=1.0, focus_rare_events=True, seed=3)
    attach(sampler, [RARE, COMMON])
    assert_unbiased(z_scores(sampler, gradients, corrected))


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_test_of_means_rejects_wrong_ones(attach: Attach, user_values: Floats, mutant: Estimator) -> None:
    sampler = ImportanceSampler(beta=1.0, focus_rare_events=True, seed=1)
    attach(sampler, [RARE, COMMON])
    with pytest.raises(AssertionError):
        assert_unbiased(z_scores(sampler, user_values, mutant))


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_test_of_gradients_rejects_wrong_ones(attach: Attach, gradients: Floats, mutant: Estimator) -> None:
    sampler = ImportanceSampler(beta=1.0, focus_rare_events=True, seed=3)
    attach(sampler, [RARE, COMMON])
    with pytest.raises(AssertionError):
        assert_unbiased(z_scores(sampler, gradients, mutant))


@pytest.mark.parametrize("beta", [0.0, 0.4])
def test_a_beta_below_one_is_a_bias_on_purpose(attach: Attach, user_values: Floats, beta: float) -> None:
    sampler = ImportanceSampler(beta=beta, beta_frames=None, focus_rare_events=True, seed=1)
    attach(sampler, [RARE, COMMON])
    assert np.abs(z_scores(sampler, user_values, corrected)).max() > 100


def test_given_population_shares_are_restored_from_a_skewed_buffer(attach: Attach, user_values: Floats) -> None:
    sampler = ImportanceSampler(
        beta=1.0, population_ratios={"crisis_parent": 0.02, "regular_parent": 0.98}, normalise=False, seed=4
    )
    attach(sampler, [RARE, COMMON])
    truth = 0.02 * user_values[:RARE].mean() + 0.98 * user_values[RARE:].mean()
    found = []
    for _ in range(1000):
        batch = sampler.draw(1000)
        found.append((batch.weights * user_values[batch.positions, 0]).mean())
    assert abs(np.mean(found) - truth) < 4 * np.std(found) / np.sqrt(len(found))
    assert abs(np.mean(found) - user_values.mean()) > 4 * np.std(found) / np.sqrt(len(found))


def test_losses_and_per_sample_gradients_correct_to_the_same_gradient(attach: Attach) -> None:
    sampler = ImportanceSampler(beta=1.0, seed=5)
    attach(sampler, [RARE, COMMON])
    batch = sampler.draw(256)
    network = torch.nn.Linear(4, 1).double()
    draws = torch.Generator().manual_seed(1)
    inputs = torch.randn(RARE + COMMON, 4, generator=draws, dtype=torch.float64)[batch.positions]
    losses = network(inputs).squeeze(1) ** 2
    sampler.bias_correction(losses, batch.weights, 256).backward()
    parameters = {name: p.detach() for name, p in network.named_parameters()}
    each = vmap(grad(lambda p, x: (functional_call(network, p, (x,)) ** 2).sum()), in_dims=(None, 0))(
        parameters, inputs
    )
    for name, expected in sampler.bias_correction(each, batch.weights, 256).items():
        assert torch.allclose(dict(network.named_parameters())[name].grad, expected, rtol=1e-12)  # type: ignore[arg-type]
    assert torch.equal(
        sampler.bias_correction(each["weight"], torch.from_numpy(batch.weights), 256),
        sampler.bias_correction(each["weight"], batch.weights, 256),
    )
    plain = each["weight"].mean(0)
    moved = (sampler.bias_correction(each, batch.weights)["weight"] / batch.scale - plain).norm() / plain.norm()
    assert moved > 0.01  # the original's correction changed nothing: 2e-16
