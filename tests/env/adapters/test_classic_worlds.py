"""Compiled CartPole and Acrobot against Gymnasium's own, from the same seeds and states."""

from __future__ import annotations

import math

import gymnasium
import numpy as np
import pytest

from parallel_agents.env.adapters import classic_worlds
from parallel_agents.env.adapters.classic_worlds import ClassicEnvs
from parallel_agents.env.adapters.gymnasium import gymnasium_environment

NAMES = ("CartPole-v1", "Acrobot-v1")


def make(name: str, **world: object) -> gymnasium.Env:
    game = gymnasium_environment(name)(config={"experiment": {"worlds": 2}, "world": world})
    game.begin_epoch(1)
    game.reset()
    return game


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**31 - 1])
def test_the_generator_is_numpys(seed: int) -> None:
    found = np.zeros(9)
    classic_worlds.draw_pcg64(seed, found)
    assert found.tolist() == np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed))).random(9).tolist()


def test_sine_and_cosine_are_within_one_unit_in_the_last_place() -> None:
    for x in np.random.default_rng(0).uniform(-40.0, 40.0, 3000):
        sine, cosine = classic_worlds.sin_cos(x)
        assert abs(sine - math.sin(x)) <= np.spacing(abs(math.sin(x)))
        assert abs(cosine - math.cos(x)) <= np.spacing(abs(math.cos(x)))


@pytest.mark.parametrize("name", NAMES)
def test_thousands_of_steps_are_gymnasiums(name: str) -> None:
    """From the same state: states to 2e-15, everything that an agent sees and earns exactly."""
    world, other = make(name).envs.world, gymnasium.make(name).unwrapped
    draws, equal, ends = np.random.default_rng(1), 0, 0
    observation, _ = other.reset(seed=int(world.seeds[0]))
    for turn in range(3000):
        assert observation.tolist() == world.observations[0].tolist()
        action = int(draws.integers(other.action_space.n))
        other.state = world.state[0].copy()
        observation, reward, terminated, _, _ = other.step(action)
        classic_worlds.step(world, 0, action)
        assert (reward, terminated) == (world.rewards[0, 0], world.terminated[0, 0])
        assert np.abs(np.asarray(other.state) - world.state[0]).max() < 2e-15
        equal += (np.asarray(other.state) == world.state[0]).all()
        if terminated or world.truncated[0, 0]:
            ends += 1
            observation, _ = other.reset(seed=turn)
            classic_worlds.start(world, 0, turn)
            assert np.float64(other.state).tolist() == world.state[0].tolist()
    assert equal > 2500
    assert ends > 4


@pytest.mark.parametrize("name", NAMES)
def test_an_episode_is_cut_off_when_gymnasium_cuts_it_off(name: str) -> None:
    world = make(name).envs.world
    limit = gymnasium.spec(name).max_episode_steps
    for _ in range(limit - 1):
        classic_worlds.step(world, 0, 0)
        assert not world.truncated[0, 0]
    classic_worlds.step(world, 0, 0)
    assert world.truncated[0, 0]


def test_what_gymnasium_is_asked_for_is_left_to_gymnasium() -> None:
    assert isinstance(make("CartPole-v1").envs, ClassicEnvs)
    for asked in ({"vector": True}, {"options": {"sutton_barto_reward": True}}):
        game = make("CartPole-v1", **asked)
        assert not isinstance(game.envs, ClassicEnvs)
        assert game.compiled_world() == "CartPole-v1 is stepped by Gymnasium"
        game.close()
    pendulum = gymnasium_environment("Pendulum-v1")(config={"model": {"algorithm": "ppo"}})
    assert pendulum.compiled_world() == "Pendulum-v1 is stepped by Gymnasium"
