from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, chisquare

from parallel_agents.core import seeding
from parallel_agents.core.errors import (
    CheckpointError,
    ConfigError,
    ContractError,
    NonFiniteError,
    ShapeError,
    SharingError,
)
from parallel_agents.replay import ImportanceSampler
from parallel_agents.replay.class_index import sample_uniforms, uniform_positions
from parallel_agents.replay.importance_weights import EffectiveSampleSizeWarning, batch_shares

Attach = Callable[..., Any]

TEN_PERCENT = [1000, 9000]
SHARES = {"crisis_parent": 0.1, "regular_parent": 0.9}


def drawn_share(sampler: ImportanceSampler, draws: int = 200_000, **options: Any) -> int:
    batch = min(10_000, len(sampler._attached().index))
    return sum(int((sampler.draw(batch, **options).classes == 0).sum()) for _ in range(draws // batch))


@pytest.mark.parametrize(
    ("options", "counts", "expected"),
    [
        ({"crisis_parent_weight": 5.0, "alpha": 1.0}, TEN_PERCENT, 5 / 14),
        ({"crisis_parent_weight": 5.0, "alpha": 0.6}, TEN_PERCENT, 5**0.6 / (9 + 5**0.6)),
        ({"crisis_parent_weight": 9.0, "alpha": 1.0}, TEN_PERCENT, 0.5),
        ({"crisis_parent_weight": 9.0, "alpha": 1.0, "temperature": 2.0}, TEN_PERCENT, 0.25),
        ({"focus_rare_events": True}, TEN_PERCENT, 0.5),
        ({"focus_rare_events": True, "target_share": 0.3}, TEN_PERCENT, 0.3),
        ({"min_crisis_parent_ratio": 0.05}, [10, 9990], 0.05),
        ({"min_crisis_parent_ratio": 0.4}, TEN_PERCENT, 0.4),
        ({"population_ratios": SHARES, "alpha": 1.0}, [5000, 5000], 5 / 14),
    ],
)
def test_the_batch_share_is_the_predicted_one(
    attach: Attach, options: dict[str, Any], counts: list[int], expected: float
) -> None:
    sampler = ImportanceSampler(**options)
    attach(sampler, counts)
    assert sampler.predicted_shares()["crisis_parent"] == pytest.approx(expected)
    assert binomtest(drawn_share(sampler), 200_000, expected).pvalue > 1e-3
    assert sampler.measured_shares()["crisis_parent"] == pytest.approx(expected, abs=0.005)


def test_sampling_by_value_share_makes_half_of_the_batch_rare(attach: Attach) -> None:
    halves = {"crisis_parent": 0.5, "regular_parent": 0.5}
    sampler = ImportanceSampler.from_value_shares(SHARES, halves, alpha=1.0)
    attach(sampler, TEN_PERCENT)
    statistics = sampler.statistics()
    assert statistics["crisis_parent_weight"] == pytest.approx(5.0)
    assert statistics["regular_parent_weight"] == pytest.approx(0.5556, abs=1e-4)
    assert binomtest(drawn_share(sampler), 200_000, 0.5).pvalue > 1e-3
    assert binomtest(drawn_share(sampler, temperature=2.0), 200_000, 0.25).pvalue > 1e-3


@given(
    rare=st.integers(1, 2000),
    common=st.integers(1, 2000),
    weight=st.floats(0.05, 50),
    alpha=st.floats(0, 1),
    temperature=st.floats(0.2, 5),
    minimum=st.floats(0, 0.9),
    seed=st.integers(0, 2**40),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_random_shares_are_the_predicted_ones(
    attach: Attach,
    rare: int,
    common: int,
    weight: float,
    alpha: float,
    temperature: float,
    minimum: float,
    seed: int,
) -> None:
    sampler = ImportanceSampler(weight, alpha, 1.0, minimum, temperature=temperature, seed=seed, ess_floor=0.0)
    source = attach(sampler, [rare, common])
    expected = batch_shares([rare, common], [weight, 1.0], alpha=alpha, temperature=temperature, minimum=minimum)[0]
    draws = 0
    hits = 0
    while draws < 20_000:
        batch = sampler.draw(rare + common)
        draws, hits = draws + len(batch.classes), hits + int((batch.classes == 0).sum())
        assert (source.classes[batch.positions] == batch.classes).all()
        assert 0 < batch.weights.min() <= batch.weights.max() <= 1.0
    assert binomtest(hits, draws, min(expected, 1.0)).pvalue > 1e-5


def test_the_weights_are_corrections_and_not_priorities(attach: Attach) -> None:
    sampler = ImportanceSampler(5.0, alpha=1.0, beta=1.0)
    source = attach(sampler, TEN_PERCENT)
    rows, weights, indices = sampler.weighted_sampling(512)
    assert (rows == indices).all()
    assert weights == pytest.approx(np.where(source.classes[indices] == 0, 0.2, 1.0))
    assert sampler.statistics()["importance_weights_scale"] == pytest.approx(1 / 1.4)
    plain = ImportanceSampler(5.0, alpha=1.0, beta=1.0, normalise=False)
    attach(plain, TEN_PERCENT)
    assert plain.draw(512).weights == pytest.approx(1.4 * weights)
    tempered = ImportanceSampler(5.0, alpha=1.0, beta=0.4)
    attach(tempered, TEN_PERCENT)
    assert tempered.draw(512).weights.min() == pytest.approx(0.525, abs=1e-3)


def test_the_largest_weight_is_that_of_the_buffer_not_of_the_batch(attach: Attach) -> None:
    sampler = ImportanceSampler(9.0, alpha=1.0, beta=1.0, seed=3)
    attach(sampler, TEN_PERCENT)
    alone = [b.weights for b in (sampler.draw(2) for _ in range(100)) if (b.classes == 0).all()]
    assert alone
    assert all(weights == pytest.approx([1 / 9, 1 / 9]) for weights in alone)


def test_equal_weights_are_uniform_sampling_with_corrections_of_exactly_one(attach: Attach) -> None:
    sampler = ImportanceSampler(1.0, beta=0.7, min_crisis_parent_ratio=0.0)
    attach(sampler, [37, 163])
    counts = np.zeros(200)
    for _ in range(2000):
        batch = sampler.draw(200)
        assert (batch.weights == 1.0).all()
        counts += np.bincount(batch.positions, minlength=200)
    assert batch.scale == 1.0
    assert chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("counts", [[0, 500], [500, 0]])
def test_one_class_alone_is_uniform_sampling_byte_for_byte(attach: Attach, counts: list[int]) -> None:
    sampler = ImportanceSampler(5.0, seed=11, agent=3)
    source = attach(sampler, counts)
    source.index.assign(np.arange(120), int(counts[0] == 0))  # the ring has come round
    for update in range(5):
        rows, weights, indices = sampler.weighted_sampling(64)
        numbers = seeding.generator(11, seeding.Purpose.SAMPLE, agent=3, epoch=update).random((64, 2))
        assert indices.tobytes() == uniform_positions(sample_uniforms(11, 3, update, 64), 500).tobytes()
        assert indices.tobytes() == (numbers[:, 1] * 500).astype(np.int64).tobytes()
        assert weights.tobytes() == np.ones(64).tobytes()
        assert rows.tobytes() == source.values[indices].tobytes()


def test_effective_size_tends_to_its_closed_form(attach: Attach) -> None:
    sampler = ImportanceSampler(beta=1.0, focus_rare_events=True)
    attach(sampler, TEN_PERCENT)
    sampler.draw(10_000)
    statistics = sampler.statistics()
    assert statistics["effective_sample_size_predicted"] == pytest.approx(6098, abs=1)
    assert statistics["effective_sample_size"] == pytest.approx(6098, rel=0.03)


def test_statistics_have_the_documented_names(attach: Attach) -> None:
    sampler = ImportanceSampler()
    source = attach(sampler, TEN_PERCENT)
    assert sampler.statistics()["crisis_parent_weight"] == 5.0
    batch = sampler.draw(256)
    statistics = sampler.statistics()
    assert statistics["regular_parent_weight"] == 1.0
    assert statistics["crisis_parent_ratio_in_batch"] == (source.classes[batch.positions] == 0).mean()
    assert statistics["crisis_parent_natural_share"] == pytest.approx(0.1)
    assert statistics["crisis_parent_predicted_share"] == pytest.approx(0.2259, abs=1e-4)
    assert statistics["importance_weights_mean"] == pytest.approx(batch.weights.mean())
    assert statistics["importance_weights_std"] == pytest.approx(batch.weights.std())
    assert statistics["importance_weights_max"] == 1.0
    assert statistics["updates"] == 1
    assert all(isinstance(value, (int, float)) for value in statistics.values())


def test_a_weight_limit_holds_and_statistics_report_its_cost(attach: Attach) -> None:
    sampler = ImportanceSampler(beta=1.0, focus_rare_events=True, max_weight=1.2, normalise=False)
    attach(sampler, TEN_PERCENT)
    assert sampler.draw(256).weights.max() == 1.2
    assert sampler.statistics()["importance_weights_cut"] == pytest.approx(0.3)  # 0.5 * (1.8 - 1.2)
    within = ImportanceSampler(beta=1.0, focus_rare_events=True, max_weight=1.2, priorities=True)
    attach(within, TEN_PERCENT)
    within.draw(10_000)
    assert within.statistics()["importance_weights_cut"] == pytest.approx(0.3, rel=0.05)
    scaled = ImportanceSampler(beta=1.0, focus_rare_events=True, max_weight=1.2)
    attach(scaled, TEN_PERCENT)
    assert scaled.draw(256).weights.max() == 1.0


def test_beta_reaches_one_by_updates(attach: Attach) -> None:
    sampler = ImportanceSampler(beta=0.4, beta_frames=10)
    attach(sampler, TEN_PERCENT)
    betas = [sampler.draw(4).beta for _ in range(12)]
    assert betas[:2] == pytest.approx([0.4, 0.46])
    assert betas[10:] == [1.0, 1.0]


def test_class_weights_do_not_change_during_training(attach: Attach) -> None:
    sampler = ImportanceSampler()
    attach(sampler, TEN_PERCENT)
    before = sampler.predicted_shares()
    for _ in range(1500):
        sampler.draw(16)
    assert sampler.predicted_shares() == before


def test_learned_weights_tend_to_neyman_shares(attach: Attach) -> None:
    rng = np.random.default_rng(0)
    sampler = ImportanceSampler(2.0, alpha=1.0, learned=True)
    source = attach(sampler, TEN_PERCENT, rng.normal(np.repeat([9, 1], TEN_PERCENT), np.repeat([5, 1], TEN_PERCENT)))
    assert sampler.predicted_shares()["crisis_parent"] == pytest.approx(2 / 11)
    for _ in range(100):
        rows, _, _ = sampler.weighted_sampling(256)
        sampler.update_spread(rows)
    assert sampler.predicted_shares()["crisis_parent"] == pytest.approx(5 / 14, abs=0.02)
    assert sampler.statistics()["crisis_parent_weight"] == pytest.approx(5.0, rel=0.06)
    source.values[:1000] /= 5.0  # the world changes, and the old spread fades
    for _ in range(600):
        rows, _, _ = sampler.weighted_sampling(256)
        sampler.update_spread(rows)
    assert sampler.predicted_shares()["crisis_parent"] == pytest.approx(0.1, abs=0.01)


def test_priorities_act_within_a_class_and_weights_follow(attach: Attach) -> None:
    sampler = ImportanceSampler(alpha=1.0, beta=1.0, priorities=True)
    attach(sampler, [2, 8])
    sampler.update_priorities([0, 1], [3.0, -1.0])
    hits = np.zeros(10)
    for _ in range(5000):
        batch = sampler.draw(10)
        hits += np.bincount(batch.positions, minlength=10)
        assert batch.weights.max() <= 1.0
    assert hits[0] / hits[1] == pytest.approx(3.0, rel=0.05)
    assert hits[:2].sum() / hits.sum() == pytest.approx(10 / 18, abs=0.01)
    rare = batch.weights[batch.positions == 1][0], batch.weights[batch.positions == 0][0]
    assert rare[0] / rare[1] == pytest.approx(3.0)
    assert "effective_sample_size_predicted" not in sampler.statistics()


def test_equal_state_draws_equally_and_other_addresses_do_not(attach: Attach) -> None:
    first, again, other = (ImportanceSampler(seed=7, agent=agent) for agent in (1, 1, 2))
    for sampler in (first, again, other):
        attach(sampler, TEN_PERCENT)
    for _ in range(3):
        a, b, c = (sampler.draw(64).positions.tolist() for sampler in (first, again, other))
        assert a == b
        assert a != c


def test_a_loaded_sampler_continues_as_the_stored_one(attach: Attach) -> None:
    def fresh() -> ImportanceSampler:
        sampler = ImportanceSampler(learned=True, beta_frames=50, seed=5)
        attach(sampler, TEN_PERCENT, np.random.default_rng(0).normal(size=10_000))
        return sampler

    world = {"crisis_share": 0.1, "competition": 0.5, "behavioural_health": 0.2, "ios_share": 0.4}
    worlds = [{**world, "crisis_share": share} for share in (0.1, 0.2, 0.4, 0.6, 0.9)]
    sampler, copy = fresh(), fresh()
    sampler.fit_world_weights(worlds, [1, 2, 4, 6, 9])
    for _ in range(10):
        sampler.update_spread(sampler.weighted_sampling(64)[0])
    stored = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in sampler.state().items()}
    copy.load_state(json.loads(json.dumps(stored)))
    for _ in range(5):
        one, two = sampler.draw(64), copy.draw(64)
        assert one.positions.tobytes() == two.positions.tobytes()
        assert one.weights.tobytes() == two.weights.tobytes()
        for each, batch in ((sampler, one), (copy, two)):
            each.update_spread(batch.weights)
    assert copy.statistics() == sampler.statistics()
    assert copy.calculate_world_weights(worlds).tolist() == sampler.calculate_world_weights(worlds).tolist()


def test_class_ids_do_not_depend_on_the_order_of_a_mapping() -> None:
    one = ImportanceSampler(class_weights={"researcher": 2.0, "bargain_hunter": 1.5})
    two = ImportanceSampler(class_weights={"bargain_hunter": 1.5, "researcher": 2.0})
    assert one.event_types == two.event_types == tuple(sorted(one.event_types))
    assert one.class_ids(["researcher", "crisis_parent"]).tolist() == [3, 1]
    assert one.class_ids("regular_parent").tolist() == [2]


def test_a_collapse_of_the_effective_size_gives_a_warning_before_anything_changes(attach: Attach) -> None:
    sampler = ImportanceSampler(5000.0, alpha=1.0, beta=1.0)
    attach(sampler, TEN_PERCENT)
    with pytest.warns(EffectiveSampleSizeWarning, match=r"4000 samples are worth \d+\.\d, .* set max_weight"):
        sampler.draw(4000)
    other = ImportanceSampler(5000.0, alpha=1.0, beta=1.0)
    attach(other, TEN_PERCENT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(EffectiveSampleSizeWarning):
            other.draw(4000)
    assert other.updates == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crisis_parent_weight": 0.0}, "weight of crisis_parent is 0.0: give a number above 0"),
        ({"crisis_parent_weight": -5.0}, "weight of crisis_parent is -5.0"),
        ({"crisis_parent_weight": float("nan")}, "weight of crisis_parent is nan"),
        ({"class_weights": {"researcher": 0.0}}, "weight of researcher is 0.0"),
        ({"class_weights": {"crisis_parent": 2.0}}, "its weight is crisis_parent_weight"),
        ({"class_weights": {"": 2.0}}, "event type '' is not a name"),
        ({"alpha": 1.5}, r"alpha is 1.5: give a number in \[0, 1\]"),
        ({"beta": 1.2}, r"beta is 1.2: give a number in \[0, 1\]"),
        ({"beta": float("nan")}, "beta is nan"),
        ({"min_crisis_parent_ratio": 1.0}, r"min_crisis_parent_ratio is 1.0: give a number in \[0, 1\)"),
        ({"focus_rare_events": True, "target_share": 0.0}, r"target_share is 0.0: give a number in \(0, 1\)"),
        (
            {"focus_rare_events": True, "target_share": 0.1, "min_crisis_parent_ratio": 0.2},
            "target_share 0.1 is below min_crisis_parent_ratio 0.2",
        ),
        ({"temperature": 0.0}, "temperature is 0.0: give a finite number above 0"),
        ({"beta_frames": 0}, "beta_frames is 0"),
        ({"max_weight": -1.0}, "max_weight is -1.0"),
        ({"ess_floor": 2.0}, "ess_floor is 2.0"),
        ({"empty_class": "ignore"}, "empty_class is 'ignore': give 'refuse', 'skip' or None"),
        ({"population_ratios": {"crisis_parent": 1.0}}, "give one for each of"),
        ({"population_ratios": {"crisis_parent": 0.1, "regular_parent": 0.8}}, "they must add up to 1"),
        ({"population_ratios": {"crisis_parent": 0.0, "regular_parent": 1.0}}, r"give a number in \(0, 1\]"),
        ({"seed": -1}, "seed -1 is out of range"),
    ],
)
def test_errors_name_options_that_cannot_work(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ImportanceSampler(**options)


def test_an_empty_class_with_a_promised_share_raises(attach: Attach) -> None:
    promised: list[dict[str, Any]] = [{"focus_rare_events": True}, {"population_ratios": SHARES}]
    for options in [*promised, {"empty_class": "refuse"}]:
        sampler = ImportanceSampler(**options)
        attach(sampler, [0, 50])
        with pytest.raises(ContractError, match="class crisis_parent is to have a share of every batch"):
            sampler.draw(8)
        assert sampler.updates == 0
    for options in promised:
        skipping = ImportanceSampler(empty_class="skip", **options)
        attach(skipping, [0, 50])
        assert (skipping.draw(8).classes == 1).all()


def test_a_minimum_waits_for_the_first_row_of_its_class(attach: Attach) -> None:
    for options in ({}, {"min_crisis_parent_ratio": 0.5}, {"min_crisis_parent_ratio": 0.0, "empty_class": "refuse"}):
        sampler = ImportanceSampler(**options)  # type: ignore[arg-type]
        attach(sampler, [0, 50])
        assert (sampler.draw(8).weights == 1.0).all()


def test_a_class_that_fills_up_later_is_drawn_then(attach: Attach) -> None:
    sampler = ImportanceSampler()
    source = attach(sampler, [0, 50])
    sampler.draw(8)
    source.index.assign([3], sampler.class_ids("crisis_parent"))
    assert sampler.predicted_shares()["crisis_parent"] == pytest.approx(0.0509, abs=1e-3)


def test_errors_name_calls_that_cannot_work(attach: Attach) -> None:
    sampler = ImportanceSampler()
    with pytest.raises(ContractError, match="call attach"):
        sampler.weighted_sampling(4)
    source = attach(sampler, [5, 15])
    for size in (21, 0, -1):
        with pytest.raises(ContractError, match=rf"a batch of {size} was asked of a buffer of 20 rows"):
            sampler.weighted_sampling(size)
    with pytest.raises(ConfigError, match="temperature is nan"):
        sampler.weighted_sampling(4, temperature=float("nan"))
    with pytest.raises(ContractError, match="unknown event type 'vip': known are crisis_parent, regular_parent"):
        sampler.class_ids(["crisis_parent", "vip"])
    with pytest.raises(ConfigError, match="create it with learned=True"):
        sampler.update_spread(np.ones(4))
    with pytest.raises(ConfigError, match="create it with priorities=True"):
        sampler.update_priorities([0], [1.0])
    with pytest.raises(ShapeError, match="batch_size is 5 but there are 4 weights"):
        sampler.bias_correction(np.ones(4), np.ones(4), 5)
    with pytest.raises(ShapeError, match="already averaged cannot be corrected"):
        sampler.bias_correction(np.ones(10), np.ones(4), 4)
    with pytest.raises(SharingError, match="attached to another buffer"):
        attach(sampler, [5, 15])
    sampler.attach(source)
    with pytest.raises(ContractError, match=r"make it with sampler.make_index"):
        ImportanceSampler(priorities=True).attach(source)
    learning = ImportanceSampler(learned=True)
    with pytest.raises(ContractError, match="no batch was drawn yet"):
        learning.update_spread(np.ones(4))
    ranking = ImportanceSampler(priorities=True)
    attach(ranking, [5, 15])
    with pytest.raises(NonFiniteError, match="TD errors hold NaN"):
        ranking.update_priorities([0], [np.nan])
    with pytest.raises(ConfigError, match="give both for the same event types"):
        ImportanceSampler.from_value_shares(SHARES, {"crisis_parent": 1.0})
    assert sampler.updates == 0


def test_the_state_of_another_sampler_raises() -> None:
    sampler = ImportanceSampler()
    stored = sampler.state()
    with pytest.raises(CheckpointError, match=r"other classes or options: drawn.researcher differ"):
        ImportanceSampler(class_weights={"researcher": 2.0}).load_state(stored)
    with pytest.raises(CheckpointError, match=r"spread.mass, .* differ"):
        ImportanceSampler(learned=True).load_state(stored)
    with pytest.raises(CheckpointError, match="negative number of updates"):
        sampler.load_state({**stored, "updates": -1})
    with pytest.raises(CheckpointError, match="NaN or infinity in world_exponents"):
        sampler.load_state({**stored, "world_exponents": np.full(4, np.nan)})
    with pytest.raises(CheckpointError, match="of drawn rows"):
        sampler.load_state({**stored, "drawn.crisis_parent": -1})


def test_indices_are_right_after_wrap_around(attach: Attach) -> None:
    rng = np.random.default_rng(0)
    sampler = ImportanceSampler()
    source = attach(sampler, [50, 450])
    for step in range(3000):
        position, which = step % 500, int(rng.random() > 0.1)
        source.index.assign(position, which)
        source.classes[position] = which
        source.values[position] = step
        if step % 50 == 0:
            rows, _, indices = sampler.weighted_sampling(64)
            assert (rows == source.values[indices]).all()
            assert (source.index.classes_at(indices) == source.classes[indices]).all()


def test_a_draw_costs_the_same_at_a_million_rows(attach: Attach) -> None:
    sampler = ImportanceSampler()
    attach(sampler, [100_000, 900_000])
    sampler.draw(256)
    start = time.process_time()
    for _ in range(20):
        sampler.draw(256)
    assert time.process_time() - start < 1.0  # a loop over all rows would take minutes
