"""A time limit is stored as a truncation, from the environment to the flag that the learner reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parallel_agents.env.adapters.gymnasium import gymnasium_environment
from parallel_agents.env.adapters.pettingzoo import adapt
from parallel_agents.env.adapters.sync_envs import SharedBuffers
from tests.env.adapters.small_envs import Leavers

LIMIT, TURNS, WORLDS, GAMMA = 6, 20, 2, 0.75


def trained(vector: bool, name: str = "Pendulum-v1", **model: Any) -> Any:
    """Return the ring of one agent after one epoch; a pendulum never terminates."""
    config = {
        "experiment": {"epochs": 1, "max_turns": TURNS, "worlds": WORLDS, "autoreset": True},
        "world": {"vector": vector, "options": {"max_episode_steps": LIMIT}},
        "model": model,
        "parallel": {"train_interval": 100, "backend": "inline"},
    }
    game = gymnasium_environment(name)(config=config)
    game.run_experiment()
    return game.prepare().group.stacks[0].ring


@pytest.mark.parametrize("vector", [False, True], ids=["instances", "vector"])
def test_a_time_limit_is_stored_as_a_truncation_in_its_turn(vector: bool) -> None:
    ring = trained(vector, algorithm="ppo", hidden=(4,))
    rows = slice(0, int(ring.pos[0]))
    cut, over, valid = ring.truncated[0, rows], ring.terminated[0, rows], ring.valid[0, rows]
    assert not over.any()
    assert (cut.sum(axis=0) == 3).all()  # six turns each, and between two of them one to start afresh
    for world in range(WORLDS):
        lengths = np.diff(np.flatnonzero(cut[:, world]))
        assert (lengths == lengths[0]).all()
        acted = valid[: np.flatnonzero(cut[:, world])[0] + 1, world]
        assert acted.sum() == LIMIT


@pytest.mark.parametrize("vector", [False, True], ids=["instances", "vector"])
def test_the_discount_is_kept_after_a_time_limit_and_zero_after_a_termination(vector: bool) -> None:
    ring = trained(vector, "CartPole-v1", algorithm="dqn", hidden=(4,), gamma=GAMMA, n_step=1)
    size, tail = int(ring.sizes()[0]), int(ring.tail[0])
    places = ring.starts[0][np.arange(tail, tail + size) % ring.starts.shape[1]]
    cut = ring.truncated[0].reshape(-1)[places]
    found = ring.gather(np.arange(tail, tail + size)[None], n_step=1, gammas=np.array([GAMMA]))
    assert cut.any()
    assert (found["discounts"][0][cut] == np.float32(GAMMA)).all()
    over = ring.terminated[0].reshape(-1)[places]
    assert not (cut & over).any()
    assert (found["discounts"][0][over] == 0.0).all()


def test_a_pettingzoo_agent_that_is_truncated_before_the_others_is_marked_as_truncated() -> None:
    adapter = adapt(Leavers(limit=True))
    row = SharedBuffers(adapter.agents, 1).row(0)
    adapter.reset(3, row)
    adapter.step(row)
    assert not row.truncated.any()
    adapter.step(row)
    assert (row.truncated.tolist(), row.terminated.tolist()) == ([True, False, False], [False, False, False])
    assert row.can_act.tolist() == [False, True, True]
