"""Observations and rewards in each agent's own units: right numbers, same bytes in every mode, resumable."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from parallel_agents.models import DQN, PPO
from parallel_agents.networks.normalised import normalised
from parallel_agents.runtime.checkpoints import Checkpointer, restore
from tests.equivalence.worlds import Odd, run

UNITS = {"normalise_observations": True, "normalise_rewards": True}
REPLAY = {"batch_size": 6, "updates_per_round": 2, "learning_starts": 5, "buffer_size": 60, **UNITS}
MODELS: dict[str, dict[str, Any]] = {
    "dqn": {"hidden": (5,), **REPLAY},
    "dqn rewards only": {"hidden": (5,), **REPLAY, "normalise_observations": False},
    "iqn": {"algorithm": "iqn", "layer": 6, "n_frames": 2, **REPLAY},
    "ppo": {"algorithm": "ppo", "hidden": (5,), "passes": 2, "minibatches": 2, **UNITS},
}


class Large(Odd):
    """`Odd` in unwieldy units: observations around 1000, rewards of hundreds."""

    default_config: ClassVar = {**Odd.default_config, "model": {}}

    def observe(self) -> Any:
        return 1000.0 + 50.0 * self.place

    def apply_agent(self, index: int, actions: Any) -> Any:
        return 300.0 * super().apply_agent(index, actions)


CASES: dict[str, tuple[type[Odd], dict[str, Any]]] = {
    name: (Large, {"model": model, "experiment": {"worlds": 2}}) for name, model in MODELS.items()
}


def test_ppo_takes_in_all_it_reads_exactly_once() -> None:
    """The moments after two rounds are those of all the observations that were kept."""
    game = Large(config={"experiment": {"epochs": 4}, "model": MODELS["ppo"], "parallel": {"policy_lag": 0}})
    met: list[list[Any]] = [[], [], []]
    observe, keep = game.observe, game.credit

    def credit(rewards: Any) -> None:
        for n in range(3):
            if game.acting[n, 0]:
                met[n].append(game.seen[n, 0].copy())
        keep(rewards)

    def look() -> Any:
        game.seen = observe().astype(np.float32)
        return game.seen

    game.credit = credit  # type: ignore[method-assign]
    game.observe = look  # type: ignore[method-assign]
    game.run_experiment()
    for n, agent in enumerate(game.agents):
        state = agent.model.state
        seen = np.array(met[n], np.float64)
        assert state["norm.count"][0, 0] == len(seen)
        np.testing.assert_allclose(state["norm.mean"][0, :-1], seen.mean(axis=0))
        np.testing.assert_allclose(state["norm.scale"][0], 1.0 / seen.std(axis=0), rtol=1e-5)


def test_returns_are_counted_in_their_deviation() -> None:
    model = DQN((1,), 2, hidden=(4,), learning_starts=1, batch_size=200, normalise_rewards=True)
    for t in range(50):
        model.memory.add([0.0], action=0, reward=100.0 * (t % 2), done=True)
    loss = model.train_step()
    assert 0.0 < loss < 3.0  # a target of 100 would give a Huber loss near 50
    assert float(model.state["norm.square"][0, -1] / model.state["norm.count"][0, 1]) ** 0.5 == pytest.approx(
        50.0, rel=0.1
    )


def test_what_hardly_varies_is_not_blown_up_and_outliers_are_held() -> None:
    inputs = torch.tensor([[[5.0, 1e9]]])
    found = normalised(inputs, torch.tensor([[5.0, 0.0]]), torch.tensor([[1e4, 1.0]]))
    assert found.tolist() == [[[0.0, 10.0]]]


def test_acting_sees_the_published_units() -> None:
    """A model that has met inputs around 1000 tells them apart; evaluation uses the units that acted."""
    model = PPO((2,), 2, hidden=(6,), **UNITS)
    for t in range(20):
        model.memory.add([1000.0 + t, -5.0], action=t % 2, reward=1.0, done=t == 19, log_prob=-0.7, value=0.0)
    model.train_step()
    learner = model.blueprint.learner()
    rows = learner.policy(model.state)
    acting = learner.network.acting(rows)
    near, far = (acting(torch.tensor([[[1000.0 + x, -5.0]]])) for x in (0.0, 19.0))
    assert not torch.equal(near, far)
    again = learner.acting_as(model.blueprint.learner().init(model.identity, [model.hyper]), rows)
    assert torch.equal(learner.policy(again), rows)


def test_resumed_exactly(tmp_path: Path) -> None:
    config = {"experiment": {"epochs": 8}, "model": MODELS["ppo"], "parallel": {"backend": "inline"}}
    whole = run(Large, config)["digest"]
    first = Large(config=config)
    first.prepare().checkpointer = Checkpointer(first.prepare(), tmp_path, keep_last=2)
    first.run_experiment(5)
    second = Large(config=config)
    restore(second.prepare(), tmp_path)
    assert second.run_experiment(8)["digest"] == whole
