"""Worlds differ from each other, come from the data, and lie in the region of their type."""

from __future__ import annotations

import ast
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from parallel_agents.core.errors import ConfigError
from parallel_agents.market import worlds as module
from parallel_agents.market.discovery import CRISIS, Estimate
from parallel_agents.market.worlds import EstimateSampler, Part, WorldType, create_world_variants, default_distribution

PARTS = (
    "users", "competitors", "market_state", "time_period", "auction_pressure", "creative_variance", "conversion_dynamics",
)  # fmt: skip


def numbers(world) -> dict[str, np.ndarray]:
    return {
        f"{part}.{f.name}": np.atleast_1d(np.asarray(getattr(getattr(world, part), f.name), float))
        for part in PARTS
        for f in fields(getattr(world, part))
    }


def test_no_two_worlds_are_alike(worlds):
    found = [numbers(w) for w in worlds]
    for name in found[0]:
        if name in (
            "market_state.mechanism",
            "market_state.slots",
            "market_state.predicted_value",
            "auction_pressure.budget",
            "auction_pressure.target",
            "users.count",
            "time_period.start",
        ):
            continue  # small whole numbers: facts of the market, or drawn from few
        rows = {f[name].tobytes() for f in found}
        assert len(rows) == len(worlds), name
    assert len({f["users.count"].item() for f in found}) > 30
    assert len({f["time_period.start"].item() for f in found}) > 20


def test_hours_change_when_clicks_convert_and_not_how_many_do(patterns, worlds):
    volume = np.array([e.value for e in patterns.hours])
    for world in worlds:
        by_hour = world.conversion_dynamics.hour_factor
        np.testing.assert_allclose(volume @ by_hour / volume.sum(), 1.0)
        assert (by_hour.max(axis=0) > 1.2 * by_hour.min(axis=0)).all()


def test_worlds_are_repeatable_and_do_not_depend_on_how_many_there_are(patterns, worlds):
    again = create_world_variants(patterns, 5, seed=0)
    for one, other in zip(again, worlds, strict=False):
        assert one.kind == other.kind
        for name, value in numbers(one).items():
            np.testing.assert_array_equal(value, numbers(other)[name])
    other_seed = create_world_variants(patterns, 1, seed=1)[0]
    assert not np.array_equal(other_seed.users.share, worlds[0].users.share)


def literals(path: Path) -> list[tuple[int, object]]:
    """Return the numbers written in a file, other than 0, 1 and those of enumerations and of named settings."""
    tree = ast.parse(path.read_text())
    exempt: set[int] = set()
    for node in ast.walk(tree):
        is_enum = isinstance(node, ast.ClassDef) and any("Enum" in ast.unparse(b) for b in node.bases)
        is_setting = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "POPULATION"
        if is_enum or is_setting or isinstance(node, ast.FormattedValue):
            exempt |= {id(n) for n in ast.walk(node)}
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, int | float)
        and not isinstance(node.value, bool)
        and node.value not in (0, 1)
        and id(node) not in exempt
    ]


def test_the_module_that_draws_worlds_contains_no_numeric_literal(tmp_path):
    file = Path(module.__file__)
    assert literals(file) == []
    typed_in = tmp_path / "typed_in.py"
    typed_in.write_text("def sample(draws):\n    return draws.rng.uniform(0.2, 0.8)\n")
    assert [value for _, value in literals(typed_in)] == [0.2, 0.8]


def test_a_changed_estimate_changes_only_its_own_part(patterns, worlds):
    first = patterns.segments[0]
    moved = Estimate(
        first.delay_hours.value * 2, first.delay_hours.low * 2, first.delay_hours.high * 2, "log", 1, "moved"
    )
    other = replace(patterns, segments=(replace(first, delay_hours=moved), *patterns.segments[1:]))
    for one, two in zip(worlds[:5], create_world_variants(other, 5, seed=0), strict=True):
        before, after = numbers(one), numbers(two)
        different = {n for n in before if not np.array_equal(before[n], after[n])}
        assert different == {"conversion_dynamics.delay_hours"}
        np.testing.assert_allclose(
            after["conversion_dynamics.delay_hours"][0], 2 * before["conversion_dynamics.delay_hours"][0]
        )


def test_points_lie_within_the_discovered_intervals(patterns, worlds):
    for world in worlds:
        c, m, r = world.conversion_dynamics, world.market_state, world.competitors
        for k, segment in enumerate(patterns.segments):
            assert segment.delay_shape.low <= c.delay_shape[k] <= segment.delay_shape.high
            assert segment.visits.low <= world.users.activity[k] <= segment.visits.high
            assert segment.value_log_spread.low <= c.value_log_spread[k] <= segment.value_log_spread.high
        found = patterns.competition
        for j, name in enumerate(world.campaigns):
            assert found.campaigns[name].reserve.low <= m.reserve[j] <= found.campaigns[name].reserve.high
        for i, name in enumerate(world.rivals):
            inside = [
                g.participation[name].low <= r.participation[i] <= g.participation[name].high for g in found.landscapes
            ]
            assert any(inside)
        assert 500 <= world.users.count <= 2000


def test_every_number_of_a_world_has_a_provenance(worlds):
    text = worlds[0].provenance
    assert len(text) > 150
    for name in (
        "users/share/0",
        "competitors/landscape",
        "conversion/delay_hours/0",
        "market/reserve/0",
        "time/hours/23",
    ):
        assert " from " in text[name] or "period" in text[name]
    assert {name.split("/")[0] for name in text} == {p.name.lower() for p in Part if p != Part.TYPE}


@pytest.mark.parametrize(
    ("kind", "measure", "up"),
    [
        (WorldType.CRISIS_PARENT, lambda w: w.users.share[w.segments.index(CRISIS)], True),
        (WorldType.BUDGET_CONSCIOUS, lambda w: w.users.share[w.segments.index("price_sensitive")], True),
        (WorldType.TECH_SAVVY, lambda w: w.users.device[:, w.devices.index("ios")].mean(), True),
        (WorldType.SEASONAL_PEAK, lambda w: w.auction_pressure.volume, True),
        (WorldType.ECONOMIC_DOWNTURN, lambda w: w.conversion_dynamics.base.sum(), False),
        (WorldType.IMPULSE_BUYER, lambda w: w.conversion_dynamics.delay_hours.sum(), False),
        (WorldType.LUXURY_SEEKER, lambda w: w.conversion_dynamics.value_log_mean.sum(), True),
        (
            WorldType.HIGH_COMPETITION,
            lambda w: (w.competitors.participation * np.exp(w.competitors.level.mean(1))).sum(),
            True,
        ),
        (
            WorldType.LOW_COMPETITION,
            lambda w: (w.competitors.participation * np.exp(w.competitors.level.mean(1))).sum(),
            False,
        ),
    ],
)
def test_a_type_of_world_differs_from_normal_worlds_along_its_axis(patterns, kind, measure, up):
    own = [measure(w) for w in create_world_variants(patterns, 25, {kind: 1.0})]
    normal = [measure(w) for w in create_world_variants(patterns, 25, {"normal_market": 1.0})]
    assert (np.mean(own) > np.mean(normal)) == up
    assert abs(np.mean(own) - np.mean(normal)) > 2 * np.hypot(np.std(own), np.std(normal)) / 5


def test_the_mix_of_types_is_that_of_the_data_or_as_requested(patterns):
    mix = default_distribution(patterns)
    assert sum(mix.values()) == pytest.approx(1.0)
    assert set(mix) == set(WorldType)
    asked = {"normal_market": 3, WorldType.CRISIS_PARENT: 1}
    kinds = [w.kind for w in create_world_variants(patterns, 200, asked)]
    assert set(kinds) == {WorldType.NORMAL_MARKET, WorldType.CRISIS_PARENT}
    assert kinds.count(WorldType.CRISIS_PARENT) == pytest.approx(50, abs=20)


def test_bad_requests_are_refused(patterns):
    for arguments, text in (
        ((0,), "n_worlds 0 is too few"),
        ((1, {"boom": 1.0}), "world type 'boom' is unknown: give one of"),
        ((1, {"normal_market": -1.0}), "is negative"),
        ((1, {"normal_market": 0.0}), "empty or all 0"),
        ((1, {}), "empty or all 0"),
    ):
        with pytest.raises(ConfigError, match=text):
            create_world_variants(patterns, *arguments)
    with pytest.raises(ConfigError, match="not a range of population sizes"):
        create_world_variants(patterns, 1, users=(0, 10))
    with pytest.raises(ConfigError, match="hold no competition"):
        create_world_variants(replace(patterns, competition=None), 1)


def test_a_type_without_evidence_is_not_available(patterns):
    flat = Estimate(0.0, 0.0, 0.0, "linear", 10, "volume: no period differs beyond chance")
    periods = tuple(replace(p, effects={**p.effects, "volume": flat}) for p in patterns.periods)
    still = replace(patterns, periods=periods)
    assert WorldType.SEASONAL_PEAK not in default_distribution(still)
    with pytest.raises(ConfigError, match="'seasonal_peak' is not identified: no period differs along 'volume'"):
        create_world_variants(still, 1, {"seasonal_peak": 1.0})


def test_each_sampler_can_be_used_alone(patterns):
    for part, sampler in (
        (Part.USERS, module.sample_user_population),
        (Part.COMPETITORS, module.sample_competitor_configuration),
        (Part.MARKET, module.sample_market_conditions),
        (Part.TIME, module.sample_time_window),
        (Part.AUCTIONS, module.sample_auction_intensity),
        (Part.CREATIVES, module.sample_creative_performance),
        (Part.CONVERSION, module.sample_conversion_patterns),
    ):
        one, two, other = (
            sampler(EstimateSampler(patterns, WorldType.NORMAL_MARKET, part, seed=4, world=w)) for w in (0, 0, 1)
        )
        first = vars(one).values()
        assert all(np.array_equal(a, b) for a, b in zip(first, vars(two).values(), strict=True))
        assert not all(np.array_equal(a, b) for a, b in zip(first, vars(other).values(), strict=True))
