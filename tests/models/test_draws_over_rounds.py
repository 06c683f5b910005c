"""What is drawn anew in every round, pass, update and turn: over many of them it spreads as it should."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from parallel_agents.learning.trajectories import Trajectories
from parallel_agents.models import DQN, IQN, PPO, Stack
from parallel_agents.models.base import Model
from parallel_agents.networks import numerics
from parallel_agents.types import Identity, Snapshot

ROWS, ROUNDS = 40, 60
WHO = Identity((4, 4), (0, 1))
REPLAY = {"batch_size": 8, "updates_per_round": 2, "learning_starts": 1, "buffer_size": 60}


def far(counts: np.ndarray) -> float:
    """By how many deviations a chi-square of counts that should be alike lies from where it should be."""
    expected = counts.mean()
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2.0 * freedom))


def filled(model: Model, agent: int) -> Model:
    """A placed model that keeps ROWS transitions, each known by what was seen."""
    model.place(seed=4, agent=agent, worlds=1)
    for t in range(ROWS):
        extras = {"event_type": float(t % 4 == 0), "priority": 0.0}
        kept = {name: value for name, value in extras.items() if name in model.blueprint.ring.extras}
        model.memory.add([float(t)], action=t % 2, reward=0.0, done=True, **kept)
    return model


@pytest.mark.parametrize("options", [{}, {"priority_alpha": 0.5}], ids=["uniform", "prioritised"])
def test_replay_draws_other_places_in_every_round(options: dict[str, Any]) -> None:
    one = Stack([filled(DQN((1,), 2, hidden=(4,), **REPLAY, **options), agent) for agent in range(2)], together=True)
    drawn = np.stack([one.snapshot(round_)["states"][..., 0] for round_ in range(1, ROUNDS + 1)])  # (R, N, S)
    for agent in range(2):
        assert abs(far(np.bincount(drawn[:, agent].astype(int).reshape(-1), minlength=ROWS))) < 5
        alike = [np.array_equal(a, b) for a, b in itertools.pairwise(drawn[:, agent])]
        assert not any(alike)
    assert not np.array_equal(drawn[:, 0], drawn[:, 1])


def samples(agents: int = 2) -> dict[str, np.ndarray]:
    block = (agents, ROWS + 1, 1)
    columns: dict[str, np.ndarray] = {
        "observations": np.zeros((*block, 1), np.float32),
        "actions": np.zeros(block, np.int64),
        "rewards": np.zeros(block, np.float32),
        "terminated": np.zeros(block, np.bool_),
        "truncated": np.zeros(block, np.bool_),
        "valid": np.ones(block, np.bool_),
        "follow": np.ones(block, np.int32),
        "log_prob": np.zeros(block, np.float32),
        "value": np.zeros(block, np.float32),
        "ready": np.ones(agents, np.bool_),
    }
    columns["valid"][:, -1] = False
    return columns


def test_ppo_permutes_anew_in_every_pass_and_round() -> None:
    learner = PPO((1,), 2, hidden=(4,), rollout=ROWS).blueprint.learner()
    state = learner.init(WHO, [PPO((1,), 2).hyper] * 2)
    data = Trajectories(Snapshot(1, samples()), state, WHO, parts=2, batch=ROWS // 2, length=1)
    orders = np.array(
        [
            [np.concatenate([chosen[agent] for chosen, _ in data.minibatches(round_, pass_)]) for pass_ in range(3)]
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
    assert abs(far(np.bincount(every[:, 0], minlength=ROWS))) < 5


def test_quantiles_and_noise_are_others_in_every_update() -> None:
    learner = IQN((1,), 2, layer=4, n_frames=1, **REPLAY).blueprint.learner()
    drawn = [learner._draws(WHO, np.array([update, update]), np.zeros(2, int)) for update in range(ROUNDS)]
    for name in ("quantiles", "next_quantiles", "noise", "next_noise"):
        values = np.stack([own[name].numpy() for own in drawn]).reshape(ROUNDS, 2, -1)
        rows = values.reshape(2 * ROUNDS, -1)
        assert len({own.tobytes() for own in rows}) == 2 * ROUNDS
        first = values[:, :, 0].reshape(-1)
        wanted = (0.5, 1 / 12) if "quantiles" in name else (0.0, 1.0)
        assert abs(first.mean() - wanted[0]) < 5 * np.sqrt(wanted[1] / first.size)
        assert abs(rows.var() / wanted[1] - 1.0) < 0.15
    assert not np.array_equal(drawn[0]["quantiles"], drawn[0]["next_quantiles"])


def test_a_round_of_iqn_learns_from_other_quantiles_in_every_update(monkeypatch: pytest.MonkeyPatch) -> None:
    model = filled(IQN((1,), 2, layer=4, n_frames=1, **REPLAY), 0)
    one, seen = Stack([model], together=True), []
    network = one.learner.network
    plain = type(network).quantiles
    monkeypatch.setattr(
        type(network), "quantiles", lambda self, *given: (seen.append(given[2].numpy().copy()), plain(self, *given))[1]
    )
    for round_ in (1, 2):
        one.state, _ = one.learner.learn(one.state, one.snapshot(round_), one.identity)
    assert len(seen) == 8  # two rounds of two updates, of both networks
    assert len({own.tobytes() for own in seen}) == 8


def test_every_agent_explores_by_its_own_epsilon() -> None:
    numerics.require()
    epsilons, actions, turns, worlds = (0.0, 0.25, 1.0), 4, 400, 3
    models = [DQN((1,), actions, hidden=(4,), **REPLAY) for _ in epsilons]
    for agent, (model, epsilon) in enumerate(zip(models, epsilons, strict=True)):
        model.place(seed=4, agent=agent, worlds=worlds)
        model.set_epsilon(epsilon)
    one = Stack(models, together=True)
    one.start_epoch(1)
    seen, first = np.ones((3, worlds, 1), np.float32), np.zeros((3, worlds), np.bool_)
    taken = np.stack([one.act(seen, first, 1, turn)[0] for turn in range(1, turns + 1)])  # (T, N, W)
    best = one.inference.forward(seen).argmax(-1)
    for agent, epsilon in enumerate(epsilons):
        wanted = epsilon * (actions - 1) / actions
        spread = np.sqrt(max(wanted * (1 - wanted), 1e-12) / (turns * worlds))
        assert abs(np.mean(taken[:, agent] != best[agent]) - wanted) <= 5 * spread + 1e-12, epsilon


# -- corrections that grow with the updates -------------------------------------------------------------------


def logs(weights: np.ndarray) -> float:
    """How far apart the corrections of one update are; proportional to beta."""
    return float(np.log(weights.max() / weights.min()))


def test_priorities_are_corrected_by_a_beta_that_rises_with_each_agents_own_pace() -> None:
    shape = {"hidden": (4,), **REPLAY, "batch_size": 32, "priority_alpha": 1.0, "priority_beta": 0.2}
    models = [filled(DQN((1,), 2, **shape, priority_updates=updates), agent) for agent, updates in enumerate((20, 8))]
    one = Stack(models, together=True)
    one.ring.extras["priority"][:] = 1.0 + 3.0 * (np.arange(one.ring.extras["priority"][0].size) % 2).reshape(1, -1, 1)
    for round_, betas in (
        (1, (0.2, 0.2)),
        (3, (0.2 + 0.8 * 4 / 20, 0.2 + 0.8 * 4 / 8)),
        (6, (0.2 + 0.8 * 10 / 20, 1.0)),
        (99, (1.0, 1.0)),
    ):
        weights = one.snapshot(round_)["weights"]
        assert [logs(own) for own in weights] == pytest.approx([beta * np.log(4.0) for beta in betas], rel=1e-5)


def test_classes_are_corrected_by_a_beta_that_rises_from_update_to_update() -> None:
    weighting = {"crisis_parent_weight": 4.0, "alpha": 1.0, "beta": 0.25, "beta_frames": 10}
    options = {**REPLAY, "batch_size": 64, "updates_per_round": 3, "importance": weighting}
    one = Stack([filled(DQN((1,), 2, hidden=(4,), **options), 0)], together=True)
    spreads = [logs(part) for round_ in (1, 2, 5) for part in one.snapshot(round_)["weights"][0].reshape(3, -1)]
    betas = [min(1.0, 0.25 + 0.75 * update / 10) for update in (0, 1, 2, 3, 4, 5, 12, 13, 14)]
    full = spreads[-1]
    assert spreads == pytest.approx([beta * full for beta in betas], rel=1e-5)
    assert full > 0.5
