"""Simulate, remember, draw, update: any agent with the door, and a training that can be stopped and resumed."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from parallel_agents.errors import CheckpointError, ConfigError, ContractError
from parallel_agents.market.importance import PolicyDoor
from parallel_agents.market.montecarlo import MonteCarloTrainingConfig, MonteCarloTrainingOrchestrator
from parallel_agents.models import DQN

SMALL = {
    "n_worlds": 8,
    "batch_size": 8,
    "steps": 5,
    "update_rows": 16,
    "updates_per_step": 2,
    "experience_buffer_size": 400,
}


class Counting:
    """A foreign agent: acts, and counts what it is given to learn from."""

    def __init__(self) -> None:
        self.batches = []

    def act(self, state):
        return 9

    def update_policy(self, batch):
        self.batches.append(batch)
        return {"loss": 1.0 / len(self.batches)}


def orchestrator(patterns, folder=None, **options) -> MonteCarloTrainingOrchestrator:
    return MonteCarloTrainingOrchestrator(
        MonteCarloTrainingConfig(**{**SMALL, **options}), patterns=patterns, folder=folder
    )


def test_a_training_batch_has_all_that_an_update_needs(patterns):
    trainer = orchestrator(patterns, steps=40, auctions_per_step=200.0, experience_buffer_size=4000, update_rows=200)
    batch = asyncio.run(trainer.generate_training_batch(Counting()))
    assert set(batch) >= {"states", "actions", "rewards", "next_states", "dones", "weights", "crisis", "world_types"}
    assert len(batch["rewards"]) == 200
    assert batch["crisis"].mean() == pytest.approx(0.5, abs=0.12)
    assert batch["crisis"].mean() > 2 * trainer.simulator.buffer.statistics()["crisis_parent_share"]


def test_foreign_agents_learn_through_their_door(patterns):
    agent = Counting()
    told = asyncio.run(orchestrator(patterns).train_agent_with_monte_carlo(agent, n_steps=3))
    assert len(agent.batches) == 6
    assert told["steps"] == 3
    assert told["episodes"] == 24
    assert told["loss"] < 0.5
    with pytest.raises(ContractError, match=r"object has no update_policy\(batch\)"):
        asyncio.run(orchestrator(patterns).train_agent_with_monte_carlo(object()))


def test_stopped_and_resumed_is_as_if_never_stopped(patterns, tmp_path):
    def agent() -> PolicyDoor:
        return PolicyDoor(DQN((27,), 24, hidden=(8,)))

    whole, part, rest = agent(), agent(), agent()
    options = {"adapt_every": 2, "checkpoint_every": 2}
    asyncio.run(orchestrator(patterns, **options).train_agent_with_monte_carlo(whole, 5))
    asyncio.run(orchestrator(patterns, tmp_path, **options).train_agent_with_monte_carlo(part, 3))
    resumed = orchestrator(patterns, tmp_path, **options)
    told = asyncio.run(resumed.resume(rest, 5))
    assert told["steps"] == 5
    assert told["episodes"] == 40
    assert len(told["adaptations"]) == 2
    for name, array in whole.state().items():
        np.testing.assert_array_equal(array, rest.state()[name], err_msg=name)
    with pytest.raises(CheckpointError, match="had another batch_size"):
        asyncio.run(orchestrator(patterns, tmp_path, batch_size=9, **options).resume(agent(), 6))


def test_importance_sampling_can_be_off_and_the_crisis_share_can_be_given(patterns):
    trainer = orchestrator(patterns, importance_sampling_ratio=0.0)
    batch = asyncio.run(trainer.generate_training_batch(Counting()))
    np.testing.assert_array_equal(batch["weights"], np.ones(16))
    options = {"steps": 40, "auctions_per_step": 200.0, "experience_buffer_size": 4000, "update_rows": 300}
    given = orchestrator(patterns, crisis_parent_frequency=0.2, crisis_parent_value_multiplier=5.0, **options)
    batch = asyncio.run(given.generate_training_batch(Counting()))
    assert np.average(batch["crisis"], weights=batch["weights"]) == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"importance_sampling_ratio": 1.0}, "importance_sampling_ratio is 1.0"),
        ({"crisis_parent_frequency": 0.0}, "crisis_parent_frequency is 0.0"),
        ({"crisis_parent_value_multiplier": -1.0}, "crisis_parent_value_multiplier is -1.0"),
        ({"adapt_every": -1}, "adapt_every is -1"),
    ],
)
def test_bad_options_are_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        MonteCarloTrainingConfig(**options)
    assert MonteCarloTrainingConfig.from_dict({}).n_worlds == 100
