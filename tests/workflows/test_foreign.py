"""The worlds as others expect them."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from parallel_agents.errors import ActionError
from parallel_agents.workflows.foreign import NetworkParallelEnv, NetworkVectorEnv
from parallel_agents.workflows.network import NetworkWorlds


def test_the_vector_plays_the_worlds_themselves() -> None:
    envs, worlds = NetworkVectorEnv(4, red="B_line", steps=30), NetworkWorlds(4, red="B_line", steps=30, seed=5)
    seen, _ = envs.reset(seed=5)
    np.testing.assert_array_equal(seen, worlds.reset(0))
    actions = np.array([0, 139, 41, 20])
    for _ in range(30):
        seen, rewards, terminated, truncated, info = envs.step(actions)
        expected, earned, dones = worlds.step(actions)
        np.testing.assert_array_equal(seen, expected)
        np.testing.assert_array_equal(rewards, earned)
        np.testing.assert_array_equal(truncated, dones)
        np.testing.assert_array_equal(info["access"], worlds.access)
        assert not terminated.any()
    assert truncated.all()


def test_the_step_after_the_end_starts_the_next_episode() -> None:
    envs = NetworkVectorEnv(2, red="Meander", steps=3)
    assert envs.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    envs.reset(seed=1)
    for _ in range(3):
        envs.step(np.zeros(2, np.int64))
    seen, rewards, _, truncated, _ = envs.step(np.full(2, 139))
    assert not seen.any()
    assert not rewards.any()
    assert not truncated.any()
    assert envs.step(np.full(2, 139))[1].tolist() == [-1.0, -1.0]


def test_seeds_start_again_and_episodes_differ() -> None:
    envs = NetworkVectorEnv(8, red="Meander", steps=20)

    def episode(seed: int | None) -> list[list[int]]:
        envs.reset(seed=seed)
        return [envs.step(np.zeros(8, np.int64))[0].ravel().tolist() for _ in range(20)]

    first, second = episode(3), episode(None)
    assert first != second
    assert episode(3) == first
    assert episode(None) == second


def test_spaces_hold_what_is_seen_and_done() -> None:
    envs = NetworkVectorEnv(3)
    seen, _ = envs.reset(seed=0)
    assert envs.observation_space.contains(seen)
    assert envs.single_action_space.n == 145
    with pytest.raises(ActionError, match="action 145 of world 1 is not one of blue's 145"):
        envs.step(np.array([0, 145, 0]))


@pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")
def test_pettingzoo_accepts_it() -> None:
    from pettingzoo.test import parallel_api_test, parallel_seed_test  # it warns of itself when it is imported

    parallel_api_test(NetworkParallelEnv(red="B_line", steps=30), num_cycles=70)
    parallel_seed_test(lambda: NetworkParallelEnv(red="Meander", steps=30), num_cycles=20)


def test_a_stranger_gets_no_action() -> None:
    env = NetworkParallelEnv()
    env.reset(seed=0)
    with pytest.raises(ActionError, match="give one for 'defender'"):
        env.step({"attacker": 0})
