"""Whole rounds worked out in plain float64, from weights, batch and draws to the new weights of every algorithm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from parallel_agents.learning import DQNLearner, IQNLearner, PPOLearner, RecurrentDQNLearner
from parallel_agents.networks import MLP, ActorCritic, Discrete, QuantileNetwork, numerics
from parallel_agents.networks.recurrent import Recurrent
from parallel_agents.seeding import Purpose
from parallel_agents.types import Identity, RoundResult, Snapshot, State
from tests.learning import worked
from tests.learning.worked import Learner

WHO = Identity((5, 6), (0, 3))
UPDATES, BATCH = 3, 5
HYPER = [
    {"lr": 1e-2, "lr_final": 2e-3, "lr_updates": 4, "clip": 0.4, "tau": 0.25},
    {"lr": 5e-3, "lr_final": 5e-3, "lr_updates": 0, "clip": 50.0, "tau": 0.5},
]
"""Of the two agents: one whose gradient is clipped and whose rate falls, one whose gradient is not."""
REPLAY = [{**own, "lr_shape": 0, "target_interval": 0, "batch_growth": 1} for own in HYPER]


@pytest.fixture(autouse=True)
def _under_the_rules() -> None:
    numerics.require()


def started(learner: Any, hyper: list[dict[str, Any]], *, targets: bool = True) -> State:
    """Fresh learners whose targets are other networks than the online ones, so that it matters which is asked."""
    state = learner.init(WHO, hyper)
    if not targets:
        return state
    others = learner.network.init(Identity((77, 79), (8, 9)))
    return State({**state.tensors, "target": 1.5 * others})


def drawing(seed: int = 1) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


def replay_columns(weights: bool = True) -> dict[str, Any]:
    draws, block = drawing(), (2, UPDATES * BATCH)
    found = {
        "states": draws.standard_normal((*block, 3), np.float32),
        "next_states": draws.standard_normal((*block, 3), np.float32),
        "actions": draws.integers(0, 2, block),
        "returns": 0.9 * draws.standard_normal(block, np.float32),
        "discounts": draws.random(block, np.float32) * (draws.random(block) < 0.8),
        "weights": 0.2 + draws.random(block, np.float32),
        "ready": np.ones(2, np.bool_),
    }
    found["discounts"] = found["discounts"].astype(np.float32)
    return found if weights else {name: column for name, column in found.items() if name != "weights"}


def of_agent(given: Mapping[str, Any], agent: int) -> Iterator[dict[str, Any]]:
    """The batches of one agent's updates in float64, unweighted ones with weight 1."""
    for update in range(UPDATES):
        part = slice(update * BATCH, (update + 1) * BATCH)
        batch = {name: column[agent, part] for name, column in given.items() if name != "ready"}
        batch.setdefault("weights", np.ones(BATCH))
        yield {name: own.astype(np.float64) if own.dtype == np.float32 else own for name, own in batch.items()}


def compare(network: Any, new: State, agent: int, plain: Learner, *, targets: bool = True) -> None:
    for name, array in plain.online.items():
        found = worked.named(network, new["online"][agent])[name]
        np.testing.assert_allclose(found, array, rtol=2e-4, atol=2e-5, err_msg=f"online {name} of agent {agent}")
        if targets:
            found = worked.named(network, new["target"][agent])[name]
            np.testing.assert_allclose(found, plain.target[name], rtol=2e-4, atol=2e-5, err_msg=f"target {name}")


def figures(result: RoundResult, agent: int, found: list[tuple[float, float]]) -> None:
    told = [result.metrics["loss"][agent], result.metrics["gradient_norm"][agent]]
    np.testing.assert_allclose(told, np.mean(found, 0), rtol=2e-4)


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("double", [True, False])
def test_a_dqn_round(double: bool, weights: bool) -> None:
    learner = DQNLearner(MLP(3, (4,), 2), UPDATES, BATCH, double)
    state, given = started(learner, REPLAY), replay_columns(weights)
    new, result = learner.learn(state, Snapshot(7, given), WHO)
    for agent in range(2):
        plain = Learner(
            *(worked.named(learner.network, state[name][agent]) for name in ("online", "target")), HYPER[agent]
        )
        found = []
        for batch in of_agent(given, agent):
            goals = worked.dqn_goals(plain.online, plain.target, batch, double=double)
            found.append(plain.step(lambda own, g=goals, b=batch: worked.dqn_loss(own, g, b)))  # type: ignore[misc]
        compare(learner.network, new, agent, plain)
        figures(result, agent, found)


@pytest.mark.parametrize(("double", "weights"), [(True, True), (False, False)])
def test_an_iqn_round(double: bool, weights: bool) -> None:
    network, quantiles = QuantileNetwork(3, 4, 2), 4
    learner = IQNLearner(network, UPDATES, BATCH, double, quantiles=quantiles)
    state, given = started(learner, REPLAY), replay_columns(weights)
    new, result = learner.learn(state, Snapshot(7, given), WHO)
    choices = []
    for agent in range(2):
        plain = Learner(*(worked.named(network, state[name][agent]) for name in ("online", "target")), HYPER[agent])
        found = []
        for update, batch in enumerate(of_agent(given, agent)):
            who = WHO.seeds[agent], WHO.agents[agent]
            drawn = worked.philox(who[0], Purpose.QUANTILE, who[1], epoch=update).random(
                (2, BATCH, quantiles), np.float32
            )
            noise = worked.philox(who[0], Purpose.NOISE, who[1], epoch=update)
            noise = noise.standard_normal((2, network.noise_size), np.float32).astype(np.float64)
            batch |= {"quantiles": drawn[0].astype(np.float64), "next_quantiles": drawn[1].astype(np.float64)}
            batch |= {"noise": noise[0], "next_noise": noise[1]}
            goals, best = worked.iqn_goals(plain.online, plain.target, batch, double=double)
            choices += list(
                zip(best, worked.iqn_goals(plain.online, plain.target, batch, double=not double)[1], strict=True)
            )
            found.append(plain.step(lambda own, g=goals, b=batch: worked.iqn_loss(own, g, b)))  # type: ignore[misc]
        compare(network, new, agent, plain)
        figures(result, agent, found)
    assert any(own != other for own, other in choices)  # it matters which network chooses


@pytest.mark.parametrize("double", [True, False])
def test_a_recurrent_dqn_round_in_which_padding_does_not_count(double: bool) -> None:
    network = Recurrent(3, 4, MLP(4, (), 2))
    learner = RecurrentDQNLearner(network, UPDATES, BATCH, double)
    draws, block, span = drawing(), (2, UPDATES * BATCH, 3), 4
    given = {
        "states": draws.standard_normal((*block[:2], span, 3), np.float32),
        "hidden": draws.standard_normal((*block[:2], 4), np.float32),
        "actions": draws.integers(0, 2, block),
        "returns": 2.0 * draws.standard_normal(block, np.float32),
        "discounts": draws.random(block, np.float32),
        "ahead": draws.integers(0, span, block),
        "counted": (draws.random(block) < 0.6).astype(np.float32),
        "ready": np.ones(2, np.bool_),
    }
    assert 0 < given["counted"].mean() < 1
    state = started(learner, REPLAY)
    new, result = learner.learn(state, Snapshot(7, given), WHO)
    for agent in range(2):
        plain = Learner(*(worked.named(network, state[name][agent]) for name in ("online", "target")), HYPER[agent])
        found = []
        for batch in of_agent(given, agent):
            goals = worked.recurrent_goals(plain.online, plain.target, batch, double=double)
            found.append(plain.step(lambda own, g=goals, b=batch: worked.recurrent_loss(own, g, b)))  # type: ignore[misc]
        compare(network, new, agent, plain)
        figures(result, agent, found)


POLICY = [
    {**own, "lr_shape": 0, "ratio_clip": clip, "value_clip": 0.0, "value_weight": 0.7, "entropy": 0.02, "gamma": gamma,
     "lambda": lam, "target_kl": 0.0}
    for own, clip, gamma, lam in zip(HYPER, (0.1, 0.3), (0.9, 0.97), (0.8, 0.95), strict=True)
]  # fmt: skip
TURNS, WORLDS, PASSES, MINIBATCHES = 6, 2, 2, 2


def trajectory() -> dict[str, Any]:
    """Two agents in two worlds; an episode ends, another is cut off, and one agent once did not act."""
    draws, block = drawing(), (2, TURNS + 1, WORLDS)
    given = {
        "observations": draws.standard_normal((*block, 3), np.float32),
        "actions": draws.integers(0, 2, block),
        "rewards": draws.standard_normal(block, np.float32),
        "terminated": np.zeros(block, np.bool_),
        "truncated": np.zeros(block, np.bool_),
        "valid": np.ones(block, np.bool_),
        "follow": np.ones(block, np.int32),
        "log_prob": (np.log(0.5) + 0.3 * draws.standard_normal(block)).astype(np.float32),
        "value": draws.standard_normal(block, np.float32),
        "ready": np.ones(2, np.bool_),
    }
    given["terminated"][:, 2, 0] = True
    given["truncated"][:, 3, 1] = True
    given["truncated"][:, TURNS - 1] = True
    given["valid"][:, TURNS] = False
    given["valid"][1, 4, 0] = False
    return given


def ppo_samples(
    given: Mapping[str, Any], agent: int, hyper: Mapping[str, float], weights: Any = None
) -> dict[str, Any]:
    """The samples of one agent, place by place (turn after turn, all worlds), with normalised advantages."""
    own = {name: column[agent] for name, column in given.items() if name not in ("ready", "drawn", "weights")}
    body = {name: column[:TURNS] for name, column in own.items()}
    rise = worked.advantages({**body, "value": own["value"]}, hyper["gamma"], hyper["lambda"])
    valid = body["valid"].reshape(-1)
    flat = rise.reshape(-1)
    shares = (np.ones(len(flat)) if weights is None else weights) * valid
    mean = (shares * flat).sum() / shares.sum()
    deviation = np.sqrt((shares * (flat - mean) ** 2).sum() / shares.sum())
    return {
        "observations": body["observations"].reshape(-1, 3).astype(np.float64),
        "actions": body["actions"].reshape(-1),
        "log_prob": body["log_prob"].reshape(-1).astype(np.float64),
        "returns": flat + body["value"].reshape(-1).astype(np.float64),
        "rise": (flat - mean) / (deviation + 1e-8),
        "valid": valid,
    }


def ppo_learner() -> PPOLearner:
    return PPOLearner(ActorCritic(3, (4,), Discrete(2)), PASSES, MINIBATCHES, -(-TURNS * WORLDS // MINIBATCHES))


def check_ppo(
    learner: PPOLearner, given: dict[str, Any], updates: list[list[tuple[Any, Any]]], weights: Any = None
) -> None:
    """updates: per agent the places and weights of each update."""
    state = started(learner, POLICY, targets=False)
    new, result = learner.learn(state, Snapshot(7, given), WHO)
    for agent, hyper in enumerate(POLICY):
        samples = ppo_samples(given, agent, hyper, None if weights is None else weights[agent])
        plain = Learner(worked.named(learner.network, state["online"][agent]), {}, hyper)
        losses = []
        for places, shares in updates[agent]:
            batch = {name: column[places] for name, column in samples.items()} | {"weights": shares}
            losses.append(plain.step(lambda own, b=batch, h=hyper: worked.ppo_loss(own, b, h))[0])  # type: ignore[misc]
        compare(learner.network, new, agent, plain, targets=False)
        np.testing.assert_allclose(result.metrics["loss"][agent], np.mean(losses), rtol=5e-4)
        assert result.updates[agent] == PASSES * MINIBATCHES


def permuted(given: Mapping[str, Any], agent: int) -> Iterator[Any]:
    """The places of each update of a round, by the agent's own permutation of every pass."""
    whole = np.flatnonzero(given["valid"][agent].reshape(-1))
    for pass_ in range(PASSES):
        draws = worked.philox(WHO.seeds[agent], Purpose.PERMUTATION, WHO.agents[agent], epoch=7, turn=pass_)
        yield from np.array_split(draws.permutation(whole), MINIBATCHES)


def test_a_ppo_round() -> None:
    given = trajectory()
    updates = [[(own, np.full(len(own), 1 / len(own))) for own in permuted(given, agent)] for agent in range(2)]
    check_ppo(ppo_learner(), given, updates)


def test_a_ppo_round_of_weighted_samples() -> None:
    """`sample_weights` weigh each sample's terms once, and the normalisation of the advantages."""
    given = trajectory()
    weights = (0.3 + drawing(9).random((2, TURNS + 1, WORLDS))).astype(np.float32)
    given["sample_weights"] = weights
    flat = weights.reshape(2, -1).astype(np.float64)
    updates = [[(own, flat[agent][own] / len(own)) for own in permuted(given, agent)] for agent in range(2)]
    check_ppo(ppo_learner(), given, updates, flat[:, : TURNS * WORLDS])


def test_a_ppo_round_of_samples_drawn_by_class() -> None:
    """Each drawn sample counts by its correction, once."""
    learner, given, draws = ppo_learner(), trajectory(), drawing(9)
    batch = learner.batch
    total = PASSES * MINIBATCHES * batch
    whole = [np.flatnonzero(given["valid"][agent].reshape(-1)) for agent in range(2)]
    given["drawn"] = np.stack([draws.choice(own, total) for own in whole])
    given["weights"] = (0.2 + 2.0 * draws.random((2, total))).astype(np.float32)
    updates = [
        [
            (
                given["drawn"][agent, first : first + batch],
                given["weights"][agent, first : first + batch].astype(np.float64) / batch,
            )
            for first in range(0, total, batch)
        ]
        for agent in range(2)
    ]
    check_ppo(learner, given, updates)


def test_the_differences_find_a_known_gradient() -> None:
    slopes = worked.gradient(lambda own: float((own["a"] ** 3).sum()), {"a": np.array([[1.0, -2.0]])})
    np.testing.assert_allclose(slopes["a"], [[3.0, 12.0]], rtol=1e-7)
