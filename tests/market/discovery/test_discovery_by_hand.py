"""Months and the lift of interest: numbers worked out by hand, and the hidden truth of samples."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from parallel_agents.market.discovery import Vocabulary, discover
from parallel_agents.market.discovery.history import read_history
from parallel_agents.market.discovery.reader import open_export
from parallel_agents.market.discovery.seasonality import seasonality
from parallel_agents.market.discovery.segments import interest_lift
from parallel_agents.market.sample import HiddenMarket, draw_sample


def test_months_by_hand():
    """Every hour has 4 clicks in November, 1 in December and 7 in January: 1, 1/4 and 7/4 of their mean of 4."""
    first, days = np.datetime64("2023-11-01", "D"), 30 + 31 + 31
    per_hour = np.repeat([4] * 30 + [1] * 31 + [7] * 31, 24)
    time = np.repeat(np.arange(days * 24) + 0.5, per_hour)
    hours, weekdays, months = seasonality(SimpleNamespace(first_day=first, days=days, time=time, user=time))
    assert list(months) == ["1", "11", "12"]
    assert [months[m].value for m in ("11", "12", "1")] == pytest.approx([1.0, 0.25, 1.75], rel=1e-4)
    assert [e.value for e in (*hours, *weekdays)] == pytest.approx([1.0] * 31, rel=1e-4)


def test_hours_weekdays_and_months_are_told_apart_by_hand():
    """Twice as many at noon, three times on Sundays, half in February: factors 48/25, 21/9 and 2/3 of their means."""
    first, days = np.datetime64("2024-01-01", "D"), 31 + 29  # a Monday
    dates = first + np.arange(days)
    sunday = (dates.astype(np.int64) + 3) % 7 == 6
    february = dates >= np.datetime64("2024-02-01")
    daily = 2 * np.where(sunday, 3, 1) * np.where(february, 1, 2)
    per_hour = np.outer(daily, np.where(np.arange(24) == 12, 2, 1)).ravel()
    time = np.repeat(np.arange(days * 24) + 0.5, per_hour)
    hours, weekdays, months = seasonality(SimpleNamespace(first_day=first, days=days, time=time, user=time))
    assert hours[12].value == pytest.approx(48 / 25, rel=1e-4)
    assert hours[11].value == pytest.approx(24 / 25, rel=1e-4)
    assert weekdays[6].value == pytest.approx(21 / 9, rel=1e-4)
    assert weekdays[0].value == pytest.approx(7 / 9, rel=1e-4)
    assert (months["1"].value, months["2"].value) == pytest.approx((4 / 3, 2 / 3), rel=1e-4)


def test_months_are_those_of_the_hidden_market():
    """From June on, with 1, 0.4 and 1.6: over their mean the same, whatever hours and weekdays do beside them."""
    month = np.ones(12)
    month[5:8] = 1.0, 0.4, 1.6
    sample = draw_sample(replace(HiddenMarket(), month=month), users=1_500, days=92, first_day="2024-06-01", seed=5)
    found = seasonality(read_history(open_export({"events": sample.events}), Vocabulary()))[2]
    assert list(found) == ["6", "7", "8"]
    assert [found[m].value for m in found] == pytest.approx([1.0, 0.4, 1.6], rel=0.08)
    assert sample.truth()["estimates"]["months/7"] == pytest.approx(0.4)


def users(**columns: list[float]) -> Any:
    """A history of one click per user."""
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


def test_the_lift_of_interest_by_hand():
    """Two classes with mean interest 0.5 and 0.2, spread 0.2 and 0.1; one purchase in two is expected of everybody.

    | user | class | pages | health | bought | beyond 1/2 | interest above the mean | product |
    | 1    | first | 10    | 8      | 1      | 0.5        | 0.3                     | 0.15    |
    | 2    | first | 10    | 4      | 0      | −0.5       | −0.1                    | 0.05    |
    | 3    | second| 20    | 2      | 1      | 0.5        | −0.1                    | −0.05   |
    | 4    | second| 0     | 0      | 1      | it read nothing: left out                       |

    The sum of 0.15 over 0.5 · 0.2² + 0.5 · 0.2² + 0.5 · 0.1² = 0.045 is 10/3.
    """
    h = users(pages=[10, 10, 20, 0], health_pages=[8, 4, 2, 0], converted=[1, 0, 1, 1])
    weights = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    rates = SimpleNamespace(expected=np.full((4, 2), 0.5))
    found = interest_lift(h, weights, rates, {0: segment(0.5, 0.2), 1: segment(0.2, 0.1)})
    assert found.value == pytest.approx(10 / 3, rel=1e-9)
    assert found.count == 3


def test_the_lift_of_interest_is_that_of_the_hidden_market():
    """Three times the usual purchases, so that few users tell it: a lift of 1.5 is found, and is not taken for 0.6."""
    base = HiddenMarket()
    sample = draw_sample(
        replace(base, interest_lift=1.5, conversion=3.0 * base.conversion), users=3_000, days=56, seed=3
    )
    found = discover({"events": sample.events}).interest_lift
    error = (found.high - found.low) / (2.0 * 1.645)
    assert error < 0.3
    assert abs(found.value - 1.5) < 2.5 * error
    assert found.low > 0.6
