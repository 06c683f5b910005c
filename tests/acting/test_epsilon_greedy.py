"""ε-greedy choices against a plain reference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from parallel_agents.acting import EPSILON_SLOTS, asked, epsilon_greedy
from parallel_agents.errors import ActionError, ShapeError
from parallel_agents.seeding import Purpose, generator


def reference(values, draws, epsilons, masks):
    chosen = np.zeros(values.shape[:2], np.int64)
    for n, w in np.ndindex(*chosen.shape):
        allowed = [a for a in range(values.shape[2]) if masks is None or masks[n, w, a]]
        explores, where = draws[n, w]
        if explores < epsilons[n]:
            chosen[n, w] = allowed[int(where * len(allowed))]
        else:
            chosen[n, w] = max(allowed, key=lambda a: (values[n, w, a], -a))
    return chosen


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    agents=st.integers(1, 5),
    worlds=st.integers(1, 5),
    actions=st.integers(1, 6),
    masked=st.booleans(),
)
def test_choices_are_those_of_the_reference(seed, agents, worlds, actions, masked):
    some = generator(seed, Purpose.NOISE)
    values = some.integers(-2, 3, (agents, worlds, actions)).astype(np.float32)  # ties on purpose
    draws, epsilons = some.random((agents, worlds, EPSILON_SLOTS)), some.random(agents)
    masks = None
    if masked:
        masks = some.random((agents, worlds, actions)) < 0.5
        masks[..., some.integers(actions)] = True
    chosen = epsilon_greedy(values, draws, epsilons, masks)
    assert chosen.tolist() == reference(values, draws, epsilons, masks).tolist()
    if masked:
        assert np.take_along_axis(masks, chosen[..., None], -1).all()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), agents=st.integers(1, 5), worlds=st.integers(1, 3))
def test_values_of_those_who_are_not_asked_decide_nothing(seed, agents, worlds):
    some = generator(seed, Purpose.NOISE)
    values = some.standard_normal((agents, worlds, 4), np.float32)
    draws, epsilons = some.random((agents, worlds, EPSILON_SLOTS)), some.random(agents)
    needed = asked(draws, epsilons)
    without = np.where(needed[:, None, None], values, np.float32(0.0))
    assert epsilon_greedy(without, draws, epsilons).tolist() == epsilon_greedy(values, draws, epsilons).tolist()
    assert needed.tolist() == [any(draws[n, w, 0] >= epsilons[n] for w in range(worlds)) for n in range(agents)]


def test_the_bounds_of_epsilon():
    values = np.tile(np.array([0.0, 1.0, 0.0], np.float32), (1, 500, 1))
    draws = generator(0, Purpose.NOISE).random((1, 500, 2))
    assert (epsilon_greedy(values, draws, np.zeros(1)) == 1).all()
    counts = np.bincount(epsilon_greedy(values, draws, np.ones(1))[0], minlength=3)
    assert chisquare(counts).pvalue > 1e-3


def test_the_first_of_equal_values_is_taken():
    assert epsilon_greedy(np.zeros((1, 1, 4), np.float32), np.full((1, 1, 2), 0.9), np.zeros(1)).item() == 0


def test_one_agents_draws_and_epsilon_touch_nobody_else():
    values = generator(1, Purpose.NOISE).random((3, 4, 5)).astype(np.float32)
    draws = generator(2, Purpose.NOISE).random((3, 4, 2))
    before = epsilon_greedy(values, draws, np.full(3, 0.5))
    other = draws.copy()
    other[1] = 1.0 - other[1]
    after = epsilon_greedy(values, other, np.array([0.5, 1.0, 0.5]))
    assert (before[[0, 2]] == after[[0, 2]]).all()


def test_a_mask_that_forbids_everything_is_refused():
    masks = np.ones((2, 3, 4), np.bool_)
    masks[1, 2] = False
    with pytest.raises(ActionError, match="the action mask of agent 1 in world 2 forbids every action"):
        epsilon_greedy(np.zeros((2, 3, 4), np.float32), np.zeros((2, 3, 2)), np.zeros(2), masks)


@pytest.mark.parametrize("shape", [(1, 1, 4), (2, 3, 5), (2, 3)])
def test_a_mask_of_another_shape_is_refused(shape):
    with pytest.raises(
        ShapeError, match=r"action masks of shape .*: wanted is \(agents, worlds, actions\) = \(2, 3, 4\)"
    ):
        epsilon_greedy(np.zeros((2, 3, 4), np.float32), np.zeros((2, 3, 2)), np.zeros(2), np.ones(shape, np.bool_))
