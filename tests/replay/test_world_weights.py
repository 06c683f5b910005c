from __future__ import annotations

import numpy as np
import pytest

from parallel_agents.core.errors import ContractError, NonFiniteError
from parallel_agents.replay import ImportanceSampler
from parallel_agents.replay.world_weights import WORLD_FACTORS, NotIdentifiedError, WorldRule, fit_world_rule


def random_worlds(count: int, seed: int = 0) -> list[dict[str, float]]:
    table = np.random.default_rng(seed).random((count, len(WORLD_FACTORS)))
    return [dict(zip(WORLD_FACTORS, row.tolist(), strict=True)) for row in table]


def factors(world: dict[str, float]) -> list[float]:
    return [1 + 4 * world["crisis_share"], *(1 + world[name] for name in WORLD_FACTORS[1:])]


def test_without_a_fit_weights_are_the_normalised_product() -> None:
    worlds = random_worlds(100)
    found = ImportanceSampler(5.0).calculate_world_weights(worlds)
    expected = np.array([np.prod(factors(world)) for world in worlds])
    assert found == pytest.approx(expected / expected.sum())


def test_no_world_is_ever_skipped() -> None:
    empty = dict.fromkeys(WORLD_FACTORS, 0.0)
    assert WorldRule().weights([empty, {**empty, "crisis_share": 1.0}], value_multiplier=5.0) == pytest.approx(
        [1 / 6, 5 / 6]
    )


@pytest.mark.parametrize("exponents", [(1.0, 1.0, 1.0, 1.0), (2.0, -1.0, 0.0, 0.5), (0.0, 6.0, 0.0, -3.0)])
def test_a_fit_finds_the_rule_behind_the_outcomes(exponents: tuple[float, ...]) -> None:
    worlds = random_worlds(60)
    outcomes = [1e3 * np.prod(np.power(factors(world), exponents)) for world in worlds]
    assert fit_world_rule(worlds, outcomes, value_multiplier=5.0).exponents == pytest.approx(exponents, abs=1e-4)


def test_a_fit_recovers_the_rule_from_noisy_counts_with_zeros() -> None:
    worlds, exponents = random_worlds(4000), (1.5, -1.0, 0.0, 0.5)
    means = np.array([0.5 * np.prod(np.power(factors(world), exponents)) for world in worlds])
    outcomes = np.random.default_rng(1).poisson(means)
    assert (outcomes == 0).any()
    sampler = ImportanceSampler(5.0)
    rule = sampler.fit_world_weights(worlds, outcomes)
    assert rule.exponents == pytest.approx(exponents, abs=0.25)
    weights = sampler.calculate_world_weights(worlds)
    assert weights.sum() == pytest.approx(1.0)
    assert np.corrcoef(weights, means)[0, 1] > 0.99
    assert fit_world_rule(worlds, outcomes, value_multiplier=5.0) == rule


def test_a_factor_that_does_not_vary_gets_the_exponent_0() -> None:
    worlds = [{**world, "ios_share": 0.5} for world in random_worlds(50)]
    rule = fit_world_rule(worlds, [factors(world)[0] for world in worlds], value_multiplier=5.0)
    assert rule.exponents == pytest.approx([1.0, 0.0, 0.0, 0.0], abs=1e-4)


def test_outcomes_without_a_finite_rule_are_named() -> None:
    worlds = random_worlds(8)
    first = [float(world["ios_share"] == max(other["ios_share"] for other in worlds)) for world in worlds]
    with pytest.raises(NotIdentifiedError, match="no finite rule fits these outcomes"):
        fit_world_rule(worlds, first, value_multiplier=5.0)


def test_bad_input_is_named() -> None:
    worlds = random_worlds(10)
    rule = WorldRule()
    with pytest.raises(ContractError, match="no worlds to weigh"):
        rule.weights([], value_multiplier=5.0)
    with pytest.raises(ContractError, match="world 0 has no competition, ios_share"):
        rule.weights([{"crisis_share": 0.1, "behavioural_health": 0.0}], value_multiplier=5.0)
    with pytest.raises(NonFiniteError, match="world 1 has competition nan"):
        rule.weights([worlds[0], {**worlds[1], "competition": np.nan}], value_multiplier=5.0)
    with pytest.raises(NonFiniteError, match=r"world 0 has ios_share -1\.0"):
        rule.weights([{**worlds[1], "ios_share": -1.0}], value_multiplier=5.0)
    with pytest.raises(ContractError, match="leaves a world without value"):
        rule.weights([{**worlds[0], "crisis_share": 1.0}], value_multiplier=0.0)
    with pytest.raises(ContractError, match="4 worlds and outcomes of shape"):
        fit_world_rule(worlds[:4], np.ones(4), value_multiplier=5.0)
    with pytest.raises(ContractError, match="give one outcome per world"):
        fit_world_rule(worlds, np.ones(4), value_multiplier=5.0)
    with pytest.raises(NonFiniteError, match="not negative and not all 0"):
        fit_world_rule(worlds, np.zeros(10), value_multiplier=5.0)
