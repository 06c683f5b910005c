"""Social metrics, compared with figures worked out by hand."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_agents.core.errors import ShapeError
from parallel_agents.core.types import EpochStats
from parallel_agents.games import AGENT, WALL, GridEnvironment
from parallel_agents.games.social_metrics import SocialRecorder, efficiency, equality, peace, sustainability


def episode(*turns):
    """Return the rewards of one world, from rows of turns and columns of agents."""
    return np.array(turns, np.float32)[:, :, None]


def test_efficiency_is_what_the_group_earns_per_turn():
    assert efficiency(episode([1, 0], [1, 2], [0, -1])).tolist() == [1.0]  # 3 in 3 turns


@pytest.mark.parametrize(
    ("returns", "expected"),
    [
        ([2, 2, 2], 1.0),
        ([6, 0, 0], 1 / 3),  # Σ|Rᵢ-Rⱼ| = 24, 2 N ΣR = 36
        ([1, 3], 0.75),  # Σ|Rᵢ-Rⱼ| = 4, 2 N ΣR = 16
        ([3, 1], 0.75),
    ],
)
def test_equality_is_one_minus_the_gini_coefficient(returns, expected):
    assert equality(episode(returns))[0] == pytest.approx(expected)


def test_equality_is_nan_if_nothing_was_earned():
    assert np.isnan(equality(episode([0, 0])))[0]
    assert np.isnan(equality(episode([-1, -2])))[0]


def test_sustainability_is_the_mean_turn_of_earning():
    # The first earns in turns 1 and 3, mean 2; the second in turn 4; the third never, 0.
    assert sustainability(episode([1, 0, 0], [0, 0, -1], [5, 0, 0], [0, 1, 0])).tolist() == [2.0]


def test_peace_is_how_many_agents_can_act():
    free = np.array([[True, True], [True, False], [False, False], [True, True]])[:, :, None]
    assert peace(free).tolist() == [1.25]


def test_each_world_has_its_own_metrics():
    rewards = np.stack([episode([1, 1])[..., 0], episode([4, 0])[..., 0]], axis=-1)
    assert efficiency(rewards).tolist() == [2.0, 4.0]
    assert equality(rewards).tolist() == [1.0, 0.5]


@given(st.lists(st.integers(0, 50), min_size=2, max_size=6).filter(any), st.integers(2, 5))
def test_equality_is_between_its_bounds_and_independent_of_the_unit(returns, factor):
    value = equality(episode(returns))[0]
    assert 1 / len(returns) - 1e-9 <= value <= 1.0 + 1e-9
    assert equality(factor * episode(returns))[0] == pytest.approx(value)
    slow = 1.0 - sum(abs(a - b) for a in returns for b in returns) / (2 * len(returns) * sum(returns))
    assert value == pytest.approx(slow)


def test_an_episode_of_another_shape_is_refused():
    with pytest.raises(ShapeError, match=r"an episode of shape \(2, 3\): give \(turns, agents, worlds\)"):
        efficiency(np.zeros((2, 3)))


class Picnic(GridEnvironment):
    """Two agents; the first earns in turns 2 and 4, the second never."""

    def build(self):
        return self.make_walled_grid([WALL, AGENT])

    def settle(self):
        rewards = np.zeros(self.grid.headings.shape, np.float32)
        rewards[0] = self.turn % 2 == 0
        return rewards


def test_a_run_leaves_sustainability_and_peace_in_its_folder(tmp_path):
    experiment = {"epochs": 3, "max_turns": 5, "worlds": 2}
    world = {"agents": 2, "height": 5, "width": 5, "radius": 1}
    game = Picnic(config={"experiment": experiment, "world": world, "model": {"algorithm": "random"}})
    game.run_experiment(callbacks=[SocialRecorder(game, tmp_path)])
    charts = json.loads((tmp_path / "social.panels.json").read_text())["panels"]
    values = {chart["title"]: chart["lines"][0]["values"] for chart in charts}
    assert values == {"Sustainability": [1.5] * 3, "Peace": [2.0] * 3}  # (turn 3 and none) / 2 agents


def test_an_epoch_that_recorded_no_turn_has_no_value(tmp_path):
    """Whole epochs in compiled code record none; the values of the epoch before are not theirs."""
    world = {"agents": 2, "height": 5, "width": 5, "radius": 1}
    game = Picnic(config={"experiment": {"max_turns": 5}, "world": world, "model": {"algorithm": "random"}})
    recorder = SocialRecorder(game, tmp_path)
    game.run_experiment(1, callbacks=[recorder])
    recorder.on_epoch(EpochStats(2, 5, 10, np.zeros(2), version=0, lag=0, updates=0, seconds=0.0))
    recorder.on_end({})
    charts = json.loads((tmp_path / "social.panels.json").read_text())["panels"]
    assert [len(chart["lines"][0]["values"]) for chart in charts] == [1, 1]
