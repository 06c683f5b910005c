"""Robust strategies are found, lucky ones are not."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from parallel_agents.core.errors import ConfigError, NonFiniteError, ShapeError
from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.market.montecarlo import EpisodeSetting, MonteCarloSimulator
from parallel_agents.market.policies import make_actor
from parallel_agents.market.strategies import (
    Focus,
    Strategy,
    conditional_value_at_risk,
    constant_strategies,
    detect_convergence_patterns,
    holm,
    play_strategies,
)
from parallel_agents.market.worlds import WorldType

KINDS = tuple(tuple(WorldType)[i % 5] for i in range(100))


def planted(seed: int = 0) -> dict[str, np.ndarray]:
    """Return returns in 100 worlds: of ten strategies without merit, a robust one, and three lucky ones."""
    draws = generator(seed, Purpose.WORLD)
    world = draws.normal(0.0, 3.0, 100)
    returns = {f"plain {i}": world + draws.normal(0.0, 1.0, 100) for i in range(10)}
    returns["robust"] = world + 0.8 + draws.normal(0.0, 1.0, 100)
    jackpot = np.where(draws.random(100) < 0.05, 60.0, -0.5)
    returns["jackpot"] = world + jackpot + draws.normal(0.0, 1.0, 100)
    one_type = np.array([8.0 if kind is KINDS[0] else -0.4 for kind in KINDS])
    returns["one type"] = world + one_type + draws.normal(0.0, 1.0, 100)
    harms = np.array([-3.0 if kind is KINDS[1] else 1.5 for kind in KINDS])
    returns["harms one type"] = world + harms + draws.normal(0.0, 1.0, 100)
    return returns


@pytest.mark.parametrize("seed", range(5))
def test_the_planted_robust_strategy_is_found_and_the_lucky_ones_are_not(seed):
    results = planted(seed)
    result = detect_convergence_patterns(results, KINDS)
    assert result.robust == ("robust",)
    reports = {r.name: r for r in result.strategies}
    assert max(results, key=lambda n: results[n].mean()) != "robust"  # the mean alone would have chosen another
    assert reports["robust"].p_value < 0.05
    assert "worse in" in reports["harms one type"].because
    assert reports["harms one type"].worst_type == KINDS[1].value
    assert reports["jackpot"].success_share < result.robustness_threshold < reports["robust"].success_share


def test_hardly_any_strategy_without_merit_is_called_robust():
    """60 comparisons of ten strategies without merit give at most 6 false alarms."""
    alarms = 0
    for seed in range(60):
        draws = generator(seed, Purpose.NOISE)
        results = {str(i): draws.normal(0.0, 1.0, 60) for i in range(10)}
        alarms += bool(detect_convergence_patterns(results, KINDS[:60]).robust)
    assert alarms <= 6


def test_the_robustness_threshold_falls_with_the_number_of_worlds():
    draws = generator(0, Purpose.NOISE)
    few, many = ({str(i): draws.normal(0.0, 1.0, n) for i in range(6)} for n in (20, 100))
    small = detect_convergence_patterns(few, KINDS[:20]).robustness_threshold
    large = detect_convergence_patterns(many, KINDS).robustness_threshold
    assert 0.5 < large < small < 0.95  # more worlds, less room for luck


def test_paired_worlds_show_differences_that_unpaired_ones_hide():
    """Without pairing, the differences between worlds are larger than those between strategies."""
    results = planted(1)
    paired = detect_convergence_patterns(results, KINDS)
    order = generator(3, Purpose.PERMUTATION).permutation(100)
    shuffled = {n: r[order] if n == "robust" else r for n, r in results.items()}
    report = {r.name: r for r in paired.strategies}["robust"]
    other = {r.name: r for r in detect_convergence_patterns(shuffled, KINDS).strategies}["robust"]
    assert report.p_value < 0.01 < other.p_value
    assert other.advantage[2] - other.advantage[1] > 2 * (report.advantage[2] - report.advantage[1])


def test_a_named_reference_is_not_judged_itself():
    result = detect_convergence_patterns(planted(), KINDS, reference="plain 0")
    assert result.reference == "plain 0"
    assert "plain 0" not in {r.name for r in result.strategies}
    assert result.as_dict()["robust"] == list(result.robust)


def test_holm_and_cvar_give_known_values():
    np.testing.assert_allclose(holm([0.01, 0.02, 0.03, 0.005]), [0.03, 0.04, 0.04, 0.02])
    assert conditional_value_at_risk(np.arange(100), 0.1) == 4.5
    assert conditional_value_at_risk([3.0]) == 3.0


def test_strategies_get_the_same_worlds_and_random_numbers(patterns):
    setting = EpisodeSetting(steps=8, threads=1)
    with MonteCarloSimulator(10, None, 10, 1000, patterns=patterns, setting=setting) as simulator:
        creatives = simulator.worlds[0].creatives
        strategies = constant_strategies(setting.levels, creatives)
        assert len(strategies) == simulator.world(0).space
        chosen = {name: strategies[name] for name in (f"0.08 {creatives[0]}", f"0.64 {creatives[0]}")}
        result = asyncio.run(play_strategies(simulator, {**chosen, "again": chosen[f"0.08 {creatives[0]}"]}, laps=2))
    assert result.returns["again"].shape == (10, 2)
    np.testing.assert_array_equal(result.returns["again"], result.returns[f"0.08 {creatives[0]}"])
    assert (result.returns["again"] != result.returns[f"0.64 {creatives[0]}"]).any()


def test_focus_acts_in_a_falling_share_of_the_worlds():
    focus = Focus([Strategy(3), Strategy(5)], share=0.5, laps=10)
    shares = [float((focus.assigned(range(200), lap) >= 0).mean()) for lap in range(11)]
    assert shares[0] == pytest.approx(0.5, abs=0.05)
    assert shares[5] == pytest.approx(0.25, abs=0.05)
    assert shares[10] == 0.0
    actor = focus.wrap(make_actor(Strategy(9)))
    actor.begin_episode(range(50), 0, 1)
    actions = asyncio.run(actor.act(np.zeros((50, 3), np.float32), 0))
    assert set(actions.tolist()) == {3, 5, 9}
    np.testing.assert_array_equal(actions == 9, focus.assigned(range(50), 0) < 0)


def test_invalid_arguments_are_refused():
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
