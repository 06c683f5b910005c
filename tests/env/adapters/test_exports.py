"""Exported environments pass the checks of PettingZoo and Gymnasium, and whole episodes repeat."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env, data_equivalence

from examples.cleanup import Cleanup
from examples.iowa import Iowa
from examples.tag import Tag
from examples.treasure_hunt import TreasureHunt
from parallel_agents import Agent, ParallelEnvironment
from parallel_agents.core.errors import ActionError, ConfigError, ContractError
from parallel_agents.env.adapters.exports import to_gymnasium, to_gymnasium_vector, to_pettingzoo
from parallel_agents.env.adapters.pettingzoo import adapt

with warnings.catch_warnings():  # PettingZoo's tests import one of its own environments in a way it has deprecated
    warnings.filterwarnings("ignore", "The old environment creation API", DeprecationWarning)
    from pettingzoo.test import parallel_api_test, parallel_seed_test

SHORT: dict[str, Any] = {"experiment": {"max_turns": 12}}


class Quitters(ParallelEnvironment):
    """Agents that see different things, have forbidden actions, and leave one after the other."""

    default_config = {"experiment": {"max_turns": 6}, "model": {"algorithm": "ppo", "hidden": (4,)}}

    def setup_agents(self) -> None:
        self.agents = [Agent(model=self.make_model((2 + i,), (2, 3) if i == 2 else 3), name=f"q{i}") for i in range(3)]

    def reset(self) -> None:
        self.luck = float(self.streams[0].random())

    def observe(self) -> Any:
        return [np.full((1, 2 + i), self.luck + self.turn, np.float32) for i in range(3)]

    def can_act(self) -> Any:
        return np.array([[True], [self.turn != 2], [True]])

    def action_masks(self) -> Any:
        return [np.array([[True, self.turn % 2 == 0, False]]), None, None]

    def apply_actions(self, actions: Any) -> Any:
        return np.array([[float(np.sum(own))] for own in actions])

    def dones(self) -> Any:
        ended = np.array([[self.turn >= 2], [self.turn >= 4], [False]])
        return ended, np.zeros_like(ended)


GAMES = [
    lambda: TreasureHunt(config={"world": {"agents": 3}, **SHORT}),
    lambda: Cleanup(config={"world": {"agents": 2}, **SHORT}),
    lambda: Tag(config=SHORT),
    Quitters,
]


@pytest.mark.parametrize("make", GAMES)
def test_exports_pass_the_checks_of_pettingzoo(make: Any) -> None:
    parallel_api_test(to_pettingzoo(make()), num_cycles=20)
    parallel_seed_test(lambda: to_pettingzoo(make()))


@pytest.mark.parametrize("make", GAMES)
def test_equal_seeds_give_equal_whole_episodes(make: Any) -> None:
    """PettingZoo's own seed test looks at the first step only."""
    one, other = to_pettingzoo(make()), to_pettingzoo(make())
    draws = np.random.default_rng(0)
    firsts = []
    for seed in (5, None, None, 5, 6):
        shown = one.reset(seed=seed)
        assert data_equivalence(shown, other.reset(seed=seed))
        firsts.append(np.concatenate([own.ravel() for own in shown[0].values()]))
        steps = 0
        while one.agents:
            actions = {
                name: draws.integers(
                    one.action_space(name).nvec
                    if isinstance(one.action_space(name), spaces.MultiDiscrete)
                    else one.action_space(name).n
                )
                for name in one.agents
            }
            assert data_equivalence(one.step(actions), other.step(actions))
            assert one.agents == other.agents
            steps += 1
        assert steps == one.driver.env.config.experiment.max_turns
    assert np.array_equal(firsts[0], firsts[3])
    assert not np.array_equal(firsts[0], firsts[1]) or not np.array_equal(firsts[0], firsts[4])


def test_agents_leave_when_their_episode_ends_and_infos_hold_masks() -> None:
    env = to_pettingzoo(Quitters())
    _, infos = env.reset(seed=1)
    assert infos["q0"]["action_mask"].tolist() == [1, 0, 0]
    assert "action_mask" not in infos["q1"]
    assert env.action_space("q2") == spaces.MultiDiscrete([2, 3])
    act = {"q0": 0, "q1": 2, "q2": np.array([1, 2])}
    _, rewards, _, _, infos = env.step(act)
    assert rewards == {"q0": 0.0, "q1": 2.0, "q2": 3.0}
    assert [info["can_act"] for info in infos.values()] == [True, False, True]
    _, _, terminated, truncated, _ = env.step(act)
    assert terminated == {"q0": True, "q1": False, "q2": False}
    assert env.agents == ["q1", "q2"]
    with pytest.raises(ActionError, match=r"actions for \['q0', 'q1', 'q2'\], but the agents are \['q1', 'q2'\]"):
        env.step(act)
    with pytest.raises(ActionError, match="the action of q1 is 7"):
        env.step({"q1": 7, "q2": np.array([1, 2])})
    while env.agents:
        _, _, terminated, truncated, _ = env.step({name: act[name] for name in env.agents})
    assert (terminated, truncated) == ({"q2": False}, {"q2": True})


def test_an_exported_environment_can_be_adapted_again() -> None:
    """An exported environment has the names and masks of its agents."""
    env = to_pettingzoo(Quitters())
    assert [agent.name for agent in adapt(env).agents] == ["q0", "q1", "q2"]
    assert adapt(env).agents[0].masked


@pytest.mark.filterwarnings("ignore:.*A Box observation space (minimum|maximum) value is -?infinity")
@pytest.mark.filterwarnings("ignore:.*Not able to test alternative render modes")
@pytest.mark.filterwarnings("ignore:.*No render modes was declared")
@pytest.mark.filterwarnings("ignore:.*The environment.*is different from the unwrapped version")
@pytest.mark.parametrize("make", [lambda: Iowa(config=SHORT), GAMES[0]])
def test_exports_pass_the_checks_of_gymnasium(make: Any) -> None:
    env = to_gymnasium(make())
    check_env(env)
    seen, _ = env.reset(seed=3)
    assert seen.shape == env.observation_space.shape
    for turn in range(12):
        _, reward, terminated, truncated, info = env.step(env.action_space.sample() * 0)
        assert reward == pytest.approx(info["rewards"].sum())
        assert (terminated, truncated) == (False, turn == 11)
    with pytest.raises(ActionError, match="the episode has ended"):
        env.step(env.action_space.sample())


def test_a_vector_export_restarts_worlds_in_the_step_after_their_end() -> None:
    env = to_gymnasium_vector(Iowa(config={"experiment": {"max_turns": 5, "worlds": 3}}))
    assert isinstance(env, gymnasium.vector.VectorEnv)
    first, _ = env.reset(seed=1)
    assert first.shape == env.observation_space.shape
    assert env.action_space == spaces.MultiDiscrete([4, 4, 4])
    ends = []
    for _ in range(12):
        seen, rewards, terminated, truncated, _ = env.step(np.array([0, 1, 2]))
        assert env.observation_space.contains(seen)
        assert rewards.shape == terminated.shape == (3,)
        ends.append(truncated.tolist())
    assert [any(own) for own in ends] == [False] * 4 + [True] + [False] * 5 + [True, False]
    assert np.array_equal(env.reset(seed=1)[0], first)
    with pytest.raises(ActionError, match="the action of the worlds"):
        env.step(np.array([0, 1]))


def test_several_worlds_or_different_spaces_raise() -> None:
    with pytest.raises(ContractError, match=r"to_gymnasium\(\) was given 2 worlds"):
        to_gymnasium(Iowa(config={"experiment": {"worlds": 2}}))
    with pytest.raises(ContractError, match=r"different observation or action spaces.*use to_pettingzoo"):
        to_gymnasium(Quitters())


def test_an_exported_game_can_be_drawn() -> None:
    drawn = to_gymnasium(TreasureHunt(), render_mode="rgb_array")
    drawn.reset(seed=0)
    assert drawn.render().shape[2] == 3
    text = to_gymnasium(TreasureHunt(), render_mode="ansi")
    text.reset(seed=0)
    assert "#" in text.render()
    assert to_gymnasium(TreasureHunt()).render() is None
    with pytest.raises(ConfigError, match="TreasureHunt has no render_mode 'human': it has rgb_array, ansi"):
        to_gymnasium(TreasureHunt(), render_mode="human")
