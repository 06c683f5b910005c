"""One agent's weights as a file: written, read, and refused where they do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load, save

from parallel_agents.errors import CheckpointError, ConfigError, CorruptCheckpoint, NonFiniteError, RunError
from parallel_agents.models import DQN, IQN, PPO, Model, Stack, model_from_config
from parallel_agents.models.weights import FORMAT
from parallel_agents.networks import SquashedGaussian

MODELS: dict[str, tuple[type[Model], tuple[Any, ...], dict[str, Any]]] = {
    "dqn": (DQN, ((3,), 2), {"hidden": (8, 5)}),
    "dueling, one action": (DQN, ((1,), 1), {"hidden": (4,), "dueling": True}),
    "iqn": (IQN, ((3,), 2), {"layer": 6, "n_frames": 1}),
    "ppo": (PPO, ((3,), 2), {"hidden": (8,)}),
    "ppo continuous": (PPO, ((3,), SquashedGaussian((-1.0,), (1.0,))), {"hidden": (8,)}),
}


def made(name: str, agent: int = 0) -> Model:
    cls, shape, options = MODELS[name]
    model = cls(*shape, **options)
    model.place(seed=0, agent=agent, worlds=1)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_weights_come_back_and_a_fresh_learner_starts_from_them(name: str, tmp_path: Path) -> None:
    one, other = made(name, agent=0), made(name, agent=1)
    one.save_weights(tmp_path / "w.safetensors")
    assert not torch.equal(one.state["online"], other.state["online"])
    other.load_weights(tmp_path / "w.safetensors")
    for tensor in ("online", *(["target"] if "target" in one.state.tensors else [])):
        assert torch.equal(one.state[tensor], other.state[tensor])
    assert not other.state["first"].any()
    assert int(other.state["updates"][0]) == 0


def test_an_agents_units_go_with_its_weights(tmp_path: Path) -> None:
    def normalising() -> Model:
        return DQN((3,), 2, hidden=(8,), learning_starts=2, normalise_observations=True)

    one, other = normalising(), normalising()
    for t in range(5):
        one.memory.add([100.0 + t, t, 1.0], action=0, reward=1.0, done=t == 4)
    one.train_step()
    one.save_weights(tmp_path / "w")
    other.load_weights(tmp_path / "w")
    assert one.state["norm.centre"].any()
    for name in ("norm.centre", "norm.scale", "norm.count", "norm.mean", "norm.square"):
        assert torch.equal(one.state[name], other.state[name]), name
    with pytest.raises(CheckpointError, match=r"differ in norm\.centre.*its normalisation too"):
        DQN((3,), 2, hidden=(8,)).load_weights(tmp_path / "w")


def test_loaded_in_setup_they_stay_when_the_agent_is_placed(tmp_path: Path) -> None:
    one = made("dqn", agent=3)
    one.save_weights(str(tmp_path / "w"))
    other = DQN((3,), 2, hidden=(8, 5))
    other.load_weights(str(tmp_path / "w"))
    other.place(seed=9, agent=9, worlds=1)
    assert torch.equal(one.state["online"], other.state["online"])


def test_a_model_section_may_name_them(tmp_path: Path) -> None:
    one, path = made("ppo"), str(tmp_path / "w")
    one.save_weights(path)
    section = {"algorithm": "ppo", "hidden": (8,), "weights": path}
    assert torch.equal(model_from_config(section, (3,), 2).state["online"], one.state["online"])
    with pytest.raises(ConfigError, match=r"model\.weights is 3: give the path of a file"):
        model_from_config({**section, "weights": 3}, (3,), 2)
    with pytest.raises(ConfigError, match="for a learner that has weights"):
        model_from_config({"algorithm": "random", "weights": path}, (3,), 2)


def test_in_a_run_it_is_too_late(tmp_path: Path) -> None:
    model = made("dqn")
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
    ids=lambda model: str(model.blueprint.network)[:60],
)
def test_weights_of_another_network_are_refused_and_nothing_changes(other: Model, tmp_path: Path) -> None:
    made("dqn").save_weights(tmp_path / "w")
    before = other.state["online"].clone()
    with pytest.raises(CheckpointError, match=r"holds weights of MLP\(inputs=3, hidden=\(8, 5\).*this agent has"):
        other.load_weights(tmp_path / "w")
    assert torch.equal(other.state["online"], before)


def changed(path: Path, **arrays: Any) -> None:
    network = made("dqn").blueprint.network
    found = {**load(path.read_bytes()), **arrays}
    path.write_bytes(save(found, metadata={"format": FORMAT, "network": repr(network)}))


def test_damaged_or_foreign_files_are_refused(tmp_path: Path) -> None:
    path, model = tmp_path / "w", made("dqn")
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


def test_what_is_inside_is_checked(tmp_path: Path) -> None:
    path, model = tmp_path / "w", made("dqn")
    model.save_weights(path)
    bias = load(path.read_bytes())["bias0"]
    changed(path, bias0=np.full_like(bias, np.nan))
    with pytest.raises(NonFiniteError, match="bias0 holds NaN"):
        model.load_weights(path)
    changed(path, bias0=bias.astype(np.float64))
    with pytest.raises(CorruptCheckpoint, match="bias0 is float64"):
        model.load_weights(path)
    changed(path, bias0=bias, bias9=bias)
    with pytest.raises(CheckpointError, match="differ in bias9"):
        model.load_weights(path)


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot write"):
        made("dqn").save_weights(tmp_path / "nowhere" / "w")
