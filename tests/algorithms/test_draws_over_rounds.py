"""Draws over many rounds, passes, updates and turns: new each time, with the right distribution."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from parallel_agents.algorithms import DQN, IQN, PPO, Model
from parallel_agents.algorithms.learner import Snapshot
from parallel_agents.algorithms.ppo import Rollout
from parallel_agents.core.seeding import Identity
from parallel_agents.engine.stacks import Stack

ROWS, ROUNDS = 40, 60
AGENTS = Identity((4, 4), (0, 1))
REPLAY = {"batch_size": 8, "updates_per_round": 2, "learning_starts": 1, "buffer_size": 60}


def deviations_from_uniform(counts: np.ndarray) -> float:
    """Return by how many standard deviations the chi-square statistic of the counts differs from its mean."""
    expected = counts.mean()
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2.0 * freedom))


def with_transitions(model: Model, agent: int) -> Model:
    """Return a placed model with ROWS transitions; the observation of each is its number."""
    model.place(seed=4, agent=agent, worlds=1)
    for t in range(ROWS):
        extras = {"event_type": float(t % 4 == 0), "priority": 0.0}
        columns = {name: value for name, value in extras.items() if name in model.spec.ring.extras}
        model.memory.add([float(t)], action=t % 2, reward=0.0, done=True, **columns)
    return model


@pytest.mark.parametrize("options", [{}, {"priority_alpha": 0.5}], ids=["uniform", "prioritised"])
def test_replay_draws_new_places_in_every_round(options: dict[str, Any]) -> None:
    stack = Stack(
        [with_transitions(DQN((1,), 2, hidden=(4,), **REPLAY, **options), agent) for agent in range(2)], together=True
    )
    drawn = np.stack([stack.snapshot(round_)["states"][..., 0] for round_ in range(1, ROUNDS + 1)])  # (R, N, S)
    for agent in range(2):
        assert abs(deviations_from_uniform(np.bincount(drawn[:, agent].astype(int).reshape(-1), minlength=ROWS))) < 5
        alike = [np.array_equal(a, b) for a, b in itertools.pairwise(drawn[:, agent])]
        assert not any(alike)
    assert not np.array_equal(drawn[:, 0], drawn[:, 1])


def rollout_columns(agents: int = 2) -> dict[str, np.ndarray]:
    shape = (agents, ROWS + 1, 1)
    columns: dict[str, np.ndarray] = {
        "observations": np.zeros((*shape, 1), np.float32),
        "actions": np.zeros(shape, np.int64),
        "rewards": np.zeros(shape, np.float32),
        "terminated": np.zeros(shape, np.bool_),
        "truncated": np.zeros(shape, np.bool_),
        "valid": np.ones(shape, np.bool_),
        "follow": np.ones(shape, np.int32),
        "log_prob": np.zeros(shape, np.float32),
        "value": np.zeros(shape, np.float32),
        "ready": np.ones(agents, np.bool_),
    }
    columns["valid"][:, -1] = False
    return columns


def test_ppo_permutes_anew_in_every_pass_and_round() -> None:
    learner = PPO((1,), 2, hidden=(4,), rollout=ROWS).spec.learner()
    state = learner.init(AGENTS, [PPO((1,), 2).hyper] * 2)
    rollout = Rollout(Snapshot(1, rollout_columns()), state, AGENTS, n_minibatches=2, batch=ROWS // 2, length=1)
    orders = np.array(
        [
            rollout.minibatches(round_, 3)[0][agent].reshape(3, ROWS)
            for agent in range(2)
            for round_ in range(1, ROUNDS + 1)
        ]
    ).reshape(2, ROUNDS, 3, ROWS)
    assert (np.sort(orders, -1) == np.arange(ROWS)).all()  # each sample once in every pass
    every = orders.reshape(-1, ROWS)
    assert len({own.tobytes() for own in every}) == len(every)
    for pass_ in range(3):  # which half of a pass a sample is in says nothing about the next pass
        halves = (
            (np.argsort(orders[:, :, pass_], -1) < ROWS // 2),
            (np.argsort(orders[:, :, (pass_ + 1) % 3], -1) < ROWS // 2),
        )
        assert abs(np.mean(halves[0] == halves[1]) - 0.5) < 5 * 0.5 / np.sqrt(halves[0].size)
    assert abs(deviations_from_uniform(np.bincount(every[:, 0], minlength=ROWS))) < 5


def test_quantiles_and_noise_are_new_in_every_update() -> None:
    learner = IQN((1,), 2, layer=4, n_frames=1, **REPLAY).spec.learner()
    drawn = [learner._draws(AGENTS, np.array([update, update]), np.zeros(2, int)) for update in range(ROUNDS)]
    for name in ("quantiles", "next_quantiles", "noise", "next_noise"):
        values = np.stack([own[name].numpy() for own in drawn]).reshape(ROUNDS, 2, -1)
        rows = values.reshape(2 * ROUNDS, -1)
        assert len({own.tobytes() for own in rows}) == 2 * ROUNDS
        first = values[:, :, 0].reshape(-1)
        expected = (0.5, 1 / 12) if "quantiles" in name else (0.0, 1.0)
        assert abs(first.mean() - expected[0]) < 5 * np.sqrt(expected[1] / first.size)
        assert abs(rows.var() / expected[1] - 1.0) < 0.15
    assert not np.array_equal(drawn[0]["quantiles"], drawn[0]["next_quantiles"])


def test_an_iqn_round_learns_from_new_quantiles_in_every_update(monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_transitions(IQN((1,), 2, layer=4, n_frames=1, kernels="torch", **REPLAY), 0)
    stack, seen = Stack([model], together=True), []
    network = stack.learner.network
    plain = type(network).quantiles
    monkeypatch.setattr(
        type(network), "quantiles", lambda self, *given: (seen.append(given[2].numpy().copy()), plain(self, *given))[1]
    )
    for round_ in (1, 2):
        stack.state, _ = stack.learner.learn(stack.state, stack.snapshot(round_), stack.identity)
    assert len(seen) == 8  # two rounds of two updates, of both networks
    assert len({own.tobytes() for own in seen}) == 8


def test_every_agent_explores_by_its_own_epsilon() -> None:
    epsilons, actions, turns, worlds = (0.0, 0.25, 1.0), 4, 400, 3
    models = [DQN((1,), actions, hidden=(4,), **REPLAY) for _ in epsilons]
    for agent, (model, epsilon) in enumerate(zip(models, epsilons, strict=True)):
        model.place(seed=4, agent=agent, worlds=worlds)
        model.set_epsilon(epsilon)
    stack = Stack(models, together=True)
    stack.start_epoch(1)
    seen, first = np.ones((3, worlds, 1), np.float32), np.zeros((3, worlds), np.bool_)
    taken = np.stack([stack.act(seen, first, 1, turn)[0] for turn in range(1, turns + 1)])  # (T, N, W)
    best = stack.inference.forward(seen).argmax(-1)
    for agent, epsilon in enumerate(epsilons):
        expected = epsilon * (actions - 1) / actions
        spread = np.sqrt(max(expected * (1 - expected), 1e-12) / (turns * worlds))
        assert abs(np.mean(taken[:, agent] != best[agent]) - expected) <= 5 * spread + 1e-12, epsilon


# -- corrections that grow with the updates -------------------------------------------------------------------


def log_range(weights: np.ndarray) -> float:
    """Return the range of the logarithms of one update's corrections; it is proportional to beta."""
    return float(np.log(weights.max() / weights.min()))


def test_beta_of_priorities_rises_by_each_agents_own_schedule() -> None:
    shape = {"hidden": (4,), **REPLAY, "batch_size": 32, "priority_alpha": 1.0, "priority_beta": 0.2}
    models = [
        with_transitions(DQN((1,), 2, **shape, priority_updates=updates), agent)
        for agent, updates in enumerate((20, 8))
    ]
    stack = Stack(models, together=True)
    stack.ring.extras["priority"][:] = 1.0 + 3.0 * (np.arange(stack.ring.extras["priority"][0].size) % 2).reshape(
        1, -1, 1
    )
    for round_, betas in (
        (1, (0.2, 0.2)),
        (3, (0.2 + 0.8 * 4 / 20, 0.2 + 0.8 * 4 / 8)),
        (6, (0.2 + 0.8 * 10 / 20, 1.0)),
        (99, (1.0, 1.0)),
    ):
        weights = stack.snapshot(round_)["weights"]
        assert [log_range(own) for own in weights] == pytest.approx([beta * np.log(4.0) for beta in betas], rel=1e-5)


def test_beta_of_event_classes_rises_from_update_to_update() -> None:
    weighting = {"crisis_parent_weight": 4.0, "alpha": 1.0, "beta": 0.25, "beta_frames": 10}
    options = {**REPLAY, "batch_size": 64, "updates_per_round": 3, "importance": weighting}
    stack = Stack([with_transitions(DQN((1,), 2, hidden=(4,), **options), 0)], together=True)
    spreads = [log_range(part) for round_ in (1, 2, 5) for part in stack.snapshot(round_)["weights"][0].reshape(3, -1)]
    betas = [min(1.0, 0.25 + 0.75 * update / 10) for update in (0, 1, 2, 3, 4, 5, 12, 13, 14)]
    full = spreads[-1]
    assert spreads == pytest.approx([beta * full for beta in betas], rel=1e-5)
    assert full > 0.5
