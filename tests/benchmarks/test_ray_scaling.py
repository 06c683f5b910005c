"""The simulation of many nodes keeps the laws that its model has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.ray_scaling import NODES, Machine, Work, fit, simulate, table

IDEAL = Machine(call=0.0, bandwidth=1e30, start=10.0, stretch=0.0)
CALM = Work(failures=0.0)


def test_without_costs_stragglers_and_failures_the_speed_up_is_ideal() -> None:
    for nodes in (1, 4, 64):
        expected = max(CALM.collect, CALM.learn * CALM.agents / nodes)
        assert simulate(CALM, IDEAL, nodes)["seconds"] == pytest.approx(expected)


def test_stragglers_failures_and_calls_each_cost_time() -> None:
    base = simulate(CALM, IDEAL, 64)["seconds"]
    assert simulate(CALM, replace(IDEAL, stretch=0.3), 64)["seconds"] > 1.2 * base
    failing = simulate(replace(CALM, failures=1.0), IDEAL, 64)
    assert failing["seconds"] > base
    assert 0.0 < failing["lost"] < 0.2
    assert simulate(CALM, replace(IDEAL, call=0.01), 64)["seconds"] == pytest.approx(base + 0.64)


def test_more_nodes_than_agents_gain_nothing_and_the_table_has_a_line_for_each() -> None:
    few = replace(CALM, agents=8)
    assert simulate(few, IDEAL, 1000)["seconds"] == simulate(few, IDEAL, 8)["seconds"]
    assert len(table(Work(), Machine.measured())) == 2 + len(NODES)


def test_the_constants_of_a_hand_over_are_found_from_measured_rounds() -> None:
    rounds = [(2, 1_500_000), (2, 12_000_000), (2, 49_000_000), (1, 500_000), (1, 46_000_000)]
    rows = [{"workers": n, "bytes": size, "ray": 0.002 * n + size / 5e8} for n, size in rounds]
    assert fit(rows) == pytest.approx((0.002, 5e8))
