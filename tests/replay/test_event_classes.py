"""Class-weighted drawing: shares, corrections, learned spreads, and rows of a ring drawn by class."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parallel_agents.core.errors import CheckpointError, ConfigError, ContractError, NonFiniteError, ShapeError
from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.replay import EVENT_COLUMNS, Buffer, EventWeighting, draw_classed, draw_rows
from parallel_agents.replay.event_classes import ClassSpread, ClassWeighting
from parallel_agents.replay.importance_weights import EffectiveSampleSizeWarning

RARE, REGULAR, NONE = 0, 1, -1


def numbers(samples: int, seed: int = 0) -> np.ndarray:
    return generator(seed, Purpose.SAMPLE).random((2, samples))


def ring_of(events: list[int], values: list[float], capacity: int = 1000) -> Buffer:
    buffer = Buffer(capacity, (1,), **EVENT_COLUMNS)
    for t, (event, value) in enumerate(zip(events, values, strict=True)):
        buffer.add([t], t % 2, value, True, event_type=event, event_value=value)
    return buffer


def test_the_rare_share_is_the_predicted_one_and_corrections_restore_the_mean() -> None:
    events = np.array([RARE] * 100 + [REGULAR] * 900, np.float32)
    values = np.where(events == RARE, 9.0, 1.0).astype(np.float32)
    weighting = EventWeighting(alpha=1.0, beta=1.0, normalise=False).classes
    drawn = draw_classed(events, values, weighting, numbers(200_000), batch=100, done=0)
    assert drawn.rare.mean() == pytest.approx(0.357, abs=0.005)
    assert (events[drawn.rows] == RARE).tolist() == drawn.rare.tolist()
    found = drawn.weights * values[drawn.rows]
    assert abs(found.mean() - 1.8) < 4 * found.std() / np.sqrt(len(found))
    assert values[drawn.rows].mean() > 3.8  # without corrections it is that of another world


def test_beta_is_that_of_each_update() -> None:
    events = np.repeat(np.array([RARE, REGULAR], np.float32), [10, 90])
    weighting = EventWeighting(alpha=1.0, beta=0.5, beta_frames=10, normalise=False).classes
    drawn = draw_classed(events, events, weighting, numbers(20_000), batch=1000, done=4)
    common = ~drawn.rare
    for update, beta in ((0, 0.7), (3, 0.85), (6, 1.0), (19, 1.0)):
        own = slice(update * 1000, (update + 1) * 1000)
        assert drawn.weights[own][common[own]][0] == pytest.approx(1.4**beta, rel=1e-6)


def test_after_wrap_around_serials_name_rows_of_the_drawn_class() -> None:
    events = [RARE if t % 10 == 0 else REGULAR for t in range(2500)]
    buffer = ring_of(events, [float(t) for t in range(2500)], capacity=700)
    drawn = draw_rows(buffer.ring, 0, EventWeighting().classes, numbers(3000), batch=100, done=0)
    rows = buffer.ring.gather(drawn.rows[None], n_step=1, gammas=np.ones(1))
    when = rows["states"][0, :, 0].astype(int)
    assert when.min() >= 1800
    assert ((when % 10 == 0) == drawn.rare).all()
    assert (rows["returns"][0] == when).all()


@pytest.mark.parametrize("alone", [RARE, REGULAR])
def test_a_single_class_is_uniform_sampling_byte_for_byte(alone: int) -> None:
    buffer = ring_of([alone] * 1300, [1.0] * 1300, capacity=700)
    draws = numbers(500)
    drawn = draw_rows(buffer.ring, 0, EventWeighting().classes, draws, batch=50, done=7)
    assert drawn.rows.tobytes() == buffer.ring.serials(draws[:1])[0].tobytes()
    assert (drawn.weights == 1.0).all()


def test_without_labels_the_largest_values_are_rare() -> None:
    values = np.arange(100, dtype=np.float32)
    weighting = EventWeighting(focus_rare_events=True, value_threshold_percentile=80.0).classes
    drawn = draw_classed(np.full(100, NONE, np.float32), values, weighting, numbers(4000), batch=100, done=0)
    assert drawn.rare.mean() == pytest.approx(0.5, abs=0.03)
    assert ((values[drawn.rows] > 79.2) == drawn.rare).all()
    equal = np.full(100, NONE, np.float32), np.ones(100, np.float32)
    assert not draw_classed(*equal, weighting, numbers(100), batch=100, done=0).rare.any()  # ties are not rare


def test_learned_weights_are_the_spread_of_each_class() -> None:
    draws = generator(0, Purpose.NOISE).standard_normal(1000)
    events = np.repeat(np.array([RARE, REGULAR], np.float32), [100, 900])
    values = np.where(events == RARE, 9 + 5 * draws, 1 + draws).astype(np.float32)
    drawn = draw_classed(events, values, EventWeighting(learned=True).classes, numbers(100_000), batch=100, done=0)
    spread = values[:100].std() / values[100:].std()
    assert drawn.rare.mean() == pytest.approx(0.1 * spread / (0.1 * spread + 0.9), abs=0.01)  # Neyman: q ~ pi sigma


def test_an_empty_ring_gives_serials_of_0_and_weights_of_1() -> None:
    buffer = Buffer(10, (1,), **EVENT_COLUMNS)
    drawn = draw_rows(buffer.ring, 0, EventWeighting().classes, numbers(8), batch=4, done=0)
    assert drawn.rows.tolist() == [0] * 8
    assert drawn.weights.tolist() == [1.0] * 8


def test_a_collapse_gives_a_warning() -> None:
    events = np.repeat(np.array([RARE, REGULAR], np.float32), [1, 9999])
    weighting = EventWeighting(beta=1.0, focus_rare_events=True, target_share=0.99).classes
    with pytest.warns(EffectiveSampleSizeWarning, match="model.importance"):
        draw_classed(events, events, weighting, numbers(1000), batch=100, done=0)


def test_errors_name_bad_options_and_event_types() -> None:
    for options, message in (
        ({"value_threshold_percentile": 100.0}, r"give a number in \(0, 100\)"),
        ({"empty_class": "refuse"}, "each class is empty at first"),
        ({"crisis_parent_weight": 0.0}, "weight of crisis_parent is 0.0"),
        ({"beta": 1.5}, "beta is 1.5"),
    ):
        with pytest.raises(ConfigError, match=message):
            EventWeighting(**options)  # type: ignore[arg-type]
    with pytest.raises(ContractError, match=r"event types 1 .. 2 were kept: give 0 .. 1, which are crisis_parent"):
        draw_classed(
            np.array([1, 2], np.float32), np.zeros(2, np.float32), EventWeighting().classes, numbers(4), batch=4, done=0
        )


# -- shares -----------------------------------------------------------------------------------------------------


WEIGHTS = {"regular": 1.0, "rare": 5.0}


def weighting_of(**options: Any) -> ClassWeighting:
    return ClassWeighting(**{"weights": WEIGHTS, "rare_class": "rare", **options})


def test_natural_shares_come_from_counts_or_from_the_population() -> None:
    natural, shares, _ = weighting_of(alpha=1.0).class_shares(np.array([300, 700]))
    assert natural.tolist() == [0.3, 0.7]
    assert shares[0] == pytest.approx(1.5 / 2.2)
    skewed = weighting_of(alpha=1.0, population_ratios={"rare": 0.1, "regular": 0.9})
    natural, shares, _ = skewed.class_shares(np.array([300, 700]))
    assert natural.tolist() == [0.1, 0.9]
    assert shares[0] == pytest.approx(5 / 14)


def test_alpha_moderates_given_weights_but_not_learned_ones() -> None:
    weighting = weighting_of(alpha=0.0)
    counts = np.array([100, 900])
    assert weighting.class_shares(counts).shares[0] == pytest.approx(0.1)
    assert weighting.class_shares(counts, learned=np.array([1.0, 0.2])).shares[0] == pytest.approx(5 / 14)
    halved = weighting.class_shares(counts, learned=np.array([1.0, 1 / 9]), temperature=2.0)
    assert halved.shares[0] == pytest.approx(0.25)


def test_the_rare_class_must_be_known() -> None:
    with pytest.raises(ConfigError, match="rare class 'vip' has no weight: known are rare, regular"):
        weighting_of(rare_class="vip")


def test_errors_name_the_option_by_its_rare_class() -> None:
    with pytest.raises(ConfigError, match=r"min_rare_ratio is 1.0: give a number in \[0, 1\)"):
        weighting_of(min_rare_ratio=1.0)


def test_rows_without_a_label_need_a_regular_class() -> None:
    rows = np.array([NONE], np.float32), np.ones(1, np.float32)
    with pytest.raises(ContractError, match="name a regular_class"):
        draw_classed(*rows, weighting_of(), numbers(4), batch=4, done=0)
    drawn = draw_classed(*rows, weighting_of(regular_class="regular"), numbers(4), batch=4, done=0)
    assert not drawn.rare.any()


# -- spread of classes ------------------------------------------------------------------------------------------


def test_deviation_over_batches_is_that_of_all_fading_values() -> None:
    rng = np.random.default_rng(0)
    spread, fade = ClassSpread(1), 0.99
    batches = [rng.normal(3 * step, 2.0, 20) for step in range(6)]
    for batch in batches:
        spread.update(batch, np.zeros(20, np.int64))
    values = np.concatenate(batches)
    weights = np.repeat(fade ** np.arange(5, -1, -1.0), 20)
    mean = np.average(values, weights=weights)
    variance = np.average((values - mean) ** 2, weights=weights)
    state = spread.state()
    assert state["squares"][0] / state["mass"][0] == pytest.approx(variance)
    assert state["mean"][0, 0] == pytest.approx(mean)


def test_gradients_spread_in_every_direction() -> None:
    rng = np.random.default_rng(0)
    spread = ClassSpread(2)
    angle = rng.random(4000) * 2 * np.pi
    circle = np.stack([np.cos(angle), np.sin(angle)], 1)  # every norm is equal, and yet they spread
    classes = np.arange(4000) % 2
    spread.update(circle * np.where(classes == 0, 3.0, 1.0)[:, None], classes)
    multipliers = spread.multipliers()
    assert multipliers is not None
    assert multipliers == pytest.approx([1.0, 1 / 3], rel=0.02)


def test_there_are_no_multipliers_until_every_class_has_enough_samples() -> None:
    spread = ClassSpread(2)
    spread.update(np.arange(100.0), np.zeros(100, np.int64))
    assert spread.multipliers() is None


def test_a_constant_class_keeps_a_share() -> None:
    spread = ClassSpread(2)
    spread.update(np.where(np.arange(200) % 2, 1.0, np.arange(200)), np.arange(200) % 2)
    multipliers = spread.multipliers()
    assert multipliers is not None
    assert multipliers.tolist() == [1.0, 0.02]
    still = ClassSpread(2)
    still.update(np.ones(200), np.arange(200) % 2)
    found = still.multipliers()
    assert found is not None
    assert found.tolist() == [1.0, 1.0]


def test_bad_input_changes_nothing_in_a_spread() -> None:
    spread = ClassSpread(2)
    spread.update(np.ones((4, 3)), np.array([0, 1, 0, 1]))
    before = spread.state()
    with pytest.raises(NonFiniteError, match="cannot be learned from NaN"):
        spread.update(np.full((1, 3), np.nan), np.array([0]))
    with pytest.raises(ShapeError, match="4 values for classes of shape"):
        spread.update(np.ones((4, 3)), np.array([0]))
    with pytest.raises(ShapeError, match="values of width 1 after values of width 3"):
        spread.update(np.ones(1), np.array([0]))
    with pytest.raises(ContractError, match=r"outside 0 \.\. 1: found \[2\]"):
        spread.update(np.ones((1, 3)), np.array([2]))
    with pytest.raises(CheckpointError, match="expected 2 classes"):
        spread.load_state({**before, "mass": np.ones(3)})
    with pytest.raises(CheckpointError, match=r"squares holds -1\.0"):
        spread.load_state({**before, "squares": np.array([1.0, -1.0])})
    with pytest.raises(CheckpointError, match="NaN or infinity in mean"):
        spread.load_state({**before, "mean": before["mean"] * np.nan})
    with pytest.raises(CheckpointError, match="they have no mass"):
        spread.load_state({**before, "mass": np.zeros(2)})
    after = spread.state()
    assert all(before[name].tolist() == after[name].tolist() for name in before)
