"""What works across worlds is found, what was lucky is not."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from parallel_agents.errors import ConfigError, NonFiniteError, ShapeError
from parallel_agents.market.montecarlo import (
    EpisodeSetting,
    Focus,
    MonteCarloSimulator,
    Strategy,
    constant_strategies,
    detect_convergence_patterns,
    play_strategies,
)
from parallel_agents.market.montecarlo.actors import actor_of
from parallel_agents.market.montecarlo.robust import conditional_value_at_risk, holm
from parallel_agents.market.worlds import WorldType
from parallel_agents.seeding import Purpose, generator

KINDS = tuple(tuple(WorldType)[i % 5] for i in range(100))


def planted(seed: int = 0) -> dict[str, np.ndarray]:
    """100 worlds of very different difficulty; ten strategies without merit, a robust one, and three lucky ones."""
    draws = generator(seed, Purpose.WORLD)
    world = draws.normal(0.0, 3.0, 100)
    found = {f"plain {i}": world + draws.normal(0.0, 1.0, 100) for i in range(10)}
    found["robust"] = world + 0.8 + draws.normal(0.0, 1.0, 100)
    jackpot = np.where(draws.random(100) < 0.05, 60.0, -0.5)
    found["jackpot"] = world + jackpot + draws.normal(0.0, 1.0, 100)
    one_type = np.array([8.0 if kind is KINDS[0] else -0.4 for kind in KINDS])
    found["one type"] = world + one_type + draws.normal(0.0, 1.0, 100)
    harms = np.array([-3.0 if kind is KINDS[1] else 1.5 for kind in KINDS])
    found["harms one type"] = world + harms + draws.normal(0.0, 1.0, 100)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_the_planted_robust_strategy_is_found_and_the_lucky_ones_are_not(seed):
    results = planted(seed)
    found = detect_convergence_patterns(results, KINDS)
    assert found.robust == ("robust",)
    reports = {r.name: r for r in found.strategies}
    assert max(results, key=lambda n: results[n].mean()) != "robust"  # the mean alone would have chosen another
    assert reports["robust"].p_value < 0.05
    assert "worse in" in reports["harms one type"].because
    assert reports["harms one type"].worst_type == KINDS[1].value
    assert reports["jackpot"].success_share < found.robustness_threshold < reports["robust"].success_share


def test_nothing_is_robust_where_nothing_has_merit():
    """Over 60 comparisons of ten strategies without merit, hardly ever is one called robust."""
    alarms = 0
    for seed in range(60):
        draws = generator(seed, Purpose.NOISE)
        results = {str(i): draws.normal(0.0, 1.0, 60) for i in range(10)}
        alarms += bool(detect_convergence_patterns(results, KINDS[:60]).robust)
    assert alarms <= 6


def test_the_threshold_comes_from_the_data():
    draws = generator(0, Purpose.NOISE)
    few, many = ({str(i): draws.normal(0.0, 1.0, n) for i in range(6)} for n in (20, 100))
    small = detect_convergence_patterns(few, KINDS[:20]).robustness_threshold
    large = detect_convergence_patterns(many, KINDS).robustness_threshold
    assert 0.5 < large < small < 0.95  # more worlds, less room for luck


def test_common_draws_make_small_differences_visible():
    """Unpaired, the difference between worlds would hide what pairing shows."""
    results = planted(1)
    paired = detect_convergence_patterns(results, KINDS)
    order = generator(3, Purpose.PERMUTATION).permutation(100)
    shuffled = {n: r[order] if n == "robust" else r for n, r in results.items()}
    report = {r.name: r for r in paired.strategies}["robust"]
    other = {r.name: r for r in detect_convergence_patterns(shuffled, KINDS).strategies}["robust"]
    assert report.p_value < 0.01 < other.p_value
    assert other.advantage[2] - other.advantage[1] > 2 * (report.advantage[2] - report.advantage[1])


def test_a_named_reference_is_compared_with_and_not_judged():
    found = detect_convergence_patterns(planted(), KINDS, reference="plain 0")
    assert found.reference == "plain 0"
    assert "plain 0" not in {r.name for r in found.strategies}
    assert found.as_dict()["robust"] == list(found.robust)


def test_corrections_and_tails_are_those_of_the_books():
    np.testing.assert_allclose(holm([0.01, 0.02, 0.03, 0.005]), [0.03, 0.04, 0.04, 0.02])
    assert conditional_value_at_risk(np.arange(100), 0.1) == 4.5
    assert conditional_value_at_risk([3.0]) == 3.0


def test_strategies_play_the_same_worlds_on_the_same_draws(patterns):
    setting = EpisodeSetting(steps=8, threads=1)
    with MonteCarloSimulator(10, None, 10, 1000, patterns=patterns, setting=setting) as simulator:
        creatives = simulator.worlds[0].creatives
        strategies = constant_strategies(setting.levels, creatives)
        assert len(strategies) == simulator.world(0).space
        chosen = {name: strategies[name] for name in (f"1 {creatives[0]}", f"2 {creatives[0]}")}
        found = asyncio.run(play_strategies(simulator, {**chosen, "again": chosen[f"1 {creatives[0]}"]}, laps=2))
    assert found.returns["again"].shape == (10, 2)
    np.testing.assert_array_equal(found.returns["again"], found.returns[f"1 {creatives[0]}"])
    assert (found.returns["again"] != found.returns[f"2 {creatives[0]}"]).any()


def test_focus_plays_a_falling_share_of_the_worlds():
    focus = Focus([Strategy(3), Strategy(5)], share=0.5, laps=10)
    shares = [float((focus.assigned(range(200), lap) >= 0).mean()) for lap in range(11)]
    assert shares[0] == pytest.approx(0.5, abs=0.05)
    assert shares[5] == pytest.approx(0.25, abs=0.05)
    assert shares[10] == 0.0
    actor = focus.around(actor_of(Strategy(9)))
    actor.board(range(50), 0, 1)
    actions = asyncio.run(actor.act(np.zeros((50, 3), np.float32), 0))
    assert set(actions.tolist()) == {3, 5, 9}
    np.testing.assert_array_equal(actions == 9, focus.assigned(range(50), 0) < 0)


def test_bad_requests_are_refused():
    results = planted()
    for change, error, text in (
        ({"world_results": {"one": np.ones(100)}}, ConfigError, "1 strategies cannot be compared"),
        ({"world_results": {**results, "short": np.ones(7)}}, ShapeError, "'short' has returns of shape"),
        ({"world_results": {**results, "odd": np.full(100, np.nan)}}, NonFiniteError, "'odd' has returns that are NaN"),
        ({"reference": "none"}, ConfigError, "reference 'none' is none of the strategies"),
        ({"level": 0.0}, ConfigError, "level 0.0"),
    ):
        with pytest.raises(error, match=text):
            detect_convergence_patterns(**{"world_results": results, "kinds": KINDS, **change})
    with pytest.raises(ConfigError, match="no strategy to focus on"):
        Focus([])
    with pytest.raises(ConfigError, match="share 2"):
        Focus([Strategy(1)], share=2.0)
