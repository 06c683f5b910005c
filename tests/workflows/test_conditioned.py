"""The defender that is conditioned on an order, its buffer and its files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from parallel_agents.core.errors import (
    CheckpointError,
    ConfigError,
    ContractError,
    CorruptCheckpoint,
    NonFiniteError,
    ShapeError,
)
from parallel_agents.workflows.conditioned import (
    ParallelOrderConditionedPPO,
    ParallelTrajectoryBuffer,
    load_policy,
    save_policy,
)
from parallel_agents.workflows.network import NetworkWorlds
from parallel_agents.workflows.orders import ORDERS, UNIT_TYPES
from parallel_agents.workflows.wrapper import ParallelEnvWrapper


def agent(**options: object) -> ParallelOrderConditionedPPO:
    return ParallelOrderConditionedPPO(**{"n_envs": 4, "steps": 10, "hidden": (8,), **options})  # type: ignore[arg-type]


def play_turns(learner: ParallelOrderConditionedPPO, turns: int = 10, seed: int = 0) -> np.ndarray:
    envs = ParallelEnvWrapper(learner.n_envs, red="B_line", steps=100, seed=seed)
    observations = envs.reset()
    for _ in range(turns):
        actions = learner.get_actions(observations)
        next_observations, rewards, _ = envs.step(actions)
        learner.buffer.add(observations, actions, rewards)
        observations = next_observations
    return observations


def test_documented_defaults() -> None:
    learner = ParallelOrderConditionedPPO()
    assert (learner.n_envs, learner.steps) == (25, 100)
    assert learner.model.hyper["lr"] == 0.002
    assert (learner.model.hyper["gamma"], learner.model.hyper["ratio_clip"]) == (0.99, 0.2)
    assert (learner.model.spec.n_epochs, learner.model.spec.n_minibatches) == (4, 1)
    assert learner.model.spec.observation == (198 + 13 + 25,)
    assert ParallelTrajectoryBuffer().n_envs == 25


def test_an_update_changes_the_weights_empties_the_buffer_and_is_repeatable() -> None:
    rows = []
    for _ in range(2):
        learner = agent()
        before = learner.model.state["online"].clone()
        play_turns(learner)
        assert len(learner.buffer) == 40
        assert np.isfinite(learner.update()["loss"])
        assert len(learner.buffer) == 0
        assert not before.equal(learner.model.state["online"])
        rows.append(learner.model.state["online"])
    assert rows[0].equal(rows[1])


def test_actions_are_chosen_with_the_weights_of_the_last_update() -> None:
    learner = agent(lr=0.05)
    observations = np.zeros((4, 52), np.uint8)
    for _ in range(40):
        for _ in range(10):
            actions = learner.get_actions(observations)
            learner.buffer.add(observations, actions, actions < 70)
        learner.update()
    assert (learner.get_actions(observations) < 70).all()
    assert (learner.policy(UNIT_TYPES, NetworkWorlds(4))(observations, 0, 0) < 70).all()


def test_the_next_observations_of_a_continuing_episode_change_the_update() -> None:
    rows = []
    for continues in (True, False):
        learner = agent()
        next_observations = play_turns(learner)
        learner.update(next_observations if continues else None)
        rows.append(learner.model.state["online"])
    assert not rows[0].equal(rows[1])


def test_the_policy_depends_on_the_order() -> None:
    learner = agent(hidden=(32,), seed=3)
    observations = np.ones((1, 52), np.uint8)
    chosen = {int(learner.policy(order, NetworkWorlds(1))(observations, 0, 0)[0]) for order in ORDERS}
    assert len(chosen) > 1
    learner.set_order([ORDERS[0], ORDERS[5], ORDERS[7], ORDERS[119]])
    assert learner.orders[3] == ORDERS[119]


def test_get_actions_may_be_called_twice_in_a_turn() -> None:
    learner = agent()
    observations = np.zeros((4, 52), np.uint8)
    first, second = learner.get_actions(observations), learner.get_actions(observations)
    np.testing.assert_array_equal(first, second)
    learner.buffer.add(observations, second, np.zeros(4))
    learner.update()


def test_bad_input_is_refused() -> None:
    with pytest.raises(ConfigError, match="n_envs is 0"):
        ParallelTrajectoryBuffer(n_envs=0)
    with pytest.raises(ConfigError, match="n_envs is 0"):
        ParallelOrderConditionedPPO(n_envs=0)
    with pytest.raises(ConfigError, match="repeated: op_host"):
        agent(order=("defender", "enterprise", "op_server", "op_host", "op_host"))
    with pytest.raises(ConfigError, match="missing: user"):
        agent(order=("defender", "enterprise", "op_server", "op_host"))
    with pytest.raises(ConfigError, match="steps is 0"):
        agent(steps=0)
    learner = agent()
    with pytest.raises(ShapeError, match=r"observations have shape \(3, 52\)"):
        learner.get_actions(np.zeros((3, 52)))
    with pytest.raises(ShapeError, match=r"rewards have shape \(3,\)"):
        learner.buffer.add(np.zeros((4, 52)), np.zeros(4), np.zeros(3))
    with pytest.raises(NonFiniteError, match=r"rewards .* contain NaN"):
        learner.buffer.add(np.zeros((4, 52)), np.zeros(4), np.full(4, np.nan))
    assert len(learner.buffer) == 0
    with pytest.raises(ContractError, match="empty buffer"):
        learner.update()
    learner.buffer.add(np.zeros((4, 52)), np.zeros(4), np.zeros(4))
    with pytest.raises(ContractError, match="added without get_actions"):
        learner.update()


def test_an_update_with_too_many_turns_is_refused() -> None:
    learner = agent(steps=2)
    play_turns(learner, 3)
    with pytest.raises(ContractError, match="the buffer holds 3 turns, an update takes 2"):
        learner.update()


def test_a_saved_policy_is_loaded_unchanged(tmp_path: Path) -> None:
    agent = ParallelOrderConditionedPPO(n_envs=3, steps=5, hidden=(16,), seed=4)
    save_policy(agent, tmp_path, {"order": "all"})
    loaded, metadata = load_policy(tmp_path)
    assert metadata == {"order": "all"}
    observations, worlds = np.random.default_rng(0).integers(0, 2, (7, 52)).astype(np.uint8), NetworkWorlds(7)
    for order in ORDERS[::40]:
        chosen = [each.policy(order, worlds)(observations, 0, 0) for each in (loaded, agent)]
        np.testing.assert_array_equal(*chosen)


def test_settings_may_be_changed_when_a_policy_is_loaded(tmp_path: Path) -> None:
    learner = agent(lr=0.01)
    save_policy(learner, tmp_path, {})
    changed, _ = load_policy(tmp_path, lr=0.02, n_envs=2)
    assert changed.model.state["hyper.lr"].item() == pytest.approx(0.02)
    assert changed.n_envs == 2
    assert changed.model.state["online"].equal(learner.model.state["online"])


def test_a_flipped_bit_in_the_weights_is_detected(tmp_path: Path) -> None:
    save_policy(ParallelOrderConditionedPPO(n_envs=2, steps=5, hidden=(8,)), tmp_path, {})
    path = tmp_path / "policy.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CorruptCheckpoint, match="does not hold the bytes that were written"):
        load_policy(tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "trouble"),
    [
        ("online", lambda own: own * np.float32(np.nan), "NaN or infinity in online"),
        ("second", lambda own: own - np.float32(1.0), "second holds -1.0"),
        ("steps", lambda own: own - np.float32(5.0), "steps holds -5.0"),
        ("online", lambda own: own[:, 1:], "online is torch.float32"),
    ],
)
def test_weights_that_no_learner_can_have_are_refused(tmp_path: Path, name: str, change: Any, trouble: str) -> None:
    """Their hash is right: what is wrong was written so."""
    save_policy(agent(), tmp_path, {})
    path, about = tmp_path / "policy.safetensors", tmp_path / "policy.json"
    arrays = load(path.read_bytes())
    data = save(arrays | {name: np.ascontiguousarray(change(arrays[name]))})
    path.write_bytes(data)
    content = json.loads(about.read_text())
    about.write_text(json.dumps(content | {"weights": {"sha256": hashlib.sha256(data).hexdigest()}}))
    with pytest.raises(CorruptCheckpoint, match=f"does not fit the network that policy.json describes .*{trouble}"):
        load_policy(tmp_path)


def test_a_folder_without_a_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no readable conditioned defender"):
        load_policy(tmp_path)


def test_actions_stored_with_other_observations_than_they_were_chosen_from_are_refused() -> None:
    """A historical fault: the buffer stored the observation after the step with the action chosen before it."""
    envs = ParallelEnvWrapper(3, red="B_line", steps=30)
    learner = agent(n_envs=3, steps=30)
    observations = envs.reset()
    for _ in range(10):
        actions = learner.get_actions(observations)
        observations, rewards, _ = envs.step(actions)  # overwritten before it is added: the fault
        learner.buffer.add(observations, actions, rewards)
    before = learner.model.state["online"].clone()
    with pytest.raises(ContractError, match="pairs actions with observations they were not chosen from"):
        learner.update()
    assert before.equal(learner.model.state["online"])
    assert learner.updates == 0


def test_the_memory_in_training_is_that_of_the_policy() -> None:
    """The features that the agent keeps while it trains are those that it keeps when it plays."""
    learner = agent(n_envs=3, steps=12, seed=1)
    envs, worlds = ParallelEnvWrapper(3, red="Meander", steps=12), NetworkWorlds(3, red="Meander", steps=12)
    for episode in range(2):
        policy = learner.policy(UNIT_TYPES, worlds)
        observations = envs.reset()
        for turn in range(12):
            learner.get_actions(observations)
            actions = learner.get_actions(observations)
            policy(observations, episode, turn)
            np.testing.assert_array_equal(learner._history.records, policy._history.records)
            policy._actions = actions  # what was really done
            next_observations, rewards, dones = envs.step(actions)
            learner.buffer.add(observations, actions, rewards, dones)
            observations = next_observations
        learner.update()


def test_cloning_learns_what_the_script_does() -> None:
    learner = agent(n_envs=40, steps=100, hidden=(64,))
    shares = learner.clone_script(ParallelEnvWrapper(40, red="B_line"), 12, lr=0.005)
    assert shares[0] < 0.1
    assert shares[-1] > 0.6
    assert learner.updates == 0
