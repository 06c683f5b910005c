"""The model that does not learn."""

import numpy as np
import pytest
from scipy.stats import chisquare

from parallel_agents.errors import ConfigError
from parallel_agents.models import RandomModel


def acts(count=400, **place):
    made = RandomModel((3,), 5)
    made.place(**{"seed": 0, "agent": 0, "worlds": 1, **place})
    made.start_epoch_action(epoch=2)
    return [made.take_action(None) for _ in range(count)]


def test_choices_are_uniform_and_addressed():
    assert chisquare(np.bincount(acts(), minlength=5)).pvalue > 1e-3
    assert acts() == acts()
    assert acts(agent=1) != acts() != acts(seed=1)


def test_it_learns_nothing_and_needs_an_action():
    assert RandomModel(3, 2).train_step() == 0.0
    with pytest.raises(ConfigError, match="n_actions is 0"):
        RandomModel(3, 0)
