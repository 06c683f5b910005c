"""Hours, weekdays, months and periods: factors worked out by hand, and those of a hidden market recovered."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from parallel_agents.market.discovery import Vocabulary
from parallel_agents.market.discovery.click_history import read_history
from parallel_agents.market.discovery.discover import seasonality, shrink
from parallel_agents.market.discovery.export_reader import open_export
from parallel_agents.market.discovery.rivals import cluster_periods
from parallel_agents.market.sample import HiddenMarket, draw_sample


def test_months_equal_the_values_worked_out_by_hand():
    """Every hour has 4 clicks in November, 1 in December and 7 in January: 1, 1/4 and 7/4 of their mean of 4."""
    first, days = np.datetime64("2023-11-01", "D"), 30 + 31 + 31
    per_hour = np.repeat([4] * 30 + [1] * 31 + [7] * 31, 24)
    time = np.repeat(np.arange(days * 24) + 0.5, per_hour)
    hours, weekdays, months = seasonality(SimpleNamespace(first_day=first, days=days, time=time, user=time))
    assert list(months) == ["1", "11", "12"]
    assert [months[m].value for m in ("11", "12", "1")] == pytest.approx([1.0, 0.25, 1.75], rel=1e-4)
    assert [e.value for e in (*hours, *weekdays)] == pytest.approx([1.0] * 31, rel=1e-4)


def test_hours_weekdays_and_months_are_separated():
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


def test_months_of_a_sample_are_recovered():
    """From June on, with 1, 0.4 and 1.6: over their mean the same, whatever hours and weekdays do beside them."""
    month = np.ones(12)
    month[5:8] = 1.0, 0.4, 1.6
    sample = draw_sample(replace(HiddenMarket(), month=month), users=1_500, days=92, first_day="2024-06-01", seed=5)
    found = seasonality(read_history(open_export({"events": sample.events}), Vocabulary()))[2]
    assert list(found) == ["6", "7", "8"]
    assert [found[m].value for m in found] == pytest.approx([1.0, 0.4, 1.6], rel=0.08)
    assert sample.truth()["estimates"]["months/7"] == pytest.approx(0.4)


def test_deviations_of_periods_are_shrunk_and_noise_is_rejected(rng):
    error = np.full(12, 0.2)
    noise = shrink(0.1 * rng.standard_normal(12) * 0, error, "nothing")
    assert noise is None
    effect = np.linspace(-1, 1, 12)
    kept = shrink(effect, error, "something")
    assert kept is not None
    ratio = np.array([e.value for e in kept]) / effect
    assert ((ratio > 0.8) & (ratio < 1.0)).all()


def test_cluster_periods_finds_groups_and_makes_none_where_there_are_none(rng):
    centres = np.repeat(np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 5.0]]), 4, axis=0)
    found = cluster_periods(centres + 0.2 * rng.standard_normal((12, 2)))
    assert [len(set(found[i : i + 4])) for i in (0, 4, 8)] == [1, 1, 1]
    assert len(set(found)) == 3
    assert len(set(cluster_periods(rng.uniform(0, 1, (1, 3))))) == 1
