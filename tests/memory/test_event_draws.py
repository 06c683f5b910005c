"""Rows of a ring drawn by event class: right shares, right corrections, and uniform draws where there is one class."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_agents.errors import ConfigError, ContractError
from parallel_agents.memory import EVENT_COLUMNS, Buffer, EventWeighting, draw_classed, draw_rows
from parallel_agents.sampling import EffectiveSampleSizeWarning
from parallel_agents.seeding import Purpose, generator

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
    weighting = EventWeighting(alpha=1.0, beta=1.0, normalise=False)
    drawn = draw_classed(events, values, weighting, numbers(200_000), batch=100, done=0)
    assert drawn.rare.mean() == pytest.approx(0.357, abs=0.005)
    assert (events[drawn.rows] == RARE).tolist() == drawn.rare.tolist()
    found = drawn.weights * values[drawn.rows]
    assert abs(found.mean() - 1.8) < 4 * found.std() / np.sqrt(len(found))
    assert values[drawn.rows].mean() > 3.8  # without corrections it is that of another world


def test_beta_is_that_of_each_update() -> None:
    events = np.repeat(np.array([RARE, REGULAR], np.float32), [10, 90])
    weighting = EventWeighting(alpha=1.0, beta=0.5, beta_frames=10, normalise=False)
    drawn = draw_classed(events, events, weighting, numbers(20_000), batch=1000, done=4)
    common = ~drawn.rare
    for update, beta in ((0, 0.7), (3, 0.85), (6, 1.0), (19, 1.0)):
        own = slice(update * 1000, (update + 1) * 1000)
        assert drawn.weights[own][common[own]][0] == pytest.approx(1.4**beta, rel=1e-6)


def test_after_wrap_around_serials_name_rows_of_the_drawn_class() -> None:
    events = [RARE if t % 10 == 0 else REGULAR for t in range(2500)]
    buffer = ring_of(events, [float(t) for t in range(2500)], capacity=700)
    drawn = draw_rows(buffer.ring, 0, EventWeighting(), numbers(3000), batch=100, done=0)
    rows = buffer.ring.gather(drawn.rows[None], n_step=1, gammas=np.ones(1))
    when = rows["states"][0, :, 0].astype(int)
    assert when.min() >= 1800
    assert ((when % 10 == 0) == drawn.rare).all()
    assert (rows["returns"][0] == when).all()


@pytest.mark.parametrize("alone", [RARE, REGULAR])
def test_a_single_class_is_uniform_sampling_byte_for_byte(alone: int) -> None:
    buffer = ring_of([alone] * 1300, [1.0] * 1300, capacity=700)
    draws = numbers(500)
    drawn = draw_rows(buffer.ring, 0, EventWeighting(), draws, batch=50, done=7)
    assert drawn.rows.tobytes() == buffer.ring.serials(draws[:1])[0].tobytes()
    assert (drawn.weights == 1.0).all()


def test_without_labels_the_largest_values_are_rare() -> None:
    values = np.arange(100, dtype=np.float32)
    weighting = EventWeighting(focus_rare_events=True, value_threshold_percentile=80.0)
    drawn = draw_classed(np.full(100, NONE, np.float32), values, weighting, numbers(4000), batch=100, done=0)
    assert drawn.rare.mean() == pytest.approx(0.5, abs=0.03)
    assert ((values[drawn.rows] > 79.2) == drawn.rare).all()
    equal = np.full(100, NONE, np.float32), np.ones(100, np.float32)
    assert not draw_classed(*equal, weighting, numbers(100), batch=100, done=0).rare.any()  # ties are not rare


def test_learned_weights_are_the_spread_of_each_class() -> None:
    draws = generator(0, Purpose.NOISE).standard_normal(1000)
    events = np.repeat(np.array([RARE, REGULAR], np.float32), [100, 900])
    values = np.where(events == RARE, 9 + 5 * draws, 1 + draws).astype(np.float32)
    drawn = draw_classed(events, values, EventWeighting(learned=True), numbers(100_000), batch=100, done=0)
    spread = values[:100].std() / values[100:].std()
    assert drawn.rare.mean() == pytest.approx(0.1 * spread / (0.1 * spread + 0.9), abs=0.01)  # Neyman: q ~ pi sigma


def test_nothing_is_drawn_from_nothing() -> None:
    buffer = Buffer(10, (1,), **EVENT_COLUMNS)
    drawn = draw_rows(buffer.ring, 0, EventWeighting(), numbers(8), batch=4, done=0)
    assert drawn.rows.tolist() == [0] * 8
    assert drawn.weights.tolist() == [1.0] * 8


def test_a_collapse_is_flagged() -> None:
    events = np.repeat(np.array([RARE, REGULAR], np.float32), [1, 9999])
    weighting = EventWeighting(beta=1.0, focus_rare_events=True, target_share=0.99)
    with pytest.warns(EffectiveSampleSizeWarning, match="model.importance"):
        draw_classed(events, events, weighting, numbers(1000), batch=100, done=0)


def test_bad_options_and_event_types_are_named() -> None:
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
            np.array([1, 2], np.float32), np.zeros(2, np.float32), EventWeighting(), numbers(4), batch=4, done=0
        )
