"""Whole rounds of every algorithm against a reference in plain float64, from weights, batch and draws to new weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from parallel_agents.algorithms.dqn import DQNLearner, RecurrentDQNLearner
from parallel_agents.algorithms.iqn import IQNLearner
from parallel_agents.algorithms.learner import LearnerState, RoundResult, Snapshot
from parallel_agents.algorithms.options import Kernels
from parallel_agents.algorithms.ppo import PPOLearner
from parallel_agents.core.seeding import Identity, Purpose
from parallel_agents.nn import MLP, ActorCritic, Discrete, QuantileNetwork
from parallel_agents.nn.recurrent import Recurrent
from tests.algorithms import reference
from tests.algorithms.reference import ReferenceLearner

AGENTS = Identity((5, 6), (0, 3))
UPDATES, BATCH = 3, 5
KERNELS: list[Kernels] = ["auto", "torch"]
HYPER = [
    {"lr": 1e-2, "lr_final": 2e-3, "lr_updates": 4, "clip": 0.4, "tau": 0.25},
    {"lr": 5e-3, "lr_final": 5e-3, "lr_updates": 0, "clip": 50.0, "tau": 0.5},
]
"""Of two agents: one with clipped gradients and a falling learning rate, one with neither."""
REPLAY = [{**own, "lr_shape": 0, "target_interval": 0, "batch_growth": 1} for own in HYPER]


def start(learner: Any, hyper: list[dict[str, Any]], *, targets: bool = True) -> LearnerState:
    """Return fresh learners; target networks differ from the online ones, so that it matters which is computed."""
    state = learner.init(AGENTS, hyper)
    if not targets:
        return state
    others = learner.network.init(Identity((77, 79), (8, 9)))
    return LearnerState({**state.tensors, "target": 1.5 * others})


def numpy_generator(seed: int = 1) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


def replay_columns(weights: bool = True) -> dict[str, Any]:
    draws, shape = numpy_generator(), (2, UPDATES * BATCH)
    columns = {
        "states": draws.standard_normal((*shape, 3), np.float32),
        "next_states": draws.standard_normal((*shape, 3), np.float32),
        "actions": draws.integers(0, 2, shape),
        "returns": 0.9 * draws.standard_normal(shape, np.float32),
        "discounts": draws.random(shape, np.float32) * (draws.random(shape) < 0.8),
        "weights": 0.2 + draws.random(shape, np.float32),
        "ready": np.ones(2, np.bool_),
    }
    columns["discounts"] = columns["discounts"].astype(np.float32)
    return columns if weights else {name: column for name, column in columns.items() if name != "weights"}


def batches_of(columns: Mapping[str, Any], agent: int) -> Iterator[dict[str, Any]]:
    """Yield the batches of one agent's updates in float64, unweighted samples with weight 1."""
    for update in range(UPDATES):
        part = slice(update * BATCH, (update + 1) * BATCH)
        batch = {name: column[agent, part] for name, column in columns.items() if name != "ready"}
        batch.setdefault("weights", np.ones(BATCH))
        yield {name: own.astype(np.float64) if own.dtype == np.float32 else own for name, own in batch.items()}


def check_weights(
    network: Any, new: LearnerState, agent: int, expected: ReferenceLearner, *, targets: bool = True
) -> None:
    for name, array in expected.online.items():
        actual = reference.layers_by_name(network, new["online"][agent])[name]
        np.testing.assert_allclose(actual, array, rtol=2e-4, atol=2e-5, err_msg=f"online {name} of agent {agent}")
        if targets:
            actual = reference.layers_by_name(network, new["target"][agent])[name]
            np.testing.assert_allclose(actual, expected.target[name], rtol=2e-4, atol=2e-5, err_msg=f"target {name}")


def check_metrics(result: RoundResult, agent: int, expected: list[tuple[float, float]]) -> None:
    actual = [result.metrics["loss"][agent], result.metrics["gradient_norm"][agent]]
    np.testing.assert_allclose(actual, np.mean(expected, 0), rtol=2e-4)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("double", [True, False])
def test_a_dqn_round_equals_the_reference(double: bool, weights: bool, kernels: Kernels) -> None:
    learner = DQNLearner(MLP(3, (4,), 2), UPDATES, BATCH, double, kernels=kernels)
    state, columns = start(learner, REPLAY), replay_columns(weights)
    new, result = learner.learn(state, Snapshot(7, columns), AGENTS)
    for agent in range(2):
        expected = ReferenceLearner(
            *(reference.layers_by_name(learner.network, state[name][agent]) for name in ("online", "target")),
            HYPER[agent],
        )
        metrics = []
        for batch in batches_of(columns, agent):
            targets = reference.dqn_targets(expected.online, expected.target, batch, double=double)
            metrics.append(expected.step(lambda layers, t=targets, b=batch: reference.dqn_loss(layers, t, b)))  # type: ignore[misc]
        check_weights(learner.network, new, agent, expected)
        check_metrics(result, agent, metrics)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(("double", "weights"), [(True, True), (False, False)])
def test_an_iqn_round_equals_the_reference(double: bool, weights: bool, kernels: Kernels) -> None:
    network, quantiles = QuantileNetwork(3, 4, 2), 4
    learner = IQNLearner(network, UPDATES, BATCH, double, quantiles=quantiles, kernels=kernels)
    state, columns = start(learner, REPLAY), replay_columns(weights)
    new, result = learner.learn(state, Snapshot(7, columns), AGENTS)
    choices = []
    for agent in range(2):
        expected = ReferenceLearner(
            *(reference.layers_by_name(network, state[name][agent]) for name in ("online", "target")), HYPER[agent]
        )
        metrics = []
        for update, batch in enumerate(batches_of(columns, agent)):
            seed, number = AGENTS.seeds[agent], AGENTS.agents[agent]
            draws = reference.philox(seed, Purpose.QUANTILE, number, epoch=update)
            drawn = draws.random((2, BATCH, quantiles), np.float32)
            draws = reference.philox(seed, Purpose.NOISE, number, epoch=update)
            uniforms = draws.random((2, network.noise_size, 2))
            noise = np.sqrt(-2.0 * np.log1p(-uniforms[..., 0])) * np.cos(2.0 * np.pi * uniforms[..., 1])
            batch |= {"quantiles": drawn[0].astype(np.float64), "next_quantiles": drawn[1].astype(np.float64)}
            batch |= {"noise": noise[0], "next_noise": noise[1]}
            targets, best = reference.iqn_targets(expected.online, expected.target, batch, double=double)
            choices += list(
                zip(
                    best,
                    reference.iqn_targets(expected.online, expected.target, batch, double=not double)[1],
                    strict=True,
                )
            )
            metrics.append(expected.step(lambda layers, t=targets, b=batch: reference.iqn_loss(layers, t, b)))  # type: ignore[misc]
        check_weights(network, new, agent, expected)
        check_metrics(result, agent, metrics)
    assert any(own != other for own, other in choices)  # it matters which network chooses


@pytest.mark.parametrize("double", [True, False])
def test_a_recurrent_dqn_round_equals_the_reference_without_its_padding(double: bool) -> None:
    network = Recurrent(3, 4, MLP(4, (), 2))
    learner = RecurrentDQNLearner(network, UPDATES, BATCH, double)
    draws, shape, turns = numpy_generator(), (2, UPDATES * BATCH, 3), 4
    columns = {
        "states": draws.standard_normal((*shape[:2], turns, 3), np.float32),
        "hidden": draws.standard_normal((*shape[:2], 4), np.float32),
        "actions": draws.integers(0, 2, shape),
        "returns": 2.0 * draws.standard_normal(shape, np.float32),
        "discounts": draws.random(shape, np.float32),
        "ahead": draws.integers(0, turns, shape),
        "counted": (draws.random(shape) < 0.6).astype(np.float32),
        "ready": np.ones(2, np.bool_),
    }
    assert 0 < columns["counted"].mean() < 1
    state = start(learner, REPLAY)
    new, result = learner.learn(state, Snapshot(7, columns), AGENTS)
    for agent in range(2):
        expected = ReferenceLearner(
            *(reference.layers_by_name(network, state[name][agent]) for name in ("online", "target")), HYPER[agent]
        )
        metrics = []
        for batch in batches_of(columns, agent):
            targets = reference.recurrent_targets(expected.online, expected.target, batch, double=double)
            metrics.append(expected.step(lambda layers, t=targets, b=batch: reference.recurrent_loss(layers, t, b)))  # type: ignore[misc]
        check_weights(network, new, agent, expected)
        check_metrics(result, agent, metrics)


POLICY = [
    {**own, "lr_shape": 0, "ratio_clip": clip, "value_clip": 0.0, "value_weight": 0.7, "entropy": 0.02, "gamma": gamma,
     "lambda": lam, "target_kl": 0.0}
    for own, clip, gamma, lam in zip(HYPER, (0.1, 0.3), (0.9, 0.97), (0.8, 0.95), strict=True)
]  # fmt: skip
TURNS, WORLDS, PASSES, MINIBATCHES = 6, 2, 2, 2


def trajectory() -> dict[str, Any]:
    """Return two agents in two worlds; an episode terminates, another is truncated, and one agent once does not act."""
    draws, shape = numpy_generator(), (2, TURNS + 1, WORLDS)
    columns = {
        "observations": draws.standard_normal((*shape, 3), np.float32),
        "actions": draws.integers(0, 2, shape),
        "rewards": draws.standard_normal(shape, np.float32),
        "terminated": np.zeros(shape, np.bool_),
        "truncated": np.zeros(shape, np.bool_),
        "valid": np.ones(shape, np.bool_),
        "follow": np.ones(shape, np.int32),
        "log_prob": (np.log(0.5) + 0.3 * draws.standard_normal(shape)).astype(np.float32),
        "value": draws.standard_normal(shape, np.float32),
        "ready": np.ones(2, np.bool_),
    }
    columns["terminated"][:, 2, 0] = True
    columns["truncated"][:, 3, 1] = True
    columns["truncated"][:, TURNS - 1] = True
    columns["valid"][:, TURNS] = False
    columns["valid"][1, 4, 0] = False
    return columns


def ppo_samples(
    columns: Mapping[str, Any], agent: int, hyper: Mapping[str, float], weights: Any = None
) -> dict[str, Any]:
    """Return the samples of one agent, turn after turn, all worlds of a turn, with normalized advantages."""
    own = {name: column[agent] for name, column in columns.items() if name not in ("ready", "drawn", "weights")}
    body = {name: column[:TURNS] for name, column in own.items()}
    raw = reference.advantages({**body, "value": own["value"]}, hyper["gamma"], hyper["lambda"])
    valid = body["valid"].reshape(-1)
    flat = raw.reshape(-1)
    shares = (np.ones(len(flat)) if weights is None else weights) * valid
    mean = (shares * flat).sum() / shares.sum()
    deviation = np.sqrt((shares * (flat - mean) ** 2).sum() / shares.sum())
    return {
        "observations": body["observations"].reshape(-1, 3).astype(np.float64),
        "actions": body["actions"].reshape(-1),
        "log_prob": body["log_prob"].reshape(-1).astype(np.float64),
        "returns": flat + body["value"].reshape(-1).astype(np.float64),
        "advantages": (flat - mean) / (deviation + 1e-8),
        "valid": valid,
    }


@pytest.fixture(params=["auto", "torch"])
def ppo_learner(request: pytest.FixtureRequest) -> PPOLearner:
    batch = -(-TURNS * WORLDS // MINIBATCHES)
    return PPOLearner(ActorCritic(3, (4,), Discrete(2)), PASSES, MINIBATCHES, batch, kernels=request.param)


def check_ppo(
    learner: PPOLearner, columns: dict[str, Any], updates: list[list[tuple[Any, Any]]], weights: Any = None
) -> None:
    """updates: per agent the places and weights of each update."""
    state = start(learner, POLICY, targets=False)
    new, result = learner.learn(state, Snapshot(7, columns), AGENTS)
    for agent, hyper in enumerate(POLICY):
        samples = ppo_samples(columns, agent, hyper, None if weights is None else weights[agent])
        expected = ReferenceLearner(reference.layers_by_name(learner.network, state["online"][agent]), {}, hyper)
        losses = []
        for places, shares in updates[agent]:
            batch = {name: column[places] for name, column in samples.items()} | {"weights": shares}
            losses.append(expected.step(lambda layers, b=batch, h=hyper: reference.ppo_loss(layers, b, h))[0])  # type: ignore[misc]
        check_weights(learner.network, new, agent, expected, targets=False)
        np.testing.assert_allclose(result.metrics["loss"][agent], np.mean(losses), rtol=5e-4)
        assert result.updates[agent] == PASSES * MINIBATCHES


def permuted_places(columns: Mapping[str, Any], agent: int) -> Iterator[Any]:
    """Yield the places of each update of a round, by the agent's own permutation of every pass."""
    whole = np.flatnonzero(columns["valid"][agent].reshape(-1))
    for pass_ in range(PASSES):
        draws = reference.philox(AGENTS.seeds[agent], Purpose.PERMUTATION, AGENTS.agents[agent], epoch=7, turn=pass_)
        yield from np.array_split(draws.permutation(whole), MINIBATCHES)


def test_a_ppo_round_equals_the_reference(ppo_learner: PPOLearner) -> None:
    columns = trajectory()
    updates = [
        [(own, np.full(len(own), 1 / len(own))) for own in permuted_places(columns, agent)] for agent in range(2)
    ]
    check_ppo(ppo_learner, columns, updates)


def test_a_ppo_round_of_weighted_samples_equals_the_reference(ppo_learner: PPOLearner) -> None:
    """`sample_weights` weigh each sample's terms once, and the normalisation of the advantages."""
    columns = trajectory()
    weights = (0.3 + numpy_generator(9).random((2, TURNS + 1, WORLDS))).astype(np.float32)
    columns["sample_weights"] = weights
    flat = weights.reshape(2, -1).astype(np.float64)
    updates = [[(own, flat[agent][own] / len(own)) for own in permuted_places(columns, agent)] for agent in range(2)]
    check_ppo(ppo_learner, columns, updates, flat[:, : TURNS * WORLDS])


def test_a_ppo_round_of_samples_drawn_by_class_equals_the_reference(ppo_learner: PPOLearner) -> None:
    """Each drawn sample counts by its correction, once."""
    learner, columns, draws = ppo_learner, trajectory(), numpy_generator(9)
    batch = learner.batch
    total = PASSES * MINIBATCHES * batch
    whole = [np.flatnonzero(columns["valid"][agent].reshape(-1)) for agent in range(2)]
    columns["drawn"] = np.stack([draws.choice(own, total) for own in whole])
    columns["weights"] = (0.2 + 2.0 * draws.random((2, total))).astype(np.float32)
    updates = [
        [
            (
                columns["drawn"][agent, first : first + batch],
                columns["weights"][agent, first : first + batch].astype(np.float64) / batch,
            )
            for first in range(0, total, batch)
        ]
        for agent in range(2)
    ]
    check_ppo(learner, columns, updates)


def test_the_reference_gradient_of_a_known_function() -> None:
    gradient = reference.gradient(lambda layers: float((layers["a"] ** 3).sum()), {"a": np.array([[1.0, -2.0]])})
    np.testing.assert_allclose(gradient["a"], [[3.0, 12.0]], rtol=1e-7)
