"""The example: corrected sampling beats uniform sampling on rare users, naive oversampling is biased."""

from __future__ import annotations

import numpy as np
import pytest

from examples import rare_events


@pytest.fixture(scope="module")
def results():
    return rare_events.study(seeds=20, updates=300)


def test_corrected_beats_uniform_on_value_from_rare_users_at_equal_updates(results):
    assert rare_events.leads(results, "value from rare users")["uniform"].low > 0


def test_corrected_beats_both_on_value_from_all_users(results):
    leads = rare_events.leads(results, "value from all users")
    assert leads["uniform"].low > 0
    assert leads["naive"].low > 0


def test_naive_oversampling_is_biased_and_the_others_are_not(results):
    bias = {sampling: rare_events.mean_interval(figures["bias"]) for sampling, figures in results.items()}
    assert bias["naive"].low > 0
    assert bias["naive"].low > bias["corrected"].high
    for sampling in ("uniform", "corrected"):
        assert abs(bias[sampling].estimate) < 0.1
    assert results["naive"]["users given help"].mean() > results["corrected"]["users given help"].mean() + 0.1


def test_correction_lowers_the_variance_of_uniform_sampling(results):
    assert results["corrected"]["variance"].mean() < 0.85 * results["uniform"]["variance"].mean()


def test_one_user_in_ten_brings_half_of_the_value():
    users = rare_events.Users.draw(200_000, 1, rare_events.Purpose.WORLD)
    best = users.worth().max(1)
    assert users.rare.mean() == pytest.approx(0.1, abs=0.003)
    assert best[users.rare].sum() / best.sum() == pytest.approx(0.5, abs=0.01)


def test_the_estimate_of_a_perfect_learner_is_right_on_average():
    users = rare_events.Users.draw(400_000, 2, rare_events.Purpose.WORLD)
    slices = np.digitize(users.features[:, 0], [0.0, 1.0, 2.0, 3.0])
    for part in range(5):
        mask = slices == part
        np.testing.assert_allclose(users.worth()[mask].mean(0), users.expected()[mask].mean(0), atol=0.06)


def test_shares_in_batches_are_the_predicted_ones():
    for sampling, (natural, predicted, measured) in rare_events.shares().items():
        assert natural == pytest.approx(0.1, abs=0.01)
        assert predicted == pytest.approx(natural if sampling == "uniform" else 0.357, abs=0.01)
        assert measured == pytest.approx(predicted, abs=0.05)


def test_the_study_is_plotted_and_reported(results, tmp_path):
    rare_events.plot(results, tmp_path / "out.png")
    assert (tmp_path / "out.png").stat().st_size > 10_000
    text = rare_events.report(results)
    assert "corrected over uniform, value from rare users: +" in text
    assert "over 20 seeds" in text
