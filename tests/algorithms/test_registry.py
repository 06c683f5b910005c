"""The model that a `model` section names."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare

from parallel_agents.algorithms import DQN, RandomModel, model_from_config
from parallel_agents.core.errors import ConfigError


def test_a_model_section_makes_a_model() -> None:
    model = model_from_config({"algorithm": "dqn", "lr": 0.5, "hidden": [4]}, (3,), 2)
    assert isinstance(model, DQN)
    assert model.hyper["lr"] == 0.5


def test_without_an_algorithm_it_is_dqn_with_its_defaults() -> None:
    model = model_from_config({}, (3,), 2)
    assert isinstance(model, DQN)
    assert model.spec.network.hidden == (64, 64)


def test_an_unknown_algorithm_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.algorithm is 'sarsa': allowed is .*dqn.*random"):
        model_from_config({"algorithm": "sarsa"}, (3,), 2)


# -- the model that acts at random ----------------------------------------------------------------------------


def actions(count=400, **place):
    model = RandomModel((3,), 5)
    model.place(**{"seed": 0, "agent": 0, "worlds": 1, **place})
    model.start_epoch_action(epoch=2)
    return [model.take_action(None) for _ in range(count)]


def test_actions_are_uniform_and_depend_on_seed_and_agent():
    assert chisquare(np.bincount(actions(), minlength=5)).pvalue > 1e-3
    assert actions() == actions()
    assert actions(agent=1) != actions() != actions(seed=1)


def test_it_learns_nothing_and_needs_an_action():
    assert RandomModel(3, 2).train_step() == {"updates": 0}
    with pytest.raises(ConfigError, match="n_actions is 0"):
        RandomModel(3, 0)
