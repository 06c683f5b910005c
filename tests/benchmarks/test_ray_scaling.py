"""The simulation of many nodes keeps the laws that its model has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.ray_scaling import NODES, Machine, Work, simulate, table

IDEAL = Machine(call=0.0, bandwidth=1e30)
CALM = Work(stretch=0.0, failures=0.0)


def test_without_costs_stragglers_and_failures_the_speed_up_is_ideal() -> None:
    for nodes in (1, 4, 64):
        expected = max(CALM.collect, CALM.learn * CALM.agents / nodes)
        assert simulate(CALM, IDEAL, nodes)["seconds"] == pytest.approx(expected)


def test_stragglers_failures_and_calls_each_cost_time() -> None:
    base = simulate(CALM, IDEAL, 64)["seconds"]
    assert simulate(replace(CALM, stretch=0.3), IDEAL, 64)["seconds"] > 1.2 * base
    failing = simulate(replace(CALM, failures=1.0), IDEAL, 64)
    assert failing["seconds"] > base
    assert 0.0 < failing["lost"] < 0.2
    assert simulate(CALM, replace(IDEAL, call=0.01), 64)["seconds"] == pytest.approx(base + 0.64)


def test_more_nodes_than_agents_gain_nothing_and_the_table_has_a_line_for_each() -> None:
    few = replace(CALM, agents=8)
    assert simulate(few, IDEAL, 1000)["seconds"] == simulate(few, IDEAL, 8)["seconds"]
    assert len(table(Work(), Machine())) == 2 + len(NODES)
