"""A conditioned defender on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from parallel_agents.errors import CheckpointError, CorruptCheckpoint
from parallel_agents.workflows.conditioned import ParallelOrderConditionedPPO
from parallel_agents.workflows.orders import ORDERS
from parallel_agents.workflows.stored import load_policy, save_policy


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    agent = ParallelOrderConditionedPPO(n_envs=3, steps=5, hidden=(16,), seed=4)
    save_policy(agent, tmp_path, {"order": "all"})
    back, about = load_policy(tmp_path)
    assert about == {"order": "all"}
    seen = np.random.default_rng(0).integers(0, 2, (7, 52)).astype(np.uint8)
    for order in ORDERS[::40]:
        np.testing.assert_array_equal(back.policy(order)(seen, 0, 0), agent.policy(order)(seen, 0, 0))


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    save_policy(ParallelOrderConditionedPPO(n_envs=2, steps=5, hidden=(8,)), tmp_path, {})
    path = tmp_path / "policy.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CorruptCheckpoint, match="does not hold the bytes that were written"):
        load_policy(tmp_path)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no readable conditioned defender"):
        load_policy(tmp_path)
