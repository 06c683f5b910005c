"""Corrections in the learners: the mean of corrected updates is the update of the whole buffer; PPO weighs every term."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from parallel_agents.algorithms import DQN, PPO
from parallel_agents.algorithms.dqn import DQNLearner
from parallel_agents.algorithms.external_update import batches_snapshot
from parallel_agents.algorithms.learner import Snapshot
from parallel_agents.algorithms.ppo import PPOSpec
from parallel_agents.core.errors import NonFiniteError, ShapeError
from parallel_agents.core.seeding import Identity, Purpose, generator
from parallel_agents.engine.stacks import random_snapshot
from parallel_agents.nn import Discrete
from parallel_agents.replay import ImportanceSampler, ImportanceSamplingReplayBuffer

ROWS, BATCH, BATCHES = 300, 16, 600
MODEL = DQN((3,), 2, hidden=(4,), max_grad_norm=1e9)


def buffer(**options):
    """Rare rows that differ from the others in everything a gradient depends on."""
    sampler = ImportanceSampler(5.0, alpha=1.0, beta=1.0, normalise=False, **options)
    memory = ImportanceSamplingReplayBuffer(ROWS, (3,), sampler)
    draws = generator(0, Purpose.NOISE)
    rare = np.arange(ROWS) % 10 == 0
    states = draws.standard_normal((ROWS + 1, 3)) + 2.0 * np.append(rare, False)[:, None]
    kinds = np.where(rare, "crisis_parent", "regular_parent").tolist()
    rewards = np.where(rare, 0.9, 0.1)
    memory.add_many(states[:-1], draws.integers(0, 2, ROWS), rewards, states[1:], np.zeros(ROWS, bool), kinds, rewards)
    return memory


def gradients(batches, updates=1):
    """(N, P): the gradient of one update of N equal agents with a batch each, as Adam's first moment keeps it."""
    size = len(batches[0]["rewards"])
    learner = replace(MODEL.spec.learner(updates=1), batch=size)
    assert isinstance(learner, DQNLearner)
    identity = Identity((0,) * len(batches), (0,) * len(batches))
    state = learner.init(identity, [MODEL.hyper] * len(batches))
    taken = batches_snapshot(batches, MODEL.spec, gammas=[0.9] * len(batches))
    new, result = learner.learn(state, taken, identity)
    assert result.updates.tolist() == [1] * len(batches)
    return new["first"].double().numpy() / 0.1


def largest_z(change=lambda weights: weights, **options):
    """How far the mean of corrected updates is from the whole buffer's, in standard errors, in the worst coordinate."""
    memory = buffer(**options)
    batches = []
    for _ in range(BATCHES):
        batch, weights, _ = memory.sample_importance_weighted(BATCH)
        batches.append({**batch, "weights": change(weights)})
    updates = gradients(batches)
    truth = gradients([memory.get(np.arange(ROWS))])[0]
    error = updates.std(0, ddof=1) / np.sqrt(BATCHES)
    moving = error > 1e-9
    assert moving.sum() >= 10
    return np.abs((updates.mean(0) - truth)[moving] / error[moving]).max()


@pytest.mark.parametrize("priorities", [False, True])
def test_the_mean_of_corrected_updates_is_the_update_of_the_whole_buffer(priorities):
    assert largest_z(priorities=priorities) < 4.5


@pytest.mark.parametrize(
    "change", [np.ones_like, lambda weights: weights**2, lambda weights: np.full_like(weights, weights.mean())]
)
def test_without_or_with_other_weights_it_is_not(change):
    assert largest_z(change) > 8


# -- PPO ------------------------------------------------------------------------------------------------------

WHO = Identity((0,), (0,))


def ppo(worlds=2, n_epochs=1):
    made = PPOSpec((3,), Discrete(4), worlds, (5,), n_epochs=n_epochs, n_minibatches=1, rollout=6, epochs=1)
    learner = made.learner()
    hyper = {**PPO((3,), 4).hyper, "clip": 1e9, "entropy": 0.05}
    return learner, learner.init(WHO, [hyper]), random_snapshot(made, 1, updates=1)


def with_columns(taken, **columns):
    return Snapshot(taken.round, {**taken.columns, **columns})


def test_weights_of_one_change_nothing():
    learner, state, taken = ppo(n_epochs=3)
    ones = np.ones(taken["rewards"].shape, np.float32)
    plain, _ = learner.learn(state, taken, WHO)
    weighted, _ = learner.learn(state, with_columns(taken, sample_weights=ones), WHO)
    assert torch.equal(plain["updates"], weighted["updates"])
    torch.testing.assert_close(plain["online"], weighted["online"], rtol=0, atol=2e-6)


def test_a_sample_of_weight_two_counts_as_two_and_one_of_weight_zero_not_at_all():
    """Of two worlds the second is left out: what remains is the first alone, with its own normalised advantages."""
    learner, state, taken = ppo()
    weights = np.zeros(taken["rewards"].shape, np.float32)
    weights[:, :, 0] = 2.0
    weighted, figures = learner.learn(state, with_columns(taken, sample_weights=weights), WHO)
    alone = Snapshot(0, {n: c[:, :, :1] if c.ndim > 1 else c for n, c in taken.columns.items()})
    small, _, _ = ppo(worlds=1)
    expected, plain = small.learn(state, alone, WHO)
    torch.testing.assert_close(weighted["first"], expected["first"], rtol=1e-4, atol=1e-6)
    for name in ("policy_loss", "value_loss", "entropy"):
        np.testing.assert_allclose(figures.metrics[name], plain.metrics[name], rtol=1e-4, atol=1e-6)


def test_advantages_come_from_the_whole_trajectory_whatever_the_weights_are():
    """A reward of a sample without weight still reaches the samples before it."""
    learner, state, taken = ppo(worlds=1)
    weights = np.ones(taken["rewards"].shape, np.float32)
    weights[:, 3] = 0.0
    more = taken["rewards"].copy()
    more[:, 3] += 5.0
    base, _ = learner.learn(state, with_columns(taken, sample_weights=weights), WHO)
    changed, _ = learner.learn(state, with_columns(taken, sample_weights=weights, rewards=more), WHO)
    assert not torch.allclose(base["first"], changed["first"], atol=1e-4)


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        (np.full((1, 7, 2), np.nan), NonFiniteError, "finite and not negative"),
        (np.full((1, 7, 2), -1.0), NonFiniteError, "finite and not negative"),
        (np.ones((1, 7, 1)), ShapeError, "one for each sample"),
    ],
)
def test_weights_that_are_none_are_refused(weights, error, message):
    learner, state, taken = ppo()
    with pytest.raises(error, match=message):
        learner.learn(state, with_columns(taken, sample_weights=weights), WHO)
