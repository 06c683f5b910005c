from __future__ import annotations

import numpy as np
import pytest

from parallel_agents.errors import ConfigError, NonFiniteError, ShapeError
from parallel_agents.sampling import EffectiveSampleSizeWarning, weighted_estimate


def test_estimates_worked_by_hand() -> None:
    found = weighted_estimate([0.0, 1.0, 1.0, 0.0], [0.5, 1.5, 1.5, 0.5])
    assert found.mean == 0.75
    assert found.error == pytest.approx(np.std([0, 1.5, 1.5, 0], ddof=1) / 2)
    assert found.effective_share == pytest.approx(16 / 5 / 4)
    assert (found.largest_weight, found.missing) == (1.5, 0.0)
    assert found.interval(2.0) == pytest.approx((0.75 - 2 * found.error, 0.75 + 2 * found.error))
    same = weighted_estimate([0.0, 1.0, 1.0, 0.0], [1.0, 3.0, 3.0, 1.0], self_normalised=True)
    assert same.mean == 0.75  # the scale of the weights does not matter
    assert same.error == pytest.approx(np.sqrt(2 * 0.75**2 + 18 * 0.25**2) / 8)
    clipped = weighted_estimate([0.0, 1.0, 1.0, 0.0], [0.5, 1.5, 1.5, 0.5], limit=1.0)
    assert (clipped.mean, clipped.missing) == (0.5, 0.25)


@pytest.mark.parametrize("self_normalised", [False, True])
def test_intervals_hold_the_truth_as_often_as_they_say(self_normalised: bool) -> None:
    rng = np.random.default_rng(0)
    logging, target = np.array([0.7, 0.3]), np.array([0.2, 0.8])
    hits = 0
    for _ in range(600):
        action = (rng.random(400) >= logging[0]).astype(int)
        reward = rng.random(400) < np.array([0.1, 0.5])[action]
        low, high = weighted_estimate(reward, (target / logging)[action], self_normalised=self_normalised).interval()
        hits += low <= target @ [0.1, 0.5] <= high
    assert 0.92 <= hits / 600 <= 0.98


def test_collapse_is_flagged() -> None:
    with pytest.warns(EffectiveSampleSizeWarning, match=r"100 samples are worth 1\.\d, a few weights carry them: clip"):
        weighted_estimate(np.ones(100), [1000.0] + [0.1] * 99)


def test_bad_input_is_named() -> None:
    with pytest.raises(ShapeError, match=r"values of shape \(3,\) and weights of shape \(2,\)"):
        weighted_estimate(np.ones(3), np.ones(2))
    with pytest.raises(NonFiniteError, match="values hold NaN"):
        weighted_estimate([np.nan, 1.0], np.ones(2))
    with pytest.raises(NonFiniteError, match="weights must be finite"):
        weighted_estimate(np.ones(2), [np.inf, 1.0])
    with pytest.raises(ConfigError, match="a weight limit of -1"):
        weighted_estimate(np.ones(2), np.ones(2), limit=-1.0)
