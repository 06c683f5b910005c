"""The model that acts at random."""

import numpy as np
import pytest
from scipy.stats import chisquare

from parallel_agents.algorithms import RandomModel
from parallel_agents.core.errors import ConfigError


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
