"""PPO: the terms of its objective computed by hand, updates against plain autograd, and bad data."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from parallel_agents.algorithms import PPO
from parallel_agents.algorithms.learner import LearnerState, Snapshot
from parallel_agents.algorithms.ppo import PPOLearner, PPOSpec, Rollout
from parallel_agents.core.errors import ShapeError
from parallel_agents.core.seeding import Identity, Purpose, generator
from parallel_agents.engine.stacks import random_snapshot
from parallel_agents.nn import ActorCritic, Discrete, MultiDiscrete, SquashedGaussian

AGENTS = Identity((0, 0, 0), (0, 1, 2))


def make_spec(distribution: Any = None) -> PPOSpec:
    return PPOSpec((3,), distribution or Discrete(4), 2, (5,), n_epochs=2, n_minibatches=2, rollout=6, epochs=1)


def make_learner(**changes: Any) -> PPOLearner:
    return replace(make_spec().learner(), **changes)


def start(learner: PPOLearner, **hyper: float) -> LearnerState:
    return learner.init(AGENTS, [{**PPO((3,), 4).hyper, "lr": 0.01, "lr_final": 0.01, **hyper}] * 3)


def snapshot(**changes: Any) -> Snapshot:
    return Snapshot(1, {**random_snapshot(make_spec(), 3, updates=1).columns, **changes})


def test_one_minibatch_is_one_adam_step_on_the_clipped_objective() -> None:
    """The objective is written out below, with autograd."""
    learner = make_learner(n_epochs=1, n_minibatches=1, batch=12)
    state = start(learner, clip=1e9, entropy=0.03, value_clip=0.2)
    data = snapshot()
    after, result = learner.learn(state, data, AGENTS)
    assert result.updates.tolist() == [1, 1, 1]
    for agent in range(3):
        rows = state["online"][agent : agent + 1].clone().requires_grad_()
        loss = plain_objective(learner.network, rows, data.rows(slice(agent, agent + 1)), entropy=0.03, value_clip=0.2)
        loss.backward()
        gradient = rows.grad
        assert gradient is not None
        expected = rows.detach() - 0.01 * gradient / (gradient.abs() + 1e-8)  # Adam's first step
        assert torch.allclose(after["online"][agent], expected[0], atol=2e-5)


@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize("weighed", [False, True])
def test_minibatches_are_the_parts_of_numpys_permutations(length: int, weighed: bool) -> None:
    draws, shape = np.random.default_rng(2), (3, 7, 2)
    valid, weights = draws.random(shape) < 0.6, draws.random(shape).astype(np.float32)
    valid[2] = False
    data = snapshot(valid=valid, **({"sample_weights": weights} if weighed else {}))
    rollout = Rollout(data, start(make_learner()), AGENTS, n_minibatches=3, batch=5, length=length)
    chosen, found = rollout.minibatches(9, 2)
    assert chosen.shape == (3, 6, 5)
    assert rollout.ready.tolist() == [True, True, False]
    for agent in range(3):
        samples = valid[agent].reshape(-1)[rollout.sequences] & rollout.inside
        for pass_ in range(2):
            numbers = generator(0, Purpose.PERMUTATION, agent=agent, epoch=9, turn=pass_)
            parts = np.array_split(numbers.permutation(np.flatnonzero(samples.any(axis=1))), 3)
            for update, part in enumerate(parts, start=3 * pass_):
                own = samples[part].reshape(-1)
                expected = (own / max(1, own.sum())).astype(np.float32)
                if weighed:
                    expected *= weights[agent].reshape(-1)[rollout.sequences[part].reshape(-1)]
                assert chosen[agent, update].tolist() == [*part.tolist(), *[0] * (5 - len(part))]
                assert found[agent, update].tolist() == [*expected.tolist(), *[0.0] * (5 * length - len(own))]


def test_more_samples_than_minibatches_have_room_for_are_refused() -> None:
    rollout = Rollout(snapshot(), start(make_learner()), AGENTS, n_minibatches=2, batch=5, length=1)
    with pytest.raises(ShapeError, match="12 samples for 2 minibatches of 5"):
        rollout.minibatches(1, 1)


def plain_objective(
    network: ActorCritic, rows: torch.Tensor, data: Snapshot, *, entropy: float, value_clip: float
) -> Any:
    valid = torch.from_numpy(data["valid"]).reshape(-1)
    rewards, values, terminated = (data[name][0].astype(np.float64) for name in ("rewards", "value", "terminated"))
    estimates = np.zeros_like(rewards)
    for world in range(rewards.shape[1]):
        carried = 0.0
        for t in range(rewards.shape[0] - 2, -1, -1):
            live = 1.0 - terminated[t, world]
            delta = rewards[t, world] + 0.99 * live * values[t + 1, world] - values[t, world]
            carried = delta + 0.99 * 0.95 * live * carried
            estimates[t, world] = carried
    advantages = torch.from_numpy(estimates).float().reshape(-1)[valid]
    old_value = torch.from_numpy(data["value"]).reshape(-1)[valid]
    returns = advantages + old_value
    advantages = (advantages - advantages.mean()) / (advantages.std(unbiased=False) + 1e-8)
    observations = torch.from_numpy(data["observations"]).reshape(1, -1, 3)[:, valid]
    outputs = network.forward(network.bind(rows), observations)[0]
    log_probs = torch.log_softmax(outputs[:, :-1], -1)
    actions = torch.from_numpy(data["actions"]).reshape(-1)[valid]
    old_log_prob = torch.from_numpy(data["log_prob"]).reshape(-1)[valid]
    ratio = torch.exp(log_probs.gather(-1, actions[:, None])[:, 0] - old_log_prob)
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    value = outputs[:, -1]
    clipped = old_value + (value - old_value).clamp(-value_clip, value_clip)
    error = torch.maximum((value - returns) ** 2, (clipped - returns) ** 2)
    policy_entropy = -(log_probs.exp() * log_probs).sum(-1)
    return (-surrogate + 0.5 * error - entropy * policy_entropy).mean()


def test_updates_on_data_that_are_not_finite_are_rejected_for_their_agent_only() -> None:
    learner = make_learner()
    state, good = start(learner), snapshot()
    bad = good["observations"].copy()
    bad[1, 2, 0] = np.nan
    clean, _ = learner.learn(state, good, AGENTS)
    after, result = learner.learn(state, snapshot(observations=bad), AGENTS)
    assert torch.equal(after["online"][0], clean["online"][0])
    assert torch.equal(after["online"][2], clean["online"][2])
    assert result.updates[0] == result.updates[2] == 4
    assert result.rejected[1] > 0
    assert torch.isfinite(after["online"][1]).all()


def test_agents_without_data_or_not_ready_keep_their_state() -> None:
    learner = make_learner()
    state = start(learner)
    valid = snapshot()["valid"].copy()
    valid[0] = False
    after, result = learner.learn(state, snapshot(valid=valid, ready=np.array([True, True, False])), AGENTS)
    assert result.updates.tolist() == [0, 4, 0]
    assert result.rejected.tolist() == [0, 0, 0]
    for agent in (0, 2):
        assert all(torch.equal(after[name][agent], state[name][agent]) for name in state.tensors)


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_each_agent_stops_early_by_its_own_limit(kernels: str) -> None:
    learner = make_learner(n_epochs=6, kernels=kernels)
    hyper = PPO((3,), 4).hyper
    limits = [0.0, 1e-9, 0.0]
    state = learner.init(AGENTS, [{**hyper, "lr": 0.02, "lr_final": 0.02, "target_kl": limit} for limit in limits])
    _, result = learner.learn(state, snapshot(), AGENTS)
    assert result.updates[0] == result.updates[2] == 12
    assert 2 <= result.updates[1] < 12


def test_data_of_older_weights_do_not_stop_a_round() -> None:
    """The early stop compares with the learner at the round's start: data of older weights alone do not stop it."""
    learner = make_learner(n_epochs=1, n_minibatches=1, batch=12)
    state = start(learner, lr=1e-9, lr_final=1e-9, target_kl=0.01)
    older = snapshot(log_prob=snapshot()["log_prob"] - 1.0)
    _, result = learner.learn(state, older, AGENTS)
    assert (result.metrics["kl"] < 1e-6).all()


@pytest.mark.parametrize(
    "distribution", [Discrete(5), MultiDiscrete((3, 2)), SquashedGaussian((-2.0, 0.0), (2.0, 1.0))], ids=str
)
def test_acting_and_learning_agree_on_the_probability_of_an_action(distribution: Any) -> None:
    spec = make_spec(distribution)
    draws = np.random.Generator(np.random.Philox(3))
    rows = spec.network.init(AGENTS)
    observations = draws.standard_normal((3, 7, 3), np.float32)
    outputs = spec.network.forward(spec.network.bind(rows), torch.from_numpy(observations)).numpy()
    actions, extras = spec.choose(outputs, draws.random((3, 7, spec.slots)), np.ones(3), None)
    stored = np.asarray(extras.get("raw", actions))
    log_prob = distribution.log_prob(torch.from_numpy(outputs[..., :-1]), torch.from_numpy(stored))
    assert np.allclose(log_prob.numpy(), extras["log_prob"], atol=1e-5)


def test_the_density_of_a_squashed_gaussian_integrates_to_1() -> None:
    distribution = SquashedGaussian((-1.0,), (1.0,))
    raw = torch.linspace(-12, 12, 20_001, dtype=torch.float64).reshape(1, -1, 1)
    outputs = torch.tensor([0.3, -0.4], dtype=torch.float64).expand(1, raw.shape[1], 2)
    density = distribution.log_prob(outputs, raw).exp()[0]
    squashed = torch.tanh(raw[0, :, 0])
    assert float(torch.trapezoid(density, squashed)) == pytest.approx(1.0, abs=1e-3)


# -- the terms of the objective, by hand ----------------------------------------------------------------------

ONE_AGENT = Identity((0,), (0,))
LEARNER = PPOSpec((3,), Discrete(2), 1, (5,), n_epochs=1, n_minibatches=1, rollout=2, epochs=1).learner()


def column(*numbers: float, dtype: type = np.float32) -> np.ndarray:
    return np.array(numbers, dtype).reshape(1, 3, 1)


def metrics(**hyper: float) -> dict[str, float]:
    """Return the metrics of a network of zeros on two samples: both actions are equally likely, every value is 0.

    The actions were drawn with probability 1/4, so both ratios are 2. Rewards 3 and -1 end their episodes at once, with
    values of 1: advantages are 2 and -2, normalized 1 and -1; returns are 3 and -1.
    """
    fresh = LEARNER.init(ONE_AGENT, [{**PPO((3,), 2).hyper, **hyper}])
    state = LearnerState({**fresh.tensors, "online": torch.zeros_like(fresh["online"])})
    columns = {
        "observations": np.ones((1, 3, 1, 3), np.float32),
        "actions": column(0, 1, 0, dtype=np.int64),
        "rewards": column(3, -1, 0),
        "terminated": column(True, True, False, dtype=np.bool_),
        "truncated": column(False, False, False, dtype=np.bool_),
        "valid": column(True, True, False, dtype=np.bool_),
        "follow": column(1, 1, 1, dtype=np.int32),
        "log_prob": column(*[math.log(0.25)] * 3),
        "value": column(1, 1, 0),
        "ready": np.ones(1, np.bool_),
    }
    _, result = LEARNER.learn(state, Snapshot(1, columns), ONE_AGENT)
    return {name: float(value[0]) for name, value in result.metrics.items()}


def test_the_ratio_is_clipped_where_that_is_worse_for_the_objective() -> None:
    # min(2·1, 1.2·1) = 1.2 and min(2·(-1), 1.2·(-1)) = -2: their mean is -0.4
    assert metrics(ratio_clip=0.2)["policy_loss"] == pytest.approx(0.4)
    # 1.5 and -2
    assert metrics(ratio_clip=0.5)["policy_loss"] == pytest.approx(0.25)


def test_values_move_no_further_than_their_clip_range() -> None:
    # (0 - 3)² = 9 and (0 + 1)² = 1
    assert metrics()["value_loss"] == pytest.approx(5.0)
    # from 1 the value may only fall to 0.75: (0.75 - 3)² < 9, but (0.75 + 1)² = 3.0625 > 1
    assert metrics(value_clip=0.25)["value_loss"] == pytest.approx((9.0 + 3.0625) / 2)


def test_the_loss_adds_the_terms_by_their_coefficients() -> None:
    terms = metrics(value_weight=0.5, entropy=0.1)
    assert terms["entropy"] == pytest.approx(math.log(2.0))
    assert terms["loss"] == pytest.approx(0.4 + 0.5 * 5.0 - 0.1 * math.log(2.0))


def test_the_distance_is_0_before_the_first_update() -> None:
    # with the early stop on, the distance is that from the learner at the round's start, not from the weights that acted
    assert metrics(target_kl=0.01)["kl"] == pytest.approx(0.0, abs=1e-7)
