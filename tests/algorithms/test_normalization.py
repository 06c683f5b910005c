"""Normalized observations and rewards: the right moments, the same bytes in every mode, exact after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from parallel_agents.algorithms import DQN, PPO
from parallel_agents.algorithms.normalization import normalize_inputs
from parallel_agents.checkpoint import Checkpointer, restore
from tests.equivalence.worlds import Odd, run

NORMALIZED = {"normalize_observations": True, "normalize_rewards": True}
REPLAY = {"batch_size": 6, "updates_per_round": 2, "learning_starts": 5, "buffer_size": 60, **NORMALIZED}
MODELS: dict[str, dict[str, Any]] = {
    "dqn": {"hidden": (5,), **REPLAY},
    "dqn rewards only": {"hidden": (5,), **REPLAY, "normalize_observations": False},
    "iqn": {"algorithm": "iqn", "layer": 6, "n_frames": 2, **REPLAY},
    "ppo": {"algorithm": "ppo", "hidden": (5,), "n_epochs": 2, "n_minibatches": 2, **NORMALIZED},
}


class Large(Odd):
    """`Odd` with large numbers: observations around 1000, rewards of hundreds."""

    default_config: ClassVar = {**Odd.default_config, "model": {}}

    def observe(self) -> Any:
        return 1000.0 + 50.0 * self.place

    def apply_agent(self, index: int, actions: Any) -> Any:
        return 300.0 * super().apply_agent(index, actions)


CASES: dict[str, tuple[type[Odd], dict[str, Any]]] = {
    name: (Large, {"model": model, "experiment": {"worlds": 2}}) for name, model in MODELS.items()
}


def test_moments_of_ppo_are_those_of_all_stored_observations() -> None:
    """Each round adds what it reads exactly once."""
    game = Large(config={"experiment": {"epochs": 4}, "model": MODELS["ppo"], "parallel": {"policy_lag": 0}})
    stored: list[list[Any]] = [[], [], []]
    observe, add_rewards = game.observe, game.add_rewards

    def recording_credit(rewards: Any) -> None:
        for n in range(3):
            if game.acting[n, 0]:
                stored[n].append(game.newest[n, 0].copy())
        add_rewards(rewards)

    def recording_observe() -> Any:
        game.newest = observe().astype(np.float32)
        return game.newest

    game.add_rewards = recording_credit  # type: ignore[method-assign]
    game.observe = recording_observe  # type: ignore[method-assign]
    game.run_experiment()
    for n, agent in enumerate(game.agents):
        state = agent.model.state
        observations = np.array(stored[n], np.float64)
        assert state["norm.count"][0, 0] == len(observations)
        np.testing.assert_allclose(state["norm.mean"][0, :-1], observations.mean(axis=0))
        np.testing.assert_allclose(state["norm.scale"][0], 1.0 / observations.std(axis=0), rtol=1e-5)


def test_rewards_are_divided_by_the_deviation_of_the_returns() -> None:
    model = DQN((1,), 2, hidden=(4,), learning_starts=1, batch_size=200, normalize_rewards=True)
    for t in range(50):
        model.memory.add([0.0], action=0, reward=100.0 * (t % 2), done=True)
    loss = model.train_step()
    assert 0.0 < loss < 3.0  # a target of 100 would give a Huber loss near 50
    assert float(model.state["norm.square"][0, -1] / model.state["norm.count"][0, 1]) ** 0.5 == pytest.approx(
        50.0, rel=0.1
    )


def test_normalized_inputs_are_clipped() -> None:
    inputs = torch.tensor([[[5.0, 1e9]]])
    normalized = normalize_inputs(inputs, torch.tensor([[5.0, 0.0]]), torch.tensor([[1e4, 1.0]]))
    assert normalized.tolist() == [[[0.0, 10.0]]]


def test_acting_normalizes_by_the_published_moments() -> None:
    """A model that has observed numbers around 1000 tells them apart."""
    model = PPO((2,), 2, hidden=(6,), **NORMALIZED)
    for t in range(20):
        model.memory.add([1000.0 + t, -5.0], action=t % 2, reward=1.0, done=t == 19, log_prob=-0.7, value=0.0)
    model.train_step()
    learner = model.spec.learner()
    rows = learner.policy(model.state)
    acting = learner.network.bound_forward(rows)
    near, far = (acting(torch.tensor([[[1000.0 + x, -5.0]]])) for x in (0.0, 19.0))
    assert not torch.equal(near, far)
    again = learner.acting_as(model.spec.learner().init(model.identity, [model.hyper]), rows)
    assert torch.equal(learner.policy(again), rows)


def test_a_resumed_run_with_normalization_has_the_same_digest(tmp_path: Path) -> None:
    config = {"experiment": {"epochs": 8}, "model": MODELS["ppo"], "parallel": {"backend": "inline"}}
    whole = run(Large, config)["digest"]
    first = Large(config=config)
    first.prepare().checkpointer = Checkpointer(first.prepare(), tmp_path, keep_last=2)
    first.run_experiment(5)
    second = Large(config=config)
    restore(second.prepare(), tmp_path)
    assert second.run_experiment(8)["digest"] == whole
