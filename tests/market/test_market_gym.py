"""The market as a Gymnasium environment: registered, checked by Gymnasium's own checker, repeatable by seed."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from parallel_agents.core.errors import ConfigError
from parallel_agents.market import register_gymnasium


def make(patterns, **options) -> gymnasium.Env:
    register_gymnasium()
    return gymnasium.make("parallel_agents/Market-v0", patterns=patterns, worlds=3, steps=4, **options)


@pytest.mark.filterwarnings("ignore:.*value is -?infinity")
@pytest.mark.parametrize("actions", ["paced", "joint", "choices"])
def test_it_passes_the_checker_of_gymnasium(patterns, actions):
    check_env(make(patterns, actions=actions).unwrapped, skip_render_check=True)


def test_a_seed_repeats_the_world_and_the_episode(patterns):
    env = make(patterns, actions="joint", target=20.0)

    def play(seed: int) -> list:
        observation, info = env.reset(seed=seed)
        rows, done = [observation], False
        while not done:
            observation, reward, done, truncated, _ = env.step(20)
            rows.append(np.append(observation, reward))
            assert not truncated
        return [info["world"], *(row.tobytes() for row in rows)]

    assert play(1) == play(1)
    assert play(1) != play(2)
    target = env.unwrapped.names.index("log_target")
    assert env.reset(seed=0)[0][target] == pytest.approx(np.log(20.0))
    with pytest.raises(ConfigError, match="worlds 0 is too few"):
        gymnasium.make("parallel_agents/Market-v0", patterns=patterns, worlds=0)
