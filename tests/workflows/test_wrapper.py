"""The worlds as arrays, for Gymnasium, PettingZoo, Stable-Baselines3, and in the challenge's own form."""

from __future__ import annotations

import os
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from parallel_agents.core.errors import ActionError, ConfigError, ContractError
from parallel_agents.env.adapters.gymnasium import GymnasiumAdapter
from parallel_agents.env.adapters.sync_envs import SyncEnvs
from parallel_agents.workflows.blue_policies import ChallengeAgents, play
from parallel_agents.workflows.network import NetworkWorlds
from parallel_agents.workflows.wrapper import (
    ChallengeWrapper,
    NetworkEnv,
    NetworkParallelEnv,
    NetworkVectorEnv,
    ParallelEnvWrapper,
)


def test_arrays_have_the_documented_shapes() -> None:
    envs = ParallelEnvWrapper(n_envs=25)
    assert envs.reset().shape == (25, 52)
    observations, rewards, dones = envs.step(np.zeros(25, np.int64))
    assert (observations.shape, rewards.shape, dones.shape) == ((25, 52), (25,), (25,))


def test_a_reset_starts_an_episode_that_nothing_of_the_last_one_reaches() -> None:
    """A historical fault: environments were never reset, and returns leaked over the boundary."""
    envs = ParallelEnvWrapper(n_envs=4, red="B_line", steps=30)
    envs.reset()
    for turn in range(30):
        _, rewards, dones = envs.step(np.zeros(4, np.int64))
        assert dones.all() == (turn == 29)
    assert (rewards < 0).all()  # red holds hosts at the end …
    with pytest.raises(ContractError, match="is over or not begun: call reset"):
        envs.step(np.zeros(4, np.int64))
    assert not envs.reset().any()
    _, rewards, dones = envs.step(np.zeros(4, np.int64))
    assert not rewards.any()  # … and nothing of it is left
    assert not dones.any()
    assert (envs.access[:, :8] == 0).all()


def test_each_episode_has_its_own_draws() -> None:
    envs = ParallelEnvWrapper(n_envs=6, red="Meander", steps=12, seed=4)
    played = []
    for _ in range(2):
        envs.reset()
        played.append([envs.step(np.zeros(6, np.int64))[0].tolist() for _ in range(12)])
    assert played[0] != played[1]
    worlds = NetworkWorlds(6, red="Meander", steps=12, seed=4)
    worlds.reset(1)
    assert played[1] == [worlds.step(np.zeros(6, np.int64))[0].tolist() for _ in range(12)]


def test_bad_input_is_refused() -> None:
    with pytest.raises(ConfigError, match="n_envs is 0: at least one environment is needed"):
        ParallelEnvWrapper(n_envs=0)
    envs = ParallelEnvWrapper(n_envs=2)
    envs.reset()
    with pytest.raises(ActionError, match="action 145 of world 1 is not one of blue's 145"):
        envs.step(np.array([0, 145]))
    with pytest.raises(ConfigError, match="live in this process"):
        ParallelEnvWrapper(n_envs=2, workers=2)
    with pytest.raises(ConfigError, match="red given together with make: set the options"):
        ParallelEnvWrapper(n_envs=2, make=NetworkEnv, red="Meander")


def test_environments_in_processes_give_the_same_bytes_even_if_a_process_dies(tmp_path: Path) -> None:
    envs = ParallelEnvWrapper(3, lambda: _Dying(tmp_path), workers=1, seed=5)
    try:
        outputs = [envs.reset()]
        plan = np.random.default_rng(0).integers(0, 145, (8, 3))
        for turn, actions in enumerate(plan):
            if turn == 3:
                (tmp_path / "die").touch()
            observations, rewards, dones = envs.step(actions)
            outputs += [observations, rewards, dones]
        assert envs.restarts == 1
        assert outputs[0].shape == (3, 52)
        assert np.stack(outputs[3::3]).sum() == 3  # six turns an episode: one end each
        here = SyncEnvs(lambda: GymnasiumAdapter(lambda: NetworkEnv(red="B_line", steps=6)), 3, seed=5)
        expected = [here.reset()]
        for actions in plan:
            observations, rewards, terminated, truncated = here.step(actions)
            expected += [observations, rewards, terminated | truncated]
        assert all(np.array_equal(a, b) for a, b in zip(outputs, expected, strict=True))
        with pytest.raises(ContractError, match="these environments are foreign"):
            _ = envs.access
    finally:
        envs.close()


class _Dying(NetworkEnv):
    """Ends its process once, when a file exists."""

    def __init__(self, folder: Path) -> None:
        super().__init__(red="B_line", steps=6)
        self._flag = folder / "die"

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
        if self._flag.exists():
            self._flag.unlink()
            os._exit(3)
        return super().step(action)


def test_the_vector_environment_gives_the_bytes_of_the_worlds() -> None:
    envs, worlds = NetworkVectorEnv(4, red="B_line", steps=30), NetworkWorlds(4, red="B_line", steps=30, seed=5)
    observations, _ = envs.reset(seed=5)
    np.testing.assert_array_equal(observations, worlds.reset(0))
    actions = np.array([0, 139, 41, 20])
    for _ in range(30):
        observations, rewards, terminated, truncated, info = envs.step(actions)
        expected, expected_rewards, dones = worlds.step(actions)
        np.testing.assert_array_equal(observations, expected)
        np.testing.assert_array_equal(rewards, expected_rewards)
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
    observations, rewards, _, truncated, _ = envs.step(np.full(2, 139))
    assert not observations.any()
    assert not rewards.any()
    assert not truncated.any()
    assert envs.step(np.full(2, 139))[1].tolist() == [-1.0, -1.0]


def test_a_seed_restarts_the_episodes_which_differ_from_each_other() -> None:
    envs = NetworkVectorEnv(8, red="Meander", steps=20)

    def episode(seed: int | None) -> list[list[int]]:
        envs.reset(seed=seed)
        return [envs.step(np.zeros(8, np.int64))[0].ravel().tolist() for _ in range(20)]

    first, second = episode(3), episode(None)
    assert first != second
    assert episode(3) == first
    assert episode(None) == second


def test_spaces_contain_observations_and_exclude_unknown_actions() -> None:
    envs = NetworkVectorEnv(3)
    observations, _ = envs.reset(seed=0)
    assert envs.observation_space.contains(observations)
    assert envs.single_action_space.n == 145
    with pytest.raises(ActionError, match="action 145 of world 1 is not one of blue's 145"):
        envs.step(np.array([0, 145, 0]))


@pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")
def test_the_pettingzoo_checks_pass() -> None:
    from pettingzoo.test import parallel_api_test, parallel_seed_test  # it warns of itself when it is imported

    parallel_api_test(NetworkParallelEnv(red="B_line", steps=30), num_cycles=70)
    parallel_seed_test(lambda: NetworkParallelEnv(red="Meander", steps=30), num_cycles=20)


def test_an_action_for_an_unknown_agent_is_refused() -> None:
    env = NetworkParallelEnv()
    env.reset(seed=0)
    with pytest.raises(ActionError, match="give one for 'defender'"):
        env.step({"attacker": 0})


def test_the_game_is_registered_with_gymnasium() -> None:
    import parallel_agents.workflows  # noqa: F401 - registers it

    env = gymnasium.make("parallel_agents/NetworkDefence-v0", red="Meander", version="leaderboard", steps=5)
    observation, info = env.reset(seed=3)
    assert env.observation_space.contains(observation)
    assert info["access"].shape == (13,)
    for turn in range(5):
        *_, truncated, info = env.step(env.action_space.sample())
        assert truncated == (turn == 4)
    assert bool(info["ot_running"])


@pytest.mark.parametrize("version", ["head", "leaderboard"])
def test_the_challenges_wrapper(version: str) -> None:
    env = ChallengeWrapper(red="B_line", version=version, steps=6, seed=2)
    twin = NetworkWorlds(1, red="B_line", version=version, steps=6, seed=2)
    np.testing.assert_array_equal(env.reset(), twin.reset(0)[0])
    assert (env.get_action_space("Blue"), env.action_space.n, env.observation_space.shape) == (145, 145, (52,))
    for turn in range(6):
        vector, reward, done, info = env.step(15 + turn)
        bits, rewards, _ = twin.step([15 + turn])
        np.testing.assert_array_equal(vector, bits[0])
        np.testing.assert_array_equal(info["access"], twin.access[0])
        assert (reward, done) == (rewards[0], turn == 5)
        assert (info["action"], info["red_action"]) == (env.action_names[15 + turn], twin.red_actions[0])
    exploited = [row["Hostname"] for row in env.get_table() if row["Compromised"] == "User"]
    held = [row["Hostname"] for row in env.get_true_table() if row["Access"] != "None"]
    assert set(exploited) <= set(held)
    assert env.get_observation("Blue") is vector


def test_ppo_of_stable_baselines3_trains_on_it() -> None:
    sb3 = pytest.importorskip("stable_baselines3", reason="stable_baselines3 is not installed")
    env = gymnasium.make("parallel_agents/NetworkDefence-v0", red="B_line", steps=20)
    model = sb3.PPO("MlpPolicy", env, n_steps=40, batch_size=20, n_epochs=1, seed=0, device="cpu")
    before = [parameter.clone() for parameter in model.policy.parameters()]
    model.learn(80)
    assert any(not old.equal(new) for old, new in zip(before, model.policy.parameters(), strict=True))

    class Trained:
        def get_action(self, observation: np.ndarray, action_space: int) -> int:
            return int(model.predict(observation.astype(np.uint8), deterministic=True)[0])

    assert play(NetworkWorlds(2, steps=5), ChallengeAgents(Trained, 2), 0).shape == (5, 2)
