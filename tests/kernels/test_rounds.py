"""Rounds by compiled kernels equal those by torch, for every option: float32 rounding apart, stated as relative errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from parallel_agents.algorithms.dqn import DQNLearner, QLearningOptions
from parallel_agents.algorithms.iqn import IQNLearner
from parallel_agents.algorithms.learner import LearnerState, RoundResult, Snapshot
from parallel_agents.algorithms.ppo import PPOLearner, PPOOptions
from parallel_agents.core.seeding import Identity
from parallel_agents.kernels import mlp
from parallel_agents.nn import MLP, ActorCritic, Discrete, MultiDiscrete, QuantileNetwork, SquashedGaussian

AGENTS = Identity((3, 3, 4, 5), (0, 1, 2, 3))
INPUTS, UPDATES, BATCH = 5, 6, 13
REPLAY = [
    {"lr": 1e-2, "tau": 0.1},
    {"lr": 1e-2, "lr_final": 1e-4, "lr_updates": 4, "lr_schedule": "cosine", "max_grad_norm": 0.1, "tau": 0.7},
    {"lr_final": 1e-4, "lr_updates": 9, "lr_schedule": "exponential", "target_update_interval": 2},
    {"lr": 1e-2, "max_accumulated_batches": 4, "max_grad_norm": 0.2},
]
POLICY = [
    {},
    {"max_grad_norm": 0.01, "clip_range": 0.05, "ent_coef": 0.01, "clip_range_vf": 0.1},
    {"target_kl": 0.01, "lr": 1e-2, "ent_coef": 0.02, "vf_coef": 1.5},
    {"lr_final": 1e-5, "lr_updates": 9, "gamma": 0.9, "gae_lambda": 0.8},
]
CLOSE = 5e-6
"""Largest relative error of anything that a round stores, against its largest number."""


def samples(actions: int, *, weights: bool, masks: bool) -> Snapshot:
    draws, shape = np.random.default_rng(1), (len(AGENTS), UPDATES * BATCH)
    columns = {
        "states": draws.standard_normal((*shape, INPUTS), np.float32),
        "next_states": draws.standard_normal((*shape, INPUTS), np.float32),
        "actions": draws.integers(0, actions, shape),
        "returns": draws.standard_normal(shape, np.float32),
        "discounts": (0.9 * (draws.random(shape) < 0.9)).astype(np.float32),
        "ready": np.ones(len(AGENTS), np.bool_),
        "places": np.zeros(shape),
    }
    if weights:
        columns["weights"] = draws.random(shape, np.float32)
    if masks:
        columns["next_masks"] = draws.random((*shape, actions)) < 0.6
        columns["next_masks"][..., 0] |= ~columns["next_masks"].any(-1)
    return Snapshot(3, columns)


def trajectories(distribution: Any, *, weights: bool, masks: bool) -> Snapshot:
    turns, worlds = 20, 3
    draws, shape = np.random.default_rng(1), (len(AGENTS), turns + 1, worlds)
    columns = {
        "observations": draws.standard_normal((*shape, INPUTS), np.float32),
        "rewards": draws.standard_normal(shape, np.float32),
        "terminated": draws.random(shape) < 0.05,
        "truncated": draws.random(shape) < 0.05,
        "valid": draws.random(shape) < 0.9,
        "follow": np.ones(shape, np.int32),
        "log_prob": (-1.0 + 0.3 * draws.standard_normal(shape)).astype(np.float32),
        "value": draws.standard_normal(shape, np.float32),
        "ready": np.ones(len(AGENTS), np.bool_),
    }
    columns["valid"][:, turns] = False
    match distribution:
        case SquashedGaussian():
            columns["actions"] = draws.standard_normal((*shape, 2), np.float32)
            sizes: tuple[int, ...] = ()
        case Discrete(n):
            columns["actions"], sizes = draws.integers(0, n, shape), (n,)
        case MultiDiscrete(sizes):
            columns["actions"] = np.stack([draws.integers(0, size, shape) for size in sizes], -1)
    if masks and sizes:
        columns["masks"] = draws.random((*shape, sum(sizes))) < 0.7
        chosen = columns["actions"].reshape(*shape, -1) + np.cumsum([0, *sizes[:-1]])
        np.put_along_axis(columns["masks"], chosen, True, -1)
    if weights:
        columns["sample_weights"] = draws.random(shape).astype(np.float32)
    return Snapshot(3, columns)


def compare(learner: Any, options: list[Any], snapshot: Snapshot, close: float = CLOSE) -> RoundResult:
    """Compare two rounds after another by kernels with those by torch from the same state; return the last result."""
    assert learner.native
    by_torch = replace(learner, kernels="torch")
    state = learner.init(AGENTS, [own.hyper() for own in options])
    if "target" in state.tensors:
        state = LearnerState({**state.tensors, "target": learner.network.init(Identity((9,) * 4, (5, 6, 7, 8)))})
    for _ in range(2):
        found, result = learner.learn(state, snapshot, AGENTS)
        expected, wanted = by_torch.learn(state, snapshot, AGENTS)
        for name, tensor in expected.tensors.items():
            scale = float(tensor.double().abs().max()) + 1e-12
            assert float((found[name].double() - tensor.double()).abs().max()) <= close * scale, name
        assert result.updates.tolist() == wanted.updates.tolist()
        assert result.rejected.tolist() == wanted.rejected.tolist()
        for name, column in wanted.priorities.items():
            np.testing.assert_allclose(result.priorities[name], column, rtol=1e-4, atol=1e-5)
        state = found
    return result


@pytest.mark.parametrize("activation", mlp.ACTIVATIONS)
@pytest.mark.parametrize(
    ("dueling", "double", "beside"), [(False, True, True), (True, False, True), (True, True, False)]
)
def test_dqn(dueling: bool, double: bool, beside: bool, activation: Any) -> None:
    network = MLP(INPUTS, (17, 9), 3, dueling, activation)
    snapshot = samples(3, weights=beside, masks=beside)
    compare(DQNLearner(network, UPDATES, BATCH, double), [QLearningOptions(**own) for own in REPLAY], snapshot)


@pytest.mark.parametrize(("hidden", "outputs"), [((), 1), ((1,), 1), ((70, 33, 2), 5)])
def test_dqn_of_other_shapes(hidden: tuple[int, ...], outputs: int) -> None:
    learner = DQNLearner(MLP(INPUTS, hidden, outputs), UPDATES, BATCH)
    compare(learner, [QLearningOptions(**own) for own in REPLAY], samples(outputs, weights=False, masks=False))


@pytest.mark.parametrize(
    ("units", "actions", "double", "beside"), [(20, 3, True, True), (33, 2, False, False), (1, 1, True, False)]
)
def test_iqn(units: int, actions: int, double: bool, beside: bool) -> None:
    """The gradients of some deviations are almost 0; Adam makes them as large as others, rounding errors included."""
    learner = IQNLearner(QuantileNetwork(INPUTS, units, actions), UPDATES, BATCH, double, quantiles=4)
    options = [QLearningOptions(**own) for own in REPLAY]
    compare(learner, options, samples(actions, weights=beside, masks=beside), close=3e-3)


@pytest.mark.parametrize(
    "distribution", [Discrete(3), MultiDiscrete((2, 4)), SquashedGaussian((-1.0, -2.0), (1.0, 2.0))]
)
@pytest.mark.parametrize("beside", [False, True])
def test_ppo(distribution: Any, beside: bool) -> None:
    learner = PPOLearner(ActorCritic(INPUTS, (17, 9), distribution), 4, 4, 15)
    result = compare(
        learner, [PPOOptions(**own) for own in POLICY], trajectories(distribution, weights=beside, masks=beside), 5e-5
    )
    assert not np.isnan(result.metrics["loss"]).any()


@pytest.mark.parametrize("column", ["states", "returns"])
def test_an_update_that_is_not_finite_is_rejected(column: str) -> None:
    snapshot = samples(3, weights=False, masks=False)
    snapshot.columns[column][1, BATCH] = np.nan
    result = compare(DQNLearner(MLP(INPUTS, (8,), 3), UPDATES, BATCH), [QLearningOptions()] * 4, snapshot)
    assert result.rejected.tolist() == [0, 1, 0, 0]


def test_agents_that_are_not_ready_stay_as_they_are() -> None:
    learner = DQNLearner(MLP(INPUTS, (8,), 3), UPDATES, BATCH)
    state, snapshot = learner.init(AGENTS, [QLearningOptions().hyper()] * 4), samples(3, weights=False, masks=False)
    snapshot.columns["ready"][2] = False
    new, result = learner.learn(state, snapshot, AGENTS)
    assert result.updates.tolist() == [UPDATES, UPDATES, 0, UPDATES]
    assert all(torch.equal(new[name][2], tensor[2]) for name, tensor in state.tensors.items())


def test_a_perceptron_against_float64() -> None:
    network, rows = MLP(INPUTS, (33, 20), 3, activation="tanh"), 40
    draws = np.random.default_rng(0)
    parameters = network.init(Identity((1,), (0,)))
    inputs, deltas_out = (draws.standard_normal((rows, n)).astype(np.float32) for n in (INPUTS, 3))
    leaves = [view.double().requires_grad_() for view in network.bind(parameters)]
    expected = network.forward(leaves, torch.from_numpy(inputs).double()[None])
    expected.backward(torch.from_numpy(deltas_out).double()[None])
    layers = network.layout.table(0, network.widths())
    outputs = np.zeros(rows * int(layers[:, mlp.STRIDE].sum()), np.float32)
    deltas, gradient = np.zeros_like(outputs), np.zeros(network.size, np.float32)
    room = np.zeros(33 * 20 * 2, np.float32)
    row = parameters[0].numpy()
    at = mlp.forward(row, 0, layers, mlp.TANH, inputs.reshape(-1), 0, rows, outputs, 0, room)
    np.testing.assert_allclose(outputs[at:].reshape(rows, 3), expected[0].detach(), rtol=1e-5, atol=1e-6)
    deltas[at:] = deltas_out.reshape(-1)
    mlp.backward(row, 0, layers, mlp.TANH, inputs.reshape(-1), 0, rows, outputs, deltas, 0, gradient, 0, room)
    for found, leaf in zip(network.bind(torch.from_numpy(gradient)[None]), leaves, strict=True):
        np.testing.assert_allclose(found, leaf.grad, rtol=1e-4, atol=1e-5 * float(leaf.grad.abs().max()))
