from __future__ import annotations

import numpy as np
import pytest

from parallel_agents.errors import ConfigError, NonFiniteError
from parallel_agents.workflows.landscape import landscape
from parallel_agents.workflows.orders import ORDER_FEATURES, ORDERS, kendall_distance
from parallel_agents.workflows.search import (
    METHODS,
    Evaluation,
    historical_scores,
    next_order,
    posterior,
    recommend,
    search_regrets,
)

# A landscape in which two precedences matter.
VALUES = -100.0 + 40.0 * ORDER_FEATURES[:, 5] + 20.0 * (1 - ORDER_FEATURES[:, 8])


def told(*indices: int, values: np.ndarray = VALUES) -> list[Evaluation]:
    return [Evaluation(ORDERS[i], float(values[i])) for i in indices]


@pytest.mark.parametrize("method", METHODS)
def test_a_search_is_a_function_of_its_history(method):
    history = told(3, 50, 99, 7)
    assert next_order(history, method, seed=5) == next_order(list(history), method, seed=5)
    assert next_order([], method, seed=5) == next_order([], "random", seed=5)  # all begin alike
    starts = {next_order([], method, seed=seed) for seed in range(30)}
    assert len(starts) > 10


def test_random_search_tries_every_order_once_before_any_again():
    history: list[Evaluation] = []
    for _ in range(120):
        history.append(Evaluation(next_order(history, "random", seed=1), 0.0))
    assert {evaluation.order for evaluation in history} == set(ORDERS)
    assert next_order(history, "random", seed=1) in ORDERS


def test_gp_ucb_takes_the_highest_upper_bound_of_all_orders():
    history = told(3, 50, 99, 7, 110)
    mean, deviation = posterior(history)
    assert next_order(history) == ORDERS[int((mean + 3.0 * deviation).argmax())]
    assert next_order(history, coefficient=0.0) == ORDERS[int(mean.argmax())]
    far = ORDERS[int(deviation.argmax())]
    assert next_order(history, coefficient=1e6) == far


def test_the_process_is_consulted():
    """A historical fault: a process was fitted, and no choice ever depended on it."""
    ups, downs = told(3, 50, 99, 7, 110), told(3, 50, 99, 7, 110, values=-VALUES)
    assert next_order(ups, coefficient=0.1) != next_order(downs, coefficient=0.1)
    mean, deviation = posterior(ups)
    held_out = np.setdiff1d(np.arange(120), [3, 50, 99, 7, 110])
    assert np.corrcoef(mean[held_out], VALUES[held_out])[0, 1] > 0.5
    assert deviation[[3, 50, 99, 7, 110]].max() < deviation[held_out].mean()


def test_the_recommendation_weighs_neighbours_against_noise():
    assert recommend(told(3, 50, 99)) == ORDERS[[3, 50, 99][int(VALUES[[3, 50, 99]].argmax())]]
    best = int(VALUES.argmax())
    steady = [Evaluation(ORDERS[best], v) for v in (-40.0, -41.0, -39.0, -40.0)]
    lucky = [Evaluation(ORDERS[int(VALUES.argmin())], v) for v in (-38.0, -100.0, -101.0, -99.0)]
    assert recommend(steady + lucky) == ORDERS[best]


def test_the_historical_rule_by_hand():
    history = [Evaluation(ORDERS[0], -10.0), Evaluation(ORDERS[0], -20.0), Evaluation(ORDERS[119], -40.0)]
    scores = historical_scores(history, 2.0)
    assert scores[0] == -15.0 + 2.0 / 3.0  # tried twice
    assert scores[119] == -40.0 + 2.0 / 2.0
    assert kendall_distance(ORDERS[0], ORDERS[1]) == 1
    near, far = 1 / (1 + 1), 1 / (1 + 9)
    mean = (2 * near * -15.0 + far * -40.0) / (2 * near + far)
    assert scores[1] == pytest.approx(mean + 2.0 * (1 + 1))


def test_regrets_fall_and_are_those_of_the_best_order_tried():
    regrets = search_regrets(VALUES, noise=1.0, evaluations=12, seed=2)
    assert regrets.shape == (12,)
    assert (np.diff(regrets) <= 0).all()
    assert regrets[-1] == 0.0
    assert (search_regrets(VALUES, 1.0, 12, "random", seed=2)[:3] == regrets[:3]).all()


def test_bad_input_is_refused():
    with pytest.raises(ConfigError, match="search method 'grid' is unknown: choose one of gp_ucb, random, historical"):
        next_order([], "grid")
    with pytest.raises(ConfigError, match="starts is 0"):
        next_order([], starts=0)
    with pytest.raises(ConfigError, match="the history is empty: evaluate at least one order first"):
        recommend([])
    with pytest.raises(ConfigError, match="missing: user"):
        Evaluation(ORDERS[0][:4], 1.0)
    with pytest.raises(NonFiniteError, match="returned nan: leave failed evaluations out"):
        Evaluation(ORDERS[0], float("nan"))


@pytest.mark.slow
def test_gp_ucb_finds_the_best_order_within_ten_evaluations():
    values = landscape(episodes=200).means
    found = {
        method: np.mean([search_regrets(values, 3.3, 10, method, seed)[-1] < 1.0 for seed in range(100)])
        for method in METHODS
    }
    assert found["gp_ucb"] >= 0.95, found
    assert found["random"] < 0.8, found
    assert found["historical"] < 0.8, found
