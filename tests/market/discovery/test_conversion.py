"""Purchases that are not yet seen: worked out by hand, and how uncertain they are by numerical derivatives."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from parallel_agents.market.discovery import Vocabulary
from parallel_agents.market.discovery.click_history import read_history
from parallel_agents.market.discovery.conversion import Conversion, fit_conversion
from parallel_agents.market.discovery.estimation import Fit
from parallel_agents.market.discovery.export_reader import open_export
from parallel_agents.market.discovery.user_segments import classify_users


class CertainDelays:
    """Delays that are known exactly."""

    def error_of_seen(self, history: Any, groups: list[Any]) -> Any:
        return np.zeros((len(groups), len(groups)))


def test_late_clicks_count_as_often_as_others_although_fewer_of_their_purchases_are_seen():
    """One class; the last two clicks convert three times as often, and half of their purchases are not seen.

    | click | purchases made | of them seen | amount seen |
    | 1, 2  | 0.2 each       | 0.2          | 2           |
    | 3, 4  | 0.6 each       | 0.3          | 3           |

    Seen: 10, for 1.0 purchases; 1.6 are made, so 16 for 4 clicks. By clicks that could be observed, 10 / 3, it would
    be 3.33.
    """
    made, seen = np.array([[0.2], [0.2], [0.6], [0.6]]), np.array([[0.2], [0.2], [0.3], [0.3]])
    rates: Any = SimpleNamespace(made=made, seen=seen)
    fitted = Conversion(CertainDelays(), rates, None, np.ones((4, 1)))  # type: ignore[arg-type]
    history: Any = SimpleNamespace(per_user=lambda clicks: clicks)
    found = fitted.per_click(history, np.array([2.0, 2.0, 3.0, 3.0]), np.ones((4, 1)), count=4, source="by hand")
    assert found.value == pytest.approx(4.0)
    assert [part.tolist() for part in fitted.expected] == [seen[:, 0].tolist(), made[:, 0].tolist()]


@pytest.fixture(scope="module")
def fitted(small_sample):
    history = read_history(open_export({"events": small_sample.events}), Vocabulary(), utc_offset_hours=0.0)
    classes = classify_users(history, seed=0)
    return history, fit_conversion(history, classes.chance, classes.weights(history.clicks))


def seen(history, delays, made):
    """Return the purchases that are expected to be seen, computed anew from the parameters of the delays."""
    log_scale = delays.scale.values + delays.period.values[history.period][:, None]
    chance = -np.expm1(-((history.monitored[:, None] / np.exp(log_scale)) ** np.exp(delays.shape.values)))
    return (made * chance).sum()


@pytest.mark.parametrize("part", ["scale", "period", "shape"])
def test_how_uncertain_purchases_not_seen_are_follows_from_each_parameter_of_the_delays(fitted, part):
    history, conversion = fitted
    delays, made = conversion.delays, conversion.weights * conversion.rates.made
    own = getattr(delays, part)
    n = int(delays.column.max()) + 1
    start = {"scale": 0, "period": n, "shape": n + history.periods}[part]
    at = 1  # the second class or period
    place = start + (at if part == "period" else int(delays.column[at]))
    only = np.zeros_like(delays.fit.covariance)
    only[place, place] = 1.0
    error = replace(delays, fit=Fit(delays.fit.values, only)).error_of_seen(history, [made])[0, 0] ** 0.5
    moved = np.arange(len(own.values)) == at
    if part != "period":
        moved = delays.column == delays.column[at]
    up, down = (
        seen(history, replace(delays, **{part: Fit(own.values + step * moved, own.covariance)}), made)
        for step in (1e-4, -1e-4)
    )
    assert error == pytest.approx(abs(np.log(up / down) / 2e-4), rel=1e-3)
    assert error > 1e-4


def test_the_interval_of_conversion_knows_that_delays_are_uncertain(fitted):
    history, conversion = fitted
    clicks = conversion.weights * np.eye(conversion.weights.shape[1])[0]
    fit = conversion.delays.fit
    exact = replace(conversion, delays=replace(conversion.delays, fit=Fit(fit.values, np.zeros_like(fit.covariance))))
    uncertain, certain = (
        own.per_click(history, history.converted, clicks, count=1, source="a class") for own in (conversion, exact)
    )
    assert uncertain.value == certain.value
    assert uncertain.low < certain.low < certain.high < uncertain.high
