"""The model that a `model` section names."""

from __future__ import annotations

import pytest

from parallel_agents.algorithms import DQN, model_from_config
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
