"""Training of any agent with `update_policy` on simulated episodes, and its checkpoints."""

from __future__ import annotations

import asyncio
import re

import numpy as np
import pytest

from parallel_agents.algorithms import DQN
from parallel_agents.checkpoint.store import Manifest, Store
from parallel_agents.core.errors import CheckpointError, ConfigError, ContractError
from parallel_agents.env.external_training import ExternalUpdateAgent
from parallel_agents.market.trainers import MonteCarloTrainingConfig, MonteCarloTrainingOrchestrator
from parallel_agents.replay.world_weights import WorldRule

SMALL = {
    "n_worlds": 8,
    "batch_size": 8,
    "steps": 5,
    "update_rows": 16,
    "updates_per_step": 2,
    "experience_buffer_size": 400,
}


class Recording:
    """An agent of another library: it acts and records its batches."""

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


def test_a_training_batch_has_all_columns_and_half_crisis_transitions(patterns):
    trainer = orchestrator(patterns, steps=40, auctions_per_step=200.0, experience_buffer_size=4000, update_rows=200)
    batch = asyncio.run(trainer.generate_training_batch(Recording()))
    assert set(batch) >= {"states", "actions", "rewards", "next_states", "dones", "weights", "crisis", "world_types"}
    assert len(batch["rewards"]) == 200
    assert batch["crisis"].mean() == pytest.approx(0.5, abs=0.12)
    assert batch["crisis"].mean() > 2 * trainer.simulator.buffer.statistics()["crisis_parent_share"]


def test_agents_of_other_libraries_are_updated_and_others_refused(patterns):
    agent = Recording()
    summary = asyncio.run(orchestrator(patterns).train_agent_with_monte_carlo(agent, n_steps=3))
    assert len(agent.batches) == 6
    assert summary["steps"] == 3
    assert summary["episodes"] == 24
    assert summary["loss"] < 0.5
    with pytest.raises(ContractError, match=r"object has no update_policy\(batch\)"):
        asyncio.run(orchestrator(patterns).train_agent_with_monte_carlo(object()))


def test_resumed_training_equals_uninterrupted_training(patterns, tmp_path):
    def agent() -> ExternalUpdateAgent:
        return ExternalUpdateAgent(DQN((48,), 28, hidden=(8,)))

    whole, part, rest = agent(), agent(), agent()
    options = {"adapt_every": 2, "checkpoint_every": 2}
    asyncio.run(orchestrator(patterns, **options).train_agent_with_monte_carlo(whole, 5))
    asyncio.run(orchestrator(patterns, tmp_path, **options).train_agent_with_monte_carlo(part, 3))
    resumed = orchestrator(patterns, tmp_path, **options)
    summary = asyncio.run(resumed.resume(rest, 5))
    assert summary["steps"] == 5
    assert summary["episodes"] == 40
    assert len(summary["adaptations"]) == 2
    for name, array in whole.state().items():
        np.testing.assert_array_equal(array, rest.state()[name], err_msg=name)
    with pytest.raises(CheckpointError, match="had another batch_size"):
        asyncio.run(orchestrator(patterns, tmp_path, batch_size=9, **options).resume(agent(), 6))


def test_outcomes_that_no_rule_fits_leave_the_last_rule_in_place(patterns, tmp_path):
    """Of eight worlds, the first step brings value in two, which the factors tell from the others without error."""
    trainer = orchestrator(patterns, tmp_path)
    before = trainer.simulator.orchestrator.rule = WorldRule((1.0, 2.0, 0.5, 0.0))
    asyncio.run(trainer.train_agent_with_monte_carlo(Recording(), 1))
    assert trainer.history[0]["world_rule_fitted"] == 0.0
    assert trainer.simulator.orchestrator.rule == before
    resumed = orchestrator(patterns, tmp_path)
    asyncio.run(resumed.resume(Recording(), 1))
    assert resumed.simulator.orchestrator.rule == before
    rich = orchestrator(patterns, n_worlds=30, batch_size=30, steps=40)
    asyncio.run(rich.train_agent_with_monte_carlo(Recording(), 1))
    assert rich.history[0]["world_rule_fitted"] == 1.0
    assert rich.simulator.orchestrator.rule != WorldRule()


def test_a_metric_that_is_nan_does_not_prevent_checkpoints(patterns, tmp_path):
    class WithoutLoss(Recording):
        def update_policy(self, batch):
            return {"loss": float("nan")}

    asyncio.run(orchestrator(patterns, tmp_path).train_agent_with_monte_carlo(WithoutLoss(), 2))
    trainer = orchestrator(patterns, tmp_path)
    summary = asyncio.run(trainer.resume(WithoutLoss(), 2))
    assert summary["steps"] == 2
    assert "loss" not in summary
    assert [line["loss"] for line in trainer.history] == [None, None]


def test_importance_sampling_can_be_off_and_the_crisis_share_can_be_given(patterns):
    trainer = orchestrator(patterns, importance_sampling_ratio=0.0)
    batch = asyncio.run(trainer.generate_training_batch(Recording()))
    np.testing.assert_array_equal(batch["weights"], np.ones(16))
    options = {"steps": 40, "auctions_per_step": 200.0, "experience_buffer_size": 4000, "update_rows": 300}
    trainer = orchestrator(patterns, crisis_parent_frequency=0.2, crisis_parent_value_multiplier=5.0, **options)
    batch = asyncio.run(trainer.generate_training_batch(Recording()))
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
def test_invalid_options_are_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        MonteCarloTrainingConfig(**options)


@pytest.mark.parametrize(
    ("change", "trouble"),
    [
        ({"generation": 10**30}, "does not follow"),
        ({"mix": {"no type": 1.0}}, "the mix {'no type': 1.0} is none of"),
        ({"mix": {}}, "the mix {} is none of"),
        ({"world_rule": [1.0, 2.0]}, "world_rule is float64"),
        ({"episodes": -8}, "-8 episodes cannot have been run"),
        ({"failed": 3}, "AttributeError"),
    ],
)
def test_the_checkpoint_before_is_used_if_a_value_cannot_be_right(patterns, tmp_path, change, trouble):
    options = {"adapt_every": 2, "checkpoint_every": 1}
    asyncio.run(orchestrator(patterns, tmp_path, **options).train_agent_with_monte_carlo(Recording(), 2))
    store = Store(tmp_path)
    manifest, _ = store.newest_good()
    store.commit(Manifest(manifest.epoch, manifest.files, {**manifest.values, **change}))
    with pytest.warns(UserWarning, match=f"resumed from step 1: step 2: .*{re.escape(trouble)}"):
        summary = asyncio.run(orchestrator(patterns, tmp_path, **options).resume(Recording(), 2))
    assert (summary["steps"], summary["episodes"], len(summary["adaptations"])) == (2, 16, 1)
