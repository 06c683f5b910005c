"""IQN: the quantile loss by hand, noise, and what it learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from parallel_agents.algorithms import IQN
from parallel_agents.algorithms.iqn import quantile_huber
from parallel_agents.algorithms.learner import Snapshot
from parallel_agents.core.seeding import Identity
from parallel_agents.engine.stacks import random_snapshot
from parallel_agents.nn import QuantileNetwork

AGENTS = Identity((0, 0), (0, 1))


def test_the_quantile_huber_loss_equals_that_computed_by_hand() -> None:
    # one sample, quantiles .25 and .75, two targets; errors within ±1 count half their square, beyond |e| - .5
    errors = torch.tensor([[[[0.5, -0.5], [2.0, -1.0]]]])
    first = (0.25 * 0.125 + 0.75 * 0.125) / 2
    second = (0.75 * 1.5 + 0.25 * 0.5) / 2
    assert quantile_huber(errors, torch.tensor([[[0.25, 0.75]]])).item() == pytest.approx(first + second)


def test_the_quantile_huber_loss_is_least_at_the_quantiles_of_the_targets() -> None:
    """Gradient descent on the loss brings values to the quantiles of the targets."""
    targets = torch.from_numpy(np.random.Generator(np.random.Philox(1)).uniform(0, 10, 4000)).float()
    quantiles = torch.tensor([[[0.1, 0.5, 0.9]]])
    values = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.Adam([values], 0.05)
    for _ in range(800):
        optimizer.zero_grad()
        quantile_huber((targets - values[:, None])[None, None], quantiles).sum().backward()
        optimizer.step()
    assert values.detach().tolist() == pytest.approx([1.0, 5.0, 9.0], abs=0.5)


def test_noise_affects_its_own_agent_only_and_acting_has_none() -> None:
    network = QuantileNetwork(3, 6, 4)
    rows = network.init(AGENTS)
    inputs = torch.ones(2, 5, 3)
    quantiles = torch.full((2, 5, 3), 0.5)
    bound = network.bind(rows)
    quiet = network.quantiles(bound, inputs, quantiles, None)
    noise = torch.zeros(2, network.noise_size)
    assert torch.equal(network.quantiles(bound, inputs, quantiles, noise), quiet)
    noise[1] = 1.0
    noisy = network.quantiles(bound, inputs, quantiles, noise)
    assert torch.equal(noisy[0], quiet[0])
    assert not torch.equal(noisy[1], quiet[1])
    assert torch.equal(network.forward(bound, inputs), network.forward(bound, inputs))


def test_the_same_weights_act_alike_before_and_after_training() -> None:
    model = IQN((3,), 2, layer=6, n_frames=1, learning_starts=1, epsilon=0.0, epsilon_final=0.0)
    for t in range(20):
        model.memory.add([t % 3, 1, 0], action=t % 2, reward=float(t % 2), done=t % 5 == 4)
    before = model.state
    actions = [model.take_action([1, 1, 0]) for _ in range(5)]
    model.train_step()
    after, model.state = model.state, before
    assert [model.take_action([1, 1, 0]) for _ in range(5)] == actions
    assert not torch.equal(after["online"], before["online"])


def test_training_learns_the_rewarded_action() -> None:
    model = IQN((2,), 2, layer=16, n_frames=1, n_step=1, learning_starts=1, epsilon=0.0, epsilon_final=0.0, lr=5e-3)
    for t in range(60):
        model.memory.add([1.0, 0.0], action=t % 2, reward=float(t % 2), done=True)
    for _ in range(150):
        model.train_step()
    assert model.take_action([1.0, 0.0]) == 1


def test_a_batch_that_is_not_finite_is_rejected_for_its_agent_only() -> None:
    spec = IQN((3,), 2, layer=6, n_frames=1, batch_size=4).spec
    learner = spec.learner(updates=2)
    state = learner.init(AGENTS, [IQN((3,), 2).hyper] * 2)
    clean = random_snapshot(spec, 2, updates=2)
    spoiled = clean["returns"].copy()
    spoiled[1, 5] = np.nan  # in the second of two updates
    expected, _ = learner.learn(state, clean, AGENTS)
    new, result = learner.learn(state, Snapshot(0, {**clean.columns, "returns": spoiled}), AGENTS)
    assert (result.updates.tolist(), result.rejected.tolist()) == ([2, 1], [0, 1])
    assert torch.equal(new["online"][0], expected["online"][0])
    assert all(bool(torch.isfinite(tensor).all()) for tensor in new.tensors.values())
