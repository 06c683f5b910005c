from __future__ import annotations

import numpy as np
import pytest

from parallel_agents.errors import ConfigError
from parallel_agents.sampling import ClassRule

WEIGHTS = {"regular_parent": 1.0, "crisis_parent": 5.0}


def test_natural_shares_come_from_counts_or_from_the_population() -> None:
    natural, shares = ClassRule(weights=WEIGHTS, alpha=1.0).shares(np.array([300, 700]))
    assert natural.tolist() == [0.3, 0.7]
    assert shares[0] == pytest.approx(1.5 / 2.2)
    skewed = ClassRule(weights=WEIGHTS, alpha=1.0, population={"crisis_parent": 0.1, "regular_parent": 0.9})
    natural, shares = skewed.shares(np.array([300, 700]))
    assert natural.tolist() == [0.1, 0.9]
    assert shares[0] == pytest.approx(5 / 14)


def test_alpha_tempers_given_weights_but_not_learned_ones() -> None:
    rule = ClassRule(weights=WEIGHTS, alpha=0.0)
    counts = np.array([100, 900])
    assert rule.shares(counts)[1][0] == pytest.approx(0.1)
    assert rule.shares(counts, learned=np.array([1.0, 0.2]))[1][0] == pytest.approx(5 / 14)
    halved = rule.shares(counts, learned=np.array([1.0, 1 / 9]), temperature=2.0)
    assert halved[1][0] == pytest.approx(0.25)


def test_the_rare_class_must_be_known() -> None:
    with pytest.raises(ConfigError, match="rare class 'vip' has no weight: known are crisis_parent"):
        ClassRule(weights=WEIGHTS, rare="vip")
