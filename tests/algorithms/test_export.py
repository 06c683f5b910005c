"""One agent's weights as a file: written, read, and refused where they do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load, save

from parallel_agents.algorithms import DQN, IQN, PPO, Model, model_from_config
from parallel_agents.algorithms.export import FORMAT
from parallel_agents.core.errors import CheckpointError, ConfigError, CorruptCheckpoint, NonFiniteError, RunError
from parallel_agents.engine.stacks import Stack
from parallel_agents.nn import SquashedGaussian

MODELS: dict[str, tuple[type[Model], tuple[Any, ...], dict[str, Any]]] = {
    "dqn": (DQN, ((3,), 2), {"hidden": (8, 5)}),
    "dueling, one action": (DQN, ((1,), 1), {"hidden": (4,), "dueling": True}),
    "iqn": (IQN, ((3,), 2), {"layer": 6, "n_frames": 1}),
    "ppo": (PPO, ((3,), 2), {"hidden": (8,)}),
    "ppo continuous": (PPO, ((3,), SquashedGaussian((-1.0,), (1.0,))), {"hidden": (8,)}),
}


def make_model(name: str, agent: int = 0) -> Model:
    cls, shape, options = MODELS[name]
    model = cls(*shape, **options)
    model.place(seed=0, agent=agent, worlds=1)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_a_fresh_learner_starts_from_the_weights_of_a_file(name: str, tmp_path: Path) -> None:
    saved, loaded = make_model(name, agent=0), make_model(name, agent=1)
    saved.save_weights(tmp_path / "w.safetensors")
    assert not torch.equal(saved.state["online"], loaded.state["online"])
    loaded.load_weights(tmp_path / "w.safetensors")
    for tensor in ("online", *(["target"] if "target" in saved.state.tensors else [])):
        assert torch.equal(saved.state[tensor], loaded.state[tensor])
    assert not loaded.state["first"].any()
    assert int(loaded.state["updates"][0]) == 0


def test_moments_of_the_observations_are_stored_with_the_weights(tmp_path: Path) -> None:
    def normalizing() -> Model:
        return DQN((3,), 2, hidden=(8,), learning_starts=2, normalize_observations=True)

    saved, loaded = normalizing(), normalizing()
    for t in range(5):
        saved.memory.add([100.0 + t, t, 1.0], action=0, reward=1.0, done=t == 4)
    saved.train_step()
    saved.save_weights(tmp_path / "w")
    loaded.load_weights(tmp_path / "w")
    assert saved.state["norm.centre"].any()
    for name in ("norm.centre", "norm.scale", "norm.count", "norm.mean", "norm.square"):
        assert torch.equal(saved.state[name], loaded.state[name]), name
    with pytest.raises(CheckpointError, match=r"differ in norm\.centre.*its normalization too"):
        DQN((3,), 2, hidden=(8,)).load_weights(tmp_path / "w")


def test_weights_loaded_in_setup_stay_when_the_model_is_placed(tmp_path: Path) -> None:
    saved = make_model("dqn", agent=3)
    saved.save_weights(str(tmp_path / "w"))
    loaded = DQN((3,), 2, hidden=(8, 5))
    loaded.load_weights(str(tmp_path / "w"))
    loaded.place(seed=9, agent=9, worlds=1)
    assert torch.equal(saved.state["online"], loaded.state["online"])


def test_a_model_section_may_name_a_weight_file(tmp_path: Path) -> None:
    saved, path = make_model("ppo"), str(tmp_path / "w")
    saved.save_weights(path)
    section = {"algorithm": "ppo", "hidden": (8,), "weights": path}
    assert torch.equal(model_from_config(section, (3,), 2).state["online"], saved.state["online"])
    with pytest.raises(ConfigError, match=r"model\.weights is 3: give the path of a file"):
        model_from_config({**section, "weights": 3}, (3,), 2)
    with pytest.raises(ConfigError, match="for a learner that has weights"):
        model_from_config({"algorithm": "random", "weights": path}, (3,), 2)


def test_loading_into_a_model_of_a_run_is_refused(tmp_path: Path) -> None:
    model = make_model("dqn")
    model.save_weights(tmp_path / "w")
    Stack([model], together=True)
    with pytest.raises(RunError, match=r"part of a run already.*setup_agents"):
        model.load_weights(tmp_path / "w")


@pytest.mark.parametrize(
    "other",
    [
        DQN((4,), 2, hidden=(8, 5)),
        DQN((3,), 4, hidden=(8, 5)),
        DQN((3,), 2, hidden=(5, 8)),
        DQN((3,), 2, hidden=(8, 5), dueling=True),
        PPO((3,), 2, hidden=(8, 5)),
        DQN((3,), 2, hidden=(2,)),
    ],
    ids=lambda model: str(model.spec.network)[:60],
)
def test_weights_of_another_network_are_refused_and_nothing_changes(other: Model, tmp_path: Path) -> None:
    make_model("dqn").save_weights(tmp_path / "w")
    before = other.state["online"].clone()
    with pytest.raises(CheckpointError, match=r"holds weights of MLP\(inputs=3, hidden=\(8, 5\).*this agent has"):
        other.load_weights(tmp_path / "w")
    assert torch.equal(other.state["online"], before)


def rewrite(path: Path, **arrays: Any) -> None:
    network = make_model("dqn").spec.network
    path.write_bytes(save({**load(path.read_bytes()), **arrays}, metadata={"format": FORMAT, "network": repr(network)}))


def test_damaged_or_foreign_files_are_refused(tmp_path: Path) -> None:
    path, model = tmp_path / "w", make_model("dqn")
    with pytest.raises(CheckpointError, match="cannot read"):
        model.load_weights(path)
    path.write_bytes(b"\x80\x04not safetensors at all")
    with pytest.raises(CorruptCheckpoint, match="is not a whole safetensors file"):
        model.load_weights(path)
    model.save_weights(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])
    with pytest.raises(CorruptCheckpoint, match="is not a whole safetensors file"):
        model.load_weights(path)
    path.write_bytes(whole + bytes(2**21))
    with pytest.raises(CheckpointError, match=r"bytes, the weights of MLP.*at most"):
        model.load_weights(path)
    path.write_bytes(save({"weight0": np.zeros((8, 3), np.float32)}))
    with pytest.raises(CheckpointError, match=r"says format None.*parallel-agents export"):
        model.load_weights(path)


def test_arrays_of_a_file_are_checked(tmp_path: Path) -> None:
    path, model = tmp_path / "w", make_model("dqn")
    model.save_weights(path)
    bias = load(path.read_bytes())["bias0"]
    rewrite(path, bias0=np.full_like(bias, np.nan))
    with pytest.raises(NonFiniteError, match="bias0 holds NaN"):
        model.load_weights(path)
    rewrite(path, bias0=bias.astype(np.float64))
    with pytest.raises(CorruptCheckpoint, match="bias0 is float64"):
        model.load_weights(path)
    rewrite(path, bias0=bias, bias9=bias)
    with pytest.raises(CheckpointError, match="differ in bias9"):
        model.load_weights(path)


def test_a_file_that_cannot_be_written_raises(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot write"):
        make_model("dqn").save_weights(tmp_path / "nowhere" / "w")
