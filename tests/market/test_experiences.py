"""The buffer: transitions come back as they were, old rows are overwritten, memory stays small."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_agents.core.errors import CheckpointError, ConfigError, ContractError, NonFiniteError, ShapeError
from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.market.experiences import EpisodeExperience, ExperienceBuffer
from parallel_agents.market.worlds import WorldType


def episode(number: int, steps: int = 20, features: int = 4, crisis: tuple[int, ...] = ()) -> EpisodeExperience:
    draws = generator(5, Purpose.WORLD, world=number)
    values = np.zeros(steps, np.float32)
    values[list(crisis)] = 50.0
    return EpisodeExperience(
        world=number,
        kind=tuple(WorldType)[number % 10],
        lap=0,
        context={"crisis_share": 0.1},
        states=(draws.standard_normal((steps + 1, features)) * 3).astype(np.float32),
        actions=draws.integers(0, 9, steps),
        rewards=draws.standard_normal(steps).astype(np.float32),
        values=values,
        crisis_values=values,
        cost=1.0,
        conversions=float(len(crisis)),
        score=1.0,
        budget=10.0,
        target=5.0,
    )


def test_transitions_come_back_with_their_next_states():
    buffer = ExperienceBuffer(1000, 4)
    episodes = [episode(i, crisis=(3, 7)) for i in range(10)]
    buffer.add_experiences(episodes)
    assert len(buffer) == 200
    batch = buffer.sample_batch(100, importance_sampling=False)
    starts = {e.rewards[t]: (e, t) for e in episodes for t in range(20)}
    for i in range(100):
        e, t = starts[batch["rewards"][i]]
        for name, at in (("states", t), ("next_states", t + 1)):
            np.testing.assert_array_equal(batch[name][i], e.states[at])
        assert batch["actions"][i] == e.actions[t]
        assert batch["dones"][i] == (t == 19)
        assert batch["crisis"][i] == (t in (3, 7))
        assert tuple(WorldType)[batch["world_types"][i]] is e.kind


def test_oldest_rows_are_overwritten_and_never_mixed_with_new_ones():
    buffer = ExperienceBuffer(100, 4)
    for i in range(40):
        buffer.add_experiences([episode(i, crisis=(1,))])
        assert len(buffer) <= 100
    assert len(buffer) == 100
    batch = buffer.sample_batch(95, importance_sampling=True)
    known = {e.rewards[t]: (e, t) for i in range(34, 40) for e in [episode(i, crisis=(1,))] for t in range(20)}
    for i in range(95):
        e, t = known[batch["rewards"][i]]
        np.testing.assert_allclose(batch["next_states"][i], e.states[t + 1], rtol=1e-3, atol=1e-6)


def test_statistics_cover_every_world_type():
    buffer = ExperienceBuffer(1000, 4)
    buffer.add_experiences([episode(i, crisis=(0,)) for i in range(20)])
    statistics = buffer.statistics()
    assert statistics["transitions"] == 400
    assert statistics["episodes"] == 20
    assert statistics["crisis_parent_share"] == pytest.approx(0.05)
    assert statistics["predicted_shares"]["crisis_parent"] == pytest.approx(0.5)
    assert len(statistics["world_types"]) == 10
    assert sum(part["transitions"] for part in statistics["world_types"].values()) == 400
    assert statistics["bytes"] == buffer.nbytes


def test_a_loaded_buffer_draws_like_the_stored_one():
    one = ExperienceBuffer(200, 4)
    one.add_experiences([episode(i, crisis=(2,)) for i in range(15)])
    one.sample_batch(8)
    other = ExperienceBuffer(200, 4)
    other.load_state({name: array.copy() for name, array in one.state().items()})
    for buffer in (one, other):
        buffer.add_experiences([episode(99)])
    for a, b in zip(one.sample_batch(32).values(), other.sample_batch(32).values(), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(CheckpointError, match=r"\(200,\), wanted is float32 \(100,\)"):
        ExperienceBuffer(100, 4).load_state(one.state())


def test_a_million_transitions_take_less_than_150_mb():
    buffer = ExperienceBuffer(1_000_000, 32)
    buffer.add_experiences([episode(i, 50, 32, crisis=(5,)) for i in range(20)])
    assert buffer.nbytes <= 160e6


def test_invalid_episodes_are_refused_before_any_is_stored():
    buffer = ExperienceBuffer(100, 4)
    good, short = episode(0), episode(1)
    for change, error, text in (
        ({"states": short.states[:-1]}, ShapeError, "39 states and actions of shape"),
        ({"values": short.values[:-1]}, ShapeError, "40 states and values of shape"),
        ({"rewards": np.full(20, np.nan, np.float32)}, NonFiniteError, "rewards hold NaN"),
        ({"states": np.full((21, 4), np.inf, np.float32)}, NonFiniteError, "states hold NaN"),
    ):
        bad = EpisodeExperience(**{**vars(short), **change})
        with pytest.raises(error, match=text):
            buffer.add_experiences([good, bad])
        assert len(buffer) == 0
    with pytest.raises(ContractError, match="the buffer is empty"):
        buffer.sample_batch(3)
    with pytest.raises(ConfigError, match="a buffer of capacity 0"):
        ExperienceBuffer(0, 4)
