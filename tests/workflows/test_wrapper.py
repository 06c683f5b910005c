"""n environments as arrays, in this process."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from parallel_agents.adapters.gymnasium import GymnasiumGuest
from parallel_agents.adapters.worlds import Worlds
from parallel_agents.errors import ActionError, ConfigError, ContractError
from parallel_agents.workflows.foreign import NetworkEnv
from parallel_agents.workflows.network import NetworkWorlds
from parallel_agents.workflows.wrapper import ParallelEnvWrapper


def test_documented_shapes() -> None:
    envs = ParallelEnvWrapper(n_envs=25)
    assert envs.reset().shape == (25, 52)
    observations, rewards, dones = envs.step(np.zeros(25, np.int64))
    assert (observations.shape, rewards.shape, dones.shape) == ((25, 52), (25,), (25,))


def test_episodes_end_are_reset_and_never_leak() -> None:
    """5.3, fault 3: environments were never reset, and returns ran over the boundary."""
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
    with pytest.raises(ConfigError, match="takes its options from its own maker"):
        ParallelEnvWrapper(n_envs=2, make=NetworkEnv, red="Meander")


def test_foreign_environments_live_in_processes(tmp_path: Path) -> None:
    """Our own game as a foreign one: the same bytes through processes, also when one of them dies on the way."""
    envs = ParallelEnvWrapper(3, lambda: _Mortal(tmp_path), workers=1, seed=5)
    try:
        seen = [envs.reset()]
        plan = np.random.default_rng(0).integers(0, 145, (8, 3))
        for turn, actions in enumerate(plan):
            if turn == 3:
                (tmp_path / "die").touch()
            observations, rewards, dones = envs.step(actions)
            seen += [observations, rewards, dones]
        assert envs.restarts == 1
        assert seen[0].shape == (3, 52)
        assert np.stack(seen[3::3]).sum() == 3  # six turns an episode: one end each
        here = Worlds(lambda: GymnasiumGuest(lambda: NetworkEnv(red="B_line", steps=6)), 3, seed=5)
        wanted = [here.reset()]
        for actions in plan:
            observations, rewards, terminated, truncated = here.step(actions)
            wanted += [observations, rewards, terminated | truncated]
        assert all(np.array_equal(a, b) for a, b in zip(seen, wanted, strict=True))
        with pytest.raises(ContractError, match="these environments are foreign"):
            _ = envs.access
    finally:
        envs.close()


class _Mortal(NetworkEnv):
    """Ends its process once, when a file asks for it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(red="B_line", steps=6)
        self._flag = folder / "die"

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
        if self._flag.exists():
            self._flag.unlink()
            os._exit(3)
        return super().step(action)
