"""Classes of users and what is measured of them: recovered from known classes, and worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from parallel_agents.market.discovery import discover
from parallel_agents.market.discovery.user_segments import Features, _Parameters, find_classes, interest_lift
from parallel_agents.market.sample import HiddenMarket, draw_sample


def draw_users(rng, share, topics, pages=9):
    k = rng.choice(len(share), 1500, p=share)
    counts = np.array([rng.multinomial(n, topics[c]) for n, c in zip(rng.poisson(pages, 1500) + 3, k, strict=True)])
    return k, Features(counts.astype(float), np.zeros((1500, 3)))


def test_the_number_and_the_shares_of_classes_are_recovered(rng):
    share, topics = [0.15, 0.35, 0.5], np.array([[0.7, 0.1, 0.2], [0.1, 0.7, 0.2], [0.15, 0.15, 0.7]])
    k, x = draw_users(rng, share, topics)
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


def test_users_of_one_class_are_not_split(rng):
    _, x = draw_users(rng, [1.0], np.array([[0.4, 0.3, 0.3]]))
    assert len(find_classes(x, most=6, seed=0).share) == 1


def test_an_empty_class_keeps_the_likelihood_finite(rng):
    _, x = draw_users(rng, [0.3, 0.7], np.array([[0.9, 0.05, 0.05], [0.05, 0.05, 0.9]]))
    chance = np.zeros((1500, 3))
    chance[:, 0], chance[:, 1] = 0.5, 0.5
    fitted = _Parameters.fit(x, chance)
    assert np.isfinite(fitted.log_likelihood(x)).all()


def test_corrected_weights_remove_the_bias_of_misclassification(rng):
    """Classes hard to tell apart: the mean of an outcome by corrected weights is right, by plain chances it is not."""
    k, x = draw_users(rng, [0.3, 0.7], np.array([[0.65, 0.1, 0.25], [0.2, 0.5, 0.3]]), pages=3)
    found = find_classes(x, most=2, seed=0)
    assert len(found.share) == 2
    rare = int(found.topics[:, 0].argmax())
    outcome = np.where(k == 0, 10.0, 0.0)
    weights = found.weights(np.ones(1500))[:, rare]
    plain = found.chance[:, rare]
    assert weights @ outcome / weights.sum() == pytest.approx(10.0, abs=0.6)
    assert plain @ outcome / plain.sum() < 9.3


def one_click_users(**columns: list[float]) -> Any:
    """Return a history of one click per user."""
    own = {name: np.array(values, float) for name, values in columns.items()}
    pages = own.pop("pages")
    return SimpleNamespace(
        **own,
        topic_pages=np.stack([pages / 2, pages / 2], axis=1),
        user=np.arange(len(pages)),
        clicks=np.ones(len(pages)),
        per_user=lambda clicks: clicks,
    )


def segment(interest: float, spread: float) -> Any:
    return SimpleNamespace(interest=SimpleNamespace(value=interest), interest_spread=SimpleNamespace(value=spread))


def test_interest_lift_equals_the_value_worked_out_by_hand():
    """Two classes with mean interest 0.5 and 0.2, spread 0.2 and 0.1; one purchase in two is expected of everybody.

    | user | class | pages | health | bought | beyond 1/2 | interest above the mean | product |
    | 1    | first | 10    | 8      | 1      | 0.5        | 0.3                     | 0.15    |
    | 2    | first | 10    | 4      | 0      | −0.5       | −0.1                    | 0.05    |
    | 3    | second| 20    | 2      | 1      | 0.5        | −0.1                    | −0.05   |
    | 4    | second| 0     | 0      | 1      | it read nothing: left out                       |

    The sum of 0.15 over 0.5 · 0.2² + 0.5 · 0.2² + 0.5 · 0.1² = 0.045 is 10/3.
    """
    history = one_click_users(pages=[10, 10, 20, 0], health_pages=[8, 4, 2, 0], converted=[1, 0, 1, 1])
    weights = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    rates = SimpleNamespace(seen=np.full((4, 2), 0.5))
    found = interest_lift(history, weights, rates, {0: segment(0.5, 0.2), 1: segment(0.2, 0.1)})
    assert found.value == pytest.approx(10 / 3, rel=1e-9)
    assert found.count == 3


def test_interest_lift_is_recovered_from_a_sample():
    """Half as many purchases again, so that few users tell it: a lift of 1.5 is found, and is not taken for 0.6."""
    base = HiddenMarket()
    sample = draw_sample(
        replace(base, interest_lift=1.5, conversion=1.5 * base.conversion), users=3_000, days=42, seed=3
    )
    found = discover({"events": sample.events}).interest_lift
    error = (found.high - found.low) / (2.0 * 1.645)
    assert error < 0.3
    assert abs(found.value - 1.5) < 2.5 * error
    assert found.low > 0.6
