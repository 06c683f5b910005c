"""PPO updates against numbers worked another way, and what happens to bad data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from parallel_agents.learning import PPOLearner
from parallel_agents.models import PPO
from parallel_agents.models.ppo import PPOBlueprint
from parallel_agents.networks import ActorCritic, Discrete, MultiDiscrete, SquashedGaussian
from parallel_agents.types import Identity, Snapshot, State

WHO = Identity((0, 0, 0), (0, 1, 2))


def blueprint(distribution: Any = None) -> PPOBlueprint:
    return PPOBlueprint((3,), distribution or Discrete(4), 2, (5,), passes=2, minibatches=2, rollout=6, epochs=1)


def learner(**changes: Any) -> PPOLearner:
    return replace(blueprint().learner(), **changes)


def start(made: PPOLearner, **hyper: float) -> State:
    own = {**PPO((3,), 4).hyper, "lr": 0.01, "lr_final": 0.01, **hyper}
    return made.init(WHO, [own] * 3)


def snapshot(**changes: Any) -> Snapshot:
    made = blueprint().rehearsal(3, updates=1)
    return Snapshot(1, {**made.columns, **changes})


def test_the_first_step_follows_the_gradient_of_the_clipped_objective() -> None:
    """One pass over one minibatch equals one Adam step on the objective, written out plainly with autograd."""
    made = learner(passes=1, minibatches=1, batch=12)
    state = start(made, clip=1e9, entropy=0.03, value_clip=0.2)
    data = snapshot()
    after, result = made.learn(state, data, WHO)
    assert result.updates.tolist() == [1, 1, 1]
    for agent in range(3):
        rows = state["online"][agent : agent + 1].clone().requires_grad_()
        loss = plain_objective(made.network, rows, data.rows(slice(agent, agent + 1)), entropy=0.03, value_clip=0.2)
        loss.backward()
        gradient = rows.grad
        assert gradient is not None
        expected = rows.detach() - 0.01 * gradient / (gradient.abs() + 1e-8)  # Adam's first step
        assert torch.allclose(after["online"][agent], expected[0], atol=2e-5)


def plain_objective(
    network: ActorCritic, rows: torch.Tensor, data: Snapshot, *, entropy: float, value_clip: float
) -> Any:
    valid = torch.from_numpy(data["valid"]).reshape(-1)
    rewards, values, ended = (data[name][0].astype(np.float64) for name in ("rewards", "value", "terminated"))
    rise = np.zeros_like(rewards)
    for world in range(rewards.shape[1]):
        carried = 0.0
        for t in range(rewards.shape[0] - 2, -1, -1):
            live = 1.0 - ended[t, world]
            delta = rewards[t, world] + 0.99 * live * values[t + 1, world] - values[t, world]
            carried = delta + 0.99 * 0.95 * live * carried
            rise[t, world] = carried
    rise_t = torch.from_numpy(rise).float().reshape(-1)[valid]
    old_value = torch.from_numpy(data["value"]).reshape(-1)[valid]
    goal = rise_t + old_value
    rise_t = (rise_t - rise_t.mean()) / (rise_t.std(unbiased=False) + 1e-8)
    seen = torch.from_numpy(data["observations"]).reshape(1, -1, 3)[:, valid]
    outputs = network.forward(network.bind(rows), seen)[0]
    logs = torch.log_softmax(outputs[:, :-1], -1)
    actions = torch.from_numpy(data["actions"]).reshape(-1)[valid]
    old = torch.from_numpy(data["log_prob"]).reshape(-1)[valid]
    ratio = torch.exp(logs.gather(-1, actions[:, None])[:, 0] - old)
    surrogate = torch.minimum(ratio * rise_t, ratio.clamp(0.8, 1.2) * rise_t)
    value = outputs[:, -1]
    held = old_value + (value - old_value).clamp(-value_clip, value_clip)
    error = torch.maximum((value - goal) ** 2, (held - goal) ** 2)
    spread = -(logs.exp() * logs).sum(-1)
    return (-surrogate + 0.5 * error - entropy * spread).mean()


def test_a_poisoned_agent_is_left_as_it_was_and_the_others_learn_on() -> None:
    made = learner()
    state, good = start(made), snapshot()
    bad = good["observations"].copy()
    bad[1, 2, 0] = np.nan
    clean, _ = made.learn(state, good, WHO)
    after, result = made.learn(state, snapshot(observations=bad), WHO)
    assert torch.equal(after["online"][0], clean["online"][0])
    assert torch.equal(after["online"][2], clean["online"][2])
    assert result.updates[0] == result.updates[2] == 4
    assert result.rejected[1] > 0
    assert torch.isfinite(after["online"][1]).all()


def test_agents_without_data_or_not_ready_are_untouched() -> None:
    made = learner()
    state = start(made)
    valid = snapshot()["valid"].copy()
    valid[0] = False
    after, result = made.learn(state, snapshot(valid=valid, ready=np.array([True, True, False])), WHO)
    assert result.updates.tolist() == [0, 4, 0]
    assert result.rejected.tolist() == [0, 0, 0]
    for agent in (0, 2):
        assert all(torch.equal(after[name][agent], state[name][agent]) for name in state.tensors)


def test_the_early_stop_is_each_agents_own() -> None:
    made = learner(passes=6)
    hyper = PPO((3,), 4).hyper
    limits = [0.0, 1e-9, 0.0]
    state = made.init(WHO, [{**hyper, "lr": 0.02, "lr_final": 0.02, "target_kl": limit} for limit in limits])
    _, result = made.learn(state, snapshot(), WHO)
    assert result.updates[0] == result.updates[2] == 12
    assert 2 <= result.updates[1] < 12


def test_stale_data_is_corrected_by_the_ratio_of_the_weights_that_acted() -> None:
    """The stop compares with the learner's start: data of older weights alone do not stop a round."""
    made = learner(passes=1, minibatches=1, batch=12)
    state = start(made, lr=1e-9, lr_final=1e-9, target_kl=0.01)
    older = snapshot(log_prob=snapshot()["log_prob"] - 1.0)
    _, result = made.learn(state, older, WHO)
    assert (result.metrics["kl"] < 1e-6).all()


@pytest.mark.parametrize(
    "distribution", [Discrete(5), MultiDiscrete((3, 2)), SquashedGaussian((-2.0, 0.0), (2.0, 1.0))], ids=str
)
def test_acting_and_learning_agree_on_the_probability_of_an_action(distribution: Any) -> None:
    made = blueprint(distribution)
    draws = np.random.Generator(np.random.Philox(3))
    rows = made.network.init(WHO)
    seen = draws.standard_normal((3, 7, 3), np.float32)
    outputs = made.network.forward(made.network.bind(rows), torch.from_numpy(seen)).numpy()
    actions, extras = made.choose(outputs, draws.random((3, 7, made.slots)), np.ones(3), None)
    kept = extras.get("raw", actions)
    again = distribution.log_prob(torch.from_numpy(outputs[..., :-1]), torch.from_numpy(np.asarray(kept)))
    assert np.allclose(again.numpy(), extras["log_prob"], atol=1e-5)


def test_a_squashed_gaussian_is_a_density() -> None:
    """Its probabilities over the squashed line sum to one."""
    law = SquashedGaussian((-1.0,), (1.0,))
    raw = torch.linspace(-12, 12, 20_001, dtype=torch.float64).reshape(1, -1, 1)
    outputs = torch.tensor([0.3, -0.4], dtype=torch.float64).expand(1, raw.shape[1], 2)
    density = law.log_prob(outputs, raw).exp()[0]
    squashed = torch.tanh(raw[0, :, 0])
    assert float(torch.trapezoid(density, squashed)) == pytest.approx(1.0, abs=1e-3)


def test_draws_follow_the_policy() -> None:
    from parallel_agents.acting import discrete

    outputs = np.tile(np.log(np.array([0.1, 0.2, 0.7], np.float32)), (1, 30_000, 1))
    draws = np.random.Generator(np.random.Philox(5)).random((1, 30_000, 1))
    actions, log_prob = discrete(outputs, draws, (3,), None)
    shares = np.bincount(actions[0, :, 0], minlength=3) / 30_000
    assert np.allclose(shares, [0.1, 0.2, 0.7], atol=0.01)
    assert np.allclose(np.exp(log_prob[0]), np.array([0.1, 0.2, 0.7])[actions[0, :, 0]], atol=1e-5)


def test_a_mask_forbids() -> None:
    from parallel_agents.acting import discrete
    from parallel_agents.errors import ActionError

    outputs = np.zeros((1, 500, 3), np.float32)
    draws = np.random.Generator(np.random.Philox(6)).random((1, 500, 1))
    masks = np.tile(np.array([True, False, True]), (1, 500, 1))
    actions, log_prob = discrete(outputs, draws, (3,), masks)
    assert set(actions[0, :, 0].tolist()) == {0, 2}
    assert np.allclose(np.exp(log_prob), 0.5)
    masks[0, 7] = False
    with pytest.raises(ActionError, match="agent 0 in world 7 forbids every action"):
        discrete(outputs, draws, (3,), masks)
