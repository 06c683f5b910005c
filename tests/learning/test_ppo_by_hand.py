"""The terms of PPO's objective against numbers worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from parallel_agents.models import PPO
from parallel_agents.models.ppo import PPOBlueprint
from parallel_agents.networks import Discrete
from parallel_agents.types import Identity, Snapshot, State

WHO = Identity((0,), (0,))
MADE = PPOBlueprint((3,), Discrete(2), 1, (5,), passes=1, minibatches=1, rollout=2, epochs=1).learner()


def column(*numbers: float, dtype: type = np.float32) -> np.ndarray:
    return np.array(numbers, dtype).reshape(1, 3, 1)


def figures(**hyper: float) -> dict[str, float]:
    """What a network of zeros makes of two samples: both actions as likely, every value 0.

    They were drawn with probability 1/4, so both ratios are 2. Rewards 3 and -1 end their episodes at once, valued
    at 1 before: advantages 2 and -2, normalised 1 and -1; returns 3 and -1.
    """
    fresh = MADE.init(WHO, [{**PPO((3,), 2).hyper, **hyper}])
    state = State({**fresh.tensors, "online": torch.zeros_like(fresh["online"])})
    columns = {
        "observations": np.ones((1, 3, 1, 3), np.float32),
        "actions": column(0, 1, 0, dtype=np.int64),
        "rewards": column(3, -1, 0),
        "terminated": column(True, True, False, dtype=np.bool_),
        "truncated": column(False, False, False, dtype=np.bool_),
        "valid": column(True, True, False, dtype=np.bool_),
        "follow": column(1, 1, 1, dtype=np.int32),
        "log_prob": column(*[math.log(0.25)] * 3),
        "value": column(1, 1, 0),
        "ready": np.ones(1, np.bool_),
    }
    _, result = MADE.learn(state, Snapshot(1, columns), WHO)
    return {name: float(value[0]) for name, value in result.metrics.items()}


def test_the_ratio_is_clipped_where_that_is_worse_for_the_objective() -> None:
    # min(2·1, 1.2·1) = 1.2 and min(2·(-1), 1.2·(-1)) = -2: their mean is -0.4
    assert figures(ratio_clip=0.2)["policy_loss"] == pytest.approx(0.4)
    # 1.5 and -2
    assert figures(ratio_clip=0.5)["policy_loss"] == pytest.approx(0.25)


def test_values_may_move_as_far_as_their_clip_allows() -> None:
    # (0 - 3)² = 9 and (0 + 1)² = 1
    assert figures()["value_loss"] == pytest.approx(5.0)
    # from 1 the value may only fall to 0.75: (0.75 - 3)² < 9, but (0.75 + 1)² = 3.0625 > 1
    assert figures(value_clip=0.25)["value_loss"] == pytest.approx((9.0 + 3.0625) / 2)


def test_the_terms_are_put_together_by_their_weights() -> None:
    found = figures(value_weight=0.5, entropy=0.1)
    assert found["entropy"] == pytest.approx(math.log(2.0))
    assert found["loss"] == pytest.approx(0.4 + 0.5 * 5.0 - 0.1 * math.log(2.0))


def test_nothing_has_moved_from_the_start_yet() -> None:
    # with the early stop on, the distance is that from the learner at the round's start, not from who acted
    assert figures(target_kl=0.01)["kl"] == pytest.approx(0.0, abs=1e-7)
