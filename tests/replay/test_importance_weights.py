"""The mathematics of shares and corrections, and weighted estimates with their errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_agents.core.errors import ConfigError, ContractError, NonFiniteError, ShapeError
from parallel_agents.replay import importance_weights as w

NATURAL = [0.1, 0.9]


@pytest.mark.parametrize(
    ("multipliers", "alpha", "temperature", "expected"),
    [
        ([5, 1], 1.0, 1.0, 5 / 14),
        ([5, 1], 0.6, 1.0, 0.2259),
        ([5, 1], 1.0, 1 / 0.6, 0.2259),
        ([9, 1], 1.0, 1.0, 0.5),
        ([9, 1], 1.0, 2.0, 0.25),
        ([9, 1], 0.6, 1.0, 0.2934),
        ([50, 1], 1.0, 1.0, 0.8475),
        ([5, 1], 0.0, 1.0, 0.1),
    ],
)
def test_shares_worked_by_hand(multipliers: list[float], alpha: float, temperature: float, expected: float) -> None:
    shares = w.batch_shares(NATURAL, multipliers, alpha=alpha, temperature=temperature)
    assert shares[0] == pytest.approx(expected, abs=5e-5)
    assert shares.sum() == pytest.approx(1.0)


def test_minimum_binds_only_from_below_and_the_rest_keeps_its_proportions() -> None:
    free = w.batch_shares([1, 59, 40], [5, 1, 1])
    assert w.batch_shares([1, 59, 40], [5, 1, 1], minimum=0.04).tolist() == free.tolist()
    bound = w.batch_shares([1, 59, 40], [5, 1, 1], minimum=0.2)
    assert bound[0] == 0.2
    assert bound[1] / bound[2] == pytest.approx(59 / 40)
    assert bound.sum() == pytest.approx(1.0)


def test_target_fixes_the_share_from_either_side() -> None:
    assert w.batch_shares(NATURAL, [5, 1], target=0.5) == pytest.approx([0.5, 0.5])
    assert w.batch_shares([9, 1], [5, 1], target=0.5) == pytest.approx([0.5, 0.5])


def test_an_empty_class_gets_nothing_and_a_class_alone_everything() -> None:
    assert w.batch_shares([0, 7], [5, 1], minimum=0.3).tolist() == [0.0, 1.0]
    assert w.batch_shares([0, 7], [5, 1], target=0.3).tolist() == [0.0, 1.0]
    assert w.batch_shares([7, 0], [5, 1], target=0.3).tolist() == [1.0, 0.0]


@given(
    counts=st.lists(st.integers(1, 10**6), min_size=1, max_size=6),
    multiplier=st.floats(1e-3, 1e3),
    beta=st.floats(0, 1),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_equal_multipliers_give_natural_shares_and_corrections_of_exactly_one(
    counts: list[int], multiplier: float, beta: float
) -> None:
    shares = w.batch_shares(counts, [multiplier] * len(counts), alpha=0.6)
    assert shares.tolist() == (np.array(counts) / sum(counts)).tolist()
    assert w.corrections(w.class_ratios(counts, shares), beta).tolist() == [1.0] * len(counts)


@given(
    counts=st.lists(st.integers(1, 10**6), min_size=2, max_size=6),
    data=st.data(),
    minimum=st.floats(0, 0.9),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_corrections_restore_any_class_means_exactly(counts: list[int], data: st.DataObject, minimum: float) -> None:
    size = len(counts)
    multipliers = data.draw(st.lists(st.floats(0.01, 100), min_size=size, max_size=size))
    means = np.array(data.draw(st.lists(st.floats(-100, 100), min_size=size, max_size=size)))
    shares = w.batch_shares(counts, multipliers, minimum=minimum)
    weights = w.corrections(w.class_ratios(counts, shares), beta=1.0)
    assert shares @ (weights * means) == pytest.approx(np.average(means, weights=counts), abs=1e-9)


def test_labels_may_be_permuted() -> None:
    order = [2, 0, 1]
    counts, multipliers = np.array([10, 300, 70]), np.array([5.0, 1.0, 2.0])
    shares = w.batch_shares(counts, multipliers, alpha=0.6, rare=0, minimum=0.2)
    permuted = w.batch_shares(counts[order], multipliers[order], alpha=0.6, rare=order.index(0), minimum=0.2)
    assert permuted == pytest.approx(shares[order], rel=1e-12)


@pytest.mark.parametrize(
    ("share", "beta", "limit_of_mean", "ess"),
    [
        (0.357142857, 0.0, 3.857, 1.0),
        (0.357142857, 0.4, 2.807, 0.930),
        (0.357142857, 1.0, 1.8, 0.777),
        (0.226, 1.0, 1.8, 0.917),
        (0.5, 0.4, 3.347, None),
        (0.5, 1.0, 1.8, 0.610),
    ],
)
def test_self_normalised_limits_and_effective_size_of_the_ten_percent_that_bring_half(
    share: float, beta: float, limit_of_mean: float, ess: float | None
) -> None:
    shares = np.array([share, 1 - share])
    weights = w.corrections(w.class_ratios(NATURAL, shares), beta)
    assert shares @ (weights * [9, 1]) / (shares @ weights) == pytest.approx(limit_of_mean, abs=1.5e-3)
    if ess is not None:
        assert w.expected_ess_share(shares, weights) == pytest.approx(ess, abs=1e-3)


def test_the_variance_of_the_corrected_mean_is_least_near_neyman_shares() -> None:
    assert w.batch_shares(NATURAL, [5, 1])[0] == pytest.approx(5 / 14)
    rng = np.random.default_rng(0)
    noise = []
    for share in (0.1, 5 / 14, 0.8):
        rare = rng.random((4000, 50)) < share
        values = np.where(rare, rng.normal(0, 5, rare.shape), rng.normal(0, 1, rare.shape))
        ratios = w.class_ratios(NATURAL, np.array([share, 1 - share]))
        noise.append((values * w.corrections(ratios, 1.0)[np.where(rare, 0, 1)]).mean(1).var())
    assert noise[1] < 0.8 * noise[0]
    assert noise[1] < 0.8 * noise[2]


def test_lifts_sample_by_value_share() -> None:
    assert w.lifts([0.5, 0.5], NATURAL) == pytest.approx([5.0, 0.5556], abs=1e-4)
    assert w.batch_shares(NATURAL, w.lifts([0.5, 0.5], NATURAL))[0] == pytest.approx(0.5)


def test_measured_effective_size_meets_its_closed_form() -> None:
    assert w.effective_sample_size([1.0] * 8) == 8.0
    assert w.effective_sample_size([1.0, 0.0, 0.0]) == 1.0
    shares = np.array([0.5, 0.5])
    weights = w.corrections(w.class_ratios(NATURAL, shares), 1.0)
    batch = np.repeat(weights, 5000)
    assert w.effective_sample_size(batch) / batch.size == pytest.approx(w.expected_ess_share(shares, weights))


def test_clipping_returns_its_bias() -> None:
    shares, means = np.array([0.5, 0.5]), np.array([9.0, 1.0])
    weights = w.corrections(w.class_ratios(NATURAL, shares), 1.0)
    clipped = w.clip_weights(weights, 1.2, shares=shares)
    assert clipped.weights.tolist() == pytest.approx([0.2, 1.2])
    assert clipped.missing == pytest.approx(0.3)  # 0.5 * (1.8 - 1.2)
    bias = 1.8 - shares @ (clipped.weights * means)
    assert 0 < bias <= clipped.missing * 9.0
    assert w.clip_weights(weights, 5.0, shares=shares).missing == 0.0
    assert w.clip_weights([0.5, 2.5], 2.0).missing == pytest.approx(0.25)


def test_beta_is_a_function_of_the_update_and_reaches_one() -> None:
    assert [w.annealed_beta(u, 0.4, 100) for u in (0, 50, 100, 1000)] == pytest.approx([0.4, 0.7, 1.0, 1.0])
    assert w.annealed_beta(10**9, 0.4, None) == 0.4


def test_corrected_mean_weights_each_sample_once_in_numpy_and_torch() -> None:
    gradients, weights = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, 0.5])
    assert w.corrected_mean(gradients, weights).tolist() == [1.25, 2.0]
    losses = torch.tensor([1.0, 3.0], requires_grad=True)
    mean = w.corrected_mean(losses, weights)
    mean.backward()
    assert mean.item() == 1.25
    assert losses.grad is not None
    assert losses.grad.tolist() == [0.5, 0.25]
    assert w.corrected_mean(losses, torch.tensor([1.0, 0.5])).item() == 1.25


def test_correction_effect_is_zero_only_without_correction() -> None:
    values = np.array([9.0, 1.0, 1.0, 9.0])
    assert w.correction_effect(values, np.ones(4)) == 0.0
    assert w.correction_effect(values, [0.2, 1.8, 1.8, 0.2]) == pytest.approx(3.2 / 5)


def test_self_normalised_weights_have_mean_one() -> None:
    assert w.self_normalised([1.0, 3.0]).tolist() == [0.5, 1.5]


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_multipliers_must_be_positive(bad: float) -> None:
    with pytest.raises(ConfigError, match="not positive and finite"):
        w.batch_shares(NATURAL, [bad, 1.0])


def test_bad_input_is_named() -> None:
    with pytest.raises(ConfigError, match=r"shares \[0.0, 0.0\] must be finite"):
        w.batch_shares([0, 0], [1, 1])
    with pytest.raises(ShapeError, match="natural has 2 entries and multipliers has 3"):
        w.batch_shares(NATURAL, [1, 1, 1])
    with pytest.raises(ContractError, match=r"classes \[0\] hold rows but are never drawn"):
        w.class_ratios(NATURAL, np.array([0.0, 1.0]))
    with pytest.raises(ConfigError, match="must all be above 0"):
        w.lifts([0.0, 1.0], NATURAL)
    with pytest.raises(ConfigError, match="a weight limit of 0"):
        w.clip_weights([1.0], 0.0)
    with pytest.raises(NonFiniteError, match="weights must be finite"):
        w.effective_sample_size([1.0, np.nan])
    with pytest.raises(ShapeError, match="weights has shape"):
        w.effective_sample_size(np.ones((2, 2)))
    with pytest.raises(ShapeError, match="already averaged cannot be corrected"):
        w.corrected_mean(np.ones(7), np.ones(3))
    with pytest.raises(ShapeError, match=r"weights of shape \(3, 1\)"):
        w.corrected_mean(torch.ones(3), torch.ones(3, 1))
    with pytest.raises(ShapeError, match=r"values of shape \(\)"):
        w.corrected_mean(torch.tensor(1.0), torch.ones(1))


# -- estimates --------------------------------------------------------------------------------------------------


def test_estimates_worked_by_hand() -> None:
    estimate = w.weighted_estimate([0.0, 1.0, 1.0, 0.0], [0.5, 1.5, 1.5, 0.5])
    assert estimate.mean == 0.75
    assert estimate.error == pytest.approx(np.std([0, 1.5, 1.5, 0], ddof=1) / 2)
    assert estimate.effective_share == pytest.approx(16 / 5 / 4)
    assert (estimate.largest_weight, estimate.missing) == (1.5, 0.0)
    assert estimate.interval(2.0) == pytest.approx((0.75 - 2 * estimate.error, 0.75 + 2 * estimate.error))
    same = w.weighted_estimate([0.0, 1.0, 1.0, 0.0], [1.0, 3.0, 3.0, 1.0], self_normalised=True)
    assert same.mean == 0.75  # the scale of the weights does not matter
    assert same.error == pytest.approx(np.sqrt(2 * 0.75**2 + 18 * 0.25**2) / 8)
    clipped = w.weighted_estimate([0.0, 1.0, 1.0, 0.0], [0.5, 1.5, 1.5, 0.5], limit=1.0)
    assert (clipped.mean, clipped.missing) == (0.5, 0.25)


@pytest.mark.parametrize("self_normalised", [False, True])
def test_intervals_contain_the_truth_as_often_as_promised(self_normalised: bool) -> None:
    rng = np.random.default_rng(0)
    logging, target = np.array([0.7, 0.3]), np.array([0.2, 0.8])
    hits = 0
    for _ in range(600):
        action = (rng.random(400) >= logging[0]).astype(int)
        reward = rng.random(400) < np.array([0.1, 0.5])[action]
        low, high = w.weighted_estimate(reward, (target / logging)[action], self_normalised=self_normalised).interval()
        hits += low <= target @ [0.1, 0.5] <= high
    assert 0.92 <= hits / 600 <= 0.98


def test_a_collapse_of_the_effective_size_gives_a_warning() -> None:
    with pytest.warns(
        w.EffectiveSampleSizeWarning, match=r"100 samples are worth 1\.\d, a few weights carry them: clip"
    ):
        w.weighted_estimate(np.ones(100), [1000.0] + [0.1] * 99)


def test_errors_name_bad_values_of_an_estimate() -> None:
    with pytest.raises(ShapeError, match=r"values of shape \(3,\) and weights of shape \(2,\)"):
        w.weighted_estimate(np.ones(3), np.ones(2))
    with pytest.raises(NonFiniteError, match="values hold NaN"):
        w.weighted_estimate([np.nan, 1.0], np.ones(2))
    with pytest.raises(NonFiniteError, match="weights must be finite"):
        w.weighted_estimate(np.ones(2), [np.inf, 1.0])
    with pytest.raises(ConfigError, match="a weight limit of -1"):
        w.weighted_estimate(np.ones(2), np.ones(2), limit=-1.0)
