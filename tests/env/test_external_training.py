"""Agents that learn through an external update, and the ways in which agents act."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from parallel_agents.algorithms import DQN, IQN, PPO
from parallel_agents.core.errors import ActionError, ContractError, NonFiniteError, RunError, ShapeError
from parallel_agents.env.external_training import ExternalUpdateAgent
from tests.env.users import external_agent


def batch(rows=8, **changes):
    draws = np.random.Generator(np.random.Philox(1))
    columns = {
        "states": draws.standard_normal((rows, 2)),
        "actions": np.arange(rows) % 2,
        "rewards": draws.random(rows),
        "next_states": draws.standard_normal((rows, 2)),
        "dones": np.arange(rows) % 3 == 0,
        "weights": draws.random(rows),
    }
    return {**columns, **changes}


def test_update_policy_makes_the_same_update_as_train_step():
    """The buffer holds a single row, so the batch that train_step draws is known."""
    model = DQN((2,), 2, hidden=(8,), batch_size=4, learning_starts=1, gamma=0.9)
    model.memory.add([1.0, 2.0], action=1, reward=0.5, done=True)
    model.train_step()
    other = ExternalUpdateAgent(DQN((2,), 2, hidden=(8,), gamma=0.9))
    rows = {"states": [[1.0, 2.0]] * 4, "actions": [1] * 4, "rewards": [0.5] * 4, "dones": [True] * 4}
    metrics = other.update_policy({**rows, "next_states": np.zeros((4, 2))})
    assert torch.equal(model.state["online"], other.model.state["online"])
    assert metrics["updates"] == 1
    assert metrics["td_errors"].shape == (4,)
    assert metrics["loss"] == pytest.approx(0.5 * float(metrics["td_errors"][0]) ** 2, rel=1e-4)


def test_weights_multiply_each_loss_once():
    full, half = external_agent(), external_agent()
    columns = batch(weights=np.array([2.0, 0.0] * 4))
    full.update_policy(columns)
    half.update_policy({name: np.asarray(column)[::2] for name, column in {**columns, "weights": np.ones(8)}.items()})
    torch.testing.assert_close(full.model.state["online"], half.model.state["online"])


def test_iqn_learns_through_an_external_update():
    agent = ExternalUpdateAgent(IQN((2,), 2, layer=8, n_frames=1, n_step=1))
    assert math.isfinite(agent.update_policy(batch())["loss"])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"rewards": np.full(8, np.nan)}, NonFiniteError, "loss or gradient is not finite"),
        ({"weights": -np.ones(8)}, NonFiniteError, "weights that are negative"),
        ({"actions": np.full(8, 2)}, ActionError, r"actions 2 \.\. 2: there are 2"),
        ({"dones": np.ones(3)}, ShapeError, r"discounts of shape \(3,\): give \(8,\)"),
        ({"states": np.ones((8, 3))}, ShapeError, r"states of shape \(8, 3\): give \(8, 2\)"),
    ],
)
def test_invalid_batch_is_refused_and_changes_nothing(changes, error, message):
    agent = external_agent()
    before = agent.state()
    with pytest.raises(error, match=message):
        agent.update_policy(batch(**changes))
    assert all((agent.state()[name] == before[name]).all() for name in before)


def test_external_update_needs_a_replay_model_all_columns_and_no_run():
    with pytest.raises(ContractError, match="PPO cannot learn from single rows"):
        ExternalUpdateAgent(PPO((2,), 2))
    with pytest.raises(ShapeError, match="a batch has no next_states"):
        external_agent().update_policy({name: column for name, column in batch().items() if name != "next_states"})
    agent = external_agent()
    agent.model.busy = "a run is on"
    with pytest.raises(RunError, match="while a run is on"):
        agent.update_policy(batch())
