"""Training with importance sampling around any agent: metrics, existing buffers, checkpoints and configuration."""

from __future__ import annotations

import re

import numpy as np
import pytest

from parallel_agents.checkpoint.store import Manifest, Store
from parallel_agents.core.config import build_section
from parallel_agents.core.errors import CheckpointError, ConfigError, ContractError, CorruptCheckpoint
from parallel_agents.core.files import plain
from parallel_agents.env.importance_training import (
    ImportanceSamplingTraining,
    ImportanceSamplingTrainingConfiguration,
    create_importance_sampling_trainer,
    integrate_importance_sampling_with_training,
)
from parallel_agents.replay import Buffer
from parallel_agents.tracking.callbacks import BaseCallback
from tests.env.users import RunningMeans, Street, external_agent

SHORT = {"batch_size": 16, "learning_starts": 40, "simulation_episodes": 12, "max_steps": 20}


def test_agent_of_another_library_learns_the_best_actions():
    agent = RunningMeans()
    trainer = create_importance_sampling_trainer("outside", **SHORT)
    summary = trainer.train(agent, Street())
    assert agent.calls == summary["updates"] > 40
    learned = agent.sums / agent.weights
    assert learned.argmax(1).tolist() == [0, 1]
    assert summary["identification_accuracy"] == 1.0


def test_dqn_learns_the_best_actions_through_external_updates():
    agent = external_agent()
    options = {**SHORT, "simulation_episodes": 40, "train_interval": 1}
    trainer = create_importance_sampling_trainer("dqn", importance_sampling_beta=1.0, **options)
    trainer.train(agent, Street())
    agent.model.set_epsilon(0.0)
    assert [agent.take_action([crisis, 0.0]) for crisis in (0.0, 1.0)] == [0, 1]


def test_a_trainer_that_has_not_begun_has_nothing_to_store(tmp_path):
    trainer = create_importance_sampling_trainer("early", folder=tmp_path, **SHORT)
    with pytest.raises(ContractError, match="nothing was trained yet"):
        trainer.save(RunningMeans())


def test_metrics_have_the_documented_names_and_expected_values():
    events = []

    class Recorder(BaseCallback):
        def on_event(self, name, fields):
            events.append((name, dict(fields)))

    options = {**SHORT, "importance_sampling_alpha": 1.0, "importance_sampling_beta": 1.0}
    trainer = create_importance_sampling_trainer("metrics", callbacks=[Recorder()], **options)
    summary = trainer.train(RunningMeans(), Street())
    assert [name for name, _ in events] == ["importance_sampling"] * 12
    last = events[-1][1]
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
    summary = trainer.train(RunningMeans(), Street())
    assert (summary["importance_weights_mean"], summary["importance_weights_std"]) == (1.0, 0.0)
    assert summary["bias_correction_effect"] == 0.0
    assert summary["crisis_parent_ratio_in_batch"] == pytest.approx(summary["crisis_parent_natural_share"], abs=0.05)


def test_event_types_come_from_label_words_or_value():
    configuration = ImportanceSamplingTrainingConfiguration(**SHORT)
    training = ImportanceSamplingTraining(RunningMeans(), configuration.memory((2,)), configuration)
    row = ([0.0, 0.0], 0, 0.0, [0.0, 0.0], True)
    profile = {"user_profile": "an emergency"}
    by_word = training.remember(*row, metadata=profile, truth="regular_parent")
    for _ in range(30):
        training.remember(*row, value=1.0)
    by_value = training.remember(*row, value=50.0, truth="crisis_parent")
    by_label = training.remember(*row, event_type="regular_parent", metadata=profile)
    types = training.memory.event_types([by_word, by_value, by_label])
    assert types == ["crisis_parent", "crisis_parent", "regular_parent"]
    assert training.identification_accuracy == 0.5
    with pytest.raises(ContractError, match="unknown event type 'vip'"):
        training.remember(*row, truth="vip")
    assert (training.judged, len(training.memory)) == (2, 33)


def test_priorities_and_learned_weights_follow_what_the_agent_reports():
    options = {**SHORT, "priorities": True, "learned_weights": True}
    trainer = create_importance_sampling_trainer("priorities", **options)
    summary = trainer.train(external_agent(), Street())
    priorities = trainer.training.memory.index.state()["priorities"]
    assert len(np.unique(priorities)) > 20
    assert summary["crisis_parent_weight"] != 5.0  # measured instead
    with pytest.raises(ContractError, match=r"let update_policy\(\) of RunningMeans report `td_errors`"):
        create_importance_sampling_trainer("none", **options).train(RunningMeans(), Street())


def test_agents_without_required_methods_are_refused():
    class WithoutAction:
        def update_policy(self, batch):
            return {}

    class WithoutUpdate:
        def act(self, state):
            return 0

    class WrongResult(RunningMeans):
        def update_policy(self, batch):
            return 0.5

    for agent, message in (
        (WithoutAction(), "WithoutAction does not act"),
        (WithoutUpdate(), "WithoutUpdate has no update_policy"),
    ):
        with pytest.raises(ContractError, match=message):
            create_importance_sampling_trainer("x", **SHORT).train(agent, Street())
    with pytest.raises(ContractError, match="gave float: give a mapping"):
        create_importance_sampling_trainer("x", **SHORT).train(WrongResult(), Street())
    trainer = create_importance_sampling_trainer("x", **SHORT)
    trainer.train(RunningMeans(), Street(), episodes=1)
    with pytest.raises(ContractError, match="trains another agent already"):
        trainer.train(RunningMeans(), Street())


# -- around an existing buffer --------------------------------------------------------------------------------


def test_rows_of_an_existing_buffer_are_copied():
    buffer = Buffer(60, (2,))
    for t in range(90):
        buffer.add([t, -t], action=t % 2, reward=10.0 if t % 10 == 0 else 1.0, done=t % 30 == 29)
    configuration = ImportanceSamplingTrainingConfiguration(**SHORT)
    agent = RunningMeans()
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
    with pytest.raises(ConfigError, match="2 worlds and 1 frames cannot be copied"):
        integrate_importance_sampling_with_training(agent, Buffer(10, (2,), worlds=2))


# -- checkpoints ----------------------------------------------------------------------------------------------


def states(trainer):
    training = trainer.training
    parts = {"buffer": training.memory.state(), "sampler": training.memory.sampler.state()}
    parts["agent"] = training.agent.state()
    return {f"{part}.{name}": np.asarray(value) for part, state in parts.items() for name, value in state.items()}


@pytest.mark.parametrize("options", [{}, {"priorities": True, "learned_weights": True}])
def test_resumed_training_equals_uninterrupted_training(tmp_path, options):
    options = {**SHORT, **options, "checkpoint_every": 5}
    whole = create_importance_sampling_trainer("whole", **options)
    whole.train(external_agent(), Street())
    first = create_importance_sampling_trainer("whole", folder=tmp_path, **options)
    first.train(external_agent(), Street(), episodes=7)
    second = create_importance_sampling_trainer("whole", folder=tmp_path, **options)
    second.resume(external_agent(), Street())
    expected, resumed = states(whole), states(second)
    assert set(expected) == set(resumed)
    assert [name for name in expected if expected[name].tobytes() != resumed[name].tobytes()] == []
    assert second.summary() == whole.summary()
    files = sorted(path.suffix for path in (tmp_path / "checkpoints").iterdir())
    assert set(files) == {".json", ".safetensors"}


def test_damaged_or_unfitting_checkpoint_is_refused(tmp_path):
    trainer = create_importance_sampling_trainer("x", folder=tmp_path, **SHORT)
    trainer.train(external_agent(), Street(), episodes=4)
    with pytest.raises(CheckpointError, match="another crisis_parent_weight"):
        create_importance_sampling_trainer("x", 9.0, folder=tmp_path, **SHORT).resume(external_agent(), Street())
    with pytest.raises(CheckpointError, match="RunningMeans has no load_state"):
        create_importance_sampling_trainer("x", folder=tmp_path, **SHORT).resume(RunningMeans(), Street())
    (path,) = (tmp_path / "checkpoints").glob("*.safetensors")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged") as caught:
        create_importance_sampling_trainer("x", folder=tmp_path, **SHORT).resume(external_agent(), Street())
    assert not isinstance(caught.value, CorruptCheckpoint)  # it names all that were tried
    with pytest.raises(ContractError, match="nothing to resume"):
        create_importance_sampling_trainer("x", **SHORT).resume(external_agent(), Street())


def test_an_error_in_load_state_of_an_agent_does_not_cost_the_newest_checkpoint(tmp_path):
    class Renamed(RunningMeans):
        def state(self):
            return {"sums": self.sums}

        def load_state(self, state):
            raise KeyError("totals")

    options = {**SHORT, "checkpoint_every": 2}
    create_importance_sampling_trainer("x", folder=tmp_path, **options).train(Renamed(), Street(), episodes=6)
    with pytest.raises(CheckpointError, match="Renamed did not take its state: KeyError: 'totals'") as caught:
        create_importance_sampling_trainer("x", folder=tmp_path, **options).resume(Renamed(), Street())
    assert not isinstance(caught.value, CorruptCheckpoint)
    assert Store(tmp_path).newest_good()[0].epoch == 6


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
def test_invalid_options_are_refused_before_training(options, message):
    with pytest.raises(ConfigError, match=message):
        create_importance_sampling_trainer("x", **{**SHORT, **options})


def test_defaults_are_the_documented_ones():
    config = create_importance_sampling_trainer("x").configuration
    assert config.enable_importance_sampling
    assert (config.crisis_parent_weight, config.importance_sampling_alpha, config.importance_sampling_beta) == (
        5.0,
        0.6,
        0.4,
    )
    assert config.crisis_indicators == ("crisis", "urgent", "emergency")
    assert (config.value_threshold_percentile, config.min_crisis_parent_ratio) == (90.0, 0.05)
    assert (config.replay_buffer_capacity, config.simulation_episodes) == (50_000, 1000)
    stored = plain(config)  # as JSON gives it back
    assert build_section(ImportanceSamplingTrainingConfiguration, stored, "importance_sampling") == config


HOSTILE = {
    "a buffer of NaN": ("buffer.rewards", lambda own: own * np.float32(np.nan), "NaN or infinity in rewards"),
    "a missing column": ("buffer.rewards", None, "other columns"),
    "weights of NaN": ("agent.online", lambda own: own * np.float32(np.nan), "NaN or infinity in online"),
    "weights that are missing": ("agent.online", None, "the state of a learner has"),
    "steps without end": ("agent.steps", lambda own: own * 0 - 5, "steps holds -5.0"),
    "endless priorities": ("buffer.index.largest", lambda own: own * 0 + np.inf, "stored largest"),
    "a spread of nothing": ("sampler.spread.mass", lambda own: own * 0, "they have no mass"),
    "values of NaN": ("judge.values", lambda own: own * np.nan, "finite numbers"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_checkpoint_before_is_used_if_an_array_cannot_be_right(tmp_path, name):
    array, change, trouble = HOSTILE[name]

    def changed(arrays, values):
        own = arrays.pop(array)
        return (arrays if change is None else arrays | {array: change(own)}), values

    passed_over(tmp_path, changed, trouble)


@pytest.mark.parametrize(
    ("key", "value", "trouble"),
    [
        ("judged", -1, "of -1 judgements"),
        ("history", [], "a history of 0 lines"),
        ("history", [{}] * 6, "KeyError: 'updates'"),
        ("configuration", None, "AttributeError"),
        ("right", "many", "ValueError"),
    ],
)
def test_the_checkpoint_before_is_used_if_a_value_cannot_be_right(tmp_path, key, value, trouble):
    passed_over(tmp_path, lambda arrays, values: (arrays, values | {key: value}), trouble)


def passed_over(folder, change, trouble):
    """Rewrite the newest of three checkpoints with the right hashes: the result is that of the one before."""
    options = {**SHORT, "simulation_episodes": 6, "checkpoint_every": 2, "priorities": True, "learned_weights": True}
    create_importance_sampling_trainer("x", folder=folder, **options).train(external_agent(), Street())
    store = Store(folder)
    manifest, _ = store.newest_good()
    name = f"state-{manifest.epoch:06d}.safetensors"
    arrays, values = change(store.read(manifest, name), dict(manifest.values))
    store.commit(Manifest(manifest.epoch, {name: store.write(name, arrays)}, values))
    whole, agent = external_agent(), external_agent()
    create_importance_sampling_trainer("x", **options).train(whole, Street())
    with pytest.warns(UserWarning, match=f"resumed from step 4: step 6: .*{re.escape(trouble)}"):
        create_importance_sampling_trainer("x", folder=folder, **options).resume(agent, Street())
    assert all(own.tobytes() == agent.state()[key].tobytes() for key, own in whole.state().items())
