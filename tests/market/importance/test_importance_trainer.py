"""The door, the training around any agent, the trainer with its checkpoints and metrics."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from parallel_agents.errors import (
    ActionError,
    CheckpointError,
    ConfigError,
    ContractError,
    CorruptCheckpoint,
    NonFiniteError,
    RunError,
    ShapeError,
)
from parallel_agents.market.importance import (
    ImportanceSamplingTraining,
    ImportanceSamplingTrainingConfiguration,
    PolicyDoor,
    create_importance_sampling_trainer,
    integrate_importance_sampling_with_training,
)
from parallel_agents.memory import Buffer
from parallel_agents.models import DQN, IQN, PPO
from parallel_agents.tracking.listeners import SilentListener
from tests.market.importance.users import Street, Table, door

SHORT = {"batch_size": 16, "learning_starts": 40, "simulation_episodes": 12, "max_steps": 20}


def batch(rows=8, **changes):
    draws = np.random.Generator(np.random.Philox(1))
    made = {
        "states": draws.standard_normal((rows, 2)),
        "actions": np.arange(rows) % 2,
        "rewards": draws.random(rows),
        "next_states": draws.standard_normal((rows, 2)),
        "dones": np.arange(rows) % 3 == 0,
        "weights": draws.random(rows),
    }
    return {**made, **changes}


# -- the door -------------------------------------------------------------------------------------------------


def test_update_policy_is_the_update_of_train_step():
    """One row seen again and again: then the batch that train_step draws from a buffer is known."""
    model = DQN((2,), 2, hidden=(8,), batch_size=4, learning_starts=1, gamma=0.9)
    model.memory.add([1.0, 2.0], action=1, reward=0.5, done=True)
    model.train_step()
    other = PolicyDoor(DQN((2,), 2, hidden=(8,), gamma=0.9))
    rows = {"states": [[1.0, 2.0]] * 4, "actions": [1] * 4, "rewards": [0.5] * 4, "dones": [True] * 4}
    metrics = other.update_policy({**rows, "next_states": np.zeros((4, 2))})
    assert torch.equal(model.state["online"], other.model.state["online"])
    assert metrics["updates"] == 1
    assert metrics["td_errors"].shape == (4,)
    assert metrics["loss"] == pytest.approx(0.5 * float(metrics["td_errors"][0]) ** 2, rel=1e-4)


def test_weights_multiply_each_loss_once():
    full, half = door(), door()
    made = batch(weights=np.array([2.0, 0.0] * 4))
    full.update_policy(made)
    half.update_policy({name: np.asarray(column)[::2] for name, column in {**made, "weights": np.ones(8)}.items()})
    torch.testing.assert_close(full.model.state["online"], half.model.state["online"])


def test_an_iqn_has_the_door_too():
    agent = PolicyDoor(IQN((2,), 2, layer=8, n_frames=1, n_step=1))
    assert math.isfinite(agent.update_policy(batch())["loss"])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"rewards": np.full(8, np.nan)}, NonFiniteError, "loss or gradient is not finite"),
        ({"weights": -np.ones(8)}, NonFiniteError, "weights that are negative"),
        ({"actions": np.full(8, 2)}, ActionError, r"actions 2 \.\. 2: there are 2"),
        ({"dones": np.ones(3)}, ShapeError, r"discounts of shape \(3,\): give \(8,\)"),
        ({"states": np.ones((8, 3))}, ShapeError, r"states of shape \(8, 3\): give \(8, 2\)"),
    ],
)
def test_a_bad_batch_is_refused_and_changes_nothing(changes, error, message):
    agent = door()
    before = agent.state()
    with pytest.raises(error, match=message):
        agent.update_policy(batch(**changes))
    assert all((agent.state()[name] == before[name]).all() for name in before)


def test_a_door_needs_a_model_that_learns_from_single_rows_and_is_free():
    with pytest.raises(ContractError, match="PPO cannot learn from single rows"):
        PolicyDoor(PPO((2,), 2))
    with pytest.raises(ShapeError, match="a batch has no next_states"):
        door().update_policy({name: column for name, column in batch().items() if name != "next_states"})
    agent = door()
    agent.model.busy = "a run is on"
    with pytest.raises(RunError, match="while a run is on"):
        agent.update_policy(batch())


# -- training around an agent ---------------------------------------------------------------------------------


def test_an_outside_agent_trains_end_to_end():
    agent = Table()
    trainer = create_importance_sampling_trainer("outside", **SHORT)
    summary = trainer.train(agent, Street())
    assert agent.calls == summary["updates"] > 40
    learned = agent.sums / agent.weights
    assert learned.argmax(1).tolist() == [0, 1]
    assert summary["identification_accuracy"] == 1.0


def test_a_dqn_learns_by_the_door_whom_to_help():
    agent = door()
    options = {**SHORT, "simulation_episodes": 40, "train_interval": 1}
    trainer = create_importance_sampling_trainer("dqn", importance_sampling_beta=1.0, **options)
    trainer.train(agent, Street())
    agent.model.set_epsilon(0.0)
    assert [agent.take_action([crisis, 0.0]) for crisis in (0.0, 1.0)] == [0, 1]


def test_metrics_have_the_documented_names_and_right_values():
    heard = []

    class Ear(SilentListener):
        def on_event(self, name, fields):
            heard.append((name, dict(fields)))

    options = {**SHORT, "importance_sampling_alpha": 1.0, "importance_sampling_beta": 1.0}
    trainer = create_importance_sampling_trainer("metrics", listeners=[Ear()], **options)
    summary = trainer.train(Table(), Street())
    assert [name for name, _ in heard] == ["importance_sampling"] * 12
    last = heard[-1][1]
    assert (last["crisis_parent_weight"], last["regular_parent_weight"]) == (5.0, 1.0)
    natural = last["crisis_parent_natural_share"]
    assert last["crisis_parent_predicted_share"] == pytest.approx(5 * natural / (1 + 4 * natural), abs=0.01)
    assert summary["crisis_parent_ratio_in_batch"] == pytest.approx(last["crisis_parent_predicted_share"], abs=0.1)
    assert 0 < last["importance_weights_mean"] < 1
    assert last["importance_weights_std"] > 0
    assert 1 <= last["effective_sample_size"] <= 16
    assert last["bias_correction_effect"] > 0
    assert last["beta"] == 1.0
    assert -1 <= summary["correlation_with_performance"] <= 1
    assert summary["episodes"] == 12


def test_without_importance_sampling_batches_are_natural_and_weights_are_one():
    trainer = create_importance_sampling_trainer("off", enable_importance_sampling=False, **SHORT)
    summary = trainer.train(Table(), Street())
    assert (summary["importance_weights_mean"], summary["importance_weights_std"]) == (1.0, 0.0)
    assert summary["bias_correction_effect"] == 0.0
    assert summary["crisis_parent_ratio_in_batch"] == pytest.approx(summary["crisis_parent_natural_share"], abs=0.05)


def test_event_types_are_judged_by_words_by_value_or_by_label():
    configuration = ImportanceSamplingTrainingConfiguration(**SHORT)
    training = ImportanceSamplingTraining(Table(), configuration.memory((2,)), configuration)
    row = ([0.0, 0.0], 0, 0.0, [0.0, 0.0], True)
    profile = {"user_profile": "an emergency"}
    by_word = training.remember(*row, metadata=profile, truth="regular_parent")
    for _ in range(30):
        training.remember(*row, value=1.0)
    by_value = training.remember(*row, value=50.0, truth="crisis_parent")
    by_label = training.remember(*row, event_type="regular_parent", metadata=profile)
    found = training.memory.event_types([by_word, by_value, by_label])
    assert found == ["crisis_parent", "crisis_parent", "regular_parent"]
    assert training.identification_accuracy == 0.5
    with pytest.raises(ContractError, match="unknown event type 'vip'"):
        training.remember(*row, truth="vip")
    assert (training.judged, len(training.memory)) == (2, 33)


def test_priorities_and_learned_weights_follow_what_the_agent_reports():
    options = {**SHORT, "priorities": True, "learned_weights": True}
    trainer = create_importance_sampling_trainer("priorities", **options)
    summary = trainer.train(door(), Street())
    priorities = trainer.training.memory.index.state()["priorities"]
    assert len(np.unique(priorities)) > 20
    assert summary["crisis_parent_weight"] != 5.0  # measured instead
    with pytest.raises(ContractError, match=r"let update_policy\(\) of Table report `td_errors`"):
        create_importance_sampling_trainer("none", **options).train(Table(), Street())


def test_agents_that_lack_something_are_refused():
    class Mute:
        def update_policy(self, batch):
            return {}

    class Deaf:
        def act(self, state):
            return 0

    class Odd(Table):
        def update_policy(self, batch):
            return 0.5

    for agent, message in ((Mute(), "Mute does not act"), (Deaf(), "Deaf has no update_policy")):
        with pytest.raises(ContractError, match=message):
            create_importance_sampling_trainer("x", **SHORT).train(agent, Street())
    with pytest.raises(ContractError, match="gave float: give a mapping"):
        create_importance_sampling_trainer("x", **SHORT).train(Odd(), Street())
    trainer = create_importance_sampling_trainer("x", **SHORT)
    trainer.train(Table(), Street(), episodes=1)
    with pytest.raises(ContractError, match="trains another agent already"):
        trainer.train(Table(), Street())


# -- around an existing buffer --------------------------------------------------------------------------------


def test_an_existing_buffer_is_taken_over_row_by_row():
    buffer = Buffer(60, (2,))
    for t in range(90):
        buffer.add([t, -t], action=t % 2, reward=10.0 if t % 10 == 0 else 1.0, done=t % 30 == 29)
    configuration = ImportanceSamplingTrainingConfiguration(**SHORT)
    agent = Table()
    training = integrate_importance_sampling_with_training(agent, buffer, configuration)
    kept = training.memory.get_buffer_snapshot()
    assert kept["states"][:, 0].tolist() == list(range(30, 90))
    assert kept["dones"].tolist() == [t % 30 == 29 for t in range(30, 90)]
    live = ~kept["dones"]
    assert (kept["next_states"][live] == kept["states"][live] + [1, -1]).all()
    crises = [t for t, k in zip(kept["states"][:, 0], kept["classes"], strict=True) if k == 0]
    assert set(crises) <= {30, 40, 50, 60, 70, 80}
    assert len(crises) >= 4  # the first ones come before the percentile is known
    assert training.update() is not None
    assert agent.calls == 1
    again = integrate_importance_sampling_with_training(agent, training.memory, configuration)
    assert again.memory is training.memory
    with pytest.raises(ConfigError, match="2 worlds and 1 frames cannot be taken over"):
        integrate_importance_sampling_with_training(agent, Buffer(10, (2,), worlds=2))


# -- checkpoints ----------------------------------------------------------------------------------------------


def states(trainer):
    training = trainer.training
    parts = {"buffer": training.memory.state(), "sampler": training.memory.sampler.state()}
    parts["agent"] = training.agent.state()
    return {f"{part}.{name}": np.asarray(value) for part, state in parts.items() for name, value in state.items()}


@pytest.mark.parametrize("options", [{}, {"priorities": True, "learned_weights": True}])
def test_a_resumed_training_equals_one_that_was_never_stopped(tmp_path, options):
    options = {**SHORT, **options, "checkpoint_every": 5}
    whole = create_importance_sampling_trainer("whole", **options)
    whole.train(door(), Street())
    first = create_importance_sampling_trainer("whole", folder=tmp_path, **options)
    first.train(door(), Street(), episodes=7)
    second = create_importance_sampling_trainer("whole", folder=tmp_path, **options)
    second.resume(door(), Street())
    mine, theirs = states(whole), states(second)
    assert set(mine) == set(theirs)
    assert [name for name in mine if mine[name].tobytes() != theirs[name].tobytes()] == []
    assert second.summary() == whole.summary()
    files = sorted(path.suffix for path in (tmp_path / "checkpoints").iterdir())
    assert set(files) == {".json", ".safetensors"}


def test_a_damaged_or_foreign_checkpoint_is_refused(tmp_path):
    trainer = create_importance_sampling_trainer("x", folder=tmp_path, **SHORT)
    trainer.train(door(), Street(), episodes=4)
    with pytest.raises(CheckpointError, match="another crisis_parent_weight"):
        create_importance_sampling_trainer("x", 9.0, folder=tmp_path, **SHORT).resume(door(), Street())
    with pytest.raises(CheckpointError, match="Table has no load_state"):
        create_importance_sampling_trainer("x", folder=tmp_path, **SHORT).resume(Table(), Street())
    (path,) = (tmp_path / "checkpoints").glob("*.safetensors")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged") as caught:
        create_importance_sampling_trainer("x", folder=tmp_path, **SHORT).resume(door(), Street())
    assert not isinstance(caught.value, CorruptCheckpoint)  # it names all that were tried
    with pytest.raises(ContractError, match="nothing to resume"):
        create_importance_sampling_trainer("x", **SHORT).resume(door(), Street())


# -- configuration --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crisis_parent_weight": 0.0}, "weight of crisis_parent is 0.0"),
        ({"importance_sampling_beta": 1.5}, "beta is 1.5"),
        ({"importance_sampling_alpha": -0.1}, "alpha is -0.1"),
        ({"learning_starts": 8}, "learning_starts is 8: give a number from batch_size"),
        ({"simulation_episodes": 0}, "simulation_episodes is 0"),
        ({"value_threshold_percentile": 120.0}, "percentile is 120.0"),
        ({"batchsize": 8}, "batchsize"),
        ({"batch_size": "many"}, "batch_size"),
    ],
)
def test_what_cannot_work_is_refused_at_once(options, message):
    with pytest.raises(ConfigError, match=message):
        create_importance_sampling_trainer("x", **{**SHORT, **options})


def test_the_documented_defaults():
    made = create_importance_sampling_trainer("x").configuration
    assert made.enable_importance_sampling
    assert (made.crisis_parent_weight, made.importance_sampling_alpha, made.importance_sampling_beta) == (5.0, 0.6, 0.4)
    assert made.crisis_indicators == ("crisis", "urgent", "emergency")
    assert (made.value_threshold_percentile, made.min_crisis_parent_ratio) == (90.0, 0.05)
    assert (made.replay_buffer_capacity, made.simulation_episodes) == (50_000, 1000)
    assert ImportanceSamplingTrainingConfiguration.from_dict(made.as_dict()) == made
